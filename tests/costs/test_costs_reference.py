"""Every value of every cost against the reference."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import kermix as km
import reference
import tolerances
from cases import (
    BOUNDED,
    COSTS,
    DTYPES,
    normal,
    outputs,
    ridged,
    samples,
    uniform,
)
from kermix.paper import generation as ablations

SIZES = [
    *[(1, 1, 1), (1, 2, 9), (2, 1, 8), (2, 2, 2), (2, 7, 784), (7, 2, 1), (1, 300, 2)],
    *[(300, 1, 50), (60, 7, 784), (60, 60, 784), (300, 60, 9), (60, 300, 8)],
    *[(300, 300, 50), (300, 300, 2)],
]
VARIANCES = (1e-4, 1e-2, 1.0, 10.0)
LARGE = [(200, 120, 784, 1e-4, "unit"), (200, 300, 1, 10.0, "unit"), (300, 300, 9, 1.0, "apart")]
SHAPES = LARGE + [(n, k, d, VARIANCES[i % 4], "near") for i, (n, k, d) in enumerate(SIZES)]
# Large ones in one of both precisions each, and so every dimension with every variance and kind.
GRID = [
    (*shape, dtype)
    for i, shape in enumerate(SHAPES)
    for j, dtype in enumerate(DTYPES)
    if shape[0] * shape[1] < 10_000 or (i + j) % 2
] + [
    (*((7, 60), (60, 7))[(i + j) % 2], d, v, kind, DTYPES[(i + j // 2 + m) % 2])
    for i, d in enumerate((1, 2, 8, 9, 50, 784))
    for j, v in enumerate(VARIANCES)
    for m, kind in enumerate(("near", "unit", "apart"))
]


def double(tensor):
    """The numbers of a tensor as the reference wants them."""
    return None if tensor is None else tensor.detach().double().numpy()


def check(name, x, y, v, *, v_q=None, weights_x=None, weights_y=None, per_dimension=True):
    """Compare all outputs of one cost of one pair with the reference."""
    dtype = x.dtype
    kernel = v if v_q is None and per_dimension else km.GaussianKernel(v, v_q, per_dimension)
    ridge = tolerances.RIDGE[dtype]
    for keywords in outputs(name):
        found = COSTS[name](
            x,
            y,
            kernel,
            weights_x=weights_x,
            weights_y=weights_y,
            **ridged(name, ridge),
            **keywords,
        )
        truth = reference.cost(
            name,
            double(x),
            double(y),
            v,
            v_q,
            weights_x=double(weights_x),
            weights_y=double(weights_y),
            ridge=ridge,
            per_dimension=per_dimension,
            **keywords,
        )
        assert found.dtype == dtype
        assert found.shape == ()
        tolerance = (
            tolerances.logarithm(dtype)
            if keywords.get("log")
            else tolerances.value(dtype, len(x) * len(y))
        )
        assert_close(
            found.double(),
            torch.tensor(truth, dtype=torch.float64),
            **tolerance,
            msg=lambda text, k=keywords: f"{name}, {k}\n{text}",
        )


@pytest.mark.parametrize(("n", "k", "d", "v", "kind", "dtype"), GRID)
def test_value(n, k, d, v, kind, dtype):
    x, y = samples(kind, n, k, d, v, dtype, seed=n + k + d)
    for name in COSTS:
        check(name, x, y, v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_dimension", [True, False])
@pytest.mark.parametrize(
    ("v", "v_q"),
    [([0.1, 1.0, 10.0], None), (0.3, 0.5), (0.3, 0.02), ([0.3, 2.0], [0.5, 1.0]), ([0.7], None)],
)
def test_kernels(v, v_q, per_dimension, dtype):
    for kind, d in (("near", 3), ("near", 12), ("apart", 3)):
        x, y = samples(kind, 9, 6, d, 0.3, dtype)
        for name in COSTS:
            check(name, x, y, v, v_q=v_q, per_dimension=per_dimension)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", ["x", "y", "xy"])
@pytest.mark.parametrize("kind", ["near", "apart"])
@pytest.mark.parametrize("name", COSTS)
def test_weights(name, kind, sides, dtype):
    x, y = samples(kind, 11, 8, 3, 0.5, dtype)
    weights_x, weights_y = 5 * uniform(11, seed=3, dtype=dtype), uniform(8, seed=4, dtype=dtype)
    weights_x[2:5] = 0
    weights_y[[0, 6]] = 0
    weights_x[0] = 1e-6
    check(
        name,
        x,
        y,
        0.5,
        weights_x=weights_x if "x" in sides else None,
        weights_y=weights_y if "y" in sides else None,
    )


@pytest.mark.parametrize("name", COSTS)
def test_log_when_only_points_without_weight_are_near(name):
    x, y = samples("near", 6, 5, 2, 0.1)
    x[3:] += 100
    weights = torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    check(name, x, y, 0.1, weights_x=weights)
    check(name, y, x, 0.1, weights_y=weights)


@pytest.mark.parametrize("v", [torch.tensor(0.3), torch.tensor([0.3, 1.0]), [0.3, 1.0], 0.3])
@pytest.mark.parametrize("name", COSTS)
def test_variance_may_be_number_list_or_tensor(name, v):
    x, y = samples("near", 5, 4, 3, 0.3)
    v = v.double() if isinstance(v, torch.Tensor) else v
    truth = reference.cost(name, double(x), double(y), np.asarray(v), ridge=1e-6)
    kernels = [km.GaussianKernel(v), km.GaussianKernel(v, v)]
    several = isinstance(v, torch.Tensor) and v.ndim == 1
    for given in kernels if several else [v, *kernels]:
        found = COSTS[name](x, y, given, **ridged(name, 1e-6))
        assert_close(found.item(), truth, **tolerances.value(torch.float64))


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float64, 1e4), (torch.float32, 1e3)])
@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize("name", COSTS)
def test_far_from_origin(name, d, dtype, offset):
    x, y = samples("near", 20, 15, d, 1.0)
    check(name, (x + offset).to(dtype), (y + offset).to(dtype), 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COSTS)
def test_batch_items_are_independent(name, dtype):
    x, y = normal(3, 1, 6, 2, seed=1, dtype=dtype), normal(2, 5, 2, seed=2, dtype=dtype)
    # Items of very different scale, one without overlap: none may spoil another.
    x = x * torch.tensor([1.0, 0.01, 1.0], dtype=dtype)[:, None, None, None]
    y[1] += 50
    weights = uniform(3, 1, 6, seed=3, dtype=dtype)
    for keywords in outputs(name):
        keywords = keywords | ridged(name, 1e-3)
        found = COSTS[name](x, y, 0.5, weights_x=weights, **keywords)
        assert found.shape == (3, 2)
        for i in range(3):
            for j in range(2):
                one = COSTS[name](x[i, 0], y[j], 0.5, weights_x=weights[i, 0], **keywords)
                assert_close(found[i, j], one, **tolerances.same(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 5, 30])
def test_ablations(d, dtype):
    x, y = samples("near", 13, 9, d, 0.4, dtype)
    truth = reference.frobenius_cost(double(x), double(y), 0.4)
    assert_close(ablations.frobenius_cost(x, y, 0.4).item(), truth, **tolerances.value(dtype))
    truth = reference.distance_nuclear_cost(double(x), double(y))
    assert_close(ablations.distance_nuclear_cost(x, y).item(), truth, **tolerances.value(dtype))
    batched = ablations.distance_nuclear_cost(x.expand(2, -1, -1), y)
    assert_close(batched[1].item(), truth, **tolerances.value(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_vector_weights(seed, dtype):
    x, y = samples("near", 12, 6, 2, 0.5, dtype, seed=10 * seed)
    a = uniform(12, seed=seed, dtype=dtype) if seed % 2 else None
    keywords = {"weights_x": double(a), "ridge": 1e-2}
    given = {"weights_x": a, "ridge": 1e-2}
    signed = km.vector_weights(x, y, 0.5, **given)
    truth = reference.vector_weights(double(x), double(y), 0.5, **keywords)
    scale = float(np.abs(truth).max())
    near = {"rtol": tolerances.RELATIVE[dtype], "atol": tolerances.RELATIVE[dtype] * scale}
    assert_close(double(signed), truth, **near)
    density = km.vector_weights(x, y, 0.5, nonnegative=True, **given)
    truth = reference.nonnegative_weights(double(x), double(y), 0.5, **keywords)
    assert (density >= 0).all()
    assert_close(double(density), truth, **near)
    assert density.dtype == signed.dtype == dtype


def test_vector_weights_of_a_batch():
    x, y = normal(3, 8, 2, seed=1), normal(3, 5, 2, seed=2)
    for nonnegative in (False, True):
        found = km.vector_weights(x, y, 0.3, ridge=1e-3, nonnegative=nonnegative)
        assert found.shape == (3, 5)
        for i in range(3):
            one = km.vector_weights(x[i], y[i], 0.3, ridge=1e-3, nonnegative=nonnegative)
            assert_close(found[i], one, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", BOUNDED)
def test_perfect_match_reaches_the_bound(name):
    x = 10 * normal(6, 2, seed=1)
    found = COSTS[name](x, x.clone(), 0.1, normalized=True, **ridged(name, 1e-12))
    assert_close(found.item(), 1.0, rtol=1e-9, atol=0)
