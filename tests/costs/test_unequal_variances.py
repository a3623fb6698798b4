"""Data and centres of different variances; several variances; what is refused."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import kermix as km
from cases import normal
from internals import functions_module as costs
from kermix import errors


def densities(points, grid, variance):
    """Normal densities of isotropic variance at the points of a grid, one row for each."""
    d = points.shape[1]
    squares = ((grid[None] - points[:, None]) ** 2).sum(-1)
    return np.exp(-squares / (2 * variance)) / (2 * np.pi * variance) ** (d / 2)


def best_weights(x, y, v_p, v_q, weights, per_dimension=True):
    """Least squares on a fine grid: the integral is a sum, and nothing is known of kernels."""
    d = x.shape[1]
    scale = d if per_dimension else 1
    axis = np.linspace(-9, 9, 2000 if d == 1 else 150)
    grid = np.array(list(itertools.product(axis, repeat=d)))
    target = weights @ densities(x, grid, scale * v_p)
    return np.linalg.lstsq(densities(y, grid, scale * v_q).T, target, rcond=None)[0]


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([1, 2]),
    st.sampled_from([(0.3, 0.3), (0.3, 0.8), (0.9, 0.2), (1.0, 0.1)]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_vector_weights_minimise_the_squared_error_of_the_density(d, variances, divided, seed):
    x = normal(6, d, seed=seed)
    y = 2.5 * torch.tensor([[-1.0], [0.1], [1.2]]).double() + 0.2 * normal(3, d, seed=seed + 1)
    weights = torch.rand(6, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    kernel = km.GaussianKernel(*variances, per_dimension=divided)
    found = km.vector_weights(x, y, kernel, weights_x=weights, ridge=0.0)
    share = (weights / weights.sum()).numpy()
    truth = best_weights(x.numpy(), y.numpy(), *variances, share, divided)
    assert_close(found, torch.tensor(truth), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d", [1, 3, 20])
def test_narrow_data_at_the_centres_keep_their_mass(d):
    """Far from each other, each Gaussian is predicted by the one at its place."""
    y = 50.0 * torch.arange(3).double()[:, None].expand(3, d)
    x, share = y[[0, 1, 1, 2]], torch.tensor([0.25, 0.5, 0.25]).double()
    for v_p, v_q in ((0.2, 0.2), (0.2, 0.5), (0.5, 0.2)):
        found = km.vector_weights(x, y, km.GaussianKernel(v_p, v_q), ridge=0.0)
        # <N(0, v_p), N(0, v_q)> / <N(0, v_q), N(0, v_q)>
        assert_close(found, share * (2 * v_q / (v_p + v_q)) ** (d / 2), rtol=1e-10, atol=0)


@pytest.mark.parametrize("normalized", [False, True])
def test_svd_cost_of_many_points_takes_unequal_variances(normalized, monkeypatch):
    x, y = normal(40, 2, seed=1), normal(30, 2, seed=2)
    kernel = km.GaussianKernel(0.3, 0.7)
    truth = km.svd_cost(x, y, kernel, normalized=normalized, method="svd")
    for most in (4096, 30, 29, 5):
        monkeypatch.setattr(costs, "SKETCH_ABOVE", {"cpu": most})
        assert_close(km.svd_cost(x, y, kernel, normalized=normalized), truth, rtol=2e-4, atol=0)
    with pytest.raises(errors.VarianceError, match="same variance"):
        km.svd_cost(x, y, kernel, method="sketch")


SEVERAL = [torch.rand(5) + 0.1, torch.rand(2) + 0.1, np.array([0.1, 0.2]), torch.ones(3).double()]


@pytest.mark.parametrize("v", SEVERAL)
def test_a_tensor_of_variances_is_refused_unless_an_average_is_asked_for(v):
    x, y = normal(6, 2, seed=1), normal(5, 2, seed=2)
    for function in (km.scalar_cost, km.vector_cost, km.matrix_cost, km.svd_cost, km.gram):
        with pytest.raises(errors.VarianceError, match=r"GaussianKernel\(v\).*GaussianMixture"):
            function(x, y, v)
        average = [float(u) for u in v]
        found = function(x, y, km.GaussianKernel(v))
        assert_close(found, function(x, y, average), rtol=1e-9, atol=0)


def test_one_variance_may_be_a_tensor_of_any_shape():
    x, y = normal(6, 2, seed=1), normal(5, 2, seed=2)
    truth = km.scalar_cost(x, y, 0.5)
    for v in (torch.tensor(0.5), torch.tensor([0.5]), np.float64(0.5), np.array(0.5), [0.5]):
        assert_close(km.scalar_cost(x, y, v), truth)


def test_learned_variances_of_an_average_are_trained():
    x, y = normal(30, 2, seed=1), normal(20, 2, seed=2)
    v = torch.nn.Parameter(torch.tensor([0.4, 1.5]).double())
    loss = km.SVDLoss(km.GaussianKernel(v))
    assert [p is v for p in loss.parameters()] == [True]
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    values = []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[0] > values[1] > values[2]
    assert_close(loss(x, y), km.SVDLoss(v.tolist())(x, y))
    copied = copy.deepcopy(loss)
    with torch.no_grad():
        next(copied.parameters()).mul_(2)
    assert not torch.equal(copied(x, y), loss(x, y))
