"""Losses against a sketch that samples do not overlap: finite, and they pull the samples in."""

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

import kermix as km
from cases import DTYPES, LOSSES, normal, uniform
from internals import DistributedLoss

DISTANCES = (0.0, 3.0, 8.0, 12.0, 20.0, 30.0, 100.0, 1e3, 1e6)
CASES = {
    "line": (1, 0.1, 15),
    "plane": (2, 0.5, 30),
    "rough": (2, 0.02, 40),
    "many": (20, 0.3, 40),
}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_case = pytest.mark.parametrize("case", CASES)


def each_with_one_of(name, values):
    """Every case with every loss, and with these in turns: each value meets each of both."""
    turns = [
        (case, loss, values[(i + k) % len(values)])
        for i, case in enumerate(CASES)
        for k, loss in enumerate(LOSSES)
    ]
    return pytest.mark.parametrize(("case", "name", name), turns)


def setting(case):
    """Data, their sketch, a unit of length in which the kernel is exp(-distance^2 / 2)."""
    d, v, rank = CASES[case]
    x = normal(400, d, seed=1)
    sketch = km.Sketch(km.nystrom_features(x, v, rank=rank)).update(x)
    return x, v, sketch, (2 * v * d) ** 0.5


def away(distance, d, unit, dtype=torch.float64, n=12):
    direction = torch.ones(d, dtype=torch.float64) / d**0.5
    y = 0.3 * unit * normal(n, d, seed=2) + distance * unit * direction
    return y.to(dtype).requires_grad_(), direction


@each_with_one_of("dtype", DTYPES)
def test_gradients_point_to_the_data(case, name, dtype):
    """Seen before: NaN from 30 on, and a scalar loss that falls with the distance."""
    _, _, sketch, unit = setting(case)
    before = -torch.inf
    for distance in DISTANCES[4 if case == "rough" else 2 :]:
        y, direction = away(distance, CASES[case][0], unit, dtype)
        loss = LOSSES[name]()(sketch, y)
        found = grad(loss, y)[0].double()
        assert loss.isfinite()
        assert found.isfinite().all()
        # A step along minus the gradient goes back along the direction.
        assert (found @ direction).sum() > 0.1 * torch.linalg.vector_norm(found)
        assert loss > before
        before = loss


@pytest.mark.parametrize("case", ["line", "plane", "many"])
@every_loss
def test_values_are_near_those_of_the_samples(case, name):
    """What the logarithm holds of the distance is the same with and without a sketch."""
    x, v, sketch, unit = setting(case)
    for distance in DISTANCES[4:]:
        y, _ = away(distance, CASES[case][0], unit)
        truth = LOSSES[name](v)(x, y)
        # Landmarks are some of the data: the nearest of them may be a little farther away.
        assert_close(LOSSES[name]()(sketch, y), truth, rtol=0.35, atol=8.0)


@each_with_one_of("distance", (30.0, 1e3))
def test_descent_brings_a_point_back(case, name, distance):
    x, _, sketch, unit = setting(case)
    y, _ = away(distance, CASES[case][0], unit, n=1)
    loss = LOSSES[name]()
    before = loss(sketch, y).detach()
    for _ in range(25):
        y = (y - 0.36 * unit**2 * grad(loss(sketch, y), y)[0]).detach().requires_grad_()
    assert torch.cdist(y.detach(), x).min() < 3 * unit
    assert loss(sketch, y).detach() < 0.2 * before


@every_loss
@pytest.mark.parametrize("rows", [3, 5, 16384])
def test_the_scale_is_that_of_all_blocks(name, rows, monkeypatch):
    """Rows of very different distances in different blocks, and weights of zero."""
    _, _, sketch, unit = setting("plane")
    near, far = (away(distance, 2, unit, n=6)[0].detach() for distance in (40.0, 60.0))
    y = torch.cat([far, near, far]).requires_grad_()
    weights = uniform(18, seed=3) + 0.1
    weights[7] = 0
    truth = grad(LOSSES[name]()(sketch, y, weights_y=weights), y)[0]
    monkeypatch.setattr("internals.accumulation_module.ROWS_AT_A_TIME", rows)
    assert_close(
        grad(LOSSES[name]()(sketch, y, weights_y=weights), y)[0], truth, rtol=1e-4, atol=1e-5
    )
    spread = DistributedLoss(LOSSES[name](), strategy="moments")
    found = grad(spread(sketch, y, weights_y=weights), y)[0]
    assert_close(found, truth, rtol=1e-4, atol=1e-5)
    assert truth[6:12].abs().max() > 0
    assert truth[7].abs().max() == 0


@every_loss
def test_points_of_weight_zero_do_not_hide_the_others(name):
    _, _, sketch, unit = setting("plane")
    y, _ = away(1e3, 2, unit)
    weights = torch.ones(13, dtype=torch.float64)
    weights[0] = 0
    both = torch.cat([sketch.feature_map.landmarks[:1], y])
    found = LOSSES[name]()(sketch, both, weights_y=weights)
    assert_close(found, LOSSES[name]()(sketch, y), rtol=1e-2, atol=0)


@every_loss
def test_the_switch_to_scaled_features_is_smooth(name):
    """On both sides of the kernel value from which on a scale is taken out."""
    _, _, sketch, unit = setting("line")
    edge = float(sketch.feature_map.landmarks.max()) + (60**0.5) * unit
    values = [
        LOSSES[name]()(sketch, torch.tensor([[edge + h * unit]], dtype=torch.float64))
        for h in (-1e-6, -1e-9, 1e-9, 1e-6)
    ]
    assert_close(values[1], values[2], rtol=1e-6, atol=0)
    assert values[0] < values[3]


def test_sketches_without_overlap():
    """Both sides are sketches: no gradient, but finite values that tell them apart."""
    x, _, sketch, unit = setting("plane")
    values = []
    for distance in (5.0, 10.0, 20.0):
        other = km.Sketch(sketch.feature_map).update(x + distance * unit)
        values.append(torch.stack([loss()(sketch, other) for loss in LOSSES.values()]))
    assert torch.stack(values).isfinite().all()
    assert (values[0] < values[1]).all()
    assert (values[1] <= values[2] + 1e-9).all()
