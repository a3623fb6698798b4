"""Rows drawn from a table network, densities of rows, and cells that are filled in.

A cell is filled by its most likely value (a category, or a number's mean) or by a draw; gaps that
have no value stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.frames import Frame
from kermix.data.schema.columns import UNKNOWN
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.absences import Absence, where_absent
from kermix.tables.model.conditioning import Cells, TableCells
from kermix.tables.model.distribution import column_distribution
from kermix.tables.model.equal_columns import copy_equal_columns
from kermix.tables.model.exact_relations import EMPTY
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.network import (
    ColumnParts,
    TableNetwork,
    log_scales_of,
    network_rows_at_once,
)

__all__ = [
    "Gaps",
    "Rows",
    "chain_log_density",
    "complete",
    "draw_cells",
    "most_likely_cells",
    "most_likely_rows",
    "orders_of",
]

Rows = tuple[Tensor, Tensor]  # codes (N, D), values (N, Q)


@torch.no_grad()
def complete(
    network: TableNetwork,
    codes: Tensor,  # (N, D)
    values: Tensor,  # (N, Q)
    seen: Tensor,  # (N, D), bool
    generator: torch.Generator,
    *,
    excluded: Tensor | None = None,  # (T,), bool
    on_rows: Callable[[int], None] | None = None,
    tries: int = 20,
) -> Rows:
    """Fill in the cells that are not seen, column after column.

    Models that were trained in no order do so in one of its own for each row. Numbers stay within
    the range of their column. Where that breaks a line which foretells one closely, such as a sum,
    or a relation that holds, the row is drawn again; after many tries it is an exception.

    Args:
        network: The model.
        codes: Codes of all columns; those that are not seen do not count.
        values: Normal scores, likewise.
        seen: Which cells are given.
        generator: Source of random numbers, on the device of the rows.
        excluded: Codes that are never drawn, such as "missing" when gaps are filled.
        on_rows: Called with the number of rows that are done, block by block, and with 0 before
            each column of a block: who raises in it stops the work.
        tries: How often a row is drawn whose sums would leave the range of a column.
    """
    parts = []
    for rows in torch.arange(len(codes), device=codes.device).split(network_rows_at_once(network)):
        block = codes[rows], values[rows], seen[rows]
        *drawn, beyond = _completed(network, *block, generator, excluded, on_rows)
        for _ in range(tries):
            at = beyond.nonzero().flatten()
            if not len(at):
                break
            some = block[0][at], block[1][at], block[2][at]
            # What holds is kept, or exceptions would be the easy way.
            flags = slice(network.layout.table_columns, None)
            some[0][:, flags], some[2][:, flags] = drawn[0][at, flags], True
            *again, beyond[at] = _completed(network, *some, generator, excluded, on_rows)
            for whole, part in zip(drawn, again, strict=True):
                whole[at] = part
        if network.layout.exact is not None:
            settled = network.layout.exact.settle(drawn[0], drawn[1], block[2], at_last=True)
            drawn = [*settled[:2]]
        parts.append(drawn)
        if on_rows is not None:
            on_rows(len(rows))
    if not parts:
        return codes.clone(), values.clone()
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _completed(
    network: TableNetwork,
    codes: Tensor,
    values: Tensor,
    seen: Tensor,
    generator: torch.Generator,
    excluded: Tensor | None,
    on_rows: Callable[[int], None] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, values, and whether a number that lines foretell closely was beyond its range."""
    codes, values, seen = codes.clone(), values.clone(), seen.clone()
    layout = network.layout
    numbers = layout.number_of_column.to(codes.device)
    given = seen.clone()
    layout.transferred(codes, values, seen)
    # Columns of each row as they are drawn: those seen come last, and are never reached.
    order = (layout.drawing_ranks.to(seen.device) + layout.columns * seen).argsort(1)
    left = (~seen).sum(1)
    beyond = torch.zeros(len(seen), dtype=torch.bool, device=codes.device)
    ends = torch.tensor(layout.ends).to(values) if layout.ends else None
    for step in range(int(left.max()) if len(left) else 0):
        rows = ((left > step) & ~seen.gather(1, order[:, step : step + 1])[:, 0]).nonzero()[:, 0]
        if not len(rows):
            continue
        if on_rows is not None:
            on_rows(0)
        at = order[rows, step]
        parts = network(codes[rows], values[rows], seen[rows])
        linked = network.linked_numbers(codes[rows], seen[rows])
        certain = None if linked is None else linked.gather(1, at[:, None])
        closed = _closed(layout, codes[rows], seen[rows], at, excluded)
        new_codes, new_values = _drawn(
            network, parts, (codes, values, seen), rows, at, generator, (closed, certain)
        )
        codes[rows, at] = new_codes
        number = numbers[at]
        of_number = (number >= 0).nonzero().flatten()
        number, drawn = number[of_number], new_values[of_number]
        if ends is not None:
            # What is drawn next must see what will be written.
            continuous = new_codes[of_number] == 0
            inside = torch.where(continuous, drawn.clamp(*ends[number].unbind(1)), drawn)
            if network.lines is not None:
                beyond[rows[of_number]] |= network.lines.followed[number] & (inside != drawn)
            drawn = inside
        values[rows[of_number], number] = drawn
        seen[rows, at] = True
        layout.transferred(codes, values, seen)
    if layout.exact is not None:
        codes, values, broken = layout.exact.settle(codes, values, given)
        beyond |= broken
    return codes, values, beyond


def _drawn(
    network: TableNetwork,
    parts: ColumnParts,
    cells: tuple[Tensor, Tensor, Tensor],
    rows: Tensor,
    at: Tensor,
    generator: torch.Generator,
    excluded: tuple[Tensor | None, Tensor | None],
    tries: int = 20,
) -> Rows:
    """What `draw_cells` draws, again where a cell contradicts what is said of a relation."""
    new_codes, new_values = draw_cells(network, parts, at, generator, *excluded)
    layout = network.layout
    if layout.exact is None:
        return new_codes, new_values
    codes, values, seen = (part[rows] for part in cells)
    every, number = torch.arange(len(rows), device=codes.device), layout.number_of_column
    number = number.to(codes.device)[at]
    seen[every, at] = True
    open_ = every
    for _ in range(tries):
        codes[open_, at[open_]] = new_codes[open_]
        numbers = open_[number[open_] >= 0]
        values[numbers, number[numbers]] = new_values[numbers]
        wrong = layout.exact.contradicted(at[open_], codes[open_], values[open_], seen[open_])
        open_ = open_[wrong]
        if not len(open_):
            break
        some = ColumnParts(*(part[open_] for part in parts))
        more = [None if part is None else part[open_] for part in excluded]
        new_codes[open_], new_values[open_] = draw_cells(
            network, some, at[open_], generator, *more
        )
    return new_codes, new_values


def _closed(
    layout: TableLayout, codes: Tensor, seen: Tensor, columns: Tensor, excluded: Tensor | None
) -> Tensor | None:
    """Logits that are never drawn for one column of each row: excluded ones, broken relations."""
    if layout.exact is None:
        return excluded
    closed = torch.zeros(len(codes), layout.total, dtype=torch.bool, device=codes.device)
    closed |= False if excluded is None else excluded
    layout.exact.closed(codes, seen, columns, layout.logit_of, closed)
    return closed


def draw_cells(
    network: TableNetwork,
    parts: ColumnParts,
    columns: Tensor,  # (N,)
    generator: torch.Generator,
    excluded: Tensor | None = None,  # (T,) or (N, T), bool
    certain: Tensor | None = None,  # (N, 1), bool
) -> tuple[Tensor, Tensor]:  # (N,), (N,)
    """A code, and a number that counts where the code is 0, for one column of each row.

    Args:
        network: The model.
        parts: What it returned for the rows.
        columns: The column of each row.
        generator: Source of random numbers.
        excluded: Codes that are not drawn, of all rows or of each.
        certain: Where a link says that the cell is a number.
    """
    closed = network.segments != columns.unsqueeze(1)
    if excluded is not None:
        closed = closed | excluded
    if certain is not None:
        others = torch.ones(len(network.segments), dtype=torch.bool, device=closed.device)
        others[network.offsets] = False
        closed = closed | (certain & others)
    logits = parts.logits + _gumbel(parts.logits, generator)
    codes = logits.masked_fill(closed, -torch.inf).argmax(1) - network.offsets[columns]
    if network.within is not None:
        codes = network.within.drawn(parts.values, columns, codes, generator)
    number = network.layout.number_of_column.to(columns.device)[columns].clamp(min=0)
    if not len(network.layout.numbers):
        return codes, torch.zeros(len(codes), device=codes.device)
    rows = torch.arange(len(codes), device=codes.device)
    weights, means = parts.weights[rows, number], parts.means[rows, number]
    scales = log_scales_of(parts)[rows, number].exp()
    chosen = (weights + _gumbel(weights, generator)).argmax(-1, keepdim=True)
    noise = torch.randn(len(codes), generator=generator, device=codes.device)
    values = (means.gather(1, chosen) + scales.gather(1, chosen) * noise[:, None]).squeeze(1)
    return codes, torch.where(codes == 0, values, 0.0)


def _gumbel(like: Tensor, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    return -(-uniform.clamp(min=1e-30).log()).log()


def orders_of(layout: TableLayout, count: int, generator: torch.Generator) -> Tensor:  # (O, D)
    """The order in which rows are drawn, and random ones.

    Each is followed by its reverse, so that two of them differ. Links come first: what is equal
    has no density of its own.
    """
    keys = torch.rand((count + 1) // 2, layout.columns, generator=generator)
    keys[0] = torch.arange(layout.columns) / layout.columns
    keys = torch.stack([keys, 1 - keys], 1).flatten(0, 1)[:count]
    return (keys + layout.drawing_keys).argsort(1)


@torch.no_grad()
def chain_log_density(
    network: TableNetwork,
    codes: Tensor,  # (N, D)
    values: Tensor,  # (N, Q)
    orders: Tensor,  # (O, D)
    given: Tensor | None = None,  # (D,), bool
    known: Tensor | None = None,  # (N, D), bool
    derivatives: Tensor | None = None,  # (N, D)
    on_rows: Callable[[int], None] | None = None,
) -> Tensor:  # (O, N)
    """Log-density of rows by the chain rule, in each of some orders.

    The logarithm of the mean of their exponentials over orders is a density too.

    Args:
        network: The model.
        codes: Codes of whole rows.
        values: Normal scores of whole rows.
        orders: Orders of the columns.
        given: Columns that are a condition: the density is that of the others.
        known: Cells that count; a row's density is then that of its known cells.
        derivatives: What is added for each cell that is not implied by others: logarithms of the
            derivatives of normal scores, for densities in the user's units.
        on_rows: Called with the number of rows that are done, block by block.
    """
    known = torch.ones_like(codes, dtype=torch.bool) if known is None else known
    if derivatives is None:
        derivatives = torch.zeros(codes.shape, device=codes.device)
    found = [torch.zeros(len(orders), 0, dtype=torch.float64, device=codes.device)]
    for rows in torch.arange(len(codes), device=codes.device).split(network_rows_at_once(network)):
        block = codes[rows], values[rows], known[rows], derivatives[rows]
        every = [_along(network, order, given, *block) for order in orders.tolist()]
        found.append(torch.stack(every))
        if on_rows is not None:
            on_rows(len(rows))
    return torch.cat(found, 1)


def _along(
    network: TableNetwork,
    order: Sequence[int],
    given: Tensor | None,
    codes: Tensor,
    values: Tensor,
    known: Tensor,
    derivatives: Tensor,
) -> Tensor:  # (N,)
    """Log-density of rows in one order, as `chain_log_density` has it."""
    seen = torch.zeros_like(codes, dtype=torch.bool)
    if given is not None:
        seen |= given.to(codes.device)
    total = torch.zeros(len(codes), device=codes.device, dtype=torch.float64)
    for column in order:
        if given is not None and bool(given[column]):
            continue
        seen = network.layout.implied(codes, seen)
        new = known[:, column] & ~seen[:, column]
        parts = network(codes, values, seen)
        here = network.column_log_likelihood(parts, codes, values, seen)[:, column]
        here = here - _log_open(network, parts, codes, values, seen, column)
        total += (here + derivatives[:, column]).masked_fill(~new, 0.0)
        seen[:, column] |= known[:, column]
    return total


def _log_open(
    network: TableNetwork,
    parts: ColumnParts,
    codes: Tensor,
    values: Tensor,
    seen: Tensor,
    column: int,
) -> Tensor:  # (N,)
    """Logarithm of the probability of what a column may be by what is said of its relations."""
    layout = network.layout
    if layout.exact is None:
        return torch.zeros(len(codes), device=codes.device)
    at = torch.full((len(codes),), column, device=codes.device)
    closed = _closed(layout, codes, seen, at, None)
    assert closed is not None
    first = int(layout.offsets[column])
    own = slice(first, first + layout.units[column])
    logs = parts.logits[:, own].log_softmax(1).masked_fill(closed[:, own], -torch.inf)
    open_codes = None
    if column < layout.table_columns:
        open_codes = layout.exact.open_codes(column, codes, values, seen)
    if open_codes is not None:
        if network.within is not None:
            logs = network.within.of_codes(column, logs, parts.values)
        logs = logs.masked_fill(~open_codes, -torch.inf)
    found = logs.logsumexp(1) - layout.exact.lattice_share(column, codes, seen).log()
    return torch.where(found.isfinite(), found, 0.0)


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

    A category gets its most likely value, which is wrong least often, and a number the median of
    its values, whose absolute error is least; both without those that other gaps are filled with,
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
    for rows in torch.arange(len(codes), device=codes.device).split(network_rows_at_once(network)):
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
    for _, second in layout.equal_pairs:
        known[:, second] = seen[:, second]
    copy_equal_columns(layout.equal_pairs, layout.number_of_column, codes, values, known)
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
        new_codes, scores = found.most_likely_codes()
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


class Gaps:
    """Empty cells of a table.

    Where a column has no value is judged on the row as it will be: "empty unless status is
    hurricane" by the status that is filled in, if that was a gap too, and "empty where wind is"
    only if wind stays empty.

    Args:
        cells: What the columns of the model are.
        frame: The table.
        absences: Where columns have no value.
    """

    def __init__(self, cells: TableCells, frame: Frame, absences: Sequence[Absence]) -> None:
        self._cells, self._frame, self._absences = cells, frame, absences
        columns = cells.schema.modelled
        self._encoded = cells.schema.encode(frame, unseen="unknown", extra=True)
        self._missing = np.array([UNKNOWN if c.missing_code is None else c.missing_code
                                  for c in columns], np.int64)  # fmt: skip
        self._empty = np.stack(
            [np.asarray(frame.columns[c.name].is_null().to_numpy()) for c in columns], 1
        )
        ruled = np.zeros(len(columns), bool)
        ruled[[absence.place for absence in absences]] = True
        self._stays, before = self._empty & ruled, -1
        # Of columns that are empty together none is the first: all stay, or none does.
        while self._stays.sum() != before:
            before = self._stays.sum()
            self._stays &= self._absent(self._encoded, self._filled)

    @property
    def _filled(self) -> np.ndarray:  # (N, D), bool
        """Gaps that are filled, as far as other cells tell that are no gaps."""
        return self._empty & ~self._stays

    def _absent(self, encoded: EncodedTable, unknown: np.ndarray) -> np.ndarray:  # (N, D)
        codes = np.where(unknown, UNKNOWN, encoded.codes)
        return where_absent(self._cells.schema, self._absences, replace(encoded, codes=codes))

    @property
    def missing_codes(self) -> Tensor:  # (T,), bool
        """Codes that are never drawn."""
        layout = self._cells.layout
        codes = torch.zeros(layout.total, dtype=torch.bool, device=self._cells.device)
        for k, code in enumerate(self._missing):
            if code != UNKNOWN:
                codes[layout.unit_of_code[layout.code_offsets[k] + int(code)]] = True
        for k, count in enumerate(() if layout.exact is None else layout.exact.counts):
            if count > EMPTY:
                codes[int(layout.offsets[layout.table_columns + k]) + EMPTY] = True
        return codes

    def given(self) -> Cells:
        """What is known of each row; that there is no value is known as well."""
        codes = np.where(self._filled, UNKNOWN, self._encoded.codes)
        return self._cells.tensors(self._frame, replace(self._encoded, codes=codes))

    def drawn(self, network: TableNetwork, generator: torch.Generator) -> Cells:
        """The same, with cells drawn that tell whether others in their row have a value.

        A category drawn first would make a hurricane of every storm whose status is a gap.
        """
        codes, values, seen = self.given()
        telling = self._telling()
        at = torch.from_numpy(np.flatnonzero(telling.any(1))).to(codes.device)
        if not len(at):
            return codes, values, seen
        width = telling.shape[1]
        own = torch.from_numpy(telling).to(codes.device)
        drawn, numbers = complete(network, codes[at], values[at], seen[at], generator)
        codes[at, :width] = torch.where(own[at], drawn[:, :width], codes[at, :width])
        values[at] = torch.where(
            seen[at][:, list(self._cells.layout.numbers)], values[at], numbers
        )
        own &= codes[:, :width] != torch.from_numpy(self._missing).to(codes)
        seen[:, :width] |= own
        absent = torch.from_numpy(self._settled(codes, values, own.cpu().numpy()))
        absent = absent.to(codes.device)
        seen[:, :width] |= absent
        return self._emptied(codes, absent), values, seen

    def settled(self, codes: Tensor, values: Tensor, seen: Tensor) -> Cells:
        """Completed rows, of which cells without a value are empty again."""
        absent = torch.from_numpy(self._settled(codes, values, self._filled)).to(codes.device)
        seen = seen.clone()
        seen[:, : absent.shape[1]] |= absent
        return self._emptied(codes, absent), values, seen

    def _telling(self) -> np.ndarray:  # (N, D), bool
        """Cells to be filled by which it is decided whether others are."""
        filled = self._filled
        telling = np.zeros_like(filled)
        for absence in self._absences:
            for place in absence.places:
                telling[:, place] |= filled[:, absence.place] & filled[:, place]
        return telling

    def _settled(self, codes: Tensor, values: Tensor, new: np.ndarray) -> np.ndarray:
        """Which cells have no value, given new ones of some cells."""
        own, open_ = codes[:, : new.shape[1]].cpu().numpy(), self._filled
        known = np.where(new, own, np.where(open_, UNKNOWN, self._encoded.codes))
        numbers = new[:, list(self._cells.layout.numbers)]
        values_ = np.where(numbers, values.double().cpu().numpy(), self._encoded.values)
        rows = replace(self._encoded, codes=known.copy(), values=values_)
        positions = self._cells.schema.positions(rows)
        absent = np.zeros_like(open_)
        # One after the other: of two columns of which one is always empty, the other is filled.
        for _ in self._absences:
            before = absent.copy()
            for absence in self._absences:
                place = absence.place
                holds = absence.holds(self._cells.schema, rows, positions)
                absent[:, place] = open_[:, place] & holds
                rows.codes[:, place] = np.where(absent[:, place], self._missing[place],
                                                known[:, place])  # fmt: skip
            if (absent == before).all():
                break
        return self._stays | absent

    def _emptied(self, codes: Tensor, absent: Tensor) -> Tensor:
        codes, width = codes.clone(), absent.shape[1]
        missing = torch.from_numpy(self._missing).to(codes)
        codes[:, :width] = torch.where(absent, missing, codes[:, :width])
        return codes
