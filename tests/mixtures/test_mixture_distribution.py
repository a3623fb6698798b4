"""A mixture as a torch distribution: densities, samples, batches, precisions, transforms."""

import itertools
import math

import pytest
import torch
from torch.distributions import (
    Categorical,
    Distribution,
    MixtureSameFamily,
    MultivariateNormal,
    constraints,
)
from torch.testing import assert_close

from kermix.errors import ReparametrizationError
from kermix.mixtures import closed_forms as log_sums
from kermix.mixtures.mixture import GaussianMixture
from mixture_cases import (
    KINDS,
    make,
    parameters,
    rng,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("sample", [(), (5,), (4, 1)])
def test_log_prob_is_that_of_torch(kind, batch, sample):
    p = make(kind, batch=batch, dim=3)
    full = p._components.covariances_as("full")
    truth = MixtureSameFamily(Categorical(p.weights), MultivariateNormal(p.means, full))
    x = torch.randn(*sample, *batch, 3, generator=rng(5), dtype=torch.float64)
    assert p.log_prob(x).shape == (*sample, *batch)
    assert_close(p.log_prob(x), truth.log_prob(x))
    assert_close(p.mean, truth.mean)
    assert_close(p.variance, truth.variance)
    assert_close(p.stddev, truth.stddev)


def test_log_prob_broadcasts_points_to_the_batch():
    p = make("diagonal", batch=(4,))
    x = torch.randn(7, 1, 2, generator=rng(), dtype=torch.float64)
    assert_close(p.log_prob(x), p.log_prob(x.expand(7, 4, 2)))
    assert_close(p.log_prob(x[0, 0]), p.log_prob(x.expand(7, 4, 2))[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_sampling_moments(kind, batch):
    p = make(kind, batch=batch, dim=3, count=3)
    x = p.sample((40, 1000), generator=rng(1))
    assert x.shape == (40, 1000, *batch, 3)
    x = x.flatten(0, 1)
    error = (p.variance / len(x)).sqrt()
    assert ((x.mean(0) - p.mean).abs() < 5 * error).all()
    gaps = x - p.mean
    covariance = torch.einsum("n...i,n...j->...ij", gaps, gaps) / len(x)
    assert_close(covariance, p.covariance_matrix, rtol=0.05, atol=0.05)
    assert_close(p.covariance_matrix.diagonal(dim1=-2, dim2=-1), p.variance)
    assert_close(p.sample((7,), generator=rng(2)), p.sample((7,), generator=rng(2)))
    assert p.sample((0,)).shape == (0, *batch, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_from_components_by_weight_each_with_its_covariance(kind):
    places = (0, 10, 20)
    means = torch.tensor([[[0.0, 0], [10, 0], [20, 0]]]).expand(2, 3, 2)
    weights = torch.tensor([[1.0, 3.0, 0.0], [0.0, 1.0, 1.0]])
    deviations = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    variances = deviations.square()
    covariances = {
        "isotropic": variances,
        "diagonal": variances[..., None].expand(2, 3, 2),
        "full": variances[..., None, None] * torch.eye(2),
    }[kind]
    x = GaussianMixture(weights, means, covariances).sample((20_000,), generator=rng())
    for b, k in itertools.product(range(2), range(3)):
        near = x[(x[:, b, 0] - places[k]).abs() < 5, b]
        share = float(weights[b, k] / weights[b].sum())
        assert len(near) / 20_000 == pytest.approx(share, abs=0.02)
        if share:
            assert_close(near.std(0), deviations[b, k].expand(2), rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rsample_of_one_component(kind):
    weights, means, covariances = parameters(kind, count=1)
    means.requires_grad_()
    covariances.requires_grad_()
    p = GaussianMixture(weights, means, covariances)
    assert p.has_rsample
    x = p.rsample((50_000,), generator=rng())
    squares = x.square().sum(-1).mean()  # its mean is |m|^2 + tr S
    by_mean, by_covariance = torch.autograd.grad(squares, (means, covariances))
    assert_close(by_mean, 2 * means.detach(), rtol=0.03, atol=0.03)
    one = {"isotropic": torch.tensor([2.0]), "diagonal": torch.ones(1, 2), "full": torch.eye(2)}
    assert_close(by_covariance, one[kind].double().expand_as(by_covariance), rtol=0.03, atol=0.03)
    assert not p.sample().requires_grad


def test_rsample_of_many_components_says_why_not():
    p = make("isotropic")
    assert not p.has_rsample
    with pytest.raises(ReparametrizationError, match="discrete choice"):
        p.rsample()
    with pytest.raises(NotImplementedError):
        p.rsample((3,))


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_independent_mixtures(kind):
    weights, means, covariances = parameters(kind, batch=(2, 3))
    p = GaussianMixture(weights, means, covariances)
    q = make("diagonal", count=2, batch=(3,), seed=4)
    assert p.batch_shape == (2, 3)
    assert p.event_shape == (2,)
    for value in (p.inner(q), p.norm2(), p.lp_norm(3), p.cauchy_schwarz(q)):
        assert value.shape == (2, 3)
    for i, j in itertools.product(range(2), range(3)):
        one = GaussianMixture(weights[i, j], means[i, j], covariances[i, j])
        other = GaussianMixture(q.weights[j], q.means[j], q.covariances[j])
        assert_close(p.inner(q)[i, j], one.inner(other))
        assert_close(p.log_norm2()[i, j], one.log_norm2())
        assert_close(p.log_lp_norm(3)[i, j], one.log_lp_norm(3))


@pytest.mark.parametrize("kind", KINDS)
def test_batch_shapes_are_broadcast(kind):
    weights, means, covariances = parameters(kind)
    more = torch.stack([weights, weights.flip(-1)])
    p = GaussianMixture(more, means, covariances)
    assert p.batch_shape == (2,)
    assert p.covariance_kind == kind
    assert p.covariances.shape == (2, *covariances.shape)
    assert_close(p.log_norm2()[1], GaussianMixture(more[1], means, covariances).log_norm2())
    q = GaussianMixture(weights, means.expand(4, 3, 2), covariances.unsqueeze(0))
    assert q.batch_shape == (4,)


@pytest.mark.parametrize("kind", KINDS)
def test_expand(kind):
    p = make(kind, batch=(3,))
    wide = p.expand((2, 3))
    assert isinstance(wide, GaussianMixture)
    assert wide.batch_shape == (2, 3)
    assert wide.covariance_kind == kind
    assert wide.has_rsample == p.has_rsample
    assert_close(wide.log_norm2(), p.log_norm2().expand(2, 3))
    assert_close(wide.log_lp_norm(3), p.log_lp_norm(3).expand(2, 3))
    assert wide.sample((5,)).shape == (5, 2, 3, 2)
    x = torch.zeros(2, dtype=torch.float64)
    assert_close(wide.log_prob(x), p.log_prob(x).expand(2, 3))
    assert wide.means.data_ptr() == p.means.data_ptr()


def test_it_is_a_torch_distribution():
    p = make("diagonal")
    assert isinstance(p, Distribution)
    assert p.support is constraints.real_vector
    assert set(p.arg_constraints) == {"weights", "means", "covariances"}
    assert p.arg_constraints["weights"].check(p.weights)
    assert p.arg_constraints["means"].check(p.means)
    assert "GaussianMixture" in repr(p)
    assert_close(p.weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    wrapped = torch.distributions.Independent(p.expand((4,)), 1)
    assert wrapped.log_prob(wrapped.sample()).shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_single(kind, dtype):
    half = parameters(kind, dim=12, dtype=dtype)
    if kind == "full":  # rounding to half precision must not cost positive definiteness
        half = (*half[:2], half[2] + torch.eye(12, dtype=dtype))
    p = GaussianMixture(*half)
    exact = GaussianMixture(*[t.float() for t in half])
    x = torch.zeros(2, 12, dtype=dtype)
    for value, truth in [
        (p.log_inner(p), exact.log_inner(exact)),
        (p.cauchy_schwarz(p), exact.cauchy_schwarz(exact)),
        (p.log_norm2(), exact.log_norm2()),
        (p.log_lp_norm(3), exact.log_lp_norm(3)),
        (p.log_prob(x), exact.log_prob(x.float())),
        (p.mean, exact.mean),
        (p.covariance_matrix, exact.covariance_matrix),
    ]:
        assert value.dtype == dtype
        assert_close(value, truth.to(dtype), rtol=0, atol=0)
    assert p.sample().dtype == dtype
    assert p.weights.dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(kind):
    p, q = make(kind, dim=12, dtype=torch.float32), make(kind, dim=12, seed=3, dtype=torch.float32)
    x = torch.randn(5, 12, generator=rng())

    def values():
        return [
            p.log_inner(q), p.lp_norm(3), p.log_prob(x), p.covariance_matrix,
            p.sample((9,), generator=rng()),
        ]  # fmt: skip

    expected = values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(values(), expected, rtol=0, atol=0)


def test_precisions_are_promoted():
    p, q = make("isotropic", dtype=torch.float32), make("full", seed=2)
    assert p.inner(q).dtype == torch.float64
    assert_close(p.inner(q), make("isotropic").inner(q), rtol=1e-5, atol=0)
    assert p.log_prob(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_and_functional_gradient(kind):
    weights, means, covariances = parameters(kind, batch=(5,), dim=3)
    q = make("diagonal", dim=3, seed=3)

    def log_inner(w, m, c):
        return GaussianMixture(w, m, c).log_inner(q)

    expected = GaussianMixture(weights, means, covariances).log_inner(q)
    assert_close(torch.func.vmap(log_inner)(weights, means, covariances), expected)
    slopes = torch.func.vmap(torch.func.grad(log_inner, argnums=1))(weights, means, covariances)
    means.requires_grad_()
    total = GaussianMixture(weights, means, covariances).log_inner(q).sum()
    assert_close(slopes, torch.autograd.grad(total, means)[0])


def test_functional_gradient_in_blocks(monkeypatch):
    weights, means, covariances = parameters("diagonal", dim=3)

    def third_norm(m):
        return GaussianMixture(weights, m, covariances).lp_norm(3)

    expected = torch.func.grad(third_norm)(means)
    monkeypatch.setattr(log_sums, "BLOCK_ELEMENTS", 10)
    assert_close(torch.func.grad(third_norm)(means), expected)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("kind", KINDS)
def test_compile(kind):
    weights, means, covariances = parameters(kind, dim=3)
    q_weights, q_means, q_covariances = parameters("diagonal", dim=3, seed=3)

    def log_inner(w, m, c):
        q = GaussianMixture(q_weights, q_means, q_covariances)
        return GaussianMixture(w, m, c).log_inner(q)

    torch._dynamo.reset()
    compiled = torch.compile(log_inner, backend="aot_eager")
    for leaf in (weights, means, covariances):
        leaf.requires_grad_()
    expected = log_inner(weights, means, covariances)
    value = compiled(weights, means, covariances)
    assert_close(value, expected)
    assert_close(
        torch.autograd.grad(value, (weights, means, covariances)),
        torch.autograd.grad(expected, (weights, means, covariances)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "full"])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_moments_far_from_zero(offset, kind, dtype):
    """Against float64 sums about the middle, of the same rounded means."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(7, generator=generator, dtype=torch.float64).to(dtype)
    means = (offset + 3 * torch.randn(7, 3, generator=generator, dtype=torch.float64)).to(dtype)
    variances = torch.rand(7, 3, generator=generator, dtype=torch.float64).to(dtype) + 0.5
    given = {
        "isotropic": variances[:, 0],
        "diagonal": variances,
        "full": torch.diag_embed(variances),
    }[kind]
    share = weights.double() / weights.double().sum()
    inside = variances[:, :1].expand(7, 3) if kind == "isotropic" else variances
    centred = means.double() - offset
    middle = share @ centred
    truth = share @ (inside.double() + (centred - middle).square())
    mixture = GaussianMixture(weights, means, given)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert_close(mixture.variance.double(), truth, rtol=tolerance, atol=0)
    assert_close(mixture.covariance_matrix.diagonal().double(), truth, rtol=tolerance, atol=0)
    rounding = torch.finfo(dtype).eps * offset
    assert_close(mixture.mean.double() - offset, middle, rtol=tolerance, atol=1e-6 + rounding)


@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "full"])
@pytest.mark.parametrize("d", [2, 8, 9, 12])
@pytest.mark.parametrize("far", [1e3, 1e6, 1e9])
def test_log_density_and_norms_with_a_far_component(far, d, kind):
    """A far component of weight w leaves the density elsewhere at 1 - w times what it was."""
    generator = torch.Generator().manual_seed(1)
    means = torch.randn(5, d, generator=generator, dtype=torch.float64)
    variances = torch.rand(5, d, generator=generator, dtype=torch.float64) + 0.5
    points = torch.randn(6, d, generator=generator, dtype=torch.float64)

    def build(means, variances, weights):
        given = {"isotropic": variances[:, 0], "diagonal": variances}.get(kind)
        return GaussianMixture(
            weights, means, torch.diag_embed(variances) if given is None else given
        )

    near = build(means, variances, torch.ones(5).double())
    place = torch.full((1, d), far, dtype=torch.float64)
    both = build(
        torch.cat([means, place]), torch.cat([variances, torch.ones(1, d)]), torch.ones(6).double()
    )
    truth = near.log_prob(points)
    assert_close(both.log_prob(points), truth + math.log(5 / 6), rtol=1e-10, atol=1e-10)
    shifted = build(means + far, variances, torch.ones(5).double())
    rounding = {"rtol": 1e-10, "atol": 100 * far * torch.finfo(torch.float64).eps}
    assert_close(shifted.log_prob(points + far), truth, **rounding)
    for n in (2, 3):
        alone = build(place, torch.ones(1, d), torch.ones(1).double())
        truth = (5**n * near.lp_norm(n) ** n + alone.lp_norm(n) ** n) / 6**n
        assert_close(both.lp_norm(n) ** n, truth, rtol=1e-9, atol=0)
