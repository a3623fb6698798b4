"""Mixtures with any prior, against their definition."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.stats import multivariate_normal
from torch.testing import assert_close

from kermix.errors import OptionError
from kermix.mixtures.mixture import GaussianMixture
from kermix.mixtures.sampled_mixture import SampledMixture
from mixture_cases import (
    KINDS,
    build,
    curves,
    full_covariances,
    make,
    parameters,
    raw_parameters,
    rng,
    sampled,
)


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


def test_sampled_weights_are_not_normalized():
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


def test_too_few_samples_for_an_unbiased_norm():
    one = SampledMixture(None, torch.zeros(1, 2), torch.ones(1))
    assert float(one.norm2()) == pytest.approx(1 / (4 * math.pi))
    for call in (one.norm2, one.log_norm2, lambda unbiased: one.cauchy_schwarz(one, unbiased)):
        with pytest.raises(OptionError, match="draw more samples"):
            call(unbiased=True)
    with pytest.raises(OptionError, match="n = 5"):
        sampled("full").lp_norm(5, unbiased=True)
