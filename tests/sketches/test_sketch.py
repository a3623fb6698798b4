"""Costs by moments: equal to those by samples where features are exact, certified elsewhere."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import grad
from torch.testing import assert_close

import kermix as km
from cases import BOUNDED, COSTS, normal, outputs, ridged, uniform
from internals import NystromFeatures
from internals import functions_module as costs
from kermix import errors
from sketch_cases import assert_same, sums

N, K, D = 17, 13, 3
RIDGE = 1e-3
CERTIFIED = ("scalar", "vector", "svd")
KERNELS = {
    "one": km.GaussianKernel(0.1),
    "several": km.GaussianKernel([0.05, 0.3]),
    "undivided": km.GaussianKernel(0.3, per_dimension=False),
}
law = settings(deadline=None, max_examples=20, derandomize=True, database=None)
every_cost = pytest.mark.parametrize("name", COSTS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def points():
    """Data, centres, and weights of both."""
    weights = uniform(N, seed=3) + 0.01, uniform(K, seed=4) + 0.01
    return normal(N, D, seed=1), 0.8 * normal(K, D, seed=2) + 0.3, *weights


def exact_map(kernel, x, y):
    """Features of which the inner products are the kernel, to rounding."""
    return NystromFeatures(torch.cat([x, y]), kernel)


def cost(name, *args, **keywords):
    return COSTS[name](*args, **ridged(name, RIDGE), **keywords)


@every_kernel
@every_cost
def test_exact_features_give_the_dual_values(name, kernel):
    x, y, _, _ = points()
    kernel = KERNELS[kernel]
    features = exact_map(kernel, x, y)
    s, t = km.Sketch(features).update(x), km.Sketch(features).update(y)
    for asked in outputs(name):
        truth = cost(name, x, y, kernel, **asked)
        for pair in ((s, t), (s, y), (x, t)):
            assert_close(cost(name, *pair, **asked), truth, rtol=1e-7, atol=1e-8)


@every_cost
def test_exact_features_with_weights(name):
    x, y, a, b = points()
    features = exact_map(KERNELS["one"], x, y)
    s, t = km.Sketch(features).update(x, 7 * a), km.Sketch(features).update(y, b / 7)
    for asked in outputs(name):
        if name == "svd" and "normalized" not in asked:
            continue  # the next test
        truth = cost(name, x, y, KERNELS["one"], weights_x=a, weights_y=b, **asked)
        found = cost(name, s, t, **asked), cost(name, s, y, weights_y=b, **asked)
        for value in (*found, cost(name, x, t, weights_x=a, **asked)):
            assert_close(value, truth, rtol=1e-7, atol=1e-8)


def test_weighted_svd_cost_is_bounded_by_one():
    x, y, _, b = points()
    sketch = km.Sketch(exact_map(KERNELS["one"], x, y)).update(x)
    truth = km.svd_cost(x, y, KERNELS["one"], weights_y=b)
    assert_close(km.svd_cost(sketch, y, weights_y=b), truth, rtol=1e-7, atol=0)


@every_kernel
@every_cost
def test_training_against_a_sketch(name, kernel):
    """The gradient, for samples and their weights, is that against the samples in the sketch."""
    x, y, _, b = points()
    kernel = KERNELS[kernel]
    sketch = km.Sketch(exact_map(kernel, x, y)).update(x)
    asked = {"normalized": True} if name in BOUNDED else {"log": True}
    gradients = []
    for data, v in ((sketch, None), (x, kernel)):
        leaves = [t.clone().requires_grad_() for t in (y, b)]
        value = cost(name, data, leaves[0], v, weights_y=leaves[1], **asked)
        gradients.append(grad(value, leaves))
    for found, truth in zip(*gradients, strict=True):
        assert found.abs().max() > 1e-6
        assert_close(found, truth, rtol=1e-5, atol=1e-7)
    value = cost(name, y.clone().requires_grad_(), sketch, **asked)
    assert value.requires_grad


def test_gradient_does_not_depend_on_how_rows_are_grouped(monkeypatch):
    x, y, _, b = points()
    sketch = km.Sketch(exact_map(KERNELS["one"], x, y)).update(x)
    gradients = []
    for rows in (1000, 5):
        monkeypatch.setattr("internals.accumulation_module.ROWS_AT_A_TIME", rows)
        leaf = y.clone().requires_grad_()
        gradients.append(grad(km.scalar_cost(sketch, leaf, weights_y=b), leaf)[0])
        assert_same(km.Sketch(sketch.feature_map).update(x), sketch)
    assert_close(*gradients, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", CERTIFIED)
def test_error_is_within_its_bound(name):
    """Over data, ranks, variances and weights; rounding is allowed for 1e-12 of the scale."""
    ratios = []
    for seed in range(72):
        n, k, d = 20 + 3 * (seed % 11), 20 + 5 * (seed % 7), 1 + seed % 4
        v = 10 ** (3 * float(uniform((), seed=seed)) - 3)
        x = normal(n, d, seed=seed)
        y = (0.5 + 0.2 * (seed % 5)) * normal(k, d, seed=seed + 1) + 0.5 * (seed % 3)
        rank, rule = (1, 4, 12, 40)[seed % 4], ("pivoted", "uniform")[seed // 4 % 2]
        pool = (x, torch.cat([x, y]))[seed // 8 % 2]
        rank = min(rank, len(pool) // 2)
        features = km.nystrom_features(pool, v, rank, 1e-7, landmarks=rule, seed=seed)
        weights = {"weights_x": uniform(n, seed=seed), "weights_y": uniform(k, seed=seed + 1)}
        weights = weights if seed % 3 == 0 else {}
        s = km.Sketch(features).update(x, weights.get("weights_x"))
        t = km.Sketch(features).update(y, weights.get("weights_y"))
        ridge = ridged(name, (1e-6, 1e-2)[seed % 2])
        for normalized in (True, False):
            if name == "svd" and weights and not normalized:
                continue
            truth = COSTS[name](x, y, v, normalized=normalized, **ridge, **weights)
            value, info = COSTS[name](s, t, normalized=normalized, **ridge, return_info=True)
            error = (value - truth).abs()
            slack = 1e-12 * max(1.0, float(truth))
            assert error <= info.error_bound + slack, f"seed {seed}, normalized={normalized}"
            ratios.append(float(error / info.error_bound))
            assert info.method == "sketch"
            assert info.rank == features.rank
    assert sum(r > 0.02 for r in ratios) > len(ratios) / 10, "the bounds are far from any error"


def test_error_is_within_its_bound_where_features_are_exact():
    x, y = normal(69, 4, seed=3), 0.8 * normal(54, 4, seed=4) + 0.2
    features = exact_map(km.GaussianKernel(1.0), x, y)
    s, t = km.Sketch(features).update(x), km.Sketch(features).update(y)
    value, info = km.svd_cost(s, t, normalized=True, return_info=True)
    truth = km.svd_cost(x, y, 1.0, normalized=True)
    assert (value - truth).abs() <= info.error_bound + 1e-12


@pytest.mark.parametrize("name", ["trace", "data_fixed", "logdet"])
def test_no_bound_where_none_is_known(name):
    x, y, _, _ = points()
    sketch = km.Sketch(exact_map(KERNELS["one"], x, y)).update(x)
    assert COSTS[name](sketch, y, return_info=True)[1].error_bound is None


def test_fourier_features_have_no_bound_but_the_right_value():
    x, y, _, _ = points()
    features = km.fourier_features(D, 0.1, rank=1000)
    s, t = km.Sketch(features).update(x), km.Sketch(features).update(y)
    assert s.mean_residual is None
    value, info = km.scalar_cost(s, t, return_info=True)
    assert info.error_bound is None
    assert_close(value, km.scalar_cost(x, y, 0.1), rtol=0.2, atol=0)


@given(cuts=st.lists(st.integers(0, 30), max_size=4), seed=st.integers(0, 1000), data=st.data())
@law
def test_merging_in_any_order_and_grouping(cuts, seed, data):
    """Shuffled, split anywhere, and added two by two in any order: the same sketch."""
    x, weights = normal(30, 2, seed=seed), uniform(30, seed=seed + 1) + 0.01
    features = NystromFeatures(normal(6, 2, seed=5), km.GaussianKernel(0.3))
    whole = km.Sketch(features).update(x, weights)
    order = torch.tensor(data.draw(st.permutations(range(30))))
    edges = [0, *sorted(set(cuts) - {0, 30}), 30]
    parts = [order[a:b] for a, b in pairwise(edges)]
    sketches = [km.Sketch(features).update(x[i], weights[i]) for i in parts]
    before = [sums(s) for s in sketches]
    merged = list(sketches)
    while len(merged) > 1:
        a = merged.pop(data.draw(st.integers(0, len(merged) - 1)))
        b = merged.pop(data.draw(st.integers(0, len(merged) - 1)))
        merged.append(a + b if data.draw(st.booleans()) else a.merge(b))
    assert_same(merged[0], whole)
    one_by_one = km.Sketch(features)
    for i in parts:
        assert one_by_one.update(x[i], weights[i]) is one_by_one
    assert_same(one_by_one, whole)
    if len(parts) > 1:
        for sketch, numbers in zip(sketches, before, strict=True):
            assert all(a.equal(b) for a, b in zip(sums(sketch), numbers, strict=True))


def test_moments_and_weights():
    x, y, a, _ = points()
    features = exact_map(KERNELS["one"], x, y)
    phi, share = features(x), a / a.sum()
    moments = km.Sketch(features).update(x, 3 * a).moments
    assert_close(moments.mean, phi.mT @ share)
    assert_close(moments.second, phi.mT @ (share[:, None] * phi))
    twice = torch.cat([x, x[:4]])
    ones = torch.ones(N, dtype=torch.float64)
    ones[:4] = 2
    doubled, weighted = km.Sketch(features).update(twice), km.Sketch(features).update(x, ones)
    assert (doubled.count, weighted.count) == (N + 4, N)
    assert_close(doubled.moments[1:], weighted.moments[1:])
    plain, equal = km.Sketch(features).update(x), km.Sketch(features).update(x, 0 * ones + 1)
    assert_same(plain, equal)


def test_mean_residual_and_repr():
    x = normal(200, 2, seed=1)
    features = km.nystrom_features(x, 0.1, rank=10)
    sketch = km.Sketch(features).update(x)
    left = 1 - features(x).square().sum(1)
    assert_close(sketch.mean_residual, left.mean())
    assert repr(sketch) == "Sketch(NystromFeatures, rank=10, count=200)"
    assert (
        repr(km.Sketch(km.fourier_features(2, 0.1, 8)))
        == "Sketch(FourierFeatures, rank=8, count=0)"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_svd_cost_by_a_sketch(dtype):
    x, y = normal(300, 2, seed=1, dtype=dtype), 1.1 * normal(200, 2, seed=2, dtype=dtype)
    for keywords in ({"rank": 25}, {"tolerance": 1e-2}, {"tolerance": 1e-4}):
        value, info = km.svd_cost(x, y, 0.5, method="sketch", **keywords, return_info=True)
        truth = km.svd_cost(x.double(), y.double(), 0.5)
        assert value.dtype == dtype
        assert info.method == "sketch"
        assert info.rank == keywords.get("rank", info.rank)
        error, rounding = (value.double() - truth).abs(), 2 * torch.finfo(dtype).eps * truth
        assert error <= info.error_bound + rounding
        if "tolerance" in keywords:
            assert info.error_bound <= keywords["tolerance"] * truth
    a, b = uniform(300, seed=3, dtype=dtype), uniform(200, seed=4, dtype=dtype)
    weights = {"weights_x": a, "weights_y": b}
    found = km.svd_cost(x, y, 0.5, method="sketch", rank=60, **weights)
    assert_close(
        found, km.svd_cost(x, y, 0.5, **weights), rtol=1e-4 + 8 * torch.finfo(dtype).eps, atol=0
    )


def test_auto_takes_the_sketch_for_many_smooth_points(monkeypatch):
    x, y = normal(200, 2, seed=1), normal(150, 2, seed=2)
    assert costs.SKETCH_ABOVE["cpu"] == 4096
    assert km.svd_cost(x, y, 3.0, return_info=True)[1].method == "svd"
    monkeypatch.setitem(costs.SKETCH_ABOVE, "cpu", 149)
    value, info = km.svd_cost(x, y, 3.0, return_info=True)
    assert info.method == "sketch"
    assert_close(value, km.svd_cost(x, y, 3.0, method="svd"), rtol=1e-4, atol=0)
    assert km.svd_cost(x, y, 0.001, return_info=True)[1].method == "svd", "rough"
    assert km.svd_cost(x[None], y[None], 3.0, return_info=True)[1].method == "svd", "a batch"
    assert km.svd_cost(x, y, 3.0, method="polar", return_info=True)[1].method == "polar", "named"
    mapped = torch.func.vmap(lambda x, y: km.svd_cost(x, y, 3.0))(x[None], y[None])
    assert_close(mapped[0], value, rtol=1e-4, atol=0)
    monkeypatch.setitem(costs.SKETCH_ABOVE, "cpu", 150)
    assert km.svd_cost(x, y, 3.0, return_info=True)[1].method == "svd", "one set is small"


def test_sketch_of_batches_is_refused():
    x = normal(2, 20, 2, seed=1)
    with pytest.raises(errors.ShapeError, match="sketch"):
        km.svd_cost(x, x, 0.1, method="sketch")


X, Y = normal(400, 2, seed=0), normal(400, 2, seed=1)


@pytest.mark.parametrize(("shift", "v"), [(8.0, 1.0), (0.0, 0.01)], ids=["small", "rough"])
def test_a_tolerance_is_kept_or_refused(shift, v):
    truth = km.svd_cost(X, Y + shift, v)
    try:
        found = km.svd_cost(X, Y + shift, v, method="sketch", tolerance=1e-3)
    except errors.KermixError:
        return
    assert (found - truth).abs() <= 1e-3 * truth


@pytest.mark.parametrize("method", ["svd", "polar"])
def test_a_named_method_does_not_become_another(method):
    sketch = km.Sketch(exact_map(KERNELS["one"], X[:9], Y[:9])).update(X)
    with pytest.raises(errors.OptionError, match="method"):
        km.svd_cost(sketch, Y, method=method)


def test_the_error_bound_is_a_number_without_a_graph():
    features = km.nystrom_features(X, 0.5, rank=20)
    value, info = km.svd_cost(
        km.Sketch(features).update(X), Y.clone().requires_grad_(), return_info=True
    )
    assert value.requires_grad
    assert not info.error_bound.requires_grad


def test_costs_beside_half_precision_stay_finite():
    x, y = normal(40_000, 1, seed=0), normal(30_000, 1, seed=1)
    sketch = km.Sketch(km.nystrom_features(x[:500], 0.1, 20)).update(torch.cat([x, x, x]))
    value = km.svd_cost(sketch, torch.cat([y, y, y]).half(), None)
    assert value.dtype == torch.float16
    assert value.isfinite()
