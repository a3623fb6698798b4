"""Inner products, norms and divergences against integrals, SciPy and formulas."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad, trapezoid
from scipy.stats import multivariate_normal
from torch.testing import assert_close

from kermix.mixtures import closed_forms as gaussian_products
from kermix.mixtures.mixture import GaussianMixture, InnerProducts
from mixture_cases import (
    KIND_PAIRS,
    KINDS,
    density,
    full_covariances,
    make,
    parameters,
    rng,
)


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
def test_multisets_agree_with_pairs_at_n_2(kind):
    p = make(kind, dim=11, count=5)
    expected = p.log_norm2()
    c = p._components
    products = gaussian_products._log_products(c)
    ((indices, log_orders),) = gaussian_products._index_blocks(
        5, 2, False, 100, torch.device("cpu")
    )
    terms = products(indices) + log_orders + c.weights.log()[indices].sum(-1)
    assert_close(terms.logsumexp(-1), expected, rtol=1e-12, atol=1e-12)


def test_index_blocks_are_all_multisets_with_their_orders():
    blocks = list(gaussian_products._index_blocks(4, 3, False, 6, torch.device("cpu")))
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("n", [0.3, 0.5, 1.5, 2.7])
def test_lp_norm_of_one_gaussian_for_any_exponent(kind, dim, n):
    p = make(kind, dim=dim, count=1, seed=3)
    p_at = density(p)
    if dim == 1:
        power = quad(lambda x: float(p_at(np.array([x]))) ** n, -80, 80, points=(-2, 0, 2),
                     limit=800, epsabs=1e-12, epsrel=1e-11)[0]  # fmt: skip
    else:
        axis = np.linspace(-40, 40, 2001)
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
        power = trapezoid(trapezoid(p_at(grid) ** n, axis), axis)
    assert float(p.lp_norm(n)) == pytest.approx(power ** (1 / n), rel=1e-7)
    # An integer given as a float is one.
    assert float(p.lp_norm(3.0)) == float(p.lp_norm(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0.4, 1.5, 3.5])
def test_lp_norm_of_a_mixture_is_estimated_with_its_error(kind, n):
    p = make(kind, dim=1, seed=3)
    p_at = density(p)
    power = quad(lambda x: float(p_at(np.array([x]))) ** n, -80, 80, points=(-2, 0, 2),
                 limit=800, epsabs=1e-12, epsrel=1e-11)[0]  # fmt: skip
    misses = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        value, error = p.lp_norm_estimate(n, 4000, generator=generator)
        assert 0 < float(error) < 0.05 * float(value)
        misses.append((float(value) - power ** (1 / n)) / float(error))
    assert max(map(abs, misses)) < 4
    assert 0.3 < np.std(misses) < 2
    one = make(kind, count=1, seed=3)
    value, error = one.lp_norm_estimate(n, 50)
    assert float(value) == pytest.approx(float(one.lp_norm(n)), rel=1e-9)
    assert float(error) < 1e-9 * float(value)


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
    products = InnerProducts(-1.5 * value, torch.zeros(()), torch.zeros(()))
    monkeypatch.setattr(GaussianMixture, "_inner_products", lambda *_: products)
    divergence = p.cauchy_schwarz(p)
    divergence.backward()
    assert divergence.item() == 0
    assert float(value.grad) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_784_dimensions(kind):
    p = make(kind, dim=784, count=2, seed=1)
    q = make(kind, dim=784, count=1, seed=2)
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
