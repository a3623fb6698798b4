"""What must hold for all mixtures: what they reduce to, symmetry, bounds, invariances."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import kermix as km
from cases import BOUNDED, COSTS, normal, ridged, uniform
from mixture_cases import KINDS

RIDGE = 1e-4
CLOSE = {"rtol": 1e-8, "atol": 1e-13}
law = settings(deadline=None, max_examples=12, derandomize=True, database=None)
every_cost = pytest.mark.parametrize("name", COSTS)


@dataclass
class Numbers:
    """Weights, means and covariances of a mixture."""

    weights: torch.Tensor
    means: torch.Tensor
    covariances: torch.Tensor

    def mixture(self):
        return km.GaussianMixture(self.weights, self.means, self.covariances)


@st.composite
def mixtures(draw, dim):
    count, seed = draw(st.integers(1, 7)), draw(st.integers(0, 10_000))
    kind = draw(st.sampled_from(KINDS))
    spread = draw(st.sampled_from([0.1, 1.0, 10.0]))
    root = normal(count, dim, dim, seed=seed)
    full = root @ root.mT / dim + 0.2 * torch.eye(dim, dtype=torch.float64)
    diagonal = full.diagonal(dim1=-2, dim2=-1)
    covariances = {"isotropic": diagonal[:, 0], "diagonal": diagonal, "full": full}[kind]
    means = spread * normal(count, dim, seed=seed + 1)
    return Numbers(uniform(count, seed=seed + 2) + 0.05, means, covariances.clone())


@st.composite
def pairs(draw):
    dim = draw(st.sampled_from([1, 2, 5, 9]))
    return draw(mixtures(dim)), draw(mixtures(dim))


def cost(name, p, q, **keywords):
    sides = [s.mixture() if isinstance(s, Numbers) else s for s in (p, q)]
    return COSTS[name](*sides, **ridged(name, RIDGE), **keywords)


@every_cost
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12)),
    v=st.sampled_from([0.01, 0.3, 4.0]),
    per_dimension=st.booleans(),
    seed=st.integers(0, 1000),
)
@law
def test_of_one_variance_it_is_the_cost_of_points(name, sizes, v, per_dimension, seed):
    n, k, d = sizes
    x, y = normal(n, d, seed=seed), normal(k, d, seed=seed + 1)
    a, b = uniform(n, seed=seed + 2) + 0.1, uniform(k, seed=seed + 3) + 0.1
    kernel = km.GaussianKernel(v, per_dimension=per_dimension)
    spread = v * d if per_dimension else v
    p = km.GaussianMixture(a, x, torch.full((n,), spread, dtype=torch.float64))
    q = km.GaussianMixture(b, y, torch.full((k,), spread, dtype=torch.float64))
    for normalized in {False, name in BOUNDED}:
        asked = {"normalized": normalized, "log": True, **ridged(name, RIDGE)}
        expected = COSTS[name](x, y, kernel, weights_x=a, weights_y=b, **asked)
        close = {"rtol": 1e-8, "atol": 1e-9}
        assert_close(COSTS[name](p, q, **asked), expected, **close)
        assert_close(COSTS[name](x, q, kernel, weights_x=a, **asked), expected, **close)
        assert_close(COSTS[name](p, y, kernel, weights_y=b, **asked), expected, **close)


@every_cost
@given(v_p=st.sampled_from([0.1, 0.5]), v_q=st.sampled_from([0.2, 2.0]), d=st.integers(1, 4))
@law
def test_of_a_variance_for_each_side(name, v_p, v_q, d):
    """The [0, 1] forms agree with those of points; the SVD cost has the overlap as a factor."""
    x, y = normal(6, d), normal(5, d, seed=1)
    p = km.GaussianMixture(torch.ones(6), x, torch.full((6,), v_p * d))
    q = km.GaussianMixture(torch.ones(5), y, torch.full((5,), v_q * d))
    asked = {"normalized": name in BOUNDED, **ridged(name, RIDGE)}
    expected = COSTS[name](x, y, km.GaussianKernel(v_p, v_q), **asked)
    if name == "svd":
        expected = expected * (2 * (v_p * v_q) ** 0.5 / (v_p + v_q)) ** (d / 2)
    assert_close(COSTS[name](p, q, **asked), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", BOUNDED)
@given(pair=pairs())
@law
def test_between_zero_and_one(name, pair):
    value = cost(name, *pair, normalized=True)
    assert 0 <= value <= 1
    itself = cost(name, pair[0], pair[0], normalized=True)
    if name in ("scalar", "svd"):
        assert_close(itself, torch.ones_like(itself), **CLOSE)
    assert value <= 1 + 1e-12


@pytest.mark.parametrize("name", ["scalar", "trace", "logdet", "svd"])
@given(pair=pairs())
@law
def test_symmetry(name, pair):
    asked = {"normalized": name in BOUNDED}
    assert_close(cost(name, *pair, **asked), cost(name, *pair[::-1], **asked), **CLOSE)


@every_cost
@given(pair=pairs(), seed=st.integers(0, 100))
@law
def test_order_of_components(name, pair, seed):
    p, q = pair
    order = torch.randperm(len(q.weights), generator=torch.Generator().manual_seed(seed))
    shuffled = Numbers(q.weights[order], q.means[order], q.covariances[order])
    assert_close(cost(name, p, shuffled), cost(name, p, q), **CLOSE)
    assert_close(cost(name, shuffled, p), cost(name, q, p), **CLOSE)


@pytest.mark.parametrize("name", COSTS)
@given(pair=pairs(), share=st.sampled_from([0.5, 0.1]))
@law
def test_a_component_split_in_two(name, pair, share):
    """Densities and operators are the same; what is inverted is singular but for its ridge."""
    p, q = pair
    split = Numbers(
        torch.cat([q.weights[:1] * share, q.weights[:1] * (1 - share), q.weights[1:]]),
        torch.cat([q.means[:1], q.means]),
        torch.cat([q.covariances[:1], q.covariances]),
    )
    if name in ("scalar", "svd"):
        assert_close(cost(name, p, split), cost(name, p, q), **CLOSE)
        assert_close(cost(name, split, p), cost(name, q, p), **CLOSE)
    elif name in ("vector", "data_fixed"):  # what q can predict of p does not change
        sides = [s.mixture() for s in (p, split, q)]
        found, expected = (COSTS[name](sides[0], s, ridge=1e-8) for s in sides[1:])
        assert_close(found, expected, rtol=1e-3, atol=1e-6)


@every_cost
@given(pair=pairs(), factor=st.sampled_from([1e-3, 7.0, 1e4]), shift=st.sampled_from([0.0, 3.0]))
@law
def test_units_and_origin(name, pair, factor, shift):
    """Lengths in other units, another origin: in units of the data's norms nothing changes."""

    def moved(side):
        return Numbers(side.weights, factor * (side.means + shift), factor**2 * side.covariances)

    found = cost(name, moved(pair[0]), moved(pair[1]), log=True)
    assert_close(found, cost(name, *pair, log=True), rtol=1e-8, atol=1e-8)


@every_cost
@given(pair=pairs(), factor=st.sampled_from([0.01, 30.0]))
@law
def test_only_ratios_of_weights_matter(name, pair, factor):
    p, q = pair
    given_weights = km.SampledMixture(factor * q.weights, q.means, q.covariances)
    assert_close(cost(name, p, given_weights), cost(name, p, q), **CLOSE)
    assert_close(cost(name, given_weights, p), cost(name, q, p), **CLOSE)
