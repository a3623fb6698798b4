"""Tables as callers have them (pandas, Polars, Arrow, dictionaries, arrays), as Arrow columns.

A `ColumnType` remembers what a column was, so that the caller's kind of table can be given back.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from kermix.data.readers.common import CsvForm, listed, load_pyarrow, one_line
from kermix.errors import MissingExtraError, SchemaError, TableError

__all__ = [
    "FRAME_KINDS",
    "ColumnType",
    "Frame",
    "arrow_type",
    "as_frame",
    "build_frame",
    "column_numbers",
    "complete_rows",
    "declared_array",
    "family",
    "is_time",
    "taken_rows",
    "typed_array",
    "without_missing",
]

SCALARS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: text == "True",
}


@dataclass(frozen=True)
class ColumnType:
    """What a column was for the caller."""

    arrow: str  # type of its values
    pandas: str | None = None
    gap: str = "null"  # how a missing value is written: null, nan, None, NA
    declared: tuple[Any, ...] | None = None  # all values of a categorical type, in its order
    ordered: bool = False
    mixed: bool = False  # objects of several types, written as text like "int:1"
    label: Any = None  # the name, where it is no text

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without what is as usual."""
        plain = asdict(self)
        usual = asdict(ColumnType(self.arrow))
        return {k: v for k, v in plain.items() if k == "arrow" or v != usual[k]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "ColumnType":
        """What was saved."""
        declared = saved.get("declared")
        return cls(**{**saved, "declared": None if declared is None else tuple(declared)})

    @property
    def shown(self) -> str:
        """For people."""
        return self.pandas or self.arrow


@dataclass(frozen=True)
class Frame:
    """Arrow columns by name, and what each of them was."""

    kind: str  # one of FRAME_KINDS
    name: str
    columns: dict[str, Any]  # ChunkedArray
    types: dict[str, ColumnType]
    rows: int
    first_row: int = 0  # the number of the first row in messages: its line in a text file
    form: CsvForm | None = None  # how the text file is written that it is from
    explained: tuple[str, ...] = ()  # columns of which a note says why they are text


def as_frame(table: Any, name: str = "table") -> Frame:
    """The columns of a pandas, Polars or Arrow table, a dictionary of columns, or an array."""
    if isinstance(table, Frame):
        return table
    arrow = load_pyarrow()
    if isinstance(table, arrow.Table | arrow.RecordBatch):
        return _from_arrow(table, "arrow", name)
    if hasattr(table, "iloc") and hasattr(table, "dtypes"):
        return _from_pandas(table, name)
    if type(table).__module__.partition(".")[0] == "polars" and hasattr(table, "to_arrow"):
        return _from_arrow(_arrow_of_polars(table, name), "polars", name)
    if hasattr(table, "__arrow_c_stream__"):
        return _from_arrow(arrow.table(table), "arrow", name)
    if isinstance(table, Mapping):
        return _from_dict(table, name)
    if isinstance(table, Tensor | np.ndarray):
        return _from_array(table, name)
    raise SchemaError(
        f"A {type(table).__name__} is not a table; give a pandas, Polars or Arrow table, a "
        "dictionary of columns, or an array of numbers."
    )


def _from_arrow(table: Any, kind: str, name: str) -> Frame:
    _check_names([str(n) for n in table.schema.names], name)
    columns, types = {}, {}
    for label, column in zip(table.schema.names, table.columns, strict=True):
        columns[label], types[label] = _plain(_chunked(column))
    return Frame(kind, name, columns, types, table.num_rows)


def _arrow_of_polars(table: Any, name: str) -> Any:
    arrow = load_pyarrow()
    try:
        return table.to_arrow()
    except arrow.ArrowException:
        for column in table.iter_columns():
            try:
                column.to_arrow()
            except arrow.ArrowException:
                raise SchemaError(
                    f"{name}, column {column.name}: {column.dtype} is not read; cast it to "
                    "another type, such as Int64 or Float64."
                ) from None
        raise


def _from_dict(table: Mapping[Any, Any], name: str) -> Frame:
    arrow = load_pyarrow()
    _check_names([str(n) for n in table], name)
    columns, types = {}, {}
    for label, cells in table.items():
        if isinstance(cells, Tensor):
            cells = cells.detach().cpu().numpy()
        try:
            found = _from_cells(cells)
        except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"{name}, column {label}: {one_line(error)}.") from None
        columns[str(label)], types[str(label)] = _plain(_chunked(found))
    sizes = {n: len(c) for n, c in columns.items()}
    if len(set(sizes.values())) > 1:
        few, many = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        raise SchemaError(
            f"{name}: column {few} has {sizes[few]} rows and column {many} has {sizes[many]}."
        )
    return Frame("dict", name, columns, types, next(iter(sizes.values()), 0))


def _from_cells(cells: Any) -> Any:
    arrow = load_pyarrow()
    if isinstance(cells, arrow.Array | arrow.ChunkedArray):
        return cells
    try:
        return arrow.array(cells)
    except OverflowError:
        return arrow.array(cells, arrow.uint64())
    except (arrow.ArrowException, TypeError, ValueError):
        return arrow.array(cells, from_pandas=True)  # pandas' NaT and NA are gaps


def _from_array(values: Any, name: str) -> Frame:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise SchemaError(
            f"{name} is an array of {array.dtype} and shape {array.shape}; expected rows and "
            "columns of real numbers."
        )
    named = {f"x{k}": np.ascontiguousarray(array[:, k]) for k in range(array.shape[1])}
    return replace(_from_dict(named, name), kind="array", rows=len(array))


def _from_pandas(table: Any, name: str) -> Frame:
    names = [str(c) for c in table.columns]
    _check_names(names, name)
    columns, types = {}, {}
    for text, (label, series) in zip(names, table.items(), strict=True):
        if isinstance(label, tuple):
            raise SchemaError(
                f"{name}: the column {label!r} has a name of several levels; give it one name."
            )
        column, kind = _from_series(series, text, name)
        if not isinstance(label, str):
            kind = replace(kind, label=label if isinstance(label, int | float) else text)
        columns[text], types[text] = column, kind
    return Frame("pandas", name, columns, types, len(table))


def _from_series(series: Any, label: str, name: str) -> tuple[Any, ColumnType]:
    arrow = load_pyarrow()
    dtype = series.dtype
    shown = str(dtype)
    if shown in ("string", "str"):
        shown = f"string[{dtype.storage}]" if shown == "string" else "str"
    elif type(dtype).__name__ == "ArrowDtype":
        shown = "arrow"
    if shown == "category":
        return _from_categories(series, label, name)
    if shown == "object":
        return _from_objects(series, label, name)
    if shown.startswith("interval["):
        raise SchemaError(
            f"{name}, column {label}: holds pandas intervals; convert it to text with "
            ".astype(str), or leave the column out."
        )
    try:
        column = _chunked(arrow.Array.from_pandas(series))
    except (arrow.ArrowException, TypeError, ValueError):
        raise SchemaError(
            f"{name}, column {label}: dtype {dtype} is not read; convert it."
        ) from None
    plain, kind = _plain(column)
    return plain, replace(kind, pandas=shown, gap="null")


def _from_categories(series: Any, label: str, name: str) -> tuple[Any, ColumnType]:
    categories = series.cat.categories
    values, inner = _from_series(categories.to_series(), label, name)
    arrow = load_pyarrow()
    codes = np.asarray(series.cat.codes)
    indices = arrow.array(codes.astype(np.int64), mask=codes < 0)
    column = _chunked(values.combine_chunks().take(indices))
    declared = tuple(_jsonable(values))
    kind = replace(inner, pandas=f"category:{inner.pandas}", declared=declared, gap="null")
    return column, replace(kind, ordered=bool(series.cat.ordered))


def _from_objects(series: Any, label: str, name: str) -> tuple[Any, ColumnType]:
    arrow = load_pyarrow()
    missing = series.isna()
    gap = _gap_among_objects(series[missing])
    try:
        plain, kind = _plain(_chunked(arrow.Array.from_pandas(series)))
        # Arrow takes 1 and 1.5, or True and 1, as one type; objects of several types stay such.
        if len({type(c) for c in series[~missing]}) <= 1:
            return plain, replace(kind, pandas="object", gap=gap)
    except (arrow.ArrowException, TypeError, ValueError, UnicodeError, OverflowError):
        pass
    _check_scalars({type(c).__name__ for c in series[~missing]}, f"{name}, column {label}")
    texts = [None if m else f"{type(c).__name__}:{c}"
             for c, m in zip(series, missing, strict=True)]  # fmt: skip
    try:
        column = _chunked(arrow.array(texts, arrow.string()))
    except UnicodeError:
        raise SchemaError(f"{name}, column {label}: holds text that is not Unicode.") from None
    return column, ColumnType("string", "object", gap, mixed=True)


def _gap_among_objects(missing: Any) -> str:
    """How missing values are written, by the first of them."""
    kind = type(missing.iloc[0]).__name__ if len(missing) else ""
    return {"float": "nan", "NAType": "NA"}.get(kind, "None")


def _check_scalars(kinds: set[str], where: str) -> None:
    """Refuse objects that cannot be written as text and read again."""
    if kinds == {"int"}:
        raise SchemaError(
            f"{where}: holds whole numbers beyond 64 bits; convert it to text with .astype(str), "
            "or to numbers with .astype(float)."
        )
    if not kinds <= set(SCALARS):
        other = listed(sorted(kinds - set(SCALARS)))
        raise SchemaError(f"{where}: holds objects of type {other}; convert it.")


def _plain(column: Any) -> tuple[Any, ColumnType]:
    """A column with neither dictionary nor NaN, and what it was."""
    arrow = load_pyarrow()
    types = arrow.types
    kind = column.type
    if types.is_dictionary(kind):
        column = column.unify_dictionaries()
        chunks = column.chunks
        words = chunks[0].dictionary if chunks else arrow.array([], kind.value_type)
        plain, inner = _plain(column.cast(kind.value_type))
        declared = tuple(_jsonable(_chunked(words)))
        return plain, replace(inner, declared=declared, ordered=bool(kind.ordered))
    if types.is_string_view(kind):
        column, kind = column.cast(arrow.string()), arrow.string()
    found = ColumnType(str(kind))
    if types.is_floating(kind):
        from pyarrow import compute

        if types.is_float16(kind):
            column = column.cast(arrow.float32())
        marks = compute.is_nan(column)
        if compute.any(marks).as_py():
            gap = "nan" if column.null_count == 0 else "null"
            empty = arrow.scalar(None, column.type)
            return compute.if_else(marks, empty, column), replace(found, gap=gap)
    return column, found


def _jsonable(column: Any) -> list[Any]:
    types = load_pyarrow().types
    kept = (types.is_integer, types.is_floating, types.is_boolean, types.is_string)
    if not any(test(column.type) for test in kept):
        column = column.cast("string")
    return column.to_pylist()


def declared_array(kind: ColumnType) -> Any:
    """The declared values of a categorical type, as an Arrow array."""
    return typed_array(list(kind.declared or ()), arrow_type(kind.arrow))


def typed_array(values: list[Any], kind: Any) -> Any:
    """JSON's values as an Arrow array of a type."""
    arrow = load_pyarrow()
    try:
        return arrow.scalar(values, arrow.list_(kind)).values  # `array` would import pandas
    except (arrow.ArrowException, TypeError):
        text = arrow.array(values, arrow.string())
        # Durations are written as their number of units, which is not read as a duration.
        return (text.cast("int64") if arrow.types.is_duration(kind) else text).cast(kind)


PATTERNS: tuple[tuple[str, Callable[[Any, re.Match[str]], Any]], ...] = (
    (r"timestamp\[(?P<unit>\w+)(?:, tz=(?P<zone>.+))?\]",
     lambda arrow, m: arrow.timestamp(m["unit"], m["zone"])),
    (r"(?P<kind>decimal(?:128|256))\((?P<digits>\d+), (?P<scale>-?\d+)\)",
     lambda arrow, m: getattr(arrow, m["kind"])(int(m["digits"]), int(m["scale"]))),
    (r"(?P<kind>time32|time64|duration)\[(?P<unit>\w+)\]",
     lambda arrow, m: getattr(arrow, m["kind"])(m["unit"])),
)  # fmt: skip


def taken_rows(frame: Frame, rows: np.ndarray) -> Frame:
    """The rows of these numbers."""
    chosen = {name: column.take(rows) for name, column in frame.columns.items()}
    return replace(frame, columns=chosen, rows=len(rows))


def arrow_type(text: str) -> Any:
    """The Arrow type that is written as this text."""
    arrow = load_pyarrow()
    for pattern, build in PATTERNS:
        if match := re.fullmatch(pattern, text):
            return build(arrow, match)
    try:
        return arrow.type_for_alias({"double": "float64", "float": "float32"}.get(text, text))
    except ValueError:
        raise SchemaError(f"{text!r} is not a column type.") from None


def is_time(kind: Any) -> bool:
    """Whether an Arrow type is one of time."""
    return bool(load_pyarrow().types.is_temporal(kind)) and "interval" not in str(kind)


def family(kind: Any) -> str:
    """What an Arrow type holds, in one word."""
    types = load_pyarrow().types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_boolean(kind):
        return "truth values"
    if any(t(kind) for t in (types.is_string, types.is_large_string, types.is_string_view)):
        return "text"
    if types.is_null(kind):
        return "nothing"
    return "times" if is_time(kind) else str(kind)


def _chunked(column: Any) -> Any:
    arrow = load_pyarrow()
    if isinstance(column, arrow.ChunkedArray):
        return column
    return arrow.chunked_array([column])


def _check_names(names: Sequence[str], table: str) -> None:
    if not names:
        raise SchemaError(f"{table}: there are no columns.")
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = sorted({n for n in names if n in seen or seen.add(n)})  # type: ignore[func-returns-value]
        raise SchemaError(f"{table}: column names appear twice: {listed(twice)}.")


FRAME_KINDS = ("pandas", "polars", "arrow", "dict", "array")


def build_frame(
    kind: str, columns: dict[str, Any], types: dict[str, ColumnType], rows: int
) -> Any:
    """The caller's kind of table from Arrow arrays of each column's own Arrow type."""
    if kind == "pandas":
        return _to_pandas(columns, types, rows)
    arrow = load_pyarrow()
    arrays = {n: _to_arrow(a, types[n]) for n, a in columns.items()}
    if kind == "dict":
        return {n: a.to_pylist() for n, a in arrays.items()}
    if kind == "array":
        found = [np.asarray(a.to_numpy(zero_copy_only=False)) for a in arrays.values()]
        return np.stack(found, axis=1) if found else np.empty((rows, 0))
    table = arrow.table(list(arrays.values()), names=list(arrays))
    return _to_polars(table, types) if kind == "polars" else table


def _to_polars(table: Any, types: dict[str, ColumnType]) -> Any:
    try:
        import polars
    except ImportError:
        raise MissingExtraError("A Polars table needs Polars: pip install polars.") from None
    # Arrow calls an enumeration a dictionary with an order.
    ordered = {n: polars.Enum([*(t.declared or ())]) for n, t in types.items() if t.ordered}
    return polars.DataFrame(table).cast(ordered)  # type: ignore[arg-type]


def _to_arrow(array: Any, kind: ColumnType) -> Any:
    arrow = load_pyarrow()
    if kind.declared is not None:
        words = declared_array(kind)
        indices = _places(array, words).cast(arrow.int32())
        return arrow.DictionaryArray.from_arrays(indices, words, ordered=kind.ordered)
    if kind.gap == "nan" and array.null_count:
        return array.fill_null(arrow.scalar(np.nan, array.type))
    return array


def _places(array: Any, words: Any) -> Any:
    from pyarrow import compute

    return compute.index_in(array, value_set=words)


def _to_pandas(columns: dict[str, Any], types: dict[str, ColumnType], rows: int) -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("A pandas table needs pandas: pip install pandas.") from None
    series = {n: _to_series(a, types[n], pandas) for n, a in columns.items()}
    frame = pandas.DataFrame(series, index=pandas.RangeIndex(rows), copy=False)
    labels = [n if types[n].label is None else types[n].label for n in series]
    if labels != list(series):
        frame.columns = pandas.Index(labels)
    return frame


def _to_series(array: Any, kind: ColumnType, pandas: Any) -> Any:
    shown = kind.pandas
    if shown is None:
        if kind.declared is not None:
            return pandas.Series(_to_arrow(array, kind).to_pandas())
        return array.to_pandas()
    if shown.startswith("category:"):
        inner = replace(kind, pandas=shown.partition(":")[2], declared=None, gap="null")
        words = declared_array(kind)
        categories = pandas.Index(_to_series(words, inner, pandas))
        codes = _places(array, words).fill_null(-1).to_numpy(zero_copy_only=False)
        return pandas.Series(
            pandas.Categorical.from_codes(codes, categories=categories, ordered=kind.ordered)
        )
    if shown == "object":
        return _to_objects(array, kind, pandas)
    if shown == "arrow":
        return pandas.Series(pandas.arrays.ArrowExtensionArray(array))
    if shown.startswith("string["):
        dtype = pandas.StringDtype(shown[7:-1])
    else:
        dtype = pandas.api.types.pandas_dtype(shown)
    if hasattr(dtype, "__from_arrow__"):
        return pandas.Series(dtype.__from_arrow__(array))
    return array.to_pandas().astype(dtype)


def _to_objects(array: Any, kind: ColumnType, pandas: Any) -> Any:
    cells = array.to_pylist()
    if kind.mixed:
        pairs = [(None, "") if c is None else c.split(":", 1) for c in cells]
        cells = [None if t is None else SCALARS[t](text) for t, text in pairs]
    gap = {"nan": np.nan, "NA": pandas.NA}.get(kind.gap)
    filled = np.empty(len(cells), dtype=object)
    filled[:] = [gap if c is None else c for c in cells]
    return pandas.Series(filled, dtype=object)


def without_missing(table: Any, missing: Sequence[str]) -> Any:
    """An Arrow table with nulls for cells that are one of these words, or the number of one."""
    from pyarrow import compute

    arrow = load_pyarrow()
    for k, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        values = [v for v in (_as_type(word, column.type) for word in missing) if v is not None]
        if values:
            known = compute.is_in(column, value_set=arrow.array(values, column.type))
            empty = arrow.scalar(None, column.type)
            table = table.set_column(k, name, compute.if_else(known, empty, column))
    return table


def _as_type(word: str, kind: Any) -> Any:
    arrow = load_pyarrow()
    types = arrow.types
    tests = (types.is_integer, types.is_floating, types.is_string, types.is_large_string)
    if not any(test(kind) for test in tests):
        return None
    try:
        return arrow.array([word], arrow.string()).cast(kind)[0].as_py()
    except arrow.ArrowInvalid:
        return None


def column_numbers(column: Any) -> np.ndarray | None:
    """The column as floats, NaN where a value is missing; None if it holds no numbers."""
    arrow = load_pyarrow()
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_floating(kind) and kind.bit_width == 32:
        return np.asarray(column.to_numpy(), dtype=np.float32)
    if types.is_boolean(kind):
        column = column.cast(arrow.int8())
    elif not any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal)):
        return None
    return np.asarray(column.cast(arrow.float64(), safe=False).to_numpy(), dtype=np.float64)


def complete_rows(
    values: np.ndarray, columns: Sequence[str], name: str, place: Callable[[int], str]
) -> np.ndarray:
    """The rows without missing values; an infinite one is an error that names its cell."""
    finite = np.isfinite(values)
    if finite.all():
        return values
    infinite = np.isinf(values)
    if infinite.any():
        row, column = (int(i) for i in np.argwhere(infinite)[0])
        raise TableError(
            f"{name}, {place(row)}, column {columns[column]}: the value is infinite "
            f"({int(infinite.sum())} such cells); remove or replace it."
        )
    return values[finite.all(1)]
