"""The problems of the benchmark of blind spots are what they are called, and it runs."""

from collections import Counter

import pytest
import torch
from benchmarks.blind_spots import PROBLEMS, Tally, run
from torch.testing import assert_close


def drawn(name, n, seed=0):
    problem = next(p for p in PROBLEMS if p.name == name)
    return problem.draw(n, torch.Generator().manual_seed(seed))


def test_problems_have_the_correlations_and_radii_that_they_are_about():
    x, y = drawn("published: decreasing correlation", 2000)
    for rows, correlation in ((x, 0.5), (y, 0.6)):
        found = torch.corrcoef(rows.mT)
        assert_close(found.diagonal(1).mean().item(), correlation, atol=0.01, rtol=0)
        assert_close(found.diagonal(2).mean().item(), correlation**2, atol=0.01, rtol=0)
    x, y = drawn("published: equal correlations", 2000)
    for rows, correlation in ((x, 0.5), (y, 0.525)):
        assert_close(rows.var(0).mean().item(), 1.0, atol=0.05, rtol=0)
        assert_close(torch.corrcoef(rows.mT)[0, 1:].mean().item(), correlation, atol=0.03, rtol=0)
    x, y = drawn("published: spheres d=250", 500)
    squares = [rows.square().sum(1).mean().item() for rows in (x, y)]
    assert_close(squares, [1 + 250 * 0.02**2, 1.015**2 + 250 * 0.02**2], atol=0.01, rtol=0)
    x, y = drawn("published: thin cube", 500)
    assert 0 <= x.min() <= x.max() <= 1
    assert 0.1 <= y[:, :30].min() <= y[:, :30].max() <= 0.9
    x, y = drawn("published: sparse shift, Laplace", 4000)
    assert_close((y - x).mean(0)[:4].mean().item(), 1.0, atol=0.05, rtol=0)
    assert_close(x.var(0).mean().item(), 2.0, atol=0.05, rtol=0)
    x, y = drawn("development: new category", 200)
    assert 2 not in x[:, -1]
    assert 2 in y[:, -1]


def test_it_measures_the_verdict_its_parts_and_tests_of_columns():
    *_, tables = run(quick=True)
    (spheres, new) = tables["development"]
    assert {"kermix", "depths of rows", "single columns"} < set(spheres)
    assert "Mann-Whitney" not in spheres, "many columns"
    assert {"kermix", "single values of columns", "Fisher", "Mann-Whitney"} < set(new)
    assert all(0 <= spheres[name] <= 1 for name in ("kermix", "depths of rows"))


def test_a_line_of_the_record_is_continued():
    published = next(p for p in PROBLEMS if p.name == "published: spheres d=250")
    first = Tally(Counter(kermix=10, KLR0=4), Counter(kermix=9, KLR0=1), 2.0)
    row = first.row(published)
    assert (row["repetitions"], row["peer repetitions"]) == (10, 4)
    again = Tally.of_row(row)
    assert (again.made, again.rejected) == (first.made, first.rejected)
    more = again + Tally(Counter(kermix=10, MMDAgg=10), Counter(MMDAgg=5), 4.0)
    line = more.row(published)
    assert (line["kermix"], line["KLR0"], line["MMDAgg"]) == (0.45, 0.25, 0.5)
    assert (line["MMDAgg repetitions"], line["seconds"]) == (10, pytest.approx(0.3))
