"""The problems of the benchmark of blind spots are what they are called, and it runs."""

import torch
from benchmarks.blind_spots import PROBLEMS, run
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
