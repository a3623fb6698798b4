"""Planted copies are found, and new rows are not called copies."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from kermix.errors import OptionError
from kermix.evaluation import memorizing as module
from kermix.evaluation.memorizing import _hypergeometric, memorizing


def rows(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_tail_is_the_hypergeometric_one():
    for most, n, m, drawn in ((0, 50, 30, 4), (3, 50, 30, 12), (30, 20, 30, 25)):
        exact = stats.hypergeom.cdf(most, n + m, m, drawn)
        assert _hypergeometric(most, n, m, drawn) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("held", [True, False])
def test_one_percent_of_copies_is_found(noise, held):
    training, fresh, held_out = rows(2000, 5, 0), rows(1980, 5, 1), rows(1000, 5, 2)
    copied = training[:20] + noise * rows(20, 5, 3)
    samples = torch.cat([fresh[:1000], copied, fresh[1000:]])
    found = memorizing(training, samples, held_out if held else None)
    assert found.pvalue < 0.001
    assert found.memorized == pytest.approx(0.01, abs=0.004)
    assert found.copies == pytest.approx(0.01 if noise == 0 else 0, abs=1e-9)
    pairs = dict(found.rows)
    assert all(pairs[1000 + k] == k for k in range(20))


def test_of_many_training_rows_some_take_the_place_of_held_out_ones(monkeypatch):
    monkeypatch.setattr(module, "MOST_COMPARED", 200)
    training = rows(900, 4, 0)
    samples = torch.cat([rows(180, 4, 1), training[:20]])
    found = memorizing(training, samples)
    assert found.pvalue < 0.001
    assert found.memorized == pytest.approx(0.1, abs=0.02)
    assert memorizing(training, rows(200, 4, 2)).pvalue > 0.05


def test_new_rows_are_not_called_copies():
    rejected = 0
    for seed in range(200):
        x = rows(300, 3, 100 + seed)
        rejected += memorizing(x[:150], x[150:220], x[220:]).pvalue <= 0.05
    # Three exact tests, corrected for their number.
    assert rejected <= stats.binom.ppf(0.999, 200, 0.05)


def test_without_held_out_rows_the_level_is_near_what_it_should_be():
    rejected = sum(
        memorizing(x[:200], x[200:]).pvalue <= 0.05
        for x in (rows(300, 3, 1000 + seed) for seed in range(100))
    )
    assert rejected <= 15


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
    assert np.isfinite(memorizing(x, x[:1]).nearer)
