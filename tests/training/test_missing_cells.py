"""Mixtures of rows with missing cells: integrated out, in fits and in densities."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import multivariate_normal

import kermix as km
from cases import normal
from internals import KINDS, EMRows, EMRowsWithGaps, em, kmeans_start, marginal_log_prob
from kermix import errors

NAN = float("nan")


def correlated(n=400, seed=0):
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal([1, 2, 3], [[1, 0.8, 0.3], [0.8, 1, 0.1], [0.3, 0.1, 1]], n)


def with_gaps(rows, share, seed=1):
    found = rows.copy()
    found[np.random.default_rng(seed).random(rows.shape) < share] = NAN
    return found


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 3)])
def test_missing_cells_are_integrated_out(shape):
    """Against quadrature over the missing cell."""
    covariances = normal(*shape, seed=2).square() + 0.5
    if len(shape) == 3:
        covariances = normal(*shape, seed=2)
        covariances = covariances @ covariances.mT + torch.eye(3, dtype=torch.float64)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    mixture = km.GaussianMixture(weights, normal(2, 3, seed=3), covariances)

    def density(x):
        row = torch.tensor([[0.3, x, -0.4]], dtype=torch.float64)
        return float(mixture.log_prob(row).exp())

    found = marginal_log_prob(mixture, torch.tensor([[0.3, NAN, -0.4]], dtype=torch.float64))
    assert float(found.exp()) == pytest.approx(quad(density, -40, 40, limit=200)[0], rel=1e-6)


def test_rows_with_and_without_gaps_keep_their_places():
    rows = correlated()
    model = km.KernelMixture(random_state=0).fit(rows)
    asked = rows[:6].copy()
    asked[1, 0] = asked[3, 2] = asked[4, 2] = NAN
    asked[5] = NAN
    found = model.score_samples(asked)
    assert found[[0, 2]] == pytest.approx(model.score_samples(rows[:6])[[0, 2]])
    mean, covariance = model.means_[0], model.covariances_[0]
    for row, kept in ((1, [1, 2]), (3, [0, 1]), (4, [0, 1])):
        law = multivariate_normal(mean[kept], covariance[np.ix_(kept, kept)])
        assert found[row] == pytest.approx(law.logpdf(rows[row, kept]))
    assert found[5] == 0


def test_a_column_that_is_missing_where_another_is_large_has_the_likeliest_mean():
    """In closed form: the regression on the other column, at the mean of all rows."""
    rows = correlated(600)[:, :2]
    seen = rows[:, 0] < 1.3
    gapped = np.where(np.c_[np.ones(600, bool), seen], rows, NAN)
    slope, intercept = np.polyfit(rows[seen, 0], rows[seen, 1], 1)
    expected = intercept + slope * rows[:, 0].mean()
    model = km.KernelMixture(1, covariance_type="full", random_state=0).fit(gapped)
    assert model.means_[0] == pytest.approx([rows[:, 0].mean(), expected], abs=0.02)
    assert abs(np.nanmean(gapped[:, 1]) - expected) > 0.3  # what the cells that are there say


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_without_gaps_is_that_of_features(kind):
    values = torch.cat([normal(80, 3, seed=0), normal(60, 3, seed=1) * 0.5 + 4])
    rows = EMRows(values, kind)
    start = kmeans_start(rows, 2, torch.Generator().manual_seed(0))
    expected, _ = em(rows, start, 3, 2.0)
    found, _ = em(EMRowsWithGaps(values, kind), start, 3, 2.0)
    for name in ("log_weights", "means", "covariances"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-9), name


def test_groups_are_found_with_a_fifth_of_the_cells_missing():
    rows = np.r_[correlated(250), correlated(250, seed=5) * 0.5 + 6]
    new = np.r_[correlated(500, seed=7), correlated(500, seed=8) * 0.5 + 6]
    model = km.KernelMixture(random_state=0).fit(with_gaps(rows, 0.2))
    assert model.clearly_better_
    whole = km.KernelMixture(random_state=0).fit(rows)
    assert model.score(new) > whole.score(new) - 0.1
    assert np.isfinite(model.sample(50)).all()


@pytest.mark.parametrize("n", [2, 5, 12, 30])
def test_few_rows_with_gaps_are_sound(n):
    gapped = with_gaps(np.random.default_rng(0).normal(size=(n, 4)), 0.3)
    gapped[0] = [0.1, -0.2, 0.3, 0.4]
    model = km.KernelMixture(random_state=0).fit(gapped)
    assert np.isfinite(model.score_samples(gapped)).all()
    assert np.linalg.cond(np.cov(model.sample(2000).T)) < 1e13


def test_rows_and_columns_without_numbers():
    rows = correlated(60)
    empty = np.r_[rows, np.full((5, 3), NAN)]
    found = km.KernelMixture(random_state=0).fit(empty)
    assert np.allclose(found.means_, km.KernelMixture(random_state=0).fit(rows).means_)
    rows[:, 1] = NAN
    with pytest.raises(errors.SampleError, match="Column 1"):
        km.KernelMixture().fit(rows)
    with pytest.raises(errors.SampleError):
        km.KernelMixture().fit(np.full((4, 2), NAN))


def test_a_training_with_a_cost_refuses_gaps():
    with pytest.raises(ValueError, match="NaN"):
        km.KernelMixture(2, steps=2).fit(with_gaps(correlated(40), 0.1))
    with pytest.raises(ValueError, match="infinity"):
        km.KernelMixture().fit(np.array([[1.0], [np.inf], [2.0]]))
