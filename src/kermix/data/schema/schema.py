"""A schema: what the columns of a table are, the way to codes and numbers, and back.

Encoded rows (`EncodedTable`) have a code for each column and a normal score for each number.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_count, check_option
from kermix.data.readers.common import KINDS, Reading, listed
from kermix.data.readers.frames import (
    FRAME_KINDS,
    ColumnType,
    Frame,
    arrow_type,
    as_frame,
    build_frame,
    family,
    typed_array,
)
from kermix.data.readers.reading import read_alike, read_frame
from kermix.data.schema.alignment import check_same_names, chosen_columns, pooled_column
from kermix.data.schema.columns import UNKNOWN, CategoryColumn, Column, NumberColumn
from kermix.data.schema.inference import ColumnCells, Judge
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import OptionError, SchemaError
from kermix.files import whole_file

__all__ = ["EncodedTable", "Schema", "Unseen"]


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Rows as codes and numbers.

    Attributes:
        codes: int64, (rows, modelled columns). Codes of a column are `0 ... code_count - 1`. For a
            number or a time, 0 is its continuous part and the next codes are its atoms; for a
            category, each value has a code. The last code is "missing", if the column has missing
            values. -1 means that a cell is unknown (see `Schema.encode`).
        values: float64, (rows, numbers and times). Normal scores where the code is 0, and 0
            elsewhere.
        frame: The caller's kind of table, which `Schema.decode` returns.
    """

    codes: np.ndarray
    values: np.ndarray
    frame: str = "pandas"

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> "EncodedTable":
        """Some of the rows, by a slice, a mask or numbers."""
        return replace(self, codes=self.codes[rows], values=self.values[rows])

    def tensors(
        self, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Codes and values as tensors."""
        codes = torch.from_numpy(np.ascontiguousarray(self.codes))
        values = torch.from_numpy(np.ascontiguousarray(self.values))
        return codes.to(device), values.to(device, dtype)


Kind: TypeAlias = Literal["category", "number", "time", "constant", "key", "text"]
Unseen: TypeAlias = Literal["error", "other", "unknown"]
FORMAT, VERSION = "kermix schema", 1


@dataclass(frozen=True, eq=False)
class Schema:
    """The kinds of the columns of a table; `of` learns them.

    Attributes:
        columns: All columns in the table's order.
        frame: The kind of table it was learned from.
        remarks: Sentences about columns that may be meant otherwise.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"color": list("rgb") * 20, "size": [0.5, 1.25, 2.0] * 20})
        >>> schema = Schema.infer(table)
        >>> print(schema)
        column  kind      type     gaps  codes
        color   category  str      0 %       3  3 values: b, g, r
        size    number    float64  0 %       4  0.5 to 2, 2 decimals, 3 atoms
        >>> encoded = schema.encode(table)
        >>> encoded.codes[:2].tolist()
        [[2, 1], [1, 2]]
        >>> schema.decode(encoded).equals(table)
        True
    """

    columns: tuple[Column, ...]
    frame: str = "pandas"
    remarks: tuple[str, ...] = ()

    @classmethod
    def infer(
        cls,
        *tables: Any,
        kinds: Mapping[str, Kind] | None = None,
        columns: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        category_up_to: int = 20,
        atom_share: float = 0.004,
        atoms_up_to: int = 300,
        fold_below: int | None = None,
    ) -> "Schema":
        """Learn the kinds, values, ranges and scales of columns.

        Several tables are pooled: the schema depends on all of their rows together, and neither on
        the order of the rows nor on which table a row is from.

        Args:
            *tables: pandas, Polars or Arrow tables, dictionaries of columns, arrays, or files.
            kinds: Kinds of columns by name, to override the detected ones: "category", "number",
                "time", "constant", "key" or "text". The last two are not modelled.
            columns: Columns to use; by default all.
            exclude: Columns to ignore.
            category_up_to: Integers with at most this many distinct values are a category.
            atom_share: A value with at least this share of the rows is an atom.
            atoms_up_to: If a number column has at most this many distinct values, each occurring
                ten times on average, all of them are atoms.
            fold_below: Values of a category that occur less often than this become "other", as do
                unseen values later. None means no "other".
        """
        if not tables:
            raise SchemaError("Schema.infer needs a table.")
        check_count("category_up_to", category_up_to, 0)
        check_count("atoms_up_to", atoms_up_to, 0)
        if fold_below is not None:
            check_count("fold_below", fold_below, 0)
        frames = _frames(tables)
        first = frames[0]
        names = chosen_columns(first, columns, exclude)
        for frame in frames[1:]:
            check_same_names(names, first, frame, columns is None, exclude)
        wanted = dict(kinds or {})
        _check_kinds(wanted, names)
        if not any(f.rows for f in frames):
            raise SchemaError(f"{first.name}: there are no rows in it.")
        judge = Judge(category_up_to, atom_share, atoms_up_to, fold_below)
        found = []
        for name in names:
            explained = any(name in frame.explained for frame in frames)
            cells = ColumnCells(name, *pooled_column(name, frames), first.name, explained)
            found.append(judge.column(cells, wanted.get(name)))
        return cls(tuple(found), first.kind, tuple(judge.remarks))

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise SchemaError(f"There is no column {name}; there are {listed(self.names)}.")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(c.name for c in self.columns)

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the columns that are text, which may look like numbers in another table."""
        return tuple(c.name for c in self.columns if c.type.arrow in ("string", "large_string"))

    def reading(self, **said: Any) -> Reading:
        """Options to read a file with these columns, in addition to the user's."""
        written = [c for c in self.columns if not (isinstance(c, LeftOutColumn) and c.reason)]
        numbers = tuple(c.name for c in written if family(arrow_type(c.type.arrow)) == "numbers")
        forms = tuple(c.name for c in self.numbers if c.form is not None or c.text is not None)
        known = {"known_text": self.text_names, "known_numbers": numbers, "known_forms": forms}
        return Reading(**{**said, **known})

    @cached_property
    def modelled(self) -> tuple[CategoryColumn | NumberColumn, ...]:
        """The columns that have codes, in the order of `EncodedTable.codes`."""
        return tuple(c for c in self.columns if isinstance(c, CategoryColumn | NumberColumn))

    @cached_property
    def numbers(self) -> tuple[NumberColumn, ...]:
        """Numbers and times, in the order of `EncodedTable.values`."""
        return tuple(c for c in self.columns if isinstance(c, NumberColumn))

    @cached_property
    def left_out(self) -> tuple[LeftOutColumn, ...]:
        """Constants, keys and free text."""
        return tuple(c for c in self.columns if isinstance(c, LeftOutColumn))

    @cached_property
    def number_columns(self) -> np.ndarray:
        """Which columns of the codes the values belong to, (numbers,)."""
        return np.array([k for k, c in enumerate(self.modelled) if c.has_continuous], np.int64)

    @property
    def code_counts(self) -> tuple[int, ...]:
        """How many codes each modelled column has."""
        return tuple(c.code_count for c in self.modelled)

    def notes(self) -> list[str]:
        """What is not as it may seem, and which columns are not modelled, a sentence each."""
        told = [*self.remarks]
        written = [f"{c.name} (as in {c.form.example()})"
                   for c in self.numbers if c.form is not None]  # fmt: skip
        if written:
            told.append(f"Read as numbers, though written as text: {listed(written)}.")
        for what, plural in (("constant", "constants"), ("key", "keys"), ("text", "free text")):
            names = [c.name for c in self.left_out if c.what == what]
            if names:
                told.append(f"Left out as {plural}: {listed(names)}.")
        return told

    def encode(
        self, table: Any, *, unseen: Unseen = "error", name: str = "table", extra: bool = False
    ) -> EncodedTable:
        """Rows as codes and numbers; a table that does not match is refused.

        Args:
            table: As for `of`.
            unseen: What to do with unseen values of a category: an error, "other" (if the schema
                has it), or "unknown", the code -1, which missing values also get if the schema has
                no code for them.
            name: Name of the table in messages.
            extra: Whether to ignore columns that the schema does not have.
        """
        check_option("unseen", unseen, ("error", "other", "unknown"))
        if isinstance(table, str | Path):
            frame, _ = read_frame(table, self.reading())
        else:
            frame = as_frame(table, name)
        self._check_names(frame, extra)
        codes = np.empty((frame.rows, len(self.modelled)), np.int64)
        values = np.zeros((frame.rows, len(self.numbers)))
        number = 0
        for k, column in enumerate(self.modelled):
            cells = frame.columns[column.name]
            if isinstance(column, NumberColumn):
                _check_mixed(column, frame)
                codes[:, k], values[:, number] = column.encode(
                    cells, frame.name, unseen, frame.first_row
                )
                number += 1
            else:
                _check_mixed(column, frame)
                codes[:, k] = column.encode(cells, frame.name, unseen, frame.first_row)
        return EncodedTable(codes, values, frame.kind)

    def own_numbers(self, frame: Frame) -> np.ndarray:  # (rows, numbers)
        """Numbers and times as they are in a table, less the origin of their column.

        Where they are missing they are NaN; nothing is rounded or put into a range.
        """
        found = np.full((frame.rows, len(self.numbers)), np.nan)
        for k, column in enumerate(self.numbers):
            cells = column.with_gaps(frame.columns[column.name])
            filled = ~np.asarray(cells.is_null().to_numpy(), bool)
            found[filled, k] = column.numbers(cells, frame.name)
        return found

    def decode(self, encoded: EncodedTable, frame: str | None = None, seed: int = 0) -> Any:
        """The table of codes and numbers, in the caller's kind of table.

        Numbers are rounded to the column's decimals and kept inside its range; constants come
        back, keys are new ones in the pattern of those that were there, free text is empty.

        Args:
            encoded: Codes and numbers, from a table or a model.
            frame: "pandas", "polars", "arrow", "dict" or "array"; by default that of the table
                that was encoded.
            seed: Of the keys.
        """
        kind = encoded.frame if frame is None else frame
        check_option("frame", kind, FRAME_KINDS)
        arrays = self.decoded_columns(encoded, seed)
        types = {c.name: c.type for c in self.columns}
        return build_frame(kind, arrays, types, len(encoded))

    def decoded_columns(self, encoded: EncodedTable, seed: int | None) -> dict[str, Any]:
        """The columns of `decode` as plain Arrow arrays; without a seed, only those modelled."""
        self._check_encoded(encoded)
        rows = len(encoded)
        places = {c.name: k for k, c in enumerate(self.modelled)}
        numbers = {c.name: k for k, c in enumerate(self.numbers)}
        arrays = {}
        for column in self.columns:
            if isinstance(column, LeftOutColumn):
                if seed is None:
                    continue
                array = column.decode(rows, seed)
            elif isinstance(column, NumberColumn):
                scores = encoded.values[:, numbers[column.name]]
                array = column.decode(encoded.codes[:, places[column.name]], scores)
            else:
                assert isinstance(column, CategoryColumn)
                array = column.decode(encoded.codes[:, places[column.name]])
            arrays[column.name] = array
        return arrays

    def log_derivative(self, encoded: EncodedTable) -> np.ndarray:  # (rows, numbers)
        """Logarithms of the derivatives of the maps to normal scores, in the user's units.

        A log-density of codes and scores plus the sum of a row is the log-density of the row in
        the user's units (seconds for times). An atom counts by its probability divided by the
        step to which its column is rounded, categories and gaps by counting measure.
        """
        return self._of_numbers(encoded, "log_derivative")

    def positions(self, encoded: EncodedTable) -> np.ndarray:  # (rows, numbers)
        """Normal scores of all numbers, including atoms; 0 for missing values."""
        return self._of_numbers(encoded, "positions")

    def _of_numbers(self, encoded: EncodedTable, method: str) -> np.ndarray:
        self._check_encoded(encoded)
        found = np.zeros(encoded.values.shape)
        for k, (place, column) in enumerate(zip(self.number_columns, self.numbers, strict=True)):
            found[:, k] = getattr(column, method)(encoded.codes[:, place], encoded.values[:, k])
        return found

    def _check_encoded(self, encoded: EncodedTable) -> None:
        shapes = encoded.codes.shape, encoded.values.shape
        rows = len(encoded)
        if shapes != ((rows, len(self.modelled)), (rows, len(self.numbers))):
            raise SchemaError(
                f"codes have shape {shapes[0]} and values {shapes[1]}; the schema has "
                f"{len(self.modelled)} columns with codes, {len(self.numbers)} of them numbers."
            )
        if rows and len(self.modelled):
            low, high = encoded.codes.min(0), encoded.codes.max(0)
            bad = (low < UNKNOWN) | (high >= np.array(self.code_counts))
            if bad.any():
                column = self.modelled[int(bad.argmax())]
                raise SchemaError(
                    f"codes of column {column.name} go from {low[bad.argmax()]} to "
                    f"{high[bad.argmax()]}; it has {column.code_count} codes."
                )
        if not np.isfinite(encoded.values).all():
            raise SchemaError("values hold NaN or infinite numbers.")

    def _check_names(self, frame: Frame, extra: bool) -> None:
        needed = [c.name for c in self.modelled]
        gone = [n for n in needed if n not in frame.columns]
        if gone:
            none = "is no column" if len(gone) == 1 else "are no columns"
            raise SchemaError(
                f"{frame.name}: there {none} {listed(gone)}, which the schema has; the table has "
                f"{listed(frame.columns)}."
            )
        known = set(self.names)
        more = [n for n in frame.columns if n not in known]
        if more and not extra:
            raise SchemaError(
                f"{frame.name}: the schema has no column {listed(more)}; it has "
                f"{listed(self.names)}. Leave it out, or use extra=True."
            )

    def to_dict(self) -> dict[str, Any]:
        """The schema as a dictionary, ready for JSON."""
        columns = [c.to_dict() for c in self.columns]
        said = {"remarks": list(self.remarks)} if self.remarks else {}
        return {"format": FORMAT, "version": VERSION, "frame": self.frame, "columns": columns,
                **said}  # fmt: skip

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Schema":
        """The schema from its dictionary."""
        if not isinstance(saved, Mapping) or saved.get("format") != FORMAT:
            raise SchemaError(f"This is not a {FORMAT}.")
        if saved.get("version") != VERSION:
            raise SchemaError(
                f"The schema has version {saved.get('version')}; this kermix reads {VERSION}."
            )
        try:
            columns = tuple(_column(c) for c in saved["columns"])
            return cls(columns, saved["frame"], tuple(saved.get("remarks", ())))
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"The schema is damaged ({error}).") from None

    def save(self, path: str | Path) -> None:
        """Write the schema as JSON."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        with whole_file(Path(path)) as part:
            part.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Schema":
        """Read a saved schema."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SchemaError(f"{path}: there is no such file.") from None
        except (OSError, ValueError) as error:
            raise SchemaError(f"{path}: not a readable schema ({error}).") from None
        try:
            return cls.from_dict(saved)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None

    def table(self) -> list[list[str]]:
        """One row of text per column."""
        lines = []
        for c in self.columns:
            gaps = f"{100 * c.gaps:.3g} %"
            codes = str(c.code_count) if c.code_count else ""
            lines.append([c.name, c.kind, _type_name(c.type), gaps, codes, c.details()])
        return lines

    def __str__(self) -> str:
        rows = [["column", "kind", "type", "gaps", "codes", ""], *self.table()]
        widths = [max(len(r[k]) for r in rows) for k in range(5)]
        lines = []
        for row in rows:
            cells = [c.ljust(w) for c, w in zip(row[:4], widths[:4], strict=True)]
            lines.append("  ".join([*cells, row[4].rjust(widths[4]), row[5]]).rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Schema({len(self.columns)} columns: {listed(self.names)})"

    def __rich__(self) -> Any:
        from rich.markup import escape
        from rich.table import Table

        shown = Table(box=None, pad_edge=False)
        for head in ("column", "kind", "type", "gaps", "codes", ""):
            shown.add_column(head, justify="right" if head in ("gaps", "codes") else "left")
        for row in self.table():
            shown.add_row(*(escape(cell) for cell in row))
        return shown


def _frames(tables: Sequence[Any]) -> list[Frame]:
    """Tables and files, which are read alike, as columns."""
    files = iter(read_alike([t for t in tables if isinstance(t, str | Path)]))
    found = []
    for k, table in enumerate(tables):
        if isinstance(table, str | Path):
            found.append(replace(next(files)[0], explained=()))
        else:
            found.append(as_frame(table, "table" if len(tables) == 1 else f"table {k + 1}"))
    return found


def _check_kinds(kinds: Mapping[str, Kind], names: Sequence[str]) -> None:
    for name, kind in kinds.items():
        if name not in names:
            raise OptionError(f"kinds: there is no column {name}; there are {listed(names)}.")
        check_option(f"kinds[{name!r}]", kind, KINDS)


def _type_name(kind: ColumnType) -> str:
    shown = kind.shown
    if kind.declared is not None:
        return "ordered" if kind.ordered else "categorical"
    return kind.arrow if shown == "arrow" else shown


def _check_mixed(column: Column, frame: Frame) -> None:
    given = frame.types[column.name]
    if given.mixed != column.type.mixed:
        raise SchemaError(
            f"{frame.name}, column {column.name}: objects of "
            f"{'several types' if given.mixed else 'one type'}, but the schema says otherwise."
        )


class Field(NamedTuple):
    """What a field of a saved column may be."""

    types: tuple[type, ...]
    least: float = -math.inf
    most: float = math.inf

    def allows(self, value: Any) -> bool:
        """Whether a value is of these types, and in the range if it is a number."""
        if not isinstance(value, self.types) or (isinstance(value, bool) != (bool in self.types)):
            return False
        return not isinstance(value, int | float) or self.least <= value <= self.most


NONE = type(None)
FIELDS = {
    "name": Field((str,)), "type": Field((dict,)), "gaps": Field((int, float), 0, 1),
    "values": Field((list, tuple)), "value_type": Field((str,)), "other": Field((bool,)),
    "low": Field((int, float)), "high": Field((int, float)), "atoms": Field((list,)),
    "decimals": Field((int, NONE), -1000, 1000), "continuous": Field((int, float), 0, 1),
    "origin": Field((int,), -(2**127), 2**127), "step": Field((int,), 1 - 2**63, 2**63 - 1),
    "text": Field((list, tuple, str, NONE)), "time": Field((bool,)), "form": Field((dict,)),
    "map": Field((dict,)), "reason": Field((str,)), "pattern": Field((dict, NONE)),
    "arrow": Field((str,)), "pandas": Field((str, NONE)), "gap": Field((str,)),
    "declared": Field((list, tuple, NONE)), "ordered": Field((bool,)), "mixed": Field((bool,)),
}  # fmt: skip


def _check_fields(fields: dict[str, Any]) -> None:
    """Refuse what is not of its type, which would be found out only when it is used."""
    for name, value in fields.items():
        if name in FIELDS and not FIELDS[name].allows(value):
            raise ValueError(f"{name} is {value!r:.60}")


def _column(saved: dict[str, Any]) -> Column:
    """A column from what was saved of it."""
    fields = dict(saved)
    kind = fields.pop("kind")
    _check_fields(fields)
    _check_fields(fields["type"])
    fields["type"] = ColumnType.from_dict(fields["type"])
    if kind not in ("key", "text"):  # lists and other types come back empty
        own = arrow_type(fields["type"].arrow)
        if kind == "constant" and fields["value"] is not None:
            typed_array([fields["value"]], own)
    if kind == "category":
        return CategoryColumn.from_dict(fields)
    if kind in ("number", "time"):
        return NumberColumn.from_dict(fields)
    if kind in ("constant", "key", "text"):
        return LeftOutColumn.from_dict(kind, fields)
    raise ValueError(f"{kind!r} is not a kind of column")
