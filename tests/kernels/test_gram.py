"""Gram matrices and bandwidths."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import kermix as km
import reference
import tolerances
from cases import DTYPES, normal, samples


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("v", [1e-3, 1.0, [0.1, 1.0, 10.0]])
@pytest.mark.parametrize("d", [1, 8, 9, 100])
def test_gram(d, v, dtype):
    x, y = samples("near", 11, 7, d, 1e-3 if v == 1e-3 else 1.0, dtype)
    found = km.gram(x, y, v)
    truth = reference.gram(x.double().numpy(), y.double().numpy(), v).astype(float)
    assert found.dtype == dtype
    assert_close(found.double(), torch.tensor(truth), **tolerances.value(dtype))


def test_gram_of_a_kernel_is_the_cross_one():
    x, y = samples("near", 5, 4, 3, 1.0)
    for per_dimension in (True, False):
        found = km.gram(x, y, km.GaussianKernel(0.5, 2.0, per_dimension=per_dimension))
        truth = reference.gram(x.numpy(), y.numpy(), 1.25, per_dimension).astype(float)
        assert_close(found, torch.tensor(truth), **tolerances.value(torch.float64))


def test_gram_of_batches():
    a, b = normal(4, 1, 5, 3, seed=1), normal(2, 6, 3, seed=2)
    found = km.gram(a, b, 0.5)
    assert found.shape == (4, 2, 5, 6)
    assert_close(found[3, 1], km.gram(a[3, 0], b[1], 0.5), **tolerances.same(torch.float64))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("v", [1e-4, 1.0, [0.1, 1.0, 7.0]])
@pytest.mark.parametrize("d", [2, 50])
def test_diagonal_is_exactly_one(d, v, dtype):
    x = normal(3, 40, d, seed=1, dtype=dtype) + 3
    diagonal = km.gram(x, x, v).diagonal(dim1=-2, dim2=-1)
    assert diagonal.dtype == dtype
    assert (diagonal == 1).all()


@pytest.mark.parametrize("v", [1e-3, [1e-3, 1e-4]])
@pytest.mark.parametrize("d", [1, 2, 20])
def test_no_subnormal_numbers(d, v):
    x = normal(400, 1, seed=1, dtype=torch.float32).expand(-1, d)
    g = km.gram(x, x.clone(), v)
    tiny = torch.finfo(torch.float32).tiny
    truth = reference.gram(x.double().numpy(), x.double().numpy(), v)
    assert ((truth > 0) & (truth < tiny)).any(), "the data do not test anything"
    assert ((g == 0) | (g >= tiny)).all()
    assert (g[torch.tensor((truth > 2 * tiny).astype(bool))] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_subnormal_numbers_of_any_type(dtype):
    x = torch.linspace(0, 40, 300)[:, None].to(dtype).requires_grad_()
    g = km.gram(x, x.detach()[:1], 1.0)
    tiny = torch.finfo(dtype).tiny
    truth = torch.tensor(reference.gram(*(t.detach().double().numpy() for t in (x, x[:1])), 1.0)
                         .astype(float))  # fmt: skip
    assert ((truth > 0) & (truth < tiny)).any(), "the data do not test anything"
    assert ((g == 0) | (g >= tiny)).all()
    assert (g[truth > 2 * tiny] > 0).all()
    g.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_dimension", [True, False])
@pytest.mark.parametrize(("n", "d"), [(2, 3), (6, 1), (7, 20), (30, 2)])
def test_median_bandwidth(n, d, per_dimension, dtype):
    x = normal(n, d, seed=n, dtype=dtype)
    found = km.choose_variance(x, rule="median", per_dimension=per_dimension)
    truth = reference.median_bandwidth(x.double().numpy(), per_dimension)
    assert found.shape == ()
    assert_close(found.item(), truth, **tolerances.value(dtype))


def test_median_bandwidth_leaves_out_zeros():
    x = torch.tensor([[0.0], [0.0], [0.0], [0.0], [3.0]])
    assert_close(km.choose_variance(x).item(), 4.5)


def test_median_bandwidth_of_many_points_is_that_of_a_subsample():
    x = normal(50_000, 2, seed=1)
    # The squared distance of two standard normal points in the plane has median 4 log 2.
    assert_close(km.choose_variance(x).item(), np.log(2), rtol=0.15, atol=0)


@pytest.mark.parametrize("per_dimension", [True, False])
@pytest.mark.parametrize(("n", "d"), [(20, 1), (50, 7)])
def test_silverman_bandwidth(n, d, per_dimension):
    x = 3 * normal(n, d, seed=n)
    found = km.choose_variance(x, rule="silverman", per_dimension=per_dimension).item()
    # Both usual estimates of the variance are accepted.
    truths = [reference.silverman_bandwidth(x.numpy(), per_dimension, ddof) for ddof in (0, 1)]
    assert min(abs(found / truth - 1) for truth in truths) < 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), [(4, 1), (4, 9), (11, 1), (11, 2), (300, 1), (300, 2)])
def test_silverman_bandwidth_of_far_points(n, d, dtype):
    # A spread of a few times the distance between neighbouring numbers, in float32.
    steps = normal(n, d, seed=n, dtype=dtype)
    x = 2 * (steps.round() - 1.25e7) if dtype == torch.float32 else steps - 1e8
    truth = reference.silverman_bandwidth((x.double() - x[0].double()).numpy())
    found = km.choose_variance(x, rule="silverman").item()
    assert_close(found, truth, **tolerances.value(dtype))


@pytest.mark.parametrize("rule", ["median", "silverman"])
@pytest.mark.parametrize("n", [1, 5])
def test_bandwidth_of_equal_points(n, rule):
    with pytest.warns(km.errors.DegenerateDataWarning):
        assert km.choose_variance(torch.full((n, 3), 2.5), rule=rule) == 1


def test_bandwidth_is_a_variance_for_the_costs():
    x, y = normal(20, 3, seed=1), normal(15, 3, seed=2)
    assert 0 < km.svd_cost(x, y, km.choose_variance(x), normalized=True) < 1
