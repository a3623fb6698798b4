"""Measures of quality against SciPy, closed forms and hand-made cases."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from internals import energy_distance, mmd_squared, mode_coverage, wasserstein2
from kermix import gram


def normal(*shape, seed=0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) + shift


def test_mode_coverage_counts_by_hand():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    samples = torch.tensor([[0.1, 0.0], [0.0, 0.29], [10.0, 0.0], [0.0, 0.31], [5.0, 5.0]])
    found = mode_coverage(samples, centres, 0.1)
    assert (found.modes, found.total) == (2, 4)
    assert found.high_quality == pytest.approx(0.6)
    expected = 2 / 3 * np.log(2 / 3 * 4) + 1 / 3 * np.log(1 / 3 * 4)
    assert found.kl == pytest.approx(expected, rel=1e-5)


def test_no_good_sample_at_all():
    found = mode_coverage(torch.full((3, 1), 9.0), torch.zeros(2, 1), 0.1)
    assert (found.modes, found.high_quality, found.kl) == (0, 0.0, 0.0)


def test_energy_distance_against_scipy():
    x, y = normal(20, 3), normal(30, 3, seed=1, shift=0.5)
    expected = (
        2 * cdist(x, y).mean() - cdist(x, x).mean() - cdist(y, y).mean()
    )  # fmt: skip
    assert float(energy_distance(x, y)) == pytest.approx(expected, rel=1e-10)


def test_weights_are_repeated_points():
    x, y = normal(20, 2), normal(3, 2, seed=1)
    repeated = torch.cat([y, y[:1]])
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    torch.testing.assert_close(
        energy_distance(x, y, weights_y=weights), energy_distance(x, repeated)
    )
    torch.testing.assert_close(
        mmd_squared(x, y, 0.3, weights_y=weights), mmd_squared(x, repeated, 0.3)
    )


def test_not_a_number_is_not_hidden():
    y = torch.full((2, 2), torch.nan, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("internals.checks_module.is_concrete", lambda *_: False)
        assert energy_distance(normal(3, 2), y).isnan()


def test_mmd_is_a_sum_of_gram_means():
    x, y = normal(20, 2), normal(30, 2, seed=1)
    expected = gram(x, x, 0.3).mean() + gram(y, y, 0.3).mean() - 2 * gram(y, x, 0.3).mean()
    torch.testing.assert_close(mmd_squared(x, y, 0.3), expected)


@pytest.mark.parametrize("distance", [energy_distance, lambda x, y: mmd_squared(x, y, 0.5)])
def test_gradients_and_batches(distance):
    x, y = normal(2, 5, 2), normal(2, 4, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: distance(x, y), y)
    torch.testing.assert_close(distance(x, y)[1], distance(x[1], y[1]))


def test_energy_distance_of_a_set_to_itself_has_a_finite_gradient():
    x = normal(5, 2)
    y = x.clone().requires_grad_()
    energy_distance(x, y).backward()
    assert torch.isfinite(y.grad).all()


@pytest.mark.filterwarnings("ignore")
def test_wasserstein_is_the_best_assignment():
    pytest.importorskip("ot", reason="POT is not installed")
    x, y = normal(40, 2), normal(40, 2, seed=1)
    costs = cdist(x, y, "sqeuclidean")
    rows, columns = linear_sum_assignment(costs)
    assert wasserstein2(x, y) == pytest.approx(costs[rows, columns].mean() ** 0.5, rel=1e-9)
