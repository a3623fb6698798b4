"""Gradients of the closed forms: checked, in blocks of bounded memory, at weights of zero."""

import math

import pytest
import torch
from torch.testing import assert_close

from kermix.mixtures import closed_forms as log_sums
from kermix.mixtures.mixture import GaussianMixture
from mixture_cases import (
    FUNCTIONS,
    KIND_PAIRS,
    KINDS,
    build,
    make,
    parameters,
    raw_parameters,
    rng,
)


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


@pytest.mark.parametrize(("kind_p", "kind_q"), KIND_PAIRS)
def test_blocks_change_neither_values_nor_gradients(kind_p, kind_q, monkeypatch):
    def values_and_gradients():
        p = [t.requires_grad_() for t in parameters(kind_p, count=5, batch=(2,), seed=1)]
        q = [t.requires_grad_() for t in parameters(kind_q, count=4, seed=2)]
        x = torch.randn(6, 2, 2, generator=rng(), dtype=torch.float64).requires_grad_()
        first, second = GaussianMixture(*p), GaussianMixture(*q)
        values = [first.log_inner(second), first.log_norm2(), first.lp_norm(3), first.log_prob(x)]
        gradients = torch.autograd.grad(sum(v.sum() for v in values), [x, *p, *q])
        return [v.detach() for v in values], gradients

    expected = values_and_gradients()
    for elements in (1, 40, 300):
        monkeypatch.setattr(log_sums, "BLOCK_ELEMENTS", elements)
        assert_close(values_and_gradients(), expected, rtol=1e-10, atol=1e-12)


def test_no_tensor_of_pairs_times_dimensions(monkeypatch):
    """Also in the backward pass: saved tensors are counted."""
    monkeypatch.setattr(log_sums, "BLOCK_ELEMENTS", 2**14)
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


@pytest.mark.parametrize("elements", [1, 2**20])  # a block may have no other weights than zero
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "moments"])
def test_zero_weights_have_the_true_gradient(name, elements, monkeypatch):
    monkeypatch.setattr(log_sums, "BLOCK_ELEMENTS", elements)
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


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_point_too_far_for_its_density_leaves_the_others_alone(kind):
    covariances = torch.tensor([[1e-12, 2e-12], [3e-12, 1e-12]])
    covariances = covariances.diag_embed() if kind == "full" else covariances
    means = torch.tensor([[0.0, 0.0], [1e-6, 2e-6]])
    mixture = GaussianMixture(torch.ones(2), means, covariances)
    at = torch.tensor([[2e14, 2e14], [1e-6, 0.0]], requires_grad=True)
    found = mixture.log_prob(at)
    assert found[0] < -1e38
    found[1].backward()
    assert (at.grad[0] == 0).all()
    assert torch.isfinite(at.grad).all()
