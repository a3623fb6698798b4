"""What must hold for all samples: bounds, invariances, symmetry, the meaning of weights."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import BOUNDED, COSTS, LOSSES, normal, ridged, uniform

RIDGE = 1e-4
CLOSE = {"rtol": tolerances.LAW, "atol": 1e-13}
law = settings(deadline=None, max_examples=16, derandomize=True, database=None)
every_cost = pytest.mark.parametrize("name", COSTS)


@dataclass
class Case:
    """Two samples of a few kernel widths, a variance and weights."""

    x: Tensor
    y: Tensor
    v: float
    weights_x: Tensor
    weights_y: Tensor
    seed: int

    def cost(self, name, x=None, y=None, **keywords):
        x, y = self.x if x is None else x, self.y if y is None else y
        return COSTS[name](x, y, self.v, **ridged(name, RIDGE), **keywords)


@st.composite
def cases(draw):
    n, k, d = (draw(st.integers(1, top)) for top in (12, 12, 12))
    seed = draw(st.integers(0, 10_000))
    v = 10.0 ** draw(st.integers(-4, 1))
    spread = draw(st.sampled_from([0.3, 1.0, 4.0])) * v**0.5
    shift = draw(st.sampled_from([0.0, 1.0, 5.0])) * v**0.5
    return Case(
        x=spread * normal(n, d, seed=seed),
        y=spread * normal(k, d, seed=seed + 1) + shift,
        v=v,
        weights_x=uniform(n, seed=seed + 2) + 0.01,
        weights_y=uniform(k, seed=seed + 3) + 0.01,
        seed=seed,
    )


@every_cost
@given(case=cases())
@law
def test_bounds(name, case):
    n, k = len(case.x), len(case.y)
    norm_of_data = km.gram(case.x, case.x, case.v).mean()
    bound = {
        "scalar": norm_of_data,
        "vector": norm_of_data,
        "trace": min(n, k),
        "data_fixed": n,
        "logdet": 0,
        "svd": (n * k) ** 0.5,
    }[name]
    found = case.cost(name)
    assert found <= bound * (1 + 1e-12)
    assert found < 0 if name == "logdet" else found > 0
    if name in BOUNDED:
        assert_close(case.cost(name, normalized=True), found / bound, **CLOSE)


@pytest.mark.parametrize("name", BOUNDED)
@given(case=cases(), ratio=st.sampled_from([0.01, 0.5, 1.0, 3.0]))
@law
def test_normalized_lies_between_zero_and_one(name, case, ratio):
    kernel = km.GaussianKernel(case.v, case.v * ratio)
    for weights in ({}, {"weights_x": case.weights_x, "weights_y": case.weights_y}):
        found = COSTS[name](
            case.x, case.y, kernel, normalized=True, **ridged(name, RIDGE), **weights
        )
        assert 0 <= found <= 1 + 1e-12


@given(case=cases())
@law
def test_vector_cost_is_at_least_the_scalar_cost(case):
    assert case.cost("scalar") <= case.cost("vector") * (1 + RIDGE) * (1 + 1e-9)


@every_cost
@given(case=cases())
@law
def test_order_of_points_does_not_matter(name, case):
    generator = torch.Generator().manual_seed(case.seed)
    i = torch.randperm(len(case.x), generator=generator)
    j = torch.randperm(len(case.y), generator=generator)
    found = case.cost(
        name, case.x[i], case.y[j], weights_x=case.weights_x[i], weights_y=case.weights_y[j]
    )
    truth = case.cost(name, weights_x=case.weights_x, weights_y=case.weights_y)
    assert_close(found, truth, **CLOSE)


@every_cost
@given(case=cases())
@law
def test_translation_and_rotation_do_not_matter(name, case):
    d = case.x.shape[1]
    rotation = torch.linalg.qr(normal(d, d, seed=case.seed + 5))[0]
    shift = 10 * case.v**0.5 * normal(d, seed=case.seed + 6)
    found = case.cost(name, case.x @ rotation + shift, case.y @ rotation + shift)
    assert_close(found, case.cost(name), **CLOSE)


@every_cost
@given(case=cases(), factor=st.sampled_from([1e-3, 0.1, 20.0]))
@law
def test_scale_of_samples_and_kernel_together_does_not_matter(name, case, factor):
    found = COSTS[name](
        factor * case.x, factor * case.y, factor**2 * case.v, **ridged(name, RIDGE)
    )
    assert_close(found, case.cost(name), **CLOSE)


@pytest.mark.parametrize("name", ["trace", "logdet", "svd"])
@given(case=cases())
@law
def test_symmetry(name, case):
    assert_close(case.cost(name, case.y, case.x), case.cost(name), **CLOSE)
    found = case.cost(
        name, case.y, case.x, weights_x=case.weights_y, weights_y=case.weights_x, log=True
    )
    truth = case.cost(name, weights_x=case.weights_x, weights_y=case.weights_y, log=True)
    assert_close(found, truth, **CLOSE)


@every_cost
@given(case=cases(), factor=st.sampled_from([1e-150, 0.1, 1e150]))
@law
def test_scale_of_weights_does_not_matter(name, case, factor):
    found = case.cost(name, weights_x=factor * case.weights_x, weights_y=case.weights_y / factor)
    truth = case.cost(name, weights_x=case.weights_x, weights_y=case.weights_y)
    assert_close(found, truth, **CLOSE)


@every_cost
@given(case=cases())
@law
def test_equal_weights_are_no_weights(name, case):
    ones_x, ones_y = torch.ones_like(case.weights_x), torch.ones_like(case.weights_y)
    found = case.cost(name, weights_x=ones_x, weights_y=ones_y, normalized=name in BOUNDED)
    assert_close(found, case.cost(name, normalized=name in BOUNDED), **CLOSE)


@pytest.mark.parametrize(("name", "sides"), [("scalar", "xy"), ("vector", "x"), ("svd", "xy")])
@given(case=cases(), data=st.data())
@law
def test_a_repeated_point_is_a_point_of_more_weight(name, sides, case, data):
    repeated, weighted = {}, {}
    for side in sides:
        points = getattr(case, side)
        times = st.lists(st.integers(1, 3), min_size=len(points), max_size=len(points))
        times = torch.tensor(data.draw(times))
        repeated[side] = points.repeat_interleave(times, dim=0)
        # The weighted form of the SVD cost is asked for by giving weights.
        repeated[f"weights_{side}"] = torch.ones(len(repeated[side]), dtype=torch.float64)
        weighted[f"weights_{side}"] = times.double()
    for keywords in ({}, {"normalized": True}, {"log": True}):
        found = case.cost(name, **repeated, **keywords)
        assert_close(found, case.cost(name, **weighted, **keywords), **CLOSE)


@every_cost
@given(case=cases())
@law
def test_points_without_weight_can_be_removed(name, case):
    n, k = len(case.x), len(case.y)
    # As many as there were, so that the ridge, relative to the diagonal, only halves.
    x = torch.cat([case.x, normal(n, case.x.shape[1], seed=case.seed + 7)])
    y = torch.cat([case.y, case.x[:1].expand(k, -1)])
    found = COSTS[name](
        x,
        y,
        case.v,
        weights_x=torch.cat([case.weights_x, torch.zeros(n, dtype=torch.float64)]),
        weights_y=torch.cat([case.weights_y, torch.zeros(k, dtype=torch.float64)]),
        log=True,
        **ridged(name, 2 * RIDGE),
    )
    truth = case.cost(name, weights_x=case.weights_x, weights_y=case.weights_y, log=True)
    if name == "data_fixed":
        # tr(D P' R^-1 P D) has D = sqrt(N a): twice as many points, twice the value.
        truth = truth + torch.log(torch.tensor(2.0, dtype=torch.float64))
    assert_close(found, truth, **CLOSE)


@pytest.mark.parametrize("name", ["trace", "logdet", "vector"])
@given(case=cases())
@law
def test_residuals_mixed_by_an_invertible_matrix(name, case):
    """Positive weights multiply the residuals by an invertible diagonal matrix."""
    # Eight widths from point to point: well conditioned without a ridge.
    steps = 8 * torch.arange(len(case.x), dtype=torch.float64)[:, None]
    x = case.v**0.5 * (steps + 0.5 * normal(*case.x.shape, seed=case.seed))
    y = x[: len(case.y)] + 0.5 * case.v**0.5
    found = COSTS[name](x, y, case.v, weights_y=case.weights_y[: len(y)], ridge=0.0)
    assert_close(found, COSTS[name](x, y, case.v, ridge=0.0), **CLOSE)


@every_cost
@given(case=cases())
@law
def test_log_is_the_logarithm(name, case):
    for keywords in ({}, {"normalized": True}) if name in BOUNDED else ({},):
        value = case.cost(name, **keywords).abs()
        assert_close(
            case.cost(name, log=True, **keywords).exp(), value, **tolerances.value(torch.float64)
        )


@every_cost
@given(case=cases())
@law
def test_losses_are_lowest_for_equal_samples(name, case):
    loss = LOSSES[name](case.v, **ridged(name, RIDGE))
    assert loss(case.x, case.x.clone()) <= loss(case.x, case.x + 3 * case.v**0.5) + 1e-9
