"""Comparisons that use all rows: values near those of pairs, exact level, power of many rows."""

import importlib
import math

import numpy as np
import pytest
import torch

import kermix as km
from cases import normal
from internals import (
    COST_RIDGE,
    Blocks,
    CostStatistics,
    EnergyStatistic,
    ExchangeableUnits,
    StatisticValues,
    cost_tests,
    energy_distance,
    line_energy,
    mmd_squared,
    own_generator,
    permutation_test,
)

details_module = importlib.import_module("internals").cost_details_module


def test_blocks_hold_every_row_once():
    for n, m in ((5, 7), (40, 40), (1000, 1000), (1500, 90_000), (100_003, 99_998)):
        blocks = Blocks.of(n, m, torch.Generator().manual_seed(0))
        rows = torch.cat([blocks.rows.flatten(), blocks.rest]).sort().values
        assert torch.equal(rows, torch.arange(n + m))
        assert bool((blocks.rows[: blocks.of_x] < n).all())
        assert bool((blocks.rows[blocks.of_x :] >= n).all())
        assert min(blocks.of_x, len(blocks) - blocks.of_x) >= min(32, n, m)
        assert len(blocks) <= 2000


def units_of(pooled, n, seed=0, permutations=1, **sizes):
    generator = own_generator(seed)
    blocks = Blocks.of(n, len(pooled) - n, generator, **sizes)
    return ExchangeableUnits.of_blocks(pooled, blocks, permutations, generator), generator


@pytest.mark.parametrize("d", [1, 2, 10])
def test_energy_distance_by_projections(d):
    x, y = normal(600, d, seed=0), 1.2 * normal(400, d, seed=1) + 0.5
    units, generator = units_of(torch.cat([x, y]), 600)
    assert len(units.blocks.rest) == 0
    (found,) = EnergyStatistic(None, generator).values(units)
    exact = float(energy_distance(x, y))
    assert float(found.values[0]) == pytest.approx(exact, rel=0.005 if d == 1 else 0.15)


def test_energy_distance_of_few_distinct_values_is_exact():
    values = torch.cat([torch.tensor([0.0, 1.0, 4.0]).repeat(20), torch.tensor([1.0]).repeat(40)])
    values = values.double()
    units, _ = units_of(values[:, None], 60)
    exact = float(energy_distance(values[:60, None], values[60:, None]))
    assert float(line_energy(values, units.blocks, units.signed)[0]) == pytest.approx(exact)
    assert line_energy(torch.ones(100), units.blocks, units.signed).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sizes", [(240, 200), (240, 30)])
@pytest.mark.parametrize(("d", "v"), [(1, 0.001), (2, 0.5), (20, 0.05), (50, 1.0)])
def test_nothing_jumps_where_rows_are_drawn(monkeypatch, sizes, d, v):
    """The last row of either side beyond the limit is left out, and little changes."""
    x, y = normal(sizes[0], d, seed=0), normal(sizes[1], d, seed=1) + 0.3
    everything = km.compare(x, y, v, permutations=0, jackknife_groups=8)
    monkeypatch.setattr(details_module, "PAIRS_UP_TO", sizes[0] - 1)
    drawn = km.compare(x, y, v, permutations=0, jackknife_groups=8)
    assert f"{sizes[0] - 1} and {sizes[1]} rows drawn at random" in " ".join(drawn.notes)
    for one, other in zip(everything.measures, drawn.measures, strict=True):
        a, b = ((m.value if m.normalized is None else m.normalized) for m in (one, other))
        # A vector cost next to 1 may be too skewed for an error bar.
        error = 2 * (1 - a) if one.error is None else one.error
        assert abs(a - b) <= 0.5 * error + 1e-9, one.name


def test_measures_say_of_how_many_rows_they_are_and_are_exactly_that(monkeypatch):
    monkeypatch.setattr(details_module, "PAIRS_UP_TO", 50)
    monkeypatch.setattr(details_module, "MEANS_UP_TO", 120)
    x, y = normal(130, 3, seed=0), normal(30, 3, seed=1) + 1
    found = km.compare(x, y, 0.2, permutations=19)
    assert found.used == (130, 30)
    assert {m.rows for m in found.measures} == {(50, 30), (120, 30)}
    assert {m.rows for m in found.measures if m.name in ("svd", "bures", "vector")} == {(50, 30)}
    notes = " ".join(found.notes)
    assert "of 50 and 30 rows drawn at random; the tests use all 130 and 30" in notes
    for name, cost in (("svd", km.svd_cost), ("matrix", km.matrix_cost),
                       ("vector", km.vector_cost)):  # fmt: skip
        value = float(cost(found.x, found.y, 0.2))
        assert found.measure(name).value == pytest.approx(value, rel=1e-9)
    assert len(found.x) == 50, "points are kept for pictures"
    at = torch.tensor([[-0.5] * 3, [1.5] * 3]).double()
    assert found.witness(at)[0] > 0 > found.witness(at)[1]


@pytest.mark.parametrize("sizes", [(1001, 300), (1100, 40)])
def test_means_over_pairs_are_those_of_all_rows(sizes):
    x, y = normal(sizes[0], 9, seed=0), normal(sizes[1], 9, seed=1) + 0.3
    found = km.compare(x, y, [0.01, 1.0], permutations=0, jackknife_groups=2)
    for v in (0.01, 1.0):
        divergence = -float(km.scalar_cost(x, y, v, normalized=True, log=True))
        assert found.measure("cauchy_schwarz", v).value == pytest.approx(divergence, rel=1e-9)
        scalar = float(km.scalar_cost(x, y, v))
        assert found.measure("scalar", v).value == pytest.approx(scalar, rel=1e-9)
        mmd = math.sqrt(float(mmd_squared(x, y, v)))
        assert found.measure("mmd", v).value == pytest.approx(mmd, rel=1e-9)
    exact = float(energy_distance(x, y))
    assert found.measure("energy").value == pytest.approx(exact, rel=1e-9)


def test_divergence_of_far_samples_does_not_underflow():
    x, y = normal(1100, 2, seed=0), normal(1001, 2, seed=1) + 1e6
    found = km.compare(x, y, 0.5, permutations=0, jackknife_groups=2).measure("cauchy_schwarz")
    exact = -float(km.scalar_cost(x, y, 0.5, normalized=True, log=True))
    assert exact > 9e11
    assert found.value == pytest.approx(exact, rel=1e-12)
    assert 0 < found.error < 1e-4 * exact


def block_tests(pooled, n, seed, permutations=19, v=0.5, directions=32, rank=15, **sizes):
    units, generator = units_of(pooled, n, seed, permutations, **sizes)
    costs = "svd", "matrix", "vector", "scalar", "mmd"
    statistics = [
        CostStatistics(costs, km.GaussianKernel(v), "local", COST_RIDGE, generator, rank),
        EnergyStatistic(None, generator, directions),
    ]
    tests = cost_tests(units, statistics, (v,), (n, len(pooled) - n))
    first = line_energy(pooled[:, 0], units.blocks, units.signed)
    return tests | {"column": permutation_test([StatisticValues("column", first)])}


def test_landmarks_are_chosen_whatever_the_order_of_rows():
    """Labels are exchangeable if what is chosen from the rows depends on them as a set."""
    for count in (400, 9000):
        pooled = normal(count, 3, seed=0)
        pooled[:20] = pooled[20:40]  # rows that are there twice
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        first, second = (
            units_of(rows, n, seed)[0].reference
            for rows, n, seed in ((pooled, 300, 0), (pooled[order], 20, 1))
        )
        assert len(first) == min(count, 8000)
        assert torch.equal(first, second)


def test_level_of_very_unequal_samples():
    """Were landmarks taken from each side alike, the SVD test would reject nearly always."""
    rejected: dict[str, int] = {}
    for seed in range(40):
        rows = normal(630, 20, seed=seed)
        found = block_tests(rows, 600, seed, rank=40, directions=4)
        for cost, test in found.items():
            rejected[cost] = rejected.get(cost, 0) + (test.pvalue <= 0.1)
    for cost, count in rejected.items():
        assert count <= 4 + 3 * (40 * 0.1 * 0.9) ** 0.5, (cost, count)


def test_equal_rows_are_never_found_different():
    for rows in (torch.ones(1001, 12) * 0.1, torch.full((1001, 3), 1e9)):
        found = km.compare(rows, rows[:30], permutations=99, jackknife_groups=0)
        with pytest.warns(km.errors.DegenerateDataWarning):
            assert {t.pvalue for t in found.tests.values()} == {1.0}


def test_level():
    """200 pairs of one source, unequal sizes: each cost rejects at its level."""
    sizes = {"blocks": 60, "fewest_on_a_side": 20, "directions": 4}
    rejected: dict[str, int] = {}
    for seed in range(200):
        found = block_tests(normal(330, 2, seed=seed), 130, seed, **sizes)
        for cost, test in found.items():
            rejected[cost] = rejected.get(cost, 0) + (test.pvalue <= 0.1)
    for cost, count in rejected.items():
        assert abs(count - 20) <= 3 * (200 * 0.1 * 0.9) ** 0.5, (cost, count)


def test_a_small_shift_is_found_in_many_rows(monkeypatch):
    """0.07 deviations in ten columns: missed by some hundred rows, found by tens of thousands."""
    monkeypatch.setattr(details_module, "PAIRS_UP_TO", 300)
    monkeypatch.setattr(details_module, "MEANS_UP_TO", 300)
    x, y = np.random.default_rng(0).normal(size=(2, 40_000, 10)).astype(np.float32)
    y += 0.07
    few = km.compare(x, y, 0.5, max_points=300, permutations=39, jackknife_groups=0)
    assert few.tests["svd"].pvalue > 0.05
    many = km.compare(x, y, 0.5, permutations=39, jackknife_groups=0)
    assert all(test.pvalue == 1 / 40 for test in many.tests.values())


def test_energy_distances_of_heavy_tails_are_those_of_all_rows():
    x, y = (2 * normal(1500, 1, seed=0)).exp(), 1.1 * (2 * normal(800, 1, seed=1)).exp()
    found = km.compare(x, y, 1.0, permutations=19, standardize=False, jackknife_groups=0)
    exact = float(energy_distance(x, y))
    energy = found.measure("energy")
    assert energy.value == pytest.approx(exact, rel=1e-6)


def test_rows_outside_of_the_blocks_are_told():
    x, y = normal(20_000, 1, seed=0), normal(1010, 1, seed=1)
    notes = " ".join(km.compare(x, y, 1.0, permutations=19, jackknife_groups=0).notes)
    blocks = Blocks.of(20_000, 1010, torch.Generator().manual_seed(0))
    inside = len(blocks) * blocks.size
    assert ("which hold" in notes) == (inside < 21_010)


@pytest.mark.parametrize("v", [1e-3, 0.1])
def test_blocks_without_overlap_are_different_and_not_equal(v):
    pooled = torch.cat([normal(1500, 2, seed=0), normal(300, 2, seed=1) + 100])
    found = block_tests(pooled, 1500, 0, 99, v)["scalar"]
    assert torch.isfinite(found.null).all()
    assert found.statistic > found.null.max()
