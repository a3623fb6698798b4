"""Losses without the bias of finite samples."""

import pytest
import torch
from torch.testing import assert_close

import kermix as km
from kermix.errors import ShapeError
from kermix.training.objective import sample_loss

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


# Of two points a distance r apart every normalized cost is a power of exp(-r^2 / 2v), which makes
# the terms (1 + 16 - 9 - 36) / 2 = -14 of these, where 2v = 1; of the nuclear norm, half of that.
@pytest.mark.parametrize(
    ("kind", "expected"),
    [(km.ScalarLoss, -14), (km.VectorLoss, -14), (km.MatrixLoss, -14), (km.SVDLoss, -7)],
)
def test_single_points_by_hand(kind, expected):
    x, y = torch.tensor([[0.0], [3.0]]).double(), torch.tensor([[1.0], [7.0]]).double()
    loss = km.DebiasedLoss(kind(0.5))
    assert float(loss(x, y)) == pytest.approx(expected, rel=1e-3)
    # A last point without a partner is left out.
    more = [torch.cat([z, torch.full((1, 1), 50.0).double()]) for z in (x, y)]
    assert float(loss(*more)) == float(loss(x, y))
    batch = [torch.stack([z, 2 * z, z.flip(0)]) for z in (x, y)]
    assert_close(loss(*batch), torch.stack([loss(*pair) for pair in zip(*batch, strict=True)]))


@pytest.mark.parametrize("kind", LOSSES)
def test_equal_distributions_have_a_mean_of_zero(kind):
    x, y = torch.randn(2, 400, 12, 3, generator=torch.Generator().manual_seed(1)).double()
    debiased, plain = km.DebiasedLoss(kind(0.5))(x, y), kind(0.5)(x, y)
    error = float(debiased.std()) / 400**0.5
    assert abs(float(debiased.mean())) < 4 * error
    assert float(plain.mean()) > 8 * error
    assert float(km.DebiasedLoss(kind(0.5))(x, y + 1).mean()) > 8 * error


def test_sizes_that_cannot_be_halved_are_refused():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    loss = km.DebiasedLoss(km.SVDLoss(0.3))
    for data, points in ((x, x[:10]), (x[:1], x[:1])):
        with pytest.raises(ShapeError, match="equally many of each"):
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
