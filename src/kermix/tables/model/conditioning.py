"""Cells that are given to a table model: from a caller's table to codes and numbers, and back.

Columns may be some of the model's, and are checked by name.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import counted, listed, load_pyarrow
from kermix.data.readers.frames import (
    Frame,
    arrow_type,
    as_frame,
    build_frame,
    family,
    typed_array,
)
from kermix.data.schema.columns import UNKNOWN, CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema, Unseen
from kermix.data.schema.times import zoned_cells
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import InconsistentGivenWarning, OptionError, SchemaError, ZeroDensityWarning
from kermix.tables.model.equal_columns import (
    ZeroDensity,
    check_equal_columns,
    copy_equal_columns,
    equalize,
    same_cells,
)
from kermix.tables.model.layout import TableLayout

__all__ = [
    "Cells",
    "TableCells",
    "encode_some",
    "given_cell",
    "is_one_row",
    "nearest",
    "never_seen",
    "numbers_as_given",
    "place_of",
    "rows_of_zero_density",
]

MANY_DIGITS = re.compile(r"-?[0-9]{16,19}")  # whole numbers of which a float may lose some


def encode_some(
    schema: Schema,
    table: Any,
    unseen: Unseen = "error",
    inside: bool = False,
    without: Sequence[str] = (),
) -> tuple[EncodedTable, Frame]:
    """Codes and numbers of a table that has some of the columns (-1 elsewhere), and the table.

    Args:
        schema: Of the whole table.
        table: Some of its columns.
        unseen: As for `kermix.Schema.encode`.
        inside: Whether numbers outside the range of their columns are refused.
        without: Columns whose cells do not count, and are not looked at.
    """
    frame = as_frame(table, "given")
    _check_known(schema, frame)
    frame = replace(frame, columns={n: c for n, c in frame.columns.items() if n not in without})
    known = np.array([c.name in frame.columns for c in schema.modelled])
    codes = np.full((frame.rows, len(known)), UNKNOWN, np.int64)
    values = np.zeros((frame.rows, len(schema.numbers)))
    if not known.any():
        _check_constants(schema, frame)
        return EncodedTable(codes, values, frame.kind), frame
    part = Schema(tuple(c for c in schema.columns if c.name in frame.columns), schema.frame)
    if unseen == "error":
        _check_values(part, frame)
    found = part.encode(frame, unseen=unseen, name="given")
    _check_constants(schema, frame)
    if inside:
        _check_inside(part, frame)
    codes[:, known] = found.codes
    values[:, [c.name in frame.columns for c in schema.numbers]] = found.values
    return EncodedTable(codes, values, found.frame), frame


def _check_known(schema: Schema, frame: Frame) -> None:
    unknown = [n for n in frame.columns if n not in schema.names]
    if unknown:
        raise SchemaError(
            f"given: there is no column {unknown[0]}{nearest(unknown[0], schema.names)}"
        )


def given_cell(schema: Schema, name: str, text: str | None, where: str) -> Any:
    """A value that was written as text, as an Arrow array of one cell; None is a gap.

    Args:
        schema: Of the whole table.
        name: The column.
        text: Its value.
        where: How messages begin: where the value was written.

    Example:
        >>> schema = Schema.infer({"sex": ["f", "m"] * 20, "age": [20.5, 31.5, 42.25, 18.0] * 10})
        >>> given_cell(schema, "age", "31.5", "age=31.5").to_pylist()
        [31.5]
    """
    arrow = load_pyarrow()
    if name not in schema.names:
        raise OptionError(f"{where}: there is no column {name}{nearest(name, schema.names)}")
    column = schema[name]
    if not isinstance(column, CategoryColumn | NumberColumn):
        raise OptionError(f"{where}: {name} is a {column.kind}, which is not modelled.")
    kind = _written_type(column)
    try:
        cell = arrow.array([text], arrow.string())
        if kind == arrow.float64() and MANY_DIGITS.fullmatch(text or ""):
            with suppress(arrow.ArrowInvalid):  # beyond them, a float loses little
                return cell.cast(arrow.int64())
        return zoned_cells(cell, kind) if arrow.types.is_timestamp(kind) else cell.cast(kind)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, UnicodeEncodeError):
        written = None
        if isinstance(column, NumberColumn) and column.form is not None:
            written = column.form.read(arrow.array([text], arrow.string()))
        if written is None or written.null_count:
            raise OptionError(f"{where}: {text!r} is not a {column.kind} ({kind}).") from None
        return written


def _written_type(column: CategoryColumn | NumberColumn) -> Any:
    """What a value has to be for a column to take it."""
    arrow = load_pyarrow()
    if isinstance(column, CategoryColumn):
        return arrow_type(column.value_type)
    if column.text is not None:
        return arrow.string()
    return arrow_type(column.type.arrow) if column.time else arrow.float64()


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of a sentence about a name that is not there: those most like it, or all.

    Example:
        >>> nearest("Femal", ["Female", "Male"]), nearest("x", ["Female", "Male"])
        ('; did you mean Female or Male?', '; there are Female, Male')
    """
    lower = {n.lower(): n for n in names}
    near = [lower[n] for n in get_close_matches(name.lower(), lower, 3, 0.6)]
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are {listed(names)}"


def is_one_row(given: Any) -> bool:
    """Whether what is given are values by name, the same for all rows."""
    return isinstance(given, Mapping) and all(
        isinstance(value, str) or not hasattr(value, "__len__") for value in given.values()
    )


def numbers_as_given(
    schema: Schema,
    given: Any,
    arrays: Mapping[str, Any],
    rows: int,
    equal_pairs: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """Columns of numbers of which some cells were given, with these cells to the last digit.

    Args:
        schema: Of the whole table.
        given: Values of some columns by name, a table of them, or None.
        arrays: Columns that were drawn.
        rows: How many rows they have.
        equal_pairs: Places of modelled columns that are equal in all rows.
    """
    if nothing_given(given):
        return {}
    frame = as_frame(_as_rows(given), "given")
    cells, names = dict(frame.columns), [column.name for column in schema.modelled]
    for a, b in (*equal_pairs, *((b, a) for a, b in equal_pairs)):
        if names[a] in cells:
            cells.setdefault(names[b], cells[names[a]])
    known = {c.name: cells[c.name] for c in schema.numbers if c.name in cells}
    found = {name: _as_written(own, arrays[name], rows) for name, own in known.items()}
    return {name: array for name, array in found.items() if array is not None}


def nothing_given(given: Any) -> bool:
    """Whether no value of any column is given."""
    return given is None or (isinstance(given, Mapping) and not given)


def _as_rows(given: Any) -> Any:
    """Values by name, the same for all rows, as a table of one row; others as they are."""
    return {name: [value] for name, value in given.items()} if is_one_row(given) else given


def _as_written(own: Any, drawn: Any, rows: int) -> Any | None:
    """Numbers that were drawn, with those that were given in their place; None if they differ."""
    from pyarrow import ArrowInvalid, compute

    if {family(own.type), family(drawn.type)} != {"numbers"}:
        return None
    try:
        whole = own.combine_chunks().cast(drawn.type)
    except ArrowInvalid:
        return None  # a number that the column cannot hold is rounded to one that it can
    whole = whole.take([0] * rows) if len(whole) != rows else whole
    return compute.if_else(whole.is_null(), drawn, whole)


def _check_values(schema: Schema, frame: Frame) -> None:
    """Refuse values that a category never had, with those that they may stand for."""
    from pyarrow import compute

    for column in schema.modelled:
        if not isinstance(column, CategoryColumn) or column.other:
            continue
        cells = frame.columns[column.name]
        if cells.null_count == len(cells):
            continue
        try:
            known = typed_array(list(column.values), cells.type)
        except (TypeError, ValueError):
            continue  # refused, with their types, where they are encoded
        new = cells.filter(compute.invert(compute.is_in(cells, value_set=known))).drop_null()
        if len(new):
            raise SchemaError(
                f"{frame.name}: {column.name} is never {new[0].as_py()!r} in the fitted "
                f"table{nearest(str(new[0].as_py()), [str(v) for v in column.values])}"
            )


def _check_inside(schema: Schema, frame: Frame) -> None:
    """Refuse numbers that no sample has."""
    for column in schema.numbers:
        numbers = column.numbers(frame.columns[column.name], frame.name)
        outside = (numbers < column.low) | (numbers > column.high)
        if outside.any():
            cells = frame.columns[column.name].drop_null()
            raise OptionError(
                f"{frame.name}: {column.name}={cells[int(outside.argmax())]} is outside the range "
                f"of the fitted table ({column.details()}), in which all samples lie."
            )


def _changed_constants(schema: Schema, frame: Frame) -> Iterator[ZeroDensity]:
    from pyarrow import compute

    for column in schema.left_out:
        cells = frame.columns.get(column.name)
        if column.what != "constant" or column.value is None or cells is None:
            continue
        always = typed_array([column.value], arrow_type(column.type.arrow))[0]
        other = compute.not_equal(cells.cast(always.type, safe=False), always).fill_null(False)
        if compute.any(other).as_py():
            row = compute.index(other, True).as_py()
            yield ZeroDensity(
                np.asarray(other.to_numpy()),
                f"{frame.name}, row {row + frame.first_row}, column {column.name}: the model has "
                f"only seen {always.as_py()!r}, but this is {cells[row].as_py()!r}",
            )


def _check_constants(schema: Schema, frame: Frame) -> None:
    for found in _changed_constants(schema, frame):
        raise SchemaError(f"{found.why}; its density is zero.")


def never_seen(schema: Schema, frame: Frame, encoded: EncodedTable) -> Iterator[ZeroDensity]:
    """Rows with values that a category or a constant never had, by column."""
    yield from _changed_constants(schema, frame)
    for k, column in enumerate(schema.modelled):
        unknown = encoded.codes[:, k] < 0
        if not unknown.any():
            continue
        cells = frame.columns[column.name]
        new = unknown & ~np.asarray(cells.is_null().to_numpy())
        if new.any():
            row = int(new.argmax())
            yield ZeroDensity(
                new,
                f"{frame.name}, row {row + frame.first_row}, column {column.name}: the model has "
                f"never seen the value {cells[row].as_py()!r}",
            )


def rows_of_zero_density(rows: int, found: Iterable[ZeroDensity]) -> np.ndarray:  # (N,)
    """Which rows have density zero; a warning says how many, and why the first of each kind."""
    which = np.zeros(rows, bool)
    reasons = []
    for one in found:
        which |= one.rows
        count = int(one.rows.sum())
        reasons.append(one.why + (f" ({count} such rows)" if count > 1 else ""))
    if which.any():
        count = int(which.sum())
        warnings.warn(
            f"{count} of {counted(rows, 'row')} {'has' if count == 1 else 'have'} density zero, "
            f"a log-density of -inf: {'; '.join(reasons)}.",
            ZeroDensityWarning,
            stacklevel=3,
        )
    return which


Cells = tuple[Tensor, Tensor, Tensor]  # codes, values, and which columns are seen


def place_of(schema: Schema, name: str) -> int:
    """The place of a column among those that are modelled."""
    names = [column.name for column in schema.modelled]
    if name not in names:
        raise OptionError(f"Column {name!r} is not modelled; there are {', '.join(names)}.")
    return names.index(name)


@dataclass(frozen=True)
class TableCells:
    """Cells of tables that have the columns of a model.

    Attributes:
        schema: What the columns are.
        layout: How the network holds them.
        device: Where the network is.
    """

    schema: Schema
    layout: TableLayout
    device: torch.device

    def tensors(self, frame: Frame, encoded: EncodedTable) -> Cells:
        """Codes and numbers of a table, and which of them are known."""
        linked = self.layout.with_flags(self.schema, frame, encoded)
        codes, values = linked.tensors(self.device)
        return codes.clamp(min=0), values, codes >= 0

    def given(
        self,
        given: Any,
        rows: int | None,
        unseen: Unseen = "error",
        inside: bool = False,
        without: int | None = None,
    ) -> Cells:
        """What is given of each row.

        Args:
            given: Values of some columns by name, a table of them, or None.
            rows: How many rows there are; None for as many as are given.
            unseen: As for `kermix.Schema.encode`.
            inside: Whether numbers outside the range of their columns are refused.
            without: The place of a column whose values do not count, nor those of columns that
                are equal to it in all rows.
        """
        if nothing_given(given):
            return self._nothing(1 if rows is None else rows)
        # What is equal in all rows would be the answer itself.
        open_ones = [] if without is None else self.layout.equal_to(without)
        names = [self.schema.modelled[k].name for k in open_ones]
        encoded, frame = encode_some(self.schema, _as_rows(given), unseen, inside, names)
        check_equal_columns(self.schema, self.layout.equal_pairs, frame, encoded)
        codes, values, seen = self.tensors(frame, encoded)
        copy_equal_columns(
            self.layout.equal_pairs, self.layout.number_of_column, codes, values, seen
        )
        if rows is not None and len(codes) != rows:
            if len(codes) != 1:
                raise OptionError(
                    f"given has {len(codes)} rows for {rows} samples; give 1 or {rows}."
                )
            codes, values, seen = (t.expand(rows, -1) for t in (codes, values, seen))
        return codes.contiguous(), values.contiguous(), seen.clone()

    def _nothing(self, rows: int) -> Cells:
        """Rows of which nothing is known."""
        codes = torch.zeros(rows, self.layout.columns, dtype=torch.long, device=self.device)
        values = torch.zeros(rows, len(self.layout.numbers), device=self.device)
        return codes, values, torch.zeros_like(codes, dtype=torch.bool)

    def table(
        self, codes: Tensor, values: Tensor, seen: Tensor, kind: str, given: Any = None,
        seed: int | None = 0,
    ) -> Any:  # fmt: skip
        """Rows that were drawn, as a table of one of the kinds of `build_frame`.

        Args:
            codes: Codes of all columns.
            values: Normal scores of the numbers.
            seen: Which cells were given.
            kind: The kind of table.
            given: What was given of each row: numbers are written to the last digit as they were.
            seed: Of the keys; None for a table of what is modelled alone.
        """
        encoded = self._exact(self.layout.encoded(codes, values, kind), codes, seen)
        arrays = self.schema.decoded_columns(encoded, seed)
        arrays |= numbers_as_given(self.schema, given, arrays, len(codes), self.layout.equal_pairs)
        types = {c.name: c.type for c in self.schema.columns if c.name in arrays}
        return build_frame(kind, self._equal(arrays, codes, seen), types, len(codes))

    def as_written(self, codes: Tensor, values: Tensor, seen: Tensor) -> EncodedTable:
        """Rows as a reader of the table finds them: rounded, and with equal columns equal."""
        table = as_frame(self.table(codes, values, seen, "arrow", seed=None), "samples")
        types = {c.name: c.type for c in self.schema.columns}
        return self.schema.encode(replace(table, types=types), extra=True)

    def filled(
        self, frame: Frame, chosen: Sequence[str], codes: Tensor, values: Tensor, seen: Tensor
    ) -> Any:
        """The caller's table, of which the gaps of some columns alone are filled."""
        from pyarrow import compute

        encoded = self._exact(self.layout.encoded(codes, values, "arrow"), codes, seen)
        columns, types = dict(frame.columns), dict(frame.types)
        constants = [*self._constants(frame)]
        arrays = self.schema.decoded_columns(encoded, None)
        arrays |= {c.name: c.decode(len(codes), 0) for c in constants}
        for column in (*self.schema.modelled, *constants):
            cells, found = columns[column.name], arrays[column.name]
            if cells.null_count == len(cells):
                columns[column.name], types[column.name] = found, column.type
            elif cells.null_count:
                whole = cells.combine_chunks()
                wide = found.cast(whole.type, safe=False)
                columns[column.name] = compute.if_else(whole.is_null(), wide, whole)
        columns = self._equal(columns, codes, seen)
        for name in columns.keys() - set(chosen):
            columns[name], types[name] = frame.columns[name], frame.types[name]
        return build_frame(frame.kind, columns, types, frame.rows)

    def _constants(self, frame: Frame) -> Iterator[LeftOutColumn]:
        """Constants of the model that are constants of the table, too."""
        for column in self.schema.left_out:
            if column.what == "constant" and column.is_constant_in(frame):
                yield column

    def warn_of_exceptions(self, codes: Tensor, values: Tensor, seen: Tensor) -> None:
        """Say in how many rows what was given breaks a relation of the table."""
        exact, base = self.layout.exact, self.layout.table_columns
        given = seen[:, :base].cpu().numpy()
        if exact is None or not given.any():
            return
        encoded = self._exact(self.layout.encoded(codes, values, "arrow"), codes, seen)
        flags = codes[:, base : base + len(exact)].cpu().numpy()
        if found := exact.exceptions(encoded, flags, given):
            warnings.warn(
                f"given: {'; '.join(found)}. What is given stays, and the other columns are drawn "
                "as in rows that are exceptions.",
                InconsistentGivenWarning,
                stacklevel=3,
            )

    def _exact(self, encoded: EncodedTable, codes: Tensor, seen: Tensor) -> EncodedTable:
        """Rows in which relations hold to the last digit."""
        if self.layout.exact is None:
            return encoded
        base, given = self.layout.table_columns, seen.cpu().numpy()
        flags = codes[:, base : base + len(self.layout.exact)].cpu().numpy()
        return self.layout.exact.settled(encoded, flags, given[:, :base])[0]

    def _equal(self, arrays: dict[str, Any], codes: Tensor, seen: Tensor) -> dict[str, Any]:
        layout, given = self.layout, seen[:, : self.layout.table_columns].cpu().numpy()
        if layout.links:
            own = codes[:, layout.columns - len(layout.links) :].cpu().numpy()
            arrays = equalize(self.schema, layout.links, arrays, own, given)
        if layout.equal_pairs:
            arrays = same_cells(self.schema, layout.equal_pairs, arrays, given)
        return arrays
