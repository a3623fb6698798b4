"""Sums of products of mixtures: their density, their samples, expectation-maximization."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from internals import FitSettings, ImageTask, ProductMixture, Trainer, product_em_pass
from kermix import GaussianMixture
from kermix.errors import OptionError, ShapeError

PARTS, DIMENSION, COMPONENTS, GROUPS = 2, 2, 3, 2


def model_of(batch=(), seed=0, spread=4.0):
    generator = torch.Generator().manual_seed(seed)
    model = ProductMixture(PARTS, DIMENSION, COMPONENTS, GROUPS, batch, generator=generator)
    with torch.no_grad():
        model.part_logits.mul_(spread)
        model.logits.normal_(generator=generator)
        model.log_variances.normal_(-2, 0.5, generator=generator)
    return model


def all_components(model):
    """The same density as one mixture of whole vectors."""
    weights, means, variances = [], [], []
    for group, share in enumerate(model.logits.softmax(0)):
        for i in range(COMPONENTS):
            for j in range(COMPONENTS):
                w = model.part_logits.softmax(-1)[:, group]
                weights.append(share * w[0, i] * w[1, j])
                means.append(torch.cat([model.means[0, i], model.means[1, j]]))
                variances.append(torch.cat([model.variances[0, i], model.variances[1, j]]))
    return GaussianMixture(torch.stack(weights), torch.stack(means), torch.stack(variances))


def test_the_density_is_that_of_all_combinations():
    model = model_of()
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    assert_close(model.log_prob(z), all_components(model).log_prob(z))
    both = model_of((2,))
    assert_close(both.log_prob(z)[1], _item(both, 1).log_prob(z))
    with pytest.raises(ShapeError, match="2 parts of 2"):
        model.log_prob(z[:, :3])


def _item(model, index):
    one = model_of()
    one.load_state_dict({name: t[index] for name, t in model.state_dict().items()})
    return one


def test_samples_have_the_moments_of_the_density():
    model, generator = model_of((2,)), torch.Generator().manual_seed(2)
    drawn = model.draw(40_000, generator).points.detach()
    for index in range(2):
        mixture = all_components(_item(model, index))
        mean = mixture.weights @ mixture.means
        second = (mixture.weights[:, None, None] * (
            mixture.means[:, :, None] * mixture.means[:, None] + mixture.covariances.diag_embed()
        )).sum(0)  # fmt: skip
        assert_close(drawn[index].mean(0), mean, atol=0.04, rtol=0)
        assert_close(drawn[index].T @ drawn[index] / 40_000, second, atol=0.08, rtol=0)
    # Rows belong to the batch item that was asked for.
    items = torch.tensor([1, 0]).repeat(20_000)
    assert_close(model.points(items, generator)[::2].mean(0), drawn[1].mean(0), atol=0.05, rtol=0)


def test_centres_and_variances_have_gradients():
    model = model_of()
    model.draw(64, torch.Generator().manual_seed(0)).points.square().sum().backward()
    assert model.means.grad.abs().sum() > 0
    assert model.log_variances.grad.abs().sum() > 0


def test_every_pass_raises_the_likelihood_and_returns_it():
    generator = torch.Generator().manual_seed(3)
    true, model = model_of((2,), spread=8.0), model_of((2,), seed=5, spread=1.0)
    data = [z[:n] for z, n in zip(true.draw(1500, generator).points.detach(), (1500, 900),
                                  strict=True)]  # fmt: skip
    with torch.no_grad():
        for item in range(2):
            starts = data[item][:COMPONENTS].unflatten(1, (PARTS, DIMENSION))
            model.means[item] = starts.movedim(1, 0)

    @torch.no_grad()
    def mean():
        found = [-_item(model, i).log_prob(z).sum() for i, z in enumerate(data)]
        return float(sum(found)) / 2400

    before = mean()
    for _ in range(10):
        assert float(product_em_pass(model, data)) == pytest.approx(before, abs=1e-3)
        after = mean()
        assert after < before + 1e-4
        before = after
    with pytest.raises(ShapeError, match="the numbers must match"):
        product_em_pass(model, data[:1])


def test_a_component_without_points_stays_and_nothing_becomes_nan():
    model = model_of()
    with torch.no_grad():
        model.means[:, 0] = 1e3
    z = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        product_em_pass(model, [z], floor=0.01)
    assert all(p.isfinite().all() for p in model.parameters())
    assert (model.means[:, 0] == 1e3).all()
    assert (model.variances >= 0.0099).all()


def test_bad_sizes_are_refused():
    with pytest.raises(OptionError, match="groups=0"):
        ProductMixture(2, 2, 3, 0, generator=torch.Generator())


SMALL = FitSettings(
    model="code-mixture", code=4, by_channel=True, groups=3, components=6, width=8,
    encoder_steps=4, encoder_batch=16, steps=3, refine_steps=3, batch_size=24,
)  # fmt: skip


def test_a_fit_of_channels_is_resumed_exactly(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 2, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 2

    def trainer():
        return Trainer(ImageTask(images, labels, 2, SMALL), device="cpu")

    whole = trainer()
    assert isinstance(whole.model.network, ProductMixture)
    assert whole.model.is_mixture
    whole.run()
    stopped = trainer()
    assert not stopped.run(folder=tmp_path, should_stop=lambda: stopped.step == 8)
    resumed = trainer()
    resumed.load(tmp_path / "last.safetensors")
    resumed.run()
    expected = whole.model.state_dict()
    assert all(t.equal(expected[name]) for name, t in resumed.model.state_dict().items())
    drawn = whole.model.sample(10, torch.Generator().manual_seed(0))
    assert drawn.images.shape == (10, 2, 8, 8)
    assert not FitSettings(model="codes", by_channel=True, code=4, groups=3).multiplies
    assert not replace(SMALL, groups=0).multiplies


def test_the_components_of_a_part_begin_at_codes_of_that_part():
    images = np.random.default_rng(0).integers(0, 256, (60, 2, 8, 8), dtype=np.uint8)
    trainer = Trainer(ImageTask(images, np.arange(60) % 2, 2, SMALL), device="cpu")
    trainer.run(should_stop=lambda: trainer.step == SMALL.encoder_steps)
    trainer.task.batch(trainer.step)  # of the first step with the cost
    codes = trainer.task._codes.unflatten(1, (2, -1))
    for label in range(2):
        for part in range(2):
            own = codes[label::2, part]  # the labels alternate
            begin = trainer.model.network.means[label, part].detach()
            apart = (begin.unsqueeze(1) - own).abs().amax(-1)  # (components, codes)
            assert apart.amin(1).max() < 1e-5
