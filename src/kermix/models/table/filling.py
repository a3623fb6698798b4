"""The most likely value of each cell that is not seen: its category, or its number's mean."""

from collections.abc import Callable

import torch
from torch import Tensor

from kermix.data.tables.schema import Schema
from kermix.models.table.distribution import column_distribution
from kermix.models.table.drawing import Rows, rows_at_once
from kermix.models.table.network import ColumnParts, TableNetwork
from kermix.models.table.twins import copy_twins

__all__ = ["most_likely_cells", "most_likely_rows"]


@torch.no_grad()
def most_likely_cells(
    network: TableNetwork,
    schema: Schema,
    codes: Tensor,  # (N, D)
    values: Tensor,  # (N, Q)
    seen: Tensor,  # (N, D), bool
    on_rows: Callable[[int], None] | None = None,
) -> Rows:
    """Fill in the cells that are not seen, each given those that are.

    A category gets its most likely value, which is wrong least often, and a number the mean of
    its values, whose squared error is least; both without those that other gaps are filled with,
    because these are no knowledge. Whether linked columns are equal is decided first.

    Args:
        network: The model.
        schema: What its columns are.
        codes: Codes of all columns; those that are not seen do not count.
        values: Normal scores, likewise.
        seen: Which cells are given.
        on_rows: Called with the number of rows that are done, block by block.
    """
    codes, values, seen = codes.clone(), values.clone(), seen.clone()
    for rows in torch.arange(len(codes), device=codes.device).split(rows_at_once(network)):
        block = codes[rows], values[rows], seen[rows]
        codes[rows], values[rows] = _filled(network, schema, *block)
        if on_rows is not None:
            on_rows(len(rows))
    return codes, values


def _filled(
    network: TableNetwork, schema: Schema, codes: Tensor, values: Tensor, seen: Tensor
) -> Rows:
    layout, device = network.layout, codes.device
    numbers = layout.number_of_column.to(device)
    _decide_links(network, codes, values, seen)
    gaps = ~seen[:, : layout.table_columns]
    at = gaps.any(1).nonzero().flatten()
    parts = network(codes[at], values[at], seen[at])
    certain = network.linked_numbers(codes[at], seen[at])
    for place, column in enumerate(schema.modelled):
        own = gaps[at, place]
        if not own.any():
            continue
        found = column_distribution(network, ColumnParts(*(p[own] for p in parts)), place, column)
        if certain is not None:
            found = found.as_number(certain[own, place].cpu().numpy())
        new_codes, scores = found.most_likely_codes()
        codes[at[own], place] = torch.from_numpy(new_codes).to(device)
        if scores is not None:
            values[at[own], numbers[place]] = torch.from_numpy(scores).to(values)
    # Two gaps that are equal in all rows have one value: that of the first.
    known = torch.ones_like(seen)
    for _, second in layout.twins:
        known[:, second] = seen[:, second]
    copy_twins(layout.twins, layout.number_of_column, codes, values, known)
    return codes, values


@torch.no_grad()
def most_likely_rows(
    network: TableNetwork,
    schema: Schema,
    codes: Tensor,  # (N, D)
    values: Tensor,  # (N, Q)
    seen: Tensor,  # (N, D), bool
) -> Rows:
    """Fill in the cells that are not seen, one after the other, so that they fit together.

    Each column in turn gets its most likely category, or the median of its number, given what is
    seen and what was filled in before it: the greedy way to a likely row. (A cell by itself is
    best guessed by `most_likely_cells`.)
    """
    codes, values, seen = codes.clone(), values.clone(), seen.clone()
    layout, numbers = network.layout, network.layout.number_of_column.to(codes.device)
    _decide_links(network, codes, values, seen)
    for place in range(layout.table_columns):
        at = (~seen[:, place]).nonzero().flatten()
        if not len(at):
            continue
        parts = network(codes[at], values[at], seen[at])
        found = column_distribution(network, parts, place, schema.modelled[place])
        certain = network.linked_numbers(codes[at], seen[at])
        if certain is not None:
            found = found.as_number(certain[:, place].cpu().numpy())
        new_codes, scores = found.most_likely_codes(median=True)
        codes[at, place] = torch.from_numpy(new_codes).to(codes)
        if scores is not None:
            values[at, numbers[place]] = torch.from_numpy(scores).to(values)
        seen[at, place] = True
        layout.transferred(codes, values, seen)
    return codes, values


def _decide_links(network: TableNetwork, codes: Tensor, values: Tensor, seen: Tensor) -> None:
    """Whether linked columns are equal, where that is not known, and what follows; in place."""
    layout = network.layout
    layout.transferred(codes, values, seen)
    for place in range(layout.table_columns, layout.columns):
        at = (~seen[:, place]).nonzero().flatten()
        if not len(at):
            continue
        first = int(layout.offsets[place])
        logits = network(codes[at], values[at], seen[at]).logits[:, first : first + 2]
        codes[at, place] = logits.argmax(1)
        seen[at, place] = True
        layout.transferred(codes, values, seen)
