"""The AUC of a comparison: right areas, intervals that cover, and no leak between folds."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from cases import normal
from internals import ColumnPlace, auc, tell_apart


def told(x, y, seed=0, codes=0):
    pooled = torch.cat([x, y]).double()
    width = pooled.shape[1]
    places = [
        ColumnPlace(f"x{k}", None, k) if k >= width - codes else ColumnPlace(f"x{k}", k, None)
        for k in range(width)
    ]
    return tell_apart(pooled, len(x), places, torch.Generator().manual_seed(seed))


def test_areas_are_those_of_scikit_learn_and_variances_those_of_all_pairs():
    a, b = normal(40, 1, seed=0)[:, 0].round(decimals=1), normal(25, 1, seed=1)[:, 0] + 0.5
    b = b.round(decimals=1)  # with ties
    area, variance = auc(a.numpy(), b.numpy())
    labels = [0] * 40 + [1] * 25
    assert area == pytest.approx(roc_auc_score(labels, torch.cat([a, b]).numpy()))
    wins = (b[:, None] > a).double() + 0.5 * (b[:, None] == a)  # DeLong, pair by pair
    expected = wins.mean(1).var() / 25 + wins.mean(0).var() / 40
    assert variance == pytest.approx(expected.item())


def test_intervals_cover_one_half_for_samples_of_one_distribution():
    found = [told(normal(60, 1, seed=2 * k), normal(60, 1, seed=2 * k + 1), k) for k in range(80)]
    areas = torch.tensor([f.auc for f in found])
    covered = sum(f.interval[0] <= 0.5 <= f.interval[1] for f in found)
    # 76 are to be expected, fewer than 71 have a probability of 0.8 %. Were folds independent, as
    # the usual variance takes them to be, some 66 would cover it.
    assert covered >= 71
    assert abs(areas.mean() - 0.5) < 4 * areas.std() / math.sqrt(80)


def test_a_shift_is_told_nearly_as_well_as_it_can_be():
    found = told(normal(1200, 1, seed=0), normal(900, 1, seed=1) + 1)
    best = 0.5 + 0.5 * math.erf(1 / 2)  # of normal distributions one deviation apart
    assert best - 0.05 < found.auc < best + 0.02
    assert found.interval[1] - found.interval[0] < 0.07


def test_a_product_of_columns_is_seen():
    x = normal(600, 2, seed=0)
    y = normal(600, 2, seed=1)
    y[:, 1] = y[:, 1].abs() * y[:, 0].sign()
    assert told(x, y).interval[0] > 0.6


def test_separate_sets_have_an_interval_and_rows_keep_their_side():
    found = told(normal(30, 2), normal(30, 2, seed=1) + 50)
    assert found.auc == 1
    assert 0.8 < found.interval[0] < 1
    assert found.interval[1] == pytest.approx(1)
    assert found.scores[:30].max() < found.scores[30:].min()


def test_copies_of_rows_do_not_teach_the_wrong_label():
    x = normal(200, 3)
    found = told(x, x.clone())
    assert found.auc == pytest.approx(0.5, abs=0.02)
    assert found.interval[0] <= 0.5 <= found.interval[1]


def test_unequal_sizes_and_categories_alone():
    x, y = normal(1000, 2, seed=0), normal(50, 2, seed=1) + 1.5
    assert told(x, y).interval[0] > 0.7
    codes = torch.randint(3, (300, 1), generator=torch.Generator().manual_seed(0))
    more = codes.clone()
    more[:150] = 0
    found = told(codes, more, codes=1)
    shares = [(c[:, 0].bincount(minlength=3) / 300) for c in (codes, more)]
    best = 0.5 + 0.5 * (shares[1][0] - shares[0][0]).item()  # 0 against the rest
    assert found.interval[0] < best < found.interval[1]


def test_wide_tables_and_the_same_seed():
    x, y = normal(40, 300, seed=0), normal(40, 300, seed=1) + 0.6
    first, second = told(x, y), told(x, y)
    assert first.interval[0] > 0.6
    assert (first.auc, first.interval) == (second.auc, second.interval)


def test_nothing_is_said_of_too_few_or_equal_rows():
    assert told(normal(9, 2), normal(100, 2)) is None
    assert told(torch.ones(50, 2), torch.ones(50, 2)) is None


@pytest.mark.parametrize(("rows", "least"), [(10, 0.75), (16, 0.76)])
def test_few_rows_of_two_columns_are_told_apart(rows, least):
    areas = []
    for k in range(12):
        x, y = normal(2, rows, 2, seed=k)
        y[:, 0] += 2
        areas.append(told(x, y, k).auc)
    # The best there is has 0.92; it was 0.59, with features that fit ten rows without any error.
    assert sum(areas) / len(areas) > least
