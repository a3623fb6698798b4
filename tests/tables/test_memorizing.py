"""Planted copies are found, and new rows are not called copies."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from internals import chance_of_equal_rows, memorizing
from internals import copies_module as module
from kermix.errors import OptionError


def rows(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_one_percent_of_copies_is_found(noise):
    training, fresh, held_out = rows(2000, 5, 0), rows(1980, 5, 1), rows(1000, 5, 2)
    copied = training[:20] + noise * rows(20, 5, 3)
    samples = torch.cat([fresh[:1000], copied, fresh[1000:]])
    found = memorizing(training, samples, held_out)
    assert found.pvalue < 0.002  # of four levels of nearness, corrected
    assert found.memorized == pytest.approx(0.01, abs=0.004)
    low, high = found.interval
    assert 0.004 < low < found.memorized < high < 0.02
    assert found.copies == pytest.approx(0.01 if noise == 0 else 0, abs=1e-9)
    pairs = dict(found.rows)
    assert all(pairs[1000 + k] == k for k in range(20))


def test_of_many_training_rows_some_are_compared_with_the_others(monkeypatch):
    few = functools.partial(module._Nearness.of, most=200)
    monkeypatch.setattr(module._Nearness, "of", few)
    training, held_out = rows(900, 4, 0), rows(300, 4, 3)
    samples = torch.cat([rows(180, 4, 1), training[:20]])
    found = memorizing(training, samples, held_out)
    assert found.pvalue < 0.001
    assert found.memorized == pytest.approx(0.1, abs=0.02)
    assert memorizing(training, rows(200, 4, 2), held_out).pvalue > 0.05


def test_near_copies_need_held_out_rows():
    training = rows(300, 4, 0)
    found = memorizing(training, training + 1e-3 * rows(300, 4, 1))
    assert found.memorized is found.interval is found.near_pvalue is found.nearer is None
    assert found.copies == 0
    assert found.pvalue == 1


def test_held_out_rows_that_are_further_away_accuse_nobody():
    """Such as rows of later years: other training rows are as near to each other as samples."""
    training, samples = rows(600, 2, 0), rows(600, 2, 1)
    late = 3 + 0.2 * torch.arange(200.0)[:, None].double() * torch.ones(1, 2).double()
    assert memorizing(training, samples, late).pvalue > 0.05
    copied = training + 1e-3 * rows(600, 2, 2)
    assert memorizing(training, copied, late).pvalue < 1e-9


def test_new_rows_are_not_called_copies():
    rejected = 0
    for seed in range(200):
        x = rows(300, 3, 100 + seed)
        rejected += memorizing(x[:150], x[150:220], x[220:]).pvalue <= 0.05
    # Three exact tests, corrected for their number.
    assert rejected <= stats.binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize("training", [60, 400])
def test_without_held_out_rows_the_level_holds_although_rows_are_near_in_pairs(training):
    found = [
        memorizing(x[:training], x[training:]).pvalue
        for x in (rows(460, 2, 1000 + seed) for seed in range(150))
    ]
    for level in (0.01, 0.05):
        assert sum(p <= level for p in found) <= stats.binom.ppf(0.999, 150, level)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_five_exact_copies_among_many_continuous_rows_are_found(held, dtype):
    training, samples, held_out = (rows(500, 3, seed).to(dtype) for seed in range(3))
    samples[100:105] = training[:5]
    found = memorizing(training, samples, held_out if held else None)
    assert found.pvalue < 0.01
    assert found.copies == 0.01
    assert found.memorized == (0.01 if held else None)
    assert sorted(found.rows) == [(100 + k, k) for k in range(5)]


def test_what_is_equal_by_nature_is_no_copy():
    """Whole numbers so many that few of them are equal; one value that stands for a gap."""
    accused = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(30_000, (400, 1), generator=generator).double()
        accused += memorizing(x[:200], x[200:]).pvalue <= 0.01
    assert accused <= stats.binom.ppf(0.999, 100, 0.01)
    training, samples = rows(300, 3, 0), rows(300, 3, 1)
    training[0] = samples[:30] = 0.0
    assert memorizing(training, samples).copies == 0.1
    # Rows that real data repeat show that equal rows are natural.
    training[10:20], samples[40:45] = training[20:30], training[5:10]
    assert memorizing(training, samples).pvalue > 0.01


def test_the_chance_of_equal_rows_is_that_of_their_distribution():
    rng = np.random.default_rng(0)
    counts = rng.poisson(3, (2000, 1))
    shares = stats.poisson.pmf(np.arange(40), 3)
    prices = np.round(rng.normal(size=(2000, 1)), 3)
    fine = rng.normal(size=(2000, 1))
    # Twice the chance, to be safe: sum of squared shares; step times the mean density.
    for column, expected in (
        (counts, 2 * (shares**2).sum()), (prices, 2 * 0.001 / (2 * math.pi**0.5)),
        (0.37 * prices + 12, 2 * 0.001 / (2 * math.pi**0.5)),
    ):  # fmt: skip
        found = chance_of_equal_rows(torch.from_numpy(column).double())
        assert found == pytest.approx(expected, rel=0.35)
        both = torch.from_numpy(np.concatenate([column, fine], 1)).double()
        assert chance_of_equal_rows(both) < 1e-5
    assert chance_of_equal_rows(torch.ones(9, 2)) == 1
    assert chance_of_equal_rows(torch.tensor([[0.0], [0.0], [5.0]])) > 0.3


def test_repeated_rows_of_a_table_of_categories_are_no_memorizing():
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(3, (900, 3), generator=generator).double()
    found = memorizing(cells[:300], cells[300:600], cells[600:])
    assert found.copies > 0.9
    assert found.pvalue > 0.05
    assert found.memorized == 0


def test_nearer_is_one_half_for_new_rows_and_one_for_copies():
    x = rows(3000, 4, 0)
    found = memorizing(x[:1000], x[1000:2000], x[2000:])
    assert found.nearer == pytest.approx(0.5, abs=4 * found.error)
    assert memorizing(x[:1000], x[:500], x[2000:]).nearer > 0.999
    assert found.rows == ()


def test_bad_input_is_refused_by_name():
    x = rows(5, 2, 0)
    with pytest.raises(OptionError, match="three"):
        memorizing(x[:2], x)
    assert math.isfinite(memorizing(torch.ones(4, 2), torch.ones(3, 2)).pvalue)
    assert math.isfinite(memorizing(x, x[:1]).pvalue)
