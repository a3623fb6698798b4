"""Priors, generators and mixture networks: shapes, laws, gradients."""

import pytest
import torch

from internals import (
    ConditionalMixtureNetwork,
    ConvDecoder,
    GaussianPrior,
    HybridPrior,
    MixtureNetwork,
    MixtureTable,
    MLPGenerator,
    ScaledModel,
    Scaler,
    UniformPrior,
    make_prior,
    stratified_draw,
)
from kermix import GaussianMixture
from kermix.errors import OptionError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("prior", [UniformPrior(3), GaussianPrior(3), HybridPrior(2, 4)])
def test_priors_have_their_moments_and_repeat(prior):
    noise = prior.sample(20_000, generator())
    assert noise.shape == (20_000, prior.dimension)
    assert noise.equal(prior.sample(20_000, generator()))
    spread = {UniformPrior: 3**-0.5, GaussianPrior: 1.0, HybridPrior: 1.0}[type(prior)]
    assert abs(float(noise[:, 0].std()) - spread) < 0.02
    if isinstance(prior, HybridPrior):
        torch.testing.assert_close(noise[:, 2:].mean(0), torch.full((4,), 0.25), atol=0.02, rtol=0)


def test_prior_names():
    assert isinstance(make_prior("hybrid"), HybridPrior)
    with pytest.raises(OptionError, match="uniform, gaussian, hybrid"):
        make_prior("cauchy")
    with pytest.raises(OptionError):
        UniformPrior(0)


@pytest.mark.parametrize("side", [4, 7, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_decoder_makes_images_of_the_size_asked_for(side, channels):
    network = ConvDecoder(5, side, channels, width=8, generator=generator())
    assert network(torch.zeros(2, 5)).shape == (2, channels * side * side)


def test_initial_weights_come_from_the_generator():
    first, second, other = (MLPGenerator(3, 2, generator=generator(s)) for s in (1, 1, 2))
    noise = torch.ones(2, 3)
    assert first.eval()(noise).equal(second.eval()(noise))
    assert not first(noise).equal(other.eval()(noise))


def mixture(kind):
    means = torch.tensor([[0.0, 0.0], [10.0, -5.0]], requires_grad=True)
    variances = torch.tensor([0.5, 2.0] if kind == "isotropic" else [[0.5, 1.0], [2.0, 4.0]])
    weights = torch.tensor([0.25, 0.75], requires_grad=True)
    return GaussianMixture(weights, means, variances.requires_grad_())


@pytest.mark.parametrize("kind", ["isotropic", "diagonal"])
def test_stratified_draw_has_the_moments_of_the_mixture(kind):
    fitted = mixture(kind)
    points, weights = stratified_draw(fitted, 20_000, generator())
    assert points.shape == (40_000, 2)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    mean = (weights.unsqueeze(-1) * points).sum(0)
    torch.testing.assert_close(mean, fitted.mean, atol=0.03, rtol=0)
    centred = points - mean
    covariance = (weights.unsqueeze(-1) * centred).mT @ centred
    torch.testing.assert_close(covariance, fitted.covariance_matrix, atol=0.1, rtol=0.02)


def test_every_parameter_gets_a_gradient():
    for network in (
        MixtureTable(2, 5, "diagonal", generator=generator()),
        MixtureNetwork(2, HybridPrior(2, 3), 5, generator=generator()),
    ):
        points, weights = stratified_draw(network(), 2, generator())
        (points.square().sum(-1) * weights).sum().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_batches_of_tables_are_independent():
    table = MixtureTable(2, 5, batch_shape=(3,), generator=generator())
    points, weights = stratified_draw(table(), 2, generator())
    assert points.shape == (3, 10, 2)
    assert weights.shape == (3, 10)
    points[1].sum().backward()
    assert table.means.grad[[0, 2]].abs().sum() == 0
    assert table.means.grad[1].abs().sum() > 0


def test_conditional_network_is_a_distribution_for_each_context():
    network = ConditionalMixtureNetwork(3, 2, 4, "diagonal", generator=generator())
    fitted = network(torch.randn(6, 3, generator=generator()))
    assert isinstance(fitted, torch.distributions.Distribution)
    assert fitted.batch_shape == (6,)
    assert fitted.sample((5,)).shape == (5, 6, 2)
    torch.testing.assert_close(
        fitted.log_prob(torch.zeros(6, 2))[2],
        network(torch.randn(6, 3, generator=generator())[2]).log_prob(torch.zeros(2)),
    )


@pytest.mark.parametrize("common", [False, True])
def test_scaler_goes_there_and_back(common):
    data = torch.randn(50, 3, generator=generator()) * torch.tensor([1e5, 1e-5, 0.0]) + 7
    data = data.double()
    scaler = Scaler(data, common)
    torch.testing.assert_close(scaler.restored(scaler.scaled(data)), data, rtol=1e-6, atol=1e-2)
    if not common:
        deviation = scaler.scaled(data).std(0, correction=0)
        torch.testing.assert_close(deviation, torch.tensor([1.0, 1.0, 0.0]), atol=0.02, rtol=0)


def test_density_of_a_scaled_model_is_in_the_units_of_the_data():
    data = torch.randn(100, 2, generator=generator()).double() * torch.tensor([100.0, 0.01]) + 3
    model = ScaledModel(MixtureTable(2, 4, generator=generator()), Scaler(data))
    inside = model.network().log_prob(model.scaler.scaled(data)).double()
    outside = model.log_prob(data)
    torch.testing.assert_close(outside, inside - model.scaler.scale.log().sum(), atol=1e-4, rtol=0)


def test_generator_needs_a_prior_and_samples_centres():
    data = torch.randn(100, 2, generator=generator())
    network = MLPGenerator(10, 2, generator=generator())
    with pytest.raises(OptionError, match="prior"):
        ScaledModel(network, Scaler(data))
    model = ScaledModel(network, Scaler(data), UniformPrior(10), 0.1)
    assert model.sample(5000, generator()).shape == (5000, 2)
    assert model.network.training
    assert torch.isfinite(model.log_prob(data)).all()


def test_numbers_of_components_are_checked():
    with pytest.raises(OptionError, match="at least one"):
        MixtureTable(2, 0, generator=generator())
    with pytest.raises(OptionError, match="isotropic, diagonal"):
        MixtureTable(2, 3, "full", generator=generator())
