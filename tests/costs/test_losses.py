"""Losses: their relation to the costs, and gradients that lead centres to data."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import kermix as km
import reference
import tolerances
from cases import COSTS, DTYPES, LOSSES, normal, ridged, samples, uniform
from kermix.errors import OptionError, VarianceError

every_loss = pytest.mark.parametrize("name", LOSSES)


def expected(name, log, x, y, v, ridge, **weights):
    """The definition of a loss, from the reference."""
    x, y, weights = x.double().numpy(), y.double().numpy(), weights
    keywords = {"ridge": ridge, **{k: w.double().numpy() for k, w in weights.items()}}
    if name == "logdet":
        value = reference.cost(name, x, y, v, log=log, **keywords)
        return -value if log else value / min(len(x), len(y))
    value = reference.cost(name, x, y, v, log=log, normalized=True, **keywords)
    return -value if log else 1 - value


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("v", [0.5, [0.2, 2.0]])
@every_loss
def test_value(name, v, log, dtype):
    ridge = tolerances.RIDGE[dtype]
    loss = LOSSES[name](v, log=log, **ridged(name, ridge))
    assert isinstance(loss, torch.nn.Module)
    for kind, n, k, d in (("near", 9, 7, 3), ("near", 5, 8, 12), ("apart", 6, 6, 2)):
        x, y = samples(kind, n, k, d, 0.5, dtype)
        weights = {
            "weights_x": uniform(n, seed=1, dtype=dtype),
            "weights_y": uniform(k, seed=2, dtype=dtype),
        }
        for given in ({}, weights):
            found = loss(x, y, **given)
            truth = expected(name, log, x, y, v, ridge, **given)
            assert found.dtype == dtype
            assert_close(found.item(), truth, **tolerances.logarithm(dtype))


@every_loss
def test_log_is_the_default(name):
    x, y = samples("near", 6, 5, 2, 1.0)
    assert_close(LOSSES[name](1.0)(x, y), LOSSES[name](1.0, log=True)(x, y), rtol=0, atol=0)


@every_loss
def test_one_value_for_each_batch_item(name):
    x, y = normal(3, 1, 6, 2, seed=1), normal(2, 5, 2, seed=2)
    loss = LOSSES[name](0.5, **ridged(name, 1e-3))
    found = loss(x, y)
    assert found.shape == (3, 2)
    assert_close(found[2, 1], loss(x[2, 0], y[1]), **tolerances.same(torch.float64))


@pytest.mark.parametrize(("d", "log"), [(2, True), (10, False)])
@every_loss
def test_gradcheck(name, d, log):
    def function(x, y, weights_x, weights_y, v):
        loss = LOSSES[name](km.GaussianKernel(v), log=log, **ridged(name, 1e-2))
        return loss(x, y, weights_x=weights_x, weights_y=weights_y)

    inputs = [
        normal(4, d, seed=1),
        normal(3, d, seed=2),
        uniform(4, seed=3) + 0.2,
        uniform(3, seed=4) + 0.2,
        torch.tensor([0.6, 1.5], dtype=torch.float64),
    ]
    assert gradcheck(function, [t.requires_grad_() for t in inputs], fast_mode=d > 2)


@every_loss
def test_equal_samples_have_no_loss(name):
    x = 10 * normal(6, 2, seed=1)
    loss = LOSSES[name](0.1, **ridged(name, 1e-9))
    if name == "logdet":
        # Each of the six correlations is 1 / (1 + ridge).
        truth = -math.log(-6 * math.log1p(-((1 + 1e-9) ** -2)))
        assert_close(loss(x, x.clone()).item(), truth, rtol=1e-5, atol=0)
    else:
        assert abs(loss(x, x.clone()).item()) < 1e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 2, 20])
@pytest.mark.parametrize("v", [1e-4, 1.0])
@every_loss
def test_centres_far_away_are_led_to_the_data(name, v, d, dtype):
    width = v**0.5
    x = width * normal(6, d, seed=1, dtype=dtype)
    y = (width * normal(4, d, seed=2, dtype=dtype) + 1e3 * width).requires_grad_()
    for weights in ({}, {"weights_y": torch.tensor([1.0, 2.0, 3.0, 1.0], dtype=dtype)}):
        value = LOSSES[name](v)(x, y, **weights)
        (gradient,) = torch.autograd.grad(value, y)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0
        distances = torch.cdist(y.detach(), x).amin(1)
        nearest = distances.argmin()
        step = 10 * width * gradient / gradient.norm(dim=1).max()
        moved = torch.cdist((y - step).detach(), x).amin(1)
        assert moved[nearest] < distances[nearest] - width
        assert LOSSES[name](v)(x, y - step, **weights) < value


@pytest.mark.parametrize("dtype", DTYPES)
@every_loss
def test_plain_losses_stay_finite_far_away(name, dtype):
    x, y = normal(6, 2, seed=1, dtype=dtype), normal(4, 2, seed=2, dtype=dtype) + 1e3
    value = LOSSES[name](1.0, log=False)(x, y.requires_grad_())
    (gradient,) = torch.autograd.grad(value, y)
    assert_close(value.item(), 0.0 if name == "logdet" else 1.0, rtol=0, atol=1e-30)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [2, 20])
@every_loss
def test_degenerate_samples_have_finite_gradients(name, d, dtype):
    loss = LOSSES[name](0.5)
    for x in (torch.ones(5, d, dtype=dtype), normal(5, d, seed=1, dtype=dtype)):
        x = x.requires_grad_()
        for y in (x, x.detach().clone().requires_grad_(), x.detach()[:1].requires_grad_()):
            value = loss(x, y)
            gradients = torch.autograd.grad(value, [x] if y is x else [x, y])
            assert torch.isfinite(value)
            assert all(torch.isfinite(g).all() for g in gradients)


@every_loss
def test_descent_joins_centres_with_data(name):
    x = normal(8, 2, seed=1)
    y = (0.5 * normal(8, 2, seed=2) + 6).requires_grad_()
    optimizer = torch.optim.Adam([y], lr=0.2)
    loss = LOSSES[name]([0.5, 5.0])
    before = loss(x, y).item()
    for _ in range(120):
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
    assert value < before - 0.5
    assert torch.cdist(x, y.detach()).amin(1).mean() < 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_loss
def test_half_precision(name, dtype):
    x, y = samples("near", 10, 8, 3, 1.0, dtype)
    single = LOSSES[name](1.0)(x.float(), y.float())
    y.requires_grad_()
    found = LOSSES[name](1.0)(x, y)
    (gradient,) = torch.autograd.grad(found, y)
    assert found.dtype == gradient.dtype == dtype
    assert torch.isfinite(gradient).all()
    assert_close(found, single.to(dtype), rtol=tolerances.RELATIVE[dtype], atol=0)


def test_costs_and_losses_do_not_mix():
    """Signs live in the losses only: costs of closer samples are higher, losses lower."""
    x, y = normal(10, 2, seed=1), normal(10, 2, seed=1) + 0.1
    for name in LOSSES:
        near, far = COSTS[name](x, y, 1.0), COSTS[name](x, y + 2, 1.0)
        assert near < far if name == "logdet" else near > far
        assert LOSSES[name](1.0)(x, y) < LOSSES[name](1.0)(x, y + 2)


@every_loss
@pytest.mark.parametrize("v", [-1.0, 0.0, math.nan, [0.1, -1.0], []])
def test_what_is_no_variance_is_refused_at_once(name, v):
    with pytest.raises(VarianceError, match=r"^v is"):
        LOSSES[name](v)
    LOSSES[name](0.1)


@every_loss
def test_a_rule_that_there_is_not_is_refused_at_once(name):
    with pytest.raises(OptionError, match="median"):
        LOSSES[name]("mean")
    LOSSES[name]("median")
