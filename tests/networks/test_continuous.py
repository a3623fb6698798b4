"""Mixtures with a continuous prior: components of new noise, trained by every cost."""

import pytest
import torch

from internals import (
    ContinuousMixtureNetwork,
    FitSettings,
    Objective,
    Split,
    UniformPrior,
    build_model,
    build_trainer,
    toy,
    widened,
)
from kermix import GaussianMixture, MatrixLoss, ScalarLoss, SVDLoss, VectorLoss
from kermix.errors import OptionError

LOSSES = {"svd": SVDLoss, "scalar": ScalarLoss, "vector": VectorLoss, "matrix": MatrixLoss}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(n=300, seed=0):
    return toy("mixture10").sample(n, seeded(seed)).double()


def settings(**options):
    chosen = {"model": "continuous", "steps": 4, "components": 24, "batch_size": 20}
    return FitSettings(**(chosen | options))


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
def test_each_noise_vector_is_a_component(kind):
    network = ContinuousMixtureNetwork(3, UniformPrior(4), kind, 16, generator=seeded()).eval()
    noise = torch.rand(7, 4, generator=seeded(1))
    mixture = network(noise)
    assert mixture.means.shape == (7, 3)
    assert mixture.covariances.shape == ((7,) if kind == "isotropic" else (7, 3))
    # A component depends on its own noise alone, but for the sum of the weights.
    few = network(noise[:3])
    assert torch.allclose(few.means, mixture.means[:3])
    assert torch.allclose(few.covariances, mixture.covariances[:3])
    ratios = mixture.weights[:3] / few.weights
    assert torch.allclose(ratios, ratios[0].expand(3), rtol=1e-5)


def test_noise_is_drawn_anew():
    network = ContinuousMixtureNetwork(2, UniformPrior(4), width=8, generator=seeded()).eval()
    generator = seeded(1)
    one, two = network.draw(5, generator), network.draw(5, generator)
    assert not torch.equal(one.means, two.means)


@pytest.mark.parametrize("cost", list(LOSSES))
def test_the_loss_is_that_of_the_smoothed_mixture(cost):
    """The mean over variances of the cost between data and components with v(c) + v d."""
    chosen = settings(cost=cost, variance_factors=(1.0, 10.0))
    model, variances = build_model(rows(), chosen)
    objective = Objective(model, chosen.for_data(300), variances)
    x = model.scaler.scaled(rows(20, 1))
    found = objective(x, 2, seeded(5))
    mixture = model.network(model.prior.sample(24, seeded(5)))
    expected = [
        LOSSES[cost](v)(
            x,
            GaussianMixture(mixture.weights, mixture.means, mixture.covariances + 2 * v),
        )
        for v in variances.at(0.5)
    ]
    assert torch.allclose(found, torch.stack(expected).mean(), rtol=1e-4)
    found.backward()
    last = model.network.layers[-1]
    assert last.weight.grad.abs().amax(1).gt(0).all()  # centre, weight and variance


def test_widening_is_a_convolution():
    q = GaussianMixture(
        torch.tensor([0.3, 0.7]).double(), torch.tensor([[0.0], [1.0]]).double(),
        torch.tensor([0.1, 0.4]).double(),
    )  # fmt: skip
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None]
    cell = float(grid[1] - grid[0])
    kernel = GaussianMixture(*(t.double() for t in (torch.ones(1), torch.zeros(1, 1),
                                                   torch.full((1,), 0.5))))  # fmt: skip
    at = torch.tensor([[0.2], [1.5]]).double()
    density = q.log_prob(grid).exp()
    smoothed = [float((density * kernel.log_prob(a - grid).exp()).sum()) * cell for a in at]
    assert torch.allclose(
        widened(q, 0.5).log_prob(at).exp(), torch.tensor(smoothed, dtype=torch.float64)
    )


def test_training_finds_modes_weights_and_widths():
    trainer = build_trainer(
        Split(rows(1000), rows(200, 1)),
        settings(steps=40, components=48, batch_size=48, learning_rate=0.005, cost="scalar"),
        device="cpu",
    )
    before = float(-trainer.model.log_prob(rows(300, 2)).mean())
    trainer.run()
    after = float(-trainer.model.log_prob(rows(300, 2)).mean())
    assert after < before - 0.3


def test_samples_follow_the_density():
    model, _ = build_model(rows(), settings())
    samples = model.sample(5000, seeded(3))
    assert samples.shape == (5000, 2)
    mixture = model.mixture(seeded(4))
    error = mixture.variance.sqrt() / 5000**0.5
    assert bool(((samples.mean(0) - mixture.mean).abs() < 6 * error + 0.02).all())
    assert not samples[:2000].equal(samples[2000:4000])


def test_what_needs_a_fixed_table_is_refused():
    with pytest.raises(OptionError, match="refine_steps"):
        settings(refine_steps=5)
    with pytest.raises(OptionError, match="likelihood"):
        settings(cost="likelihood")


@pytest.mark.parametrize("cost", ["mmd", "energy"])
def test_baselines_train_it_by_points(cost):
    trainer = build_trainer(Split(rows(), rows(100, 1)), settings(cost=cost), device="cpu")
    before = trainer.model.network.layers[-1].weight.clone()
    trainer.run()
    assert not before.equal(trainer.model.network.layers[-1].weight)
