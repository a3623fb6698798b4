"""Gaussian mixtures against numerical integration, SciPy, NumPy loops and torch."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad, trapezoid
from scipy.stats import multivariate_normal
from torch.distributions import (
    Categorical,
    Distribution,
    MixtureSameFamily,
    MultivariateNormal,
    constraints,
)
from torch.testing import assert_close

from kermix import mixture
from kermix.errors import (
    DeviceError,
    KermixError,
    OptionError,
    ReparametrizationError,
    SampleError,
    ShapeError,
    SizeError,
    VarianceError,
    WeightError,
)
from kermix.mixture import GaussianMixture
from kermix.sampled_mixture import SampledMixture

KINDS = ("isotropic", "diagonal", "full")
KIND_PAIRS = list(itertools.product(KINDS, KINDS))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters(kind, count=3, dim=2, batch=(), seed=0, dtype=torch.float64):
    g = rng(seed)
    weights = torch.rand(*batch, count, generator=g, dtype=torch.float64) + 0.2
    means = torch.randn(*batch, count, dim, generator=g, dtype=torch.float64)
    root = torch.randn(*batch, count, dim, dim, generator=g, dtype=torch.float64) / math.sqrt(dim)
    full = root @ root.mT + 0.3 * torch.eye(dim, dtype=torch.float64)
    diagonal = full.diagonal(dim1=-2, dim2=-1)
    covariances = {"isotropic": diagonal[..., 0], "diagonal": diagonal, "full": full}[kind]
    return weights.to(dtype), means.to(dtype), covariances.clone().to(dtype)


def make(kind, **options):
    return GaussianMixture(*parameters(kind, **options))


def full_covariances(p):
    """NumPy (K, d, d) whatever the kind, by definition."""
    eye = np.eye(p.means.shape[-1])
    c = p.covariances.double().numpy()
    if p.covariance_kind == "isotropic":
        return c[:, None, None] * eye
    return c[:, :, None] * eye if p.covariance_kind == "diagonal" else c


def curves(p):
    """Each weighted component, as a function of NumPy points (..., d), through SciPy."""
    normals = map(multivariate_normal, p.means.numpy(), full_covariances(p))
    return [
        lambda x, w=w, normal=normal: w * normal.pdf(x)
        for w, normal in zip(p.weights.numpy(), normals, strict=True)
    ]


def density(p):
    components = curves(p)
    return lambda x: sum(c(x) for c in components)


def integral_2d(function):
    axis = np.linspace(-12, 12, 481)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    return trapezoid(trapezoid(function(grid), axis), axis)


def integral_1d(function):
    return quad(
        lambda x: float(function(np.array([x]))), -30, 30, points=(-2, 0, 2), limit=400,
        epsabs=1e-12, epsrel=1e-11,
    )[0]  # fmt: skip


def reference_log_inner(p, q):
    """log <p, q> in float64, one pair at a time, from the formula."""
    terms = [
        math.log(w1) + math.log(w2) + multivariate_normal(m1 - m2, s1 + s2).logpdf(0 * m1)
        for w1, m1, s1 in zip(p.weights.numpy(), p.means.numpy(), full_covariances(p), strict=True)
        for w2, m2, s2 in zip(q.weights.numpy(), q.means.numpy(), full_covariances(q), strict=True)
    ]
    return np.logaddexp.reduce(terms)


# Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind_p", "kind_q"), KIND_PAIRS)
@pytest.mark.parametrize("dim", [1, 2])
def test_inner_is_the_integral_of_the_product(kind_p, kind_q, dim):
    p = make(kind_p, dim=dim, seed=1)
    q = make(kind_q, dim=dim, count=2, seed=2)
    integral = integral_1d if dim == 1 else integral_2d
    p_at, q_at = density(p), density(q)
    expected = integral(lambda x: p_at(x) * q_at(x))
    assert float(p.inner(q)) == pytest.approx(expected, rel=1e-8)
    assert float(q.inner(p)) == pytest.approx(expected, rel=1e-8)
    assert float(p.log_inner(q)) == pytest.approx(math.log(expected), abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_lp_norm_is_the_integral_of_the_power(kind, dim, n):
    p = make(kind, dim=dim, seed=3)
    integral = integral_1d if dim == 1 else integral_2d
    p_at = density(p)
    expected = integral(lambda x: p_at(x) ** n) ** (1 / n)
    assert float(p.lp_norm(n)) == pytest.approx(expected, rel=1e-8)
    assert float(p.log_lp_norm(n)) == pytest.approx(math.log(expected), abs=1e-8)
    if n == 2:
        assert float(p.norm2()) == pytest.approx(expected**2, rel=1e-8)
        assert float(p.log_norm2()) == pytest.approx(2 * math.log(expected), abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_multisets_agree_with_pairs_at_n_2(kind, monkeypatch):
    p = make(kind, dim=11, count=5)
    expected = p.log_norm2()
    monkeypatch.setattr(
        mixture, "log_pair_sum", lambda *_: pytest.fail("the multiset route was to be taken")
    )
    c = p._components
    products = mixture._log_products(c)
    ((indices, log_orders),) = mixture._index_blocks(5, 2, False, 100, torch.device("cpu"))
    terms = products(indices) + log_orders + c.weights.log()[indices].sum(-1)
    assert_close(terms.logsumexp(-1), expected, rtol=1e-12, atol=1e-12)


def test_index_blocks_are_all_multisets_with_their_orders():
    blocks = list(mixture._index_blocks(4, 3, False, 6, torch.device("cpu")))
    assert [len(i) for i, _ in blocks] == [6, 6, 6, 2]
    orders = torch.cat([o for _, o in blocks]).exp().round()
    counted = {}
    for row in itertools.product(range(4), repeat=3):
        counted[tuple(sorted(row))] = counted.get(tuple(sorted(row)), 0) + 1
    rows = [tuple(r) for i, _ in blocks for r in i.tolist()]
    assert dict(zip(rows, orders.tolist(), strict=True)) == counted


def test_large_power_of_one_gaussian():
    variance = torch.tensor([0.3], dtype=torch.float64)
    p = GaussianMixture(torch.ones(1), torch.zeros(1, 3, dtype=torch.float64), variance)
    n = 40  # int N^n = (2 pi v)^(-d n / 2) (2 pi v / n)^(d / 2)
    log_2pi_v = math.log(2 * math.pi * 0.3)
    expected = (-1.5 * n * log_2pi_v + 1.5 * (log_2pi_v - math.log(n))) / n
    assert float(p.log_lp_norm(n)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind_p", "kind_q"), KIND_PAIRS)
def test_cauchy_schwarz(kind_p, kind_q):
    p, q = make(kind_p, seed=1), make(kind_q, seed=2)
    expected = -torch.log(p.inner(q) ** 2 / (p.norm2() * q.norm2()))
    assert_close(p.cauchy_schwarz(q), expected)
    assert float(expected) > 0.01
    assert_close(p.cauchy_schwarz(q), q.cauchy_schwarz(p))


def test_cauchy_schwarz_with_itself_is_zero_and_never_negative():
    for seed in range(20):
        p = make("diagonal", dim=50, count=4, seed=seed, dtype=torch.float32)
        same = GaussianMixture(p.weights, p.means.clone().requires_grad_(), p.covariances)
        divergence = same.cauchy_schwarz(p)
        assert 0 <= divergence.item() < 1e-4
        divergence.backward()


def test_cauchy_schwarz_keeps_its_gradient_where_rounding_made_it_negative(monkeypatch):
    p = make("isotropic")
    value = torch.tensor(-1e-9, requires_grad=True)
    monkeypatch.setattr(GaussianMixture, "_cauchy_schwarz", lambda *_: 3 * value)
    divergence = p.cauchy_schwarz(p)
    divergence.backward()
    assert divergence.item() == 0
    assert float(value.grad) == 3


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
def test_784_dimensions(kind):
    p = make(kind, dim=784, count=3, seed=1)
    q = make(kind, dim=784, count=2, seed=2)
    value = p.log_inner(q)
    assert float(value) == pytest.approx(reference_log_inner(p, q), rel=1e-9)
    assert float(p.log_norm2()) == pytest.approx(reference_log_inner(p, p), rel=1e-9)
    p32 = GaussianMixture(p.weights.float(), p.means.float(), p.covariances.float())
    q32 = GaussianMixture(q.weights.float(), q.means.float(), q.covariances.float())
    x = torch.randn(4, 784, generator=rng(), dtype=torch.float64)
    for single, double in [
        (p32.log_inner(q32), value),
        (p32.log_norm2(), p.log_norm2()),
        (p32.log_lp_norm(3), p.log_lp_norm(3)),
        (p32.log_prob(x.float()), p.log_prob(x)),
    ]:
        assert single.dtype == torch.float32
        assert_close(single.double(), double, rtol=1e-4, atol=0)


def test_784_dimensions_mixed_kinds_and_third_norm():
    p, q = make("isotropic", dim=784, seed=1), make("full", dim=784, count=2, seed=2)
    assert float(p.log_inner(q)) == pytest.approx(reference_log_inner(p, q), rel=1e-9)
    as_full = GaussianMixture(p.weights, p.means, p._components.covariances_as("full"))
    as_diagonal = GaussianMixture(p.weights, p.means, p._components.covariances_as("diagonal"))
    assert_close(as_full.log_lp_norm(3), p.log_lp_norm(3), rtol=1e-11, atol=0)
    assert_close(as_diagonal.log_lp_norm(3), p.log_lp_norm(3), rtol=1e-11, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [2, 20])
def test_translation_far_from_the_origin_changes_nothing(kind, dim):
    weights, means, covariances = parameters(kind, dim=dim)
    p, q = GaussianMixture(weights, means, covariances), make(kind, dim=dim, seed=9)
    shifted_p = GaussianMixture(weights, means + 1e5, covariances)
    shifted_q = GaussianMixture(q.weights, q.means + 1e5, q.covariances)
    assert_close(shifted_p.log_inner(shifted_q), p.log_inner(q), rtol=1e-8, atol=1e-8)
    assert_close(shifted_p.lp_norm(3), p.lp_norm(3), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_far_apart_mixtures(kind):
    p = make(kind, dim=20, seed=1)
    means = (p.means + 1e3).requires_grad_()
    q = GaussianMixture(p.weights, means, p.covariances)
    assert p.inner(q).item() == 0
    log_inner = p.log_inner(q)
    assert torch.isfinite(log_inner)
    assert log_inner.item() < -1e5
    (gradient,) = torch.autograd.grad(log_inner, means)
    assert torch.isfinite(gradient).all()
    assert float(gradient.sum()) < -100  # moving q away makes it smaller
    assert torch.isfinite(p.cauchy_schwarz(q))


def test_small_variance_keeps_the_diagonal_exact():
    means = torch.randn(30, 784, generator=rng())
    p = GaussianMixture(torch.ones(30), means, torch.full((30,), 1e-7))
    expected = -math.log(30) - 392 * math.log(4 * math.pi * 1e-7)  # only i = j overlap
    assert float(p.log_norm2()) == pytest.approx(expected, rel=1e-6)
    third = (-2 * math.log(30) - 392 * (2 * math.log(2 * math.pi * 1e-7) + math.log(3))) / 3
    assert float(p.log_lp_norm(3)) == pytest.approx(third, rel=1e-6)


# Gradients ------------------------------------------------------------------------------------


def build(kind, raw_weights, means, raw):
    """A mixture from unconstrained numbers."""
    if kind == "full":
        covariances = raw @ raw.mT + 0.5 * torch.eye(raw.shape[-1], dtype=raw.dtype)
    else:
        covariances = raw.exp()
    return GaussianMixture(raw_weights.exp(), means, covariances)


def raw_parameters(kind, count, dim, seed):
    g = rng(seed)
    shape = {"isotropic": (count,), "diagonal": (count, dim), "full": (count, dim, dim)}[kind]
    shapes = [(count,), (count, dim), shape]
    return [
        (0.5 * torch.randn(s, generator=g, dtype=torch.float64)).requires_grad_() for s in shapes
    ]


FUNCTIONS = {
    "inner": lambda p, q: p.inner(q),
    "log_inner": lambda p, q: p.log_inner(q),
    "norm2": lambda p, q: p.norm2(),
    "lp_norm_1": lambda p, q: p.lp_norm(1),
    "lp_norm_3": lambda p, q: p.lp_norm(3),
    "log_lp_norm_4": lambda p, q: p.log_lp_norm(4),
    "cauchy_schwarz": lambda p, q: p.cauchy_schwarz(q),
    "moments": lambda p, q: (p.mean, p.variance, p.covariance_matrix),
}


# Differences in 2 dimensions; in 9, a matrix product where components are isotropic.
@pytest.mark.parametrize(
    ("kind", "dim"), [("isotropic", 2), ("isotropic", 9), ("diagonal", 2), ("full", 2)]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(kind, name, dim):
    count = 2
    kind_q = "isotropic" if dim == 9 else "diagonal"
    p, q = raw_parameters(kind, count, dim, 1), raw_parameters(kind_q, count, dim, 2)

    def function(*arguments):
        return FUNCTIONS[name](build(kind, *arguments[:3]), build(kind_q, *arguments[3:]))

    assert torch.autograd.gradcheck(function, (*p, *q), fast_mode=dim == 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [2, 9])
def test_gradient_of_log_prob(kind, dim):
    p = raw_parameters(kind, 3, dim, 1)
    x = torch.randn(4, dim, generator=rng(), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, *p: build(kind, *p).log_prob(x), (x, *p), fast_mode=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind):
    p = raw_parameters(kind, 2, 2, 1)
    q = build("isotropic", *raw_parameters("isotropic", 2, 2, 2))
    for name in ("cauchy_schwarz", "lp_norm_3"):
        assert torch.autograd.gradgradcheck(
            lambda *p, f=FUNCTIONS[name]: f(build(kind, *p), q), p, fast_mode=True
        )


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind_p", "kind_q"), KIND_PAIRS)
@pytest.mark.parametrize("elements", [1, 40, 300])
def test_blocks_change_neither_values_nor_gradients(kind_p, kind_q, elements, monkeypatch):
    def values_and_gradients():
        p = [t.requires_grad_() for t in parameters(kind_p, count=5, batch=(2,), seed=1)]
        q = [t.requires_grad_() for t in parameters(kind_q, count=4, seed=2)]
        x = torch.randn(6, 2, 2, generator=rng(), dtype=torch.float64).requires_grad_()
        first, second = GaussianMixture(*p), GaussianMixture(*q)
        values = [first.log_inner(second), first.log_norm2(), first.lp_norm(3), first.log_prob(x)]
        gradients = torch.autograd.grad(sum(v.sum() for v in values), [x, *p, *q])
        return [v.detach() for v in values], gradients

    expected = values_and_gradients()
    monkeypatch.setattr(mixture, "BLOCK_ELEMENTS", elements)
    assert_close(values_and_gradients(), expected, rtol=1e-10, atol=1e-12)


def test_no_tensor_of_pairs_times_dimensions(monkeypatch):
    """Also in the backward pass: saved tensors are counted."""
    monkeypatch.setattr(mixture, "BLOCK_ELEMENTS", 2**14)
    largest = {"isotropic": 200 * 200, "diagonal": 2**14 * 2}
    for kind, bound in largest.items():
        weights, means, covariances = parameters(kind, count=200, dim=40, dtype=torch.float32)
        means.requires_grad_()
        saved = []

        def pack(t, saved=saved):
            saved.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            GaussianMixture(weights, means, covariances).log_norm2().backward()
        assert max(saved) <= bound, kind
        assert sum(saved) < 200 * 200 * 40 / 2, kind


# Weights that are zero ------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 2**20])  # a block may have no other weights than zero
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "moments"])
def test_zero_weights_have_the_true_gradient(name, elements, monkeypatch):
    monkeypatch.setattr(mixture, "BLOCK_ELEMENTS", elements)
    _, means, covariances = parameters("diagonal", count=3)
    q = make("full", seed=7)

    def value(weights):
        return FUNCTIONS[name](GaussianMixture(weights, means, covariances), q)

    weights = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(weights), weights)
    step = 1e-6
    for i in range(3):
        move = torch.zeros(3, dtype=torch.float64)
        move[i] = step
        # One-sided at second order: the first weight cannot be less than zero.
        ahead = [float(value(weights.detach() + k * move)) for k in (0, 1, 2)]
        slope = (-3 * ahead[0] + 4 * ahead[1] - ahead[2]) / (2 * step)
        assert float(gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_a_component_of_weight_zero_has_no_effect_however_near():
    """At x the zero-weight component is e^5000 times denser than the others."""
    means = torch.tensor([[0.0], [100.0]], requires_grad=True)
    weights = torch.tensor([0.0, 1.0], requires_grad=True)
    p = GaussianMixture(weights, means, torch.ones(2))
    log_prob = p.log_prob(torch.zeros(1))
    assert log_prob.item() == pytest.approx(-5000 - 0.5 * math.log(2 * math.pi))
    gradients = torch.autograd.grad(log_prob, (weights, means))
    assert all(torch.isfinite(g).all() for g in gradients)
    assert float(gradients[0][0]) > 1e30  # true one: e^5000
    assert float(gradients[1][1]) == pytest.approx(-100)


def test_very_small_weights_are_not_lost():
    weights = torch.tensor([1e-30, 1.0])
    p = GaussianMixture(weights, torch.tensor([[0.0], [100.0]]), torch.ones(2))
    expected = math.log(1e-30) - 0.5 * math.log(2 * math.pi)
    assert float(p.log_prob(torch.zeros(1))) == pytest.approx(expected, rel=1e-6)
    q = GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.ones(1))
    expected = math.log(1e-30) - 0.5 * math.log(4 * math.pi)
    assert float(p.log_inner(q)) == pytest.approx(expected, rel=1e-6)


# A torch distribution -------------------------------------------------------------------------


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
    monkeypatch.setattr(mixture, "BLOCK_ELEMENTS", 10)
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


# Any prior ------------------------------------------------------------------------------------


def sampled(kind, seed=0, count=4, dim=2):
    weights, means, covariances = parameters(kind, count=count, dim=dim, seed=seed)
    return SampledMixture(3 * weights, means, covariances)


def normal(difference, covariance):
    return multivariate_normal(np.zeros(len(difference)), covariance).pdf(difference)


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_inner_and_norm_by_definition(kind):
    p, q = sampled(kind), sampled("diagonal", seed=5, count=3)
    w, m, s = p.weights.numpy(), p.means.numpy(), full_covariances(p)
    w2, m2, s2 = q.weights.numpy(), q.means.numpy(), full_covariances(q)

    cross = sum(
        w[i] * w2[j] * normal(m[i] - m2[j], s[i] + s2[j]) for i in range(4) for j in range(3)
    )
    assert float(p.inner(q)) == pytest.approx(cross / 12)
    assert float(p.log_inner(q)) == pytest.approx(math.log(cross / 12))

    pairs = {
        (i, j): w[i] * w[j] * normal(m[i] - m[j], s[i] + s[j])
        for i, j in itertools.product(range(4), range(4))
    }
    biased = sum(pairs.values()) / 16
    unbiased = sum(v for (i, j), v in pairs.items() if i != j) / 12
    assert float(p.norm2()) == pytest.approx(biased)
    assert float(p.norm2(unbiased=True)) == pytest.approx(unbiased)
    assert float(p.log_norm2(unbiased=True)) == pytest.approx(math.log(unbiased))
    for u in (False, True):
        divergence = p.log_norm2(u) + q.log_norm2(u) - 2 * p.log_inner(q)
        assert_close(p.cauchy_schwarz(q, unbiased=u), divergence)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_sampled_lp_norm_by_definition(kind, n):
    p = sampled(kind, dim=1)
    axis = np.linspace(-14, 14, 4001)
    heights = [c(axis[:, None]) for c in curves(p)]
    tuples = list(itertools.product(range(4), repeat=n))
    for unbiased in (False, True):
        kept = [t for t in tuples if not unbiased or len(set(t)) == n]
        values = [trapezoid(np.prod([heights[i] for i in t], axis=0), axis) for t in kept]
        expected = np.mean(values) ** (1 / n)
        assert float(p.lp_norm(n, unbiased=unbiased)) == pytest.approx(expected, rel=1e-8)
        log_norm = float(p.log_lp_norm(n, unbiased=unbiased))
        assert log_norm == pytest.approx(math.log(expected), abs=1e-8)


def test_unbiased_means_unbiased():
    """c ~ N(0, 1), m = c, v = 1/2, w = 1: p is N(0, 3/2), whose norms are known."""
    draws, samples = 20_000, 4
    c = torch.randn(draws, samples, 1, generator=rng(), dtype=torch.float64)
    p = SampledMixture(None, c, torch.full((draws, samples), 0.5, dtype=torch.float64))
    two_pi_v = 2 * math.pi * 1.5
    for n in (2, 3):
        truth = two_pi_v ** (-(n - 1) / 2) / math.sqrt(n)
        powers = p.lp_norm(n, unbiased=True) ** n
        error = float(powers.std()) / math.sqrt(draws)
        assert abs(float(powers.mean()) - truth) < 4 * error
        biased = p.lp_norm(n) ** n
        assert float(biased.mean()) - truth > 20 * error
    q = GaussianMixture(*parameters("isotropic", dim=1))
    exact = GaussianMixture(
        torch.ones(1), torch.zeros(1, 1).double(), torch.tensor([1.5]).double()
    )
    inner = p.inner(q)
    error = float(inner.std()) / math.sqrt(draws)
    assert abs(float(inner.mean() - exact.inner(q))) < 4 * error


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_agrees_with_a_discrete_prior(kind):
    """Uniform weights, all tuples: the two classes describe the same function."""
    _, means, covariances = parameters(kind)
    s = SampledMixture(None, means, covariances)
    p = GaussianMixture(torch.ones(3), means, covariances)
    q = make("full", seed=4)
    x = torch.randn(5, 2, generator=rng(), dtype=torch.float64)
    assert_close(s.log_prob(x), p.log_prob(x))
    assert_close(s.inner(q), p.inner(q))
    assert_close(q.inner(s), p.inner(q))
    assert_close(s.norm2(), p.norm2())
    assert_close(s.lp_norm(3), p.lp_norm(3))
    assert_close(q.cauchy_schwarz(s), q.cauchy_schwarz(p))
    assert_close(s.cauchy_schwarz(q), p.cauchy_schwarz(q))
    assert s.covariance_kind == kind
    assert s.batch_shape == ()
    assert s.event_shape == (2,)


def test_sampled_weights_are_not_normalised():
    _, means, covariances = parameters("isotropic")
    once = SampledMixture(torch.ones(3), means, covariances)
    twice = SampledMixture(2 * torch.ones(3), means, covariances)
    assert_close(twice.norm2(), 4 * once.norm2())
    assert_close(twice.lp_norm(1), torch.tensor(2.0, dtype=torch.float64))
    assert_close(twice.cauchy_schwarz(once), torch.zeros((), dtype=torch.float64))
    assert_close(twice.weights, torch.full((3,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unbiased", [False, True])
def test_sampled_gradients(kind, unbiased):
    q = make("isotropic", seed=8)

    def function(weights, means, raw):
        covariances = build(kind, weights, means, raw).covariances
        p = SampledMixture(weights.exp(), means, covariances)
        return p.cauchy_schwarz(q, unbiased), p.norm2(unbiased), p.lp_norm(3, unbiased), p.inner(q)

    assert torch.autograd.gradcheck(function, raw_parameters(kind, 4, 2, 6), fast_mode=True)


def test_unbiased_norm_with_zero_weights_has_a_gradient():
    _, means, covariances = parameters("isotropic")
    weights = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    value = SampledMixture(weights, means, covariances).norm2(unbiased=True)
    (gradient,) = torch.autograd.grad(value, weights)
    kernel = [
        float(GaussianMixture(torch.ones(1), means[[0]], covariances[[0]]).inner(
            GaussianMixture(torch.ones(1), means[[j]], covariances[[j]])
        ))
        for j in (1, 2)
    ]  # fmt: skip
    assert float(gradient[0]) == pytest.approx(2 * (kernel[0] + 2 * kernel[1]) / 6)


# Errors ---------------------------------------------------------------------------------------

ONES, MEANS = torch.ones(3), torch.zeros(3, 2)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("family", [GaussianMixture, SampledMixture])
@pytest.mark.parametrize(
    ("weights", "means", "covariances", "error", "text"),
    [
        (torch.ones(3, dtype=torch.long), MEANS, ONES, WeightError, "floating-point"),
        (torch.tensor([1.0, -1.0, 1.0]), MEANS, ONES, WeightError, "negative"),
        (torch.tensor([1.0, NAN, 1.0]), MEANS, ONES, WeightError, "NaN"),
        (torch.zeros(3), MEANS, ONES, WeightError, "zero"),
        (torch.ones(4), MEANS, ONES, WeightError, "one weight for each"),
        (torch.ones(2, 3), torch.zeros(3, 3, 2), ONES.expand(3, 3), WeightError, "batch"),
        (ONES, torch.zeros(3, 2, dtype=torch.long), ONES, SampleError, "means has dtype"),
        (ONES, torch.full((3, 2), NAN), ONES, SampleError, "means has 6 NaN"),
        (ONES, torch.zeros(3), ONES, ShapeError, "means has shape"),
        (ONES, torch.zeros(3, 0), ONES, SampleError, "empty"),
        (ONES, [[0.0]], ONES, SampleError, "list"),
        (ONES, MEANS, 1.0, VarianceError, "not float"),
        (ONES, MEANS, torch.ones(3, dtype=torch.long), VarianceError, "int64"),
        (ONES, MEANS, torch.ones(()), ShapeError, "number of axes"),
        (ONES, MEANS, torch.ones(4), ShapeError, "isotropic"),
        (ONES, MEANS, torch.ones(3, 3), ShapeError, "diagonal"),
        (ONES, MEANS, torch.ones(5, 3, 2), ShapeError, "batch axes"),
        (ONES, MEANS, torch.ones(1, 3, 2, 2), ShapeError, "full"),
        (ONES, torch.zeros(2, 3, 2), torch.ones(5, 3), ShapeError, "broadcast"),
        (ONES, MEANS, torch.tensor([1.0, 0.0, 1.0]), VarianceError, "not positive"),
        (ONES, MEANS, -torch.ones(3, 2), VarianceError, "smallest -1"),
        (ONES, MEANS, torch.full((3,), INF), VarianceError, "3 NaN or infinite"),
        (ONES, MEANS, torch.full((3, 2, 2), NAN), VarianceError, "NaN"),
        (ONES, MEANS, torch.tensor([[1.0, 0.5], [0, 1]]).expand(3, 2, 2), VarianceError, "symm"),
        (ONES, MEANS, torch.ones(3, 2, 2) * -1, VarianceError, "smallest eigenvalue -2"),
        (ONES, MEANS, torch.ones(3, 2, 2), VarianceError, "positive definite"),
        (ONES, MEANS, ONES.to("meta"), DeviceError, "meta"),
        (ONES.to("meta"), MEANS, ONES, DeviceError, "meta"),
    ],
)  # fmt: skip
def test_bad_arguments(family, weights, means, covariances, error, text):
    with pytest.raises(error, match=text) as caught:
        family(weights, means, covariances)
    assert isinstance(caught.value, KermixError)


def test_validation_of_values_can_be_switched_off():
    p = GaussianMixture(ONES, MEANS, -ONES, validate_args=False)
    assert torch.isnan(p.log_norm2())
    p = GaussianMixture(ONES, MEANS, -torch.eye(2).expand(3, 2, 2), validate_args=False)
    assert torch.isnan(p.log_norm2())
    assert torch.isnan(p.sample()).all()


def test_bad_points():
    p = make("isotropic", batch=(4,))
    for points in (torch.zeros(3), torch.zeros(3, 2), torch.zeros(4, 3), torch.zeros(5, 3, 2)):
        with pytest.raises(ShapeError, match="takes points of shape"):
            p.log_prob(points)
    with pytest.raises(ShapeError):
        p.log_prob(torch.zeros(()))
    with pytest.raises(SampleError, match="NaN"):
        p.log_prob(torch.full((2,), NAN))
    with pytest.raises(SampleError, match="int64"):
        p.log_prob(torch.zeros(2, dtype=torch.long))
    with pytest.raises(SampleError, match="list"):
        p.log_prob([0.0, 0.0])
    with pytest.raises(DeviceError, match="meta"):
        p.log_prob(torch.zeros(2, device="meta"))


def test_bad_partners():
    p = make("isotropic", batch=(4,))
    for method in (p.inner, p.log_inner, p.cauchy_schwarz):
        with pytest.raises(OptionError, match="GaussianMixture or a SampledMixture"):
            method(MultivariateNormal(torch.zeros(2), torch.eye(2)))
        with pytest.raises(ShapeError, match="dimension"):
            method(make("isotropic", dim=3))
        with pytest.raises(ShapeError, match="broadcast"):
            method(make("isotropic", batch=(3,)))
    elsewhere = GaussianMixture(ONES.to("meta"), MEANS.to("meta"), ONES.to("meta"))
    with pytest.raises(DeviceError, match="meta"):
        p.inner(elsewhere)


@pytest.mark.parametrize("n", [0, -1, 2.0, 1.5, "2", None, True])
def test_bad_powers(n):
    for p in (make("isotropic"), sampled("isotropic")):
        for norm in (p.lp_norm, p.log_lp_norm):
            with pytest.raises(OptionError, match="positive integers"):
                norm(n)


def test_numpy_integers_are_powers():
    p = make("isotropic")
    assert_close(p.lp_norm(np.int64(3)), p.lp_norm(3))


def test_sizes_that_cannot_finish():
    with pytest.raises(SizeError, match=f"{math.comb(103, 4):,} products"):
        make("isotropic", count=100).lp_norm(4)
    with pytest.raises(SizeError, match=f"{math.comb(100, 4):,} products"):
        sampled("isotropic", count=100).lp_norm(4, unbiased=True)
    weights = torch.ones(30)
    covariances = torch.eye(784).expand(30, 784, 784)
    p = GaussianMixture(weights, torch.zeros(30, 784), covariances, validate_args=False)
    with pytest.raises(SizeError, match="operations") as caught:
        p.lp_norm(3)
    assert "log_prob" in str(caught.value)


def test_too_few_samples_for_an_unbiased_norm():
    one = SampledMixture(None, torch.zeros(1, 2), torch.ones(1))
    assert float(one.norm2()) == pytest.approx(1 / (4 * math.pi))
    for call in (one.norm2, one.log_norm2, lambda unbiased: one.cauchy_schwarz(one, unbiased)):
        with pytest.raises(OptionError, match="draw more samples"):
            call(unbiased=True)
    with pytest.raises(OptionError, match="n = 5"):
        sampled("full").lp_norm(5, unbiased=True)
