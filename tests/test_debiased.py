"""Losses without the bias of finite samples."""

import pytest
import torch
from torch.testing import assert_close

import kermix as km
from kermix.errors import ShapeError
from kermix.training.sample_losses import sample_loss

LOSSES = [km.SVDLoss, km.VectorLoss, km.MatrixLoss, km.ScalarLoss]
DRAWS, POINTS, DIMENSION = 100, 24, 8


def slope(loss):
    """Mean of the derivative by the deviation of the model where it is right, in errors of it."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, DRAWS, POINTS, DIMENSION, generator=generator)
    scale = torch.ones(DRAWS, 1, 1, requires_grad=True)
    (slopes,) = torch.autograd.grad(loss(x, scale * y).sum(), scale)
    slopes = slopes.flatten()
    return float(slopes.mean() / slopes.std() * DRAWS**0.5)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_right_model_is_stationary(kind):
    assert abs(slope(km.DebiasedLoss(kind(0.5)))) < 4


@pytest.mark.parametrize("kind", [km.SVDLoss, km.MatrixLoss, km.ScalarLoss])
def test_without_it_the_right_model_is_drawn_together(kind):
    assert slope(kind(0.5)) > 8


def test_it_is_the_formula_on_halves():
    x, y = torch.randn(2, 3, 10, 2, generator=torch.Generator().manual_seed(0))
    loss = km.VectorLoss(0.3)
    (x1, x2), (y1, y2) = x.split(5, 1), y.split(5, 1)
    expected = (loss(x1, y1) + loss(y2, x2) - loss(x1, x2) - loss(y1, y2)) / 2
    assert_close(km.DebiasedLoss(loss)(x, y), expected)
    # A last point without a partner is left out.
    more = [torch.cat([z, torch.ones(3, 1, 2)], 1) for z in (x, y)]
    assert_close(km.DebiasedLoss(loss)(*more), expected)


def test_sizes_that_cannot_be_halved_are_refused():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    loss = km.DebiasedLoss(km.SVDLoss(0.3))
    for data, points in ((x, x[:10]), (x[:1], x[:1])):
        with pytest.raises(ShapeError, match="as many of each"):
            loss(data, points)


def test_a_learned_variance_is_found():
    variance = torch.nn.Parameter(torch.tensor(0.3))
    loss = km.DebiasedLoss(km.SVDLoss(variance))
    assert [id(p) for p in loss.parameters()] == [id(variance)]


@pytest.mark.parametrize("cost", ["svd", "vector", "matrix", "scalar"])
def test_training_can_use_it(cost):
    x, y = torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0))
    plain, debiased = (sample_loss(cost, x, y, [0.5, 1.0], debias=b) for b in (False, True))
    assert debiased < plain
    weights = torch.full((30,), 1 / 30)
    assert_close(sample_loss(cost, x, y, [0.5, 1.0], weights, debias=True), plain)
