"""The caller's kind of table from Arrow columns."""

from dataclasses import replace
from typing import Any

import numpy as np

from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import SCALARS, ColumnType, declared_array
from kermix.errors import MissingExtraError

__all__ = ["FRAME_KINDS", "build_frame"]

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
    if kind == "polars":
        try:
            import polars
        except ImportError:
            raise MissingExtraError("A Polars table needs Polars: pip install polars.") from None
        # Arrow calls an enumeration a dictionary with an order.
        ordered = {n: polars.Enum([*(t.declared or ())]) for n, t in types.items() if t.ordered}
        return polars.DataFrame(table).cast(ordered)  # type: ignore[arg-type]
    return table


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
