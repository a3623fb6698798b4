"""Comparisons that use all rows: values near those of pairs, exact level, power of many rows."""

import math
import sys

import numpy as np
import pytest
import torch

import kermix as km
from cases import normal
from kermix.comparison.blocks import (
    Blocks,
    energy_of_blocks,
    energy_of_rows,
    line_energy,
    random_directions,
)
from kermix.comparison.large import LargeComparison
from kermix.comparison.permutation import own_generator
from kermix.comparison.statistics import energy_statistic
from kermix.costs.baselines import energy_distance

compare_module = sys.modules["kermix.comparison.compare"]


def test_blocks_hold_every_row_once():
    for n, m in ((5, 7), (40, 40), (1000, 1000), (1500, 90_000), (100_003, 99_998)):
        blocks = Blocks.of(n, m, torch.Generator().manual_seed(0))
        rows = torch.cat([blocks.rows.flatten(), blocks.rest]).sort().values
        assert torch.equal(rows, torch.arange(n + m))
        assert bool((blocks.rows[: blocks.of_x] < n).all())
        assert bool((blocks.rows[blocks.of_x :] >= n).all())
        assert min(blocks.of_x, len(blocks) - blocks.of_x) >= min(32, n, m)
        assert len(blocks) <= 2000


def sides(blocks):
    a = torch.zeros(1, len(blocks), dtype=torch.float64)
    a[0, : blocks.of_x] = 1 / blocks.of_x
    b = torch.zeros_like(a)
    b[0, blocks.of_x :] = 1 / (len(blocks) - blocks.of_x)
    return a, b


@pytest.mark.parametrize("d", [1, 2, 10])
def test_energy_distance_by_projections(d):
    x, y = normal(600, d, seed=0), 1.2 * normal(400, d, seed=1) + 0.5
    pooled = torch.cat([x, y])
    blocks = Blocks.of(600, 400, torch.Generator().manual_seed(0))
    assert len(blocks.rest) == 0
    directions = random_directions(d, torch.Generator().manual_seed(0))
    found = energy_of_blocks(pooled, blocks, *sides(blocks), directions)
    weights = torch.zeros(2, 1, 1000, dtype=torch.float64)
    weights[0, 0, :600], weights[1, 0, 600:] = 1 / 600, 1 / 400
    exact = energy_statistic(pooled, *weights)
    assert float(found) == pytest.approx(float(exact), rel=0.005 if d == 1 else 0.15)
    by_rows = energy_of_rows(pooled, 600, directions)
    assert by_rows == pytest.approx(float(exact), rel=1e-9 if d == 1 else 0.15)


def test_energy_distance_of_few_distinct_values_is_exact():
    values = torch.cat([torch.tensor([0.0, 1.0, 4.0]).repeat(20), torch.tensor([1.0]).repeat(40)])
    blocks = Blocks.of(60, 40, torch.Generator().manual_seed(0))
    a, b = sides(blocks)
    weights = torch.zeros(2, 1, 100, dtype=torch.float64)
    weights[0, 0, :60], weights[1, 0, 60:] = 1 / 60, 1 / 40
    exact = energy_statistic(values.double()[:, None], *weights)
    assert float(line_energy(values.double(), blocks, a - b)) == pytest.approx(float(exact))
    assert line_energy(torch.ones(100), blocks, a - b).tolist() == [0.0]


def test_values_and_error_bars_are_those_of_pairs(monkeypatch):
    x, y = normal(800, 2, seed=0), normal(700, 2, seed=1) + 0.3
    pairs = km.compare(x, y, 0.5, permutations=99)
    monkeypatch.setattr(compare_module, "PAIRS_UP_TO", 100)
    blocks = km.compare(x, y, 0.5, permutations=99)
    assert "All 800 and 700 rows are used" in " ".join(blocks.notes)
    assert blocks.used == (800, 700)
    assert len(blocks.x) == 100, "points are kept for pictures"
    for one, other in zip(pairs.measures, blocks.measures, strict=True):
        assert (one.name, one.variance) == (other.name, other.variance)
        if one.name == "matrix":
            continue  # it counts features, and there are fewer
        tolerance = 0.1 if one.name == "energy" else 2e-3
        assert other.value == pytest.approx(one.value, rel=tolerance)
        if one.name != "vector":
            assert 0.5 < other.error / one.error < 2
        assert other.pvalue <= 0.02
    svd = blocks.measure("svd")
    assert abs(svd.normalized - pairs.measure("svd").normalized) <= svd.bound < 1e-3
    for one, other in zip(pairs.column_differences, blocks.column_differences, strict=True):
        assert one.column == other.column
        assert other.distance == pytest.approx(one.distance, rel=0.02)
    at = torch.tensor([[-2.0, -2.0], [2.0, 2.0]]).double()
    assert blocks.witness(at)[0] > 0 > blocks.witness(at)[1]


def test_level(monkeypatch):
    """200 pairs of one source, unequal sizes: each cost rejects at its level."""
    monkeypatch.setattr("kermix.comparison.blocks.BLOCKS", 60)
    monkeypatch.setattr("kermix.comparison.blocks.FEWEST_ON_A_SIDE", 20)
    monkeypatch.setattr("kermix.comparison.blocks.DIRECTIONS", 4)
    rejected: dict[str, int] = {}
    for seed in range(200):
        pooled = normal(330, 2, seed=seed)
        found = LargeComparison.of(
            pooled, pooled, 130, (0.5,), ["a", "b"], 0, 19, own_generator(seed), rank=15
        )
        for cost, test in found.tests.items():
            rejected[cost] = rejected.get(cost, 0) + (test.pvalue <= 0.1)
        first = found.column_differences[0]
        both = {c.column: c.pvalue for c in found.column_differences}
        rejected["column"] = rejected.get("column", 0) + (both["a"] <= 0.1)
        assert math.isfinite(first.distance)
    for cost, count in rejected.items():
        assert abs(count - 20) <= 3 * (200 * 0.1 * 0.9) ** 0.5, (cost, count)


def test_a_small_shift_is_found_in_many_rows():
    """0.05 deviations in ten columns: missed by a thousand rows, found by a hundred thousand."""
    x, y = np.random.default_rng(0).normal(size=(2, 100_000, 10)).astype(np.float32)
    y += 0.05
    few = km.compare(x, y, 0.5, max_points=300, permutations=39, bootstrap=0)
    assert few.tests["svd"].pvalue > 0.05
    many = km.compare(x, y, 0.5, permutations=39, bootstrap=0)
    assert all(test.pvalue == 1 / 40 for test in many.tests.values())
    assert all(c.pvalue == 1 / 40 for c in many.column_differences)


def test_energy_distances_of_heavy_tails_are_those_of_all_rows():
    x, y = (2 * normal(3000, 1, seed=0)).exp(), 1.1 * (2 * normal(2000, 1, seed=1)).exp()
    found = km.compare(x, y, 1.0, permutations=19, standardize=False)
    exact = float(energy_distance(x, y))
    energy = next(m for m in found.measures if m.name == "energy")
    assert energy.value == pytest.approx(exact, rel=1e-6)
    spread = float(torch.cat([x, y]).std())
    assert found.column_differences[0].distance == pytest.approx(exact / spread, rel=1e-6)


def test_rows_outside_of_the_blocks_are_told():
    x, y = normal(20_000, 1, seed=0), normal(1010, 1, seed=1)
    notes = " ".join(km.compare(x, y, 1.0, permutations=19).notes)
    blocks = Blocks.of(20_000, 1010, torch.Generator().manual_seed(0))
    inside = len(blocks) * blocks.size
    assert ("which hold" in notes) == (inside < 21_010)
