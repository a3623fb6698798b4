"""Permutation tests of two large samples, in time linear in their rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.comparison.blocks import (
    BLOCKS,
    DIRECTIONS,
    FEWEST_ON_A_SIDE,
    Blocks,
    block_statistics,
    energy_of_blocks,
    feature_blocks,
    line_energy,
    line_energy_of_rows,
    random_directions,
)
from kermix.comparison.mixed_columns import mixed_column_differences
from kermix.comparison.permutation import labellings, signed_weights
from kermix.comparison.result import ColumnDifference
from kermix.comparison.twosample import TwoSampleResult, ranked
from kermix.data.tables.mixed_rows import MixedRows
from kermix.kernels.mixed import mixed_kernel
from kermix.kernels.subsets import symmetric_subset
from kermix.sketches.features import nystrom_features

__all__ = ["BlockTests"]

RANK = 128
TOLERANCE = 1e-5
CANDIDATES = 8000
RIDGE = 1e-4


@dataclass(frozen=True)
class BlockTests:
    """Every test between rows of `x` and of `y`, pooled one after the other.

    Permutations exchange blocks of rows (see `kermix.comparison.blocks`). Landmarks of
    features are chosen among pooled rows by their values alone: were one side preferred, features
    would fit it better, and the labels would no longer be exchangeable.
    """

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
        permutations: int,
        generator: torch.Generator,
        rank: int = RANK,
        mixed: MixedRows | None = None,
        *,
        candidates: int = CANDIDATES,
        blocks: int = BLOCKS,
        fewest_on_a_side: int = FEWEST_ON_A_SIDE,
        directions: int = DIRECTIONS,
    ) -> "BlockTests":
        """Test; without permutations there is nothing but the columns' distances.

        Args:
            pooled: Rows of `x`, then of `y`.
            raw: The same as they were given.
            n: Rows of `x`.
            grid: Variances.
            columns: Their names.
            permutations: How often labels of blocks are exchanged.
            generator: Of blocks, labels and directions.
            rank: Most features.
            mixed: What tells categories from numbers.
            candidates: Rows that landmarks are chosen among.
            blocks: How many, about.
            fewest_on_a_side: Blocks of the smaller side.
            directions: On which the energy distance is that of lines.
        """
        pooled, m = pooled.double(), len(pooled) - n
        if not permutations:
            return cls({}, column_differences(raw, n, columns, None, None, mixed), ())
        exchanged = Blocks.of(n, m, generator, blocks, fewest_on_a_side)
        sides = exchanged.of_x, len(exchanged) - exchanged.of_x
        labels = signed_weights(labellings(*sides, permutations, generator), None)
        # Of the rows as they were given, because scaled ones are rounded.
        chosen = pooled[symmetric_subset(raw, candidates)]
        rows: dict[str, list[Tensor]] = {}
        layout = None if mixed is None else mixed.layout
        for v in grid:
            kernel = mixed_kernel(chosen, layout, v)
            features = nystrom_features(chosen, kernel, rank, TOLERANCE, candidates=len(chosen))
            found = feature_blocks(pooled, exchanged, features)
            for cost, row in block_statistics(found, *labels, RIDGE).items():
                rows.setdefault(cost, []).append(row)
        lines = random_directions(pooled.shape[1], generator, directions)
        energies = energy_of_blocks(pooled, exchanged, *labels, lines, layout, generator)
        rows["energy"] = [energies]
        method = f"{len(exchanged)} blocks of {exchanged.size} rows"
        tests = {
            cost: ranked(values, cost, () if cost == "energy" else grid, (n, m), method)
            for cost, values in rows.items()
        }
        inside = len(exchanged) * exchanged.size
        rest = "" if inside == n + m else f", which hold {inside} of all {n + m}"
        notes = (
            f"Permutations exchange {len(exchanged)} random blocks of {exchanged.size} rows"
            f"{rest}; the tests use up to {rank} features, and the energy distance's {len(lines)} "
            "projections.",
        )
        return cls(tests, column_differences(raw, n, columns, exchanged, labels, mixed), notes)


def column_differences(
    raw: Tensor,  # (n + m, d)
    n: int,
    columns: Sequence[str],
    blocks: Blocks | None,
    labels: tuple[Tensor, Tensor] | None,
    mixed: MixedRows | None = None,
) -> tuple[ColumnDifference, ...]:
    """How much each column differs on its own, from all rows; tested if there are blocks."""
    if mixed is not None:
        return mixed_column_differences(raw, n, mixed, blocks, labels)
    found = []
    for k, name in enumerate(columns):
        values = raw[:, k].double()
        spread = float(values.std())
        chance = None
        if blocks is not None and labels is not None:
            energies = line_energy(values, blocks, labels[0] - labels[1])
            chance = ranked([energies], "energy", (), (n, len(raw) - n), "").pvalue
        distance = line_energy_of_rows(values, n) / spread if spread > 0 else 0.0
        means = float(values[:n].mean()), float(values[n:].mean())
        found.append(ColumnDifference(name, distance, chance, *means))
    return tuple(sorted(found, key=lambda c: -c.distance))
