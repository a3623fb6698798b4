"""Each cost's formula, by everyone who provides its statistics."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import kermix as km
import reference
import tolerances
from cases import COSTS, RIDGED, normal, uniform
from internals import (
    InnerProducts,
    MatrixStatistics,
    MomentStatistics,
    Numerics,
    PointStatistics,
    Ranks,
    RankStatistics,
    ScaledGram,
    WeightedMoments,
    kernel_sets,
    sample_moments,
    scaled_gram,
)
from internals import formulas_module as formulas

law = settings(deadline=None, max_examples=20, derandomize=True, database=None)
FORMS = ("trace", "data_fixed", "logdet")
RIDGE = 1e-3
V = 0.4


def invertible(k, seed):
    """Random rotations around singular values between 0.3 and 3: condition 10 at most."""
    u, v = (torch.linalg.qr(normal(k, k, seed=seed + i))[0] for i in (0, 1))
    return (u * (0.3 + 2.7 * uniform(k, seed=seed + 2))) @ v


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mixed", ["centres", "data"])
@given(n=st.integers(1, 12), k=st.integers(1, 12), seed=st.integers(0, 10_000))
@law
def test_residuals_mixed_by_an_invertible_matrix(form, mixed, n, k, seed):
    """`P -> T P`, `R_F -> T R_F T'` changes nothing, and the same on the side of the data."""
    if form == "data_fixed" and mixed == "data":
        return  # R_G does not enter, so the data's Gaussians must stay as they are
    # Two widths from point to point: well conditioned without a ridge.
    x = 2 * torch.arange(n, dtype=torch.float64)[:, None] + 0.3 * normal(n, 1, seed=seed)
    y = 2 * torch.arange(k, dtype=torch.float64)[:, None] + 0.3 * normal(k, 1, seed=seed + 1)
    p, r_f, r_g = (km.gram(a, b, 0.25) for a, b in ((y, x), (y, y), (x, x)))
    log_scale = torch.tensor(-0.5, dtype=torch.float64)

    def cost(p, r_f, r_g):
        pair = MatrixStatistics(ScaledGram(p, log_scale), r_g, r_f, ridge=0.0)
        value, info = formulas.log_matrix_cost(pair, form, normalized=False)
        assert info.ridge == 0
        return value

    truth = cost(p, r_f, r_g)
    if mixed == "centres":
        t = invertible(k, seed)
        found = cost(t @ p, t @ r_f @ t.mT, r_g)
    else:
        t = invertible(n, seed)
        found = cost(p @ t.mT, r_f, t @ r_g @ t.mT)
    assert_close(found, truth, rtol=0, atol=tolerances.LAW)
    # It is the pair that is mixed: one of them alone gives another number.
    alone = cost(2 * p, r_f, r_g)
    assert (alone - truth).abs() > 0.1


def dense(x, y, a, b, ridge):
    return PointStatistics(x, y, V, (a, b), Numerics(ridge=ridge))


def matrices(x, y, a, b, ridge):
    terms = km.GaussianKernel(V).cross_terms(x.shape[1])
    own_x, own_y = (km.gram(points, points, V) for points in (x, y))
    return MatrixStatistics(scaled_gram(y, x, terms, x.dtype), own_x, own_y, ridge)


def moments(x, y, a, b, ridge):
    """Every point is a landmark, so that the features are exact."""
    pooled = torch.cat([x, y])
    features = km.nystrom_features(pooled, V, rank=len(pooled), tolerance=None)
    assert features.rank == len(pooled)
    sides = (sample_moments(features, *side) for side in ((x, a), (y, b)))
    return MomentStatistics(*sides, a is not None, ridge)


def shards(x, y, a, b, ridge):
    kernel = km.GaussianKernel(V)
    sides = tuple((points, [len(points)], w) for points, w in ((x, a), (y, b)))
    sets = kernel_sets(Ranks(), kernel, sides)
    return RankStatistics(*sets, kernel.cross_terms(x.shape[1]), torch.float64, ridge)


def weightings(x, y, a, b, ridge):
    """Weightings of the pooled points, of which the second exchanges those of equal size."""
    pooled = torch.cat([x, y])
    features = torch.linalg.cholesky(km.gram(pooled, pooled, V))
    of_x, of_y = (z.new_full((len(z),), 1 / len(z)) if w is None else w
                  for z, w in ((x, a), (y, b)))  # fmt: skip
    first = torch.cat([of_x, y.new_zeros(len(y))])
    second = torch.cat([x.new_zeros(len(x)), of_y])
    sizes = len(x), len(y)
    if sizes[0] != sizes[1]:
        return WeightedMoments(features, first[None], second[None], sizes, (ridge, ridge))
    sides = torch.stack([first, second]), torch.stack([second, first])
    return WeightedMoments(features, *sides, sizes, (ridge, ridge))


PROVIDERS = {f.__name__: f for f in (dense, matrices, moments, shards, weightings)}


def log_cost(name, pair, normalized):
    if name == "scalar":
        return formulas.log_scalar_cost(pair, normalized)
    if name == "vector":
        return formulas.log_vector_cost(pair, normalized)[0]
    if name == "svd":
        return formulas.log_svd_cost(pair, normalized)[0]
    return formulas.log_matrix_cost(pair, name, normalized)[0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("k", [9, 7])
def test_each_provider_gives_the_number_of_the_reference(provider, name, normalized, weighted, k):
    if normalized and name == "logdet":
        return  # it has no bound
    if weighted and provider == "matrices":
        return  # its points count the same
    if provider == "weightings" and name == "svd" and not (normalized or weighted):
        return  # they are measures
    n = 9
    x = 1.5 * torch.arange(n, dtype=torch.float64)[:, None] + 0.3 * normal(n, 1, seed=1)
    y = 1.8 * torch.arange(k, dtype=torch.float64)[:, None] + 0.3 * normal(k, 1, seed=2)
    weights = [None, None]
    if weighted:
        weights = [w / w.sum() for w in (uniform(n, seed=3) + 0.1, uniform(k, seed=4) + 0.1)]

    def exact(x, y, a, b):
        shown = [None if w is None else w.numpy() for w in (a, b)]
        return reference.cost(
            name, x.numpy(), y.numpy(), V, weights_x=shown[0], weights_y=shown[1],
            ridge=RIDGE if name in RIDGED else 0.0, normalized=normalized, log=True,
        )  # fmt: skip

    truth = [exact(x, y, *weights)]
    if provider == "weightings" and n == k:
        truth.append(exact(y, x, *weights[::-1]))
    found = log_cost(name, PROVIDERS[provider](x, y, *weights, RIDGE), normalized)
    expected = torch.tensor(truth, dtype=torch.float64).reshape(found.shape)
    assert_close(found, expected, **tolerances.logarithm(torch.float64))
    # Another ridge, or other points, would be seen.
    other = PROVIDERS[provider](x, y + 0.1, *weights, 2 * RIDGE)
    assert (log_cost(name, other, normalized) - expected).abs().max() > 1e-4


def test_a_normalized_cost_is_at_most_one_and_keeps_its_gradient():
    """Rounding made the inner product larger than both norms allow."""
    pq = torch.tensor(1 + 1e-9, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros((), dtype=torch.float64)
    value = formulas.log_scalar_cost(InnerProducts(pq.log(), zero, zero), normalized=True)
    (slope,) = torch.autograd.grad(value, pq)
    assert value == 0
    assert math.isclose(slope, 2, rel_tol=1e-6)
    assert formulas.log_scalar_cost(InnerProducts(pq.log(), zero, zero), normalized=False) > 1e-9


def test_a_sketchs_normalized_trace_is_at_most_one_without_a_ridge():
    """More features than centres: what rounding leaves in the others must not count."""
    features = km.nystrom_features(normal(30, 3, seed=5), 0.5, rank=12)
    sketch = km.Sketch(features).update(normal(23, 3, seed=1))
    y = (normal(11, 3, seed=2) + 0.3).requires_grad_()
    value = km.matrix_cost(sketch, y, ridge=0.0, normalized=True)
    assert 0.99 < value <= 1
    assert torch.autograd.grad(value, y)[0].isfinite().all()
