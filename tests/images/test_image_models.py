from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import nn

from internals import (
    SPACES,
    Autoencoder,
    ConvDecoder,
    Pooled,
    RandomFeatures,
    cached_backward,
    class_balance,
    doublings_of,
    evaluating,
    frechet_distance,
    make_space,
    neighbor_scores,
    neighbourhoods,
    parzen,
    sample_loss,
    sheet,
    stacked_modes,
)
from internals import image_quality_nearest as nearest
from internals import sample_distances_module as distances
from kermix.errors import OptionError, SampleError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (32, 3), (64, 3), (17, 2)])
def test_autoencoder_keeps_the_shape(side, channels):
    model = Autoencoder((channels, side, side), 5, 8, generator=seeded())
    images = torch.rand(3, channels, side, side, generator=seeded())
    codes = model.encode(images)
    again = model.decode(codes)
    assert codes.shape == (3, 5)
    assert again.shape == images.shape
    assert again.min() >= 0
    assert again.max() <= 1
    torch.testing.assert_close(codes.mean(0), torch.zeros(5), atol=1e-5, rtol=0)


def test_channels_are_coded_by_themselves():
    model = Autoencoder((3, 16, 16), 6, 8, by_channel=True, generator=seeded()).eval()
    images = torch.rand(4, 3, 16, 16, generator=seeded())
    codes = model.encode(images)
    other = images.clone()
    other[:, 1] = 0.5
    changed = (model.encode(other) != codes).any(0)
    assert changed.tolist() == [False, False, True, True, False, False]
    decoded = model.decode(codes)
    moved = model.decode(codes + torch.tensor([0, 0, 0, 0, 1.0, 1.0]))
    assert torch.equal(decoded[:, :2], moved[:, :2])
    assert not torch.equal(decoded[:, 2], moved[:, 2])


def test_autoencoder_refuses_what_it_cannot_do():
    with pytest.raises(OptionError, match="square images"):
        Autoencoder((1, 8, 16), generator=seeded())
    with pytest.raises(OptionError, match="code=5"):
        Autoencoder((3, 16, 16), 5, by_channel=True, generator=seeded())
    with pytest.raises(OptionError, match="at least 8 x 8"):
        ConvDecoder(4, 6, doublings=3, generator=seeded())


def test_doublings():
    assert [doublings_of(side) for side in (8, 28, 32, 33, 64, 128)] == [2, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("name", SPACES)
def test_spaces_are_differentiable_vectors(name):
    images = torch.rand(12, 2, 16, 16, generator=seeded())
    coder = Autoencoder((2, 16, 16), 4, 8, generator=seeded()).eval()
    space = make_space(name, images, coder, seeded())
    images.requires_grad_()
    vectors = space(images)
    assert vectors.shape[0] == 12
    assert vectors.ndim == 2
    vectors.square().sum().backward()
    assert torch.isfinite(images.grad).all()
    assert (images.grad != 0).any()


def test_spaces_mean_what_they_say():
    images = torch.rand(6, 1, 8, 8, generator=seeded())
    torch.testing.assert_close(Pooled(1)(images), images.flatten(1))
    coarse = images.reshape(6, 2, 4, 2, 4).mean((2, 4)).flatten(1)
    torch.testing.assert_close(Pooled(4)(images), coarse)
    first = RandomFeatures(images, 4, generator=seeded())(images)
    torch.testing.assert_close(first, RandomFeatures(images, 4, generator=seeded())(images))
    with pytest.raises(OptionError, match="autoencoder"):
        make_space("codes", images, None, seeded())
    with pytest.raises(OptionError, match="not supported"):
        make_space("fourier", images, None, seeded())


def network_and_noise(norm=False):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Tanh(), nn.Linear(8, 2)]
    return nn.Sequential(*layers).double(), torch.randn(21, 3, generator=seeded()).double()


@pytest.mark.parametrize("cost", ["svd", "scalar", "vector", "matrix", "mmd", "energy"])
def test_cached_gradient_is_the_direct_one(cost):
    network, noise = network_and_noise()
    data = torch.randn(30, 2, generator=seeded(1)).double()

    def loss(points):
        return sample_loss(cost, data, points, [0.3, 3.0])

    direct = torch.autograd.grad(loss(network(noise)), list(network.parameters()))
    for chunk in (4, 21, 100):
        network.zero_grad()
        value = cached_backward(network, noise, loss, chunk)
        torch.testing.assert_close(value, loss(network(noise)).detach())
        for parameter, gradient in zip(network.parameters(), direct, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)


def test_cached_gradient_updates_running_means_once():
    network, noise = network_and_noise(norm=True)
    cached_backward(network, noise, lambda y: y.square().mean(), 7)
    assert int(network[1].num_batches_tracked) == 3
    other, _ = network_and_noise(norm=True)
    for part in noise.split(7):
        other(part)
    torch.testing.assert_close(network[1].running_mean, other[1].running_mean)
    with pytest.raises(OptionError, match="images_at_once=0"):
        cached_backward(network, noise, lambda y: y.mean(), 0)


def test_evaluating_puts_every_part_back_even_after_an_error():
    pair = nn.Sequential(nn.Dropout(), nn.Dropout().eval())

    def fail():
        with evaluating(pair):
            raise RuntimeError("training" if pair[0].training else "evaluating")

    with pytest.raises(RuntimeError, match="evaluating"):
        fail()
    assert pair[0].training
    assert not pair[1].training


def test_balance_of_classes():
    found = class_balance(torch.tensor([0, 0, 0, 1]), 4, torch.tensor([3.0, 1, 0.5, 0.5]))
    p = np.array([0.75, 0.25])
    assert found.modes == 2
    assert found.kl == pytest.approx(np.sum(p * np.log(p * 4)))
    assert found.kl_expected == pytest.approx(np.sum(p * np.log(p / np.array([0.6, 0.2]))))
    with pytest.raises(SampleError, match="empty"):
        class_balance(torch.zeros(0, dtype=torch.long), 3)


class Brightness(nn.Module):
    """A classifier of constant images: the digit is ten times the value."""

    def forward(self, images):
        value = (images.mean((1, 2, 3)) * 10).round()
        return -(value[:, None] - torch.arange(10.0)).abs()


def test_modes_of_stacked_digits():
    digits = torch.tensor([[1, 2, 3], [1, 2, 3], [9, 0, 0]])
    images = (digits / 10)[:, :, None, None].expand(-1, -1, 4, 4)
    found = stacked_modes(Brightness(), images, torch.ones(10))
    assert (found.modes, found.total) == (2, 1000)
    expected = 2 / 3 * np.log(2 / 3 * 1000) + 1 / 3 * np.log(1 / 3 * 1000)
    assert found.kl == pytest.approx(expected)
    assert found.kl_expected == pytest.approx(expected)


def test_neighbourhoods_against_a_plain_loop():
    real = torch.randn(40, 3, generator=seeded())
    made = torch.randn(30, 3, generator=seeded(1)) * 0.7
    k = 4
    between = torch.cdist(made, real)
    reach = torch.cdist(real, real).sort().values[:, k]
    own = torch.cdist(made, made).sort().values[:, k]
    found = neighbourhoods(real, made, k)
    assert found.precision == pytest.approx(float((between <= reach).any(1).float().mean()))
    assert found.density == pytest.approx(float((between <= reach).sum(1).float().mean() / k))
    assert found.coverage == pytest.approx(float((between <= reach).any(0).float().mean()))
    assert found.recall == pytest.approx(float((between <= own[:, None]).any(0).float().mean()))
    shared = neighbor_scores(real, made, k)
    assert astuple(found) == shared[:4], "the definition is that of km.evaluate"
    with pytest.raises(OptionError, match="neighbors=30"):
        neighbourhoods(real, made, 30)


def test_frechet_distance_of_gaussians():
    x = torch.randn(4000, 2, generator=seeded()).double()
    y = torch.randn(4000, 2, generator=seeded(1)).double() * torch.tensor([3.0, 1.0]) + 2
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(x, y) == pytest.approx(8 + 4, rel=0.05)
    assert frechet_distance is distances.frechet_distance, "there is one"


def test_nearest_and_parzen():
    images = torch.rand(20, 1, 4, 4, generator=seeded())
    rows, apart = nearest(images[[3, 7]] + 0.01, images)
    assert rows.tolist() == [3, 7]
    torch.testing.assert_close(apart, torch.full((2,), 0.01), rtol=1e-3, atol=0)
    flat = images.flatten(1)
    value, deviation = parzen(flat[:1], flat[1:3], flat[3:5], (0.2, 5.0))
    normal = torch.distributions.Normal(flat[0], deviation)
    assert value == pytest.approx(float(normal.log_prob(flat[3:5]).sum(1).mean()), rel=1e-5)
    assert deviation == 0.2


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sheet(channels):
    shown = sheet(torch.ones(5, channels, 4, 4) * 0.5, across=2)
    assert shown.shape == (14, 9, 3)
    assert shown[0, 0].tolist() == [128, 128, 0 if channels == 2 else 128]
