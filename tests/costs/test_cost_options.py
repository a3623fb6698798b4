"""Precision, ridge, method and memory: how a cost is computed must not change what it is."""

import inspect

import pytest
import torch
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import COSTS, DTYPES, RIDGED, normal, outputs, samples, uniform


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", COSTS)
def test_half_precision_is_computed_in_single(name, dtype):
    x, y = samples("near", 20, 12, 4, 1.0, dtype)
    for keywords in outputs(name):
        found = COSTS[name](x, y, 1.0, **keywords)
        single = COSTS[name](x.float(), y.float(), 1.0, **keywords)
        assert found.dtype == dtype
        assert_close(found, single.to(dtype), rtol=tolerances.RELATIVE[dtype], atol=0)


@pytest.mark.parametrize("name", COSTS)
def test_autocast_is_switched_off_inside(name):
    x, y = samples("near", 20, 12, 30, 1.0, torch.float32)
    plain = COSTS[name](x, y, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = COSTS[name](x, y, 1.0)
    assert_close(cast, plain, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COSTS)
def test_info(name, dtype):
    x, y = normal(2, 6, 3, seed=1, dtype=dtype), normal(2, 4, 3, seed=2, dtype=dtype)
    value, info = COSTS[name](x, y, 1.0, return_info=True)
    assert_close(value, COSTS[name](x, y, 1.0), rtol=0, atol=0)
    if name not in RIDGED:
        assert info.ridge is None
        return
    assert info.ridge.shape == (2,)
    assert (info.ridge > 0).all()
    _, info = COSTS[name](x, y, 1.0, ridge=0.01, return_info=True)
    assert_close(
        info.ridge.double(), torch.full((2,), 0.01, dtype=torch.float64), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIDGED)
def test_ridge_is_raised_only_where_it_has_to_be(name, dtype):
    x = 10 * normal(5, 2, seed=1, dtype=dtype)
    y = torch.stack([x[:4] + 0.1, torch.ones(4, 2, dtype=dtype)])
    value, info = COSTS[name](x, y, 0.1, ridge=0.0, return_info=True)
    assert info.ridge[0] == 0
    assert info.ridge[1] > 0
    assert torch.isfinite(value).all()
    assert_close(value[0], COSTS[name](x, y[0], 0.1, ridge=0.0), **tolerances.same(dtype))


def test_method_can_be_asked_for():
    x, y = samples("near", 7, 5, 2, 1.0)
    value, info = COSTS["svd"](x, y, 1.0, method="svd", return_info=True)
    assert info.method == "svd"
    auto, info = COSTS["svd"](x, y, 1.0, method="auto", return_info=True)
    assert info.method != "auto"
    assert_close(auto, value, **tolerances.value(torch.float64))


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("name", ["scalar", "vector"])
def test_chunks(name, chunk):
    results = []
    for size in (None, chunk):
        inputs = [normal(2, 7, 3, seed=1), normal(5, 3, seed=2), uniform(7, seed=3)]
        x, y, weights = (t.requires_grad_() for t in inputs)
        value = COSTS[name](x, y, [0.3, 2.0], weights_x=weights, chunk=size, log=True)
        results.append([value, *torch.autograd.grad(value.sum(), inputs)])
    for whole, tiled in zip(*results, strict=True):
        assert_close(tiled, whole, **tolerances.same(torch.float64))


@pytest.mark.parametrize(
    "function", [km.svd_cost, km.nuclear_norm, km.metrics.vendi], ids=lambda f: f.__name__
)
def test_return_info_is_an_argument_that_help_shows(function):
    assert inspect.signature(function).parameters["return_info"].default is False
    with pytest.raises(TypeError, match="return_information"):
        function(torch.ones(2, 2), return_information=True)
