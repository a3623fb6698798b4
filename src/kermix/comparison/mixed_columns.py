"""How much each column of two mixed tables differs, in the user's words."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.comparison.blocks import Blocks, line_energy, line_energy_of_rows
from kermix.comparison.column_changes import change_of_counts
from kermix.comparison.column_places import places_of_columns
from kermix.comparison.result import ColumnDifference
from kermix.comparison.twosample import ranked
from kermix.data.tables.columns import CategoryColumn, Column, NumberColumn
from kermix.data.tables.mixed_rows import MixedRows

__all__ = ["mixed_column_differences"]


class _Parts(NamedTuple):
    """What mixed rows hold of one of the user's columns."""

    column: Column
    scores: Tensor | None  # (N,)
    codes: Tensor | None  # (N,), places among the distinct codes
    names: tuple[str, ...]  # of the distinct codes


def mixed_column_differences(
    pooled: Tensor,  # (n + m, d)
    n: int,
    maker: MixedRows,
    blocks: Blocks | None,
    labels: tuple[Tensor, Tensor] | None,
) -> tuple[ColumnDifference, ...]:
    r"""How much each of the user's columns differs on its own; tested if there are blocks.

    Of a number it is the energy distance of scaled scores. Of a category with shares `p` and `q`
    it is $\sum_k (p_k - q_k)^2 / (p_k + q_k)$, between 0 and 2 however many values there
    are, less its mean were both sets one, which grows with their number. A number with gaps has
    one of its scores, and one of being missing.
    """
    found = []
    for parts in _columns(pooled, maker):
        distance = 0.0
        if parts.scores is not None:
            distance += line_energy_of_rows(parts.scores, n)
        shares = None if parts.codes is None else _shares(parts.codes, n, len(parts.names))
        if shares is not None:
            distance += _discrimination(shares, n, len(pooled) - n)
        chance = None
        if blocks is not None and labels is not None:
            signed = labels[0] - labels[1]
            energies = signed.new_zeros(len(signed))
            if parts.scores is not None:
                energies += line_energy(parts.scores, blocks, signed)
            if parts.codes is not None:
                energies += _of_codes(parts.codes, len(parts.names), blocks, labels)
            chance = ranked([energies], "energy", (), (n, len(pooled) - n), "").pvalue
        means, change = _told(parts, n, shares, maker)
        found.append(ColumnDifference(
            parts.column.name, distance, chance, *means, parts.column.kind, change
        ))  # fmt: skip
    return tuple(sorted(found, key=lambda c: -c.distance))


def _columns(pooled: Tensor, maker: MixedRows) -> Iterator[_Parts]:
    for column, place in zip(maker.schema.modelled, places_of_columns(maker), strict=True):
        codes = None if place.codes is None else pooled[:, place.codes].long()
        if place.numbers is not None:
            scores = pooled[:, place.numbers]
            yield _Parts(column, scores, codes, ("(present)", "(missing)"))
        else:
            assert isinstance(column, CategoryColumn)
            assert codes is not None
            names = (*column.code_names, "(unknown)")
            yield _Parts(column, None, torch.where(codes < 0, len(names) - 1, codes), names)


def _discrimination(shares: tuple[Tensor, Tensor], n: int, m: int) -> float:
    x, y = shares
    seen = x + y > 0
    found = ((x - y).square()[seen] / (x + y)[seen]).sum()
    by_chance = (int(seen.sum()) - 1) * (1 / n + 1 / m) / 2
    return max(0.0, float(found) - by_chance)


def _shares(codes: Tensor, n: int, count: int) -> tuple[Tensor, Tensor]:
    first, second = codes[:n], codes[n:]
    x, y = (torch.bincount(c, minlength=count).double() / len(c) for c in (first, second))
    return x, y


def _of_codes(
    codes: Tensor, count: int, blocks: Blocks, labels: tuple[Tensor, Tensor]
) -> Tensor:  # (P,)
    owners = torch.arange(len(blocks)).repeat_interleave(blocks.size)
    places = owners * count + codes[blocks.rows.flatten()]
    counts = torch.bincount(places, minlength=len(blocks) * count).reshape(len(blocks), count)
    shares = counts[:, counts.sum(0) > 0].to(labels[0]) / blocks.size
    x, y = (side @ shares for side in labels)
    return ((x - y).square() / (x + y).clamp(min=torch.finfo(x.dtype).tiny)).sum(1)


def _told(
    parts: _Parts, n: int, shares: tuple[Tensor, Tensor] | None, maker: MixedRows
) -> tuple[tuple[float | None, float | None], str]:
    """Means of a number on both sides, and what changed most, in words."""
    column = parts.column
    means: tuple[float | None, float | None] = (None, None)
    told = []
    if parts.scores is None:
        assert parts.codes is not None
        counts = (np.bincount(side.numpy(), minlength=len(parts.names))
                  for side in (parts.codes[:n], parts.codes[n:]))  # fmt: skip
        change = change_of_counts(parts.names, *counts)
        told.append(f"{change.short}: {change.told}")
    elif shares is not None:
        before, after = (100 * float(s[1]) for s in shares)
        if abs(before - after) > 0:
            told.append(f"{parts.names[1]}: {before:.3g} % -> {after:.3g} %")
    if parts.scores is not None and isinstance(column, NumberColumn):
        k = [c.name for c in maker.schema.numbers].index(column.name)
        there = None if parts.codes is None else (parts.codes == 0).numpy()
        scores = parts.scores.numpy() * maker.spread[k] + maker.centre[k]
        numbers = np.clip(column.map.inverse(scores), column.low, column.high)
        sides = []
        for side in (slice(None, n), slice(n, None)):
            chosen = numbers[side] if there is None else numbers[side][there[side]]
            sides.append(float(chosen.mean()) if len(chosen) else None)
        if column.time:
            first, last = (column.shown_time(s) for s in sides)
            told.insert(0, f"mean {first} -> {last}")
        else:
            means = tuple(None if s is None else s + column.origin for s in sides)  # type: ignore[assignment]
    return means, "; ".join(told)
