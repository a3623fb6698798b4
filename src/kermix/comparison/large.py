"""Measures and tests of two large samples, in time linear in their rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.comparison.blocks import (
    Blocks,
    FeatureBlocks,
    block_statistics,
    energy_of_blocks,
    energy_of_rows,
    feature_blocks,
    line_energy,
    line_energy_of_rows,
    random_directions,
)
from kermix.comparison.draws import Draws, anchored, draws
from kermix.comparison.permutation import labellings, pvalues, signed_weights
from kermix.comparison.result import ColumnDifference, Measure
from kermix.comparison.statistics import cost_values
from kermix.comparison.twosample import TwoSampleResult, ranked
from kermix.costs.functions import matrix_cost, scalar_cost, svd_cost, vector_cost
from kermix.sketches.features import nystrom_features
from kermix.sketches.sketch import Sketch

__all__ = ["LargeComparison"]

RANK = 128
TOLERANCE = 1e-5
CANDIDATES = 8000
RIDGE = 1e-4


@dataclass(frozen=True)
class LargeComparison:
    """Everything that is measured between rows of `x` and of `y`, pooled one after the other.

    All rows are used: costs come from moments of Nystrom features, p-values and error bars from
    blocks of rows (see :mod:`kermix.comparison.blocks`).
    """

    measures: tuple[Measure, ...]
    tests: dict[str, TwoSampleResult]
    column_differences: tuple[ColumnDifference, ...]
    notes: tuple[str, ...]

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        pooled: Tensor,  # (n + m, d), scaled if columns are
        raw: Tensor,  # (n + m, d)
        n: int,
        grid: tuple[float, ...],
        columns: Sequence[str],
        bootstrap: int,
        permutations: int,
        generator: torch.Generator,
        rank: int = RANK,
    ) -> "LargeComparison":
        """Measure and test."""
        pooled, m = pooled.double(), len(pooled) - n
        blocks = Blocks.of(n, m, generator)
        sides = blocks.of_x, len(blocks) - blocks.of_x
        drawn = draws(*sides, bootstrap, generator, pooled.dtype)
        given = labellings(*sides, max(1, permutations), generator)
        labels = signed_weights(given, None)
        rows: dict[str, list[Tensor]] = {}
        measures: list[Measure] = []
        bounds, ranks = [], []
        for v in grid:
            half = CANDIDATES // 2
            some = [torch.randperm(k, generator=generator)[:half] for k in (n, m)]
            candidates = torch.cat([pooled[some[0]], pooled[n + some[1]]])
            features = nystrom_features(candidates, v, rank, TOLERANCE, candidates=len(candidates))
            found = feature_blocks(pooled, blocks, features)
            statistics = block_statistics(found, *labels, RIDGE)
            for cost, row in statistics.items():
                rows.setdefault(cost, []).append(row)
            x, y = (Sketch(features).add_sums(s, k) for s, k in ((found.x, n), (found.y, m)))
            chances = {c: float(pvalues(s)[0]) for c, s in statistics.items()}
            new = _measures(x, y, v, found, drawn, chances if permutations else {})
            measures += new
            bounds.append(new[0].bound or 0.0)
            ranks.append(features.rank)
        weights = [torch.cat([s, t]) for s, t in zip((drawn.a, drawn.b), labels, strict=True)]
        directions = random_directions(pooled.shape[1], generator)
        energies = energy_of_blocks(pooled, blocks, weights[0], weights[1], directions)
        energy = energy_of_rows(pooled, n, directions)
        error, if_same = drawn.errors(energies[: len(drawn.a)])
        rows["energy"] = [energies[len(drawn.a) :]]
        tests: dict[str, TwoSampleResult] = {}
        if permutations:
            method = f"{len(blocks)} blocks of {blocks.size} rows"
            tests = {
                cost: ranked(values, cost, () if cost == "energy" else grid, (n, m), method)
                for cost, values in rows.items()
            }
        chance = tests["energy"].pvalue if tests else None
        measures.append(Measure("energy", None, energy, None, error, if_same, chance))
        notes = [
            f"All {n} and {m} rows are used, through {', '.join(str(r) for r in ranks)} features; "
            f"SVD costs are within {', '.join(f'{b:.2g}' for b in bounds)} of those of all pairs. "
            "The matrix cost and the Bures distance are those of the features, the energy "
            "distance is that of 32 projections.",
        ]
        if permutations:
            inside = len(blocks) * blocks.size
            rest = "" if inside == n + m else f", which hold {inside} of all {n + m}"
            notes.append(
                f"Permutations exchange {len(blocks)} random blocks of {blocks.size} rows{rest}."
            )
        return cls(
            tuple(measures),
            tests,
            _columns(raw, n, blocks, labels, columns, bool(permutations)),
            tuple(notes),
        )


def _measures(
    x: Sketch,
    y: Sketch,
    v: float,
    found: FeatureBlocks,
    drawn: Draws,
    chances: dict[str, float],
) -> list[Measure]:
    second = found.second.flatten(1)
    moments = [(w @ second).unflatten(1, found.second.shape[1:]) for w in (drawn.a, drawn.b)]
    count = (x.count + y.count) / 2
    names = ("svd", "matrix", "vector")
    values = cost_values(names, drawn.a @ found.first, moments[0], moments[1], count)
    basic = block_statistics(found, drawn.a, drawn.b, RIDGE)
    measures = []

    def add(
        name: str, value: float, normalized: float | None, of_draws: Tensor,
        bound: float | None = None,
    ) -> None:  # fmt: skip
        error, if_same = drawn.errors(of_draws)
        chance = chances.get({"bures": "svd", "cauchy_schwarz": "scalar"}.get(name, name))
        measures.append(Measure(name, v, value, normalized, error, if_same, chance, bound))

    fidelity, bound = _fidelity(x, y)
    size = math.sqrt(x.count * y.count)
    add("svd", size * fidelity, fidelity, anchored(1 - values["svd"], fidelity), bound)
    for name, cost in (("matrix", matrix_cost), ("vector", vector_cost)):
        normalized = float(cost(x, y, None, normalized=True))
        add(name, float(cost(x, y, None)), normalized, anchored(-values[name], normalized))
    scalar = float(scalar_cost(x, y, None, normalized=True))
    add("scalar", float(scalar_cost(x, y, None)), scalar, (-basic["scalar"]).exp())
    distances = (2 * values["svd"]).clamp(min=0).sqrt()
    add("bures", float(distances[0]), None, distances)
    divergence = max(0.0, -math.log(scalar)) if scalar > 0 else math.inf
    add("cauchy_schwarz", divergence, None, basic["scalar"])
    squares = basic["mmd"].sqrt()
    add("mmd", float(torch.linalg.vector_norm(x.moments.mean - y.moments.mean)), None, squares)
    return measures


def _fidelity(x: Sketch, y: Sketch) -> tuple[float, float]:
    r"""The normalised SVD cost, and how far it can be from that of all pairs.

    With the features' fidelity `F` and residuals :math:`e_x, e_y` the cost lies between `F` and
    :math:`F + \sqrt{e_x e_y}`. Were what the features leave out as alike as what they hold, it
    would be :math:`F / \sqrt{(1 - e_x)(1 - e_y)}`.
    """
    value, info = svd_cost.with_info(x, y, None, normalized=True)
    assert info.error_bound is not None
    bound = float(info.error_bound)
    held = math.sqrt(float(x.moments.second.trace() * y.moments.second.trace()))
    return min(float(value) / held, float(value) + bound, 1.0), bound


def _columns(
    raw: Tensor,
    n: int,
    blocks: Blocks,
    labels: tuple[Tensor, Tensor],
    columns: Sequence[str],
    tested: bool,
) -> tuple[ColumnDifference, ...]:
    found = []
    signed = labels[0] - labels[1]
    for k, name in enumerate(columns):
        values = raw[:, k].double()
        spread = float(values.std())
        energies = line_energy(values, blocks, signed)
        chance = float(pvalues(energies)[0]) if tested else None
        distance = line_energy_of_rows(values, n) / spread if spread > 0 else 0.0
        means = float(values[:n].mean()), float(values[n:].mean())
        found.append(ColumnDifference(name, distance, chance, *means))
    return tuple(sorted(found, key=lambda c: -c.distance))
