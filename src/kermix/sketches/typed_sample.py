"""A sample of the rows of typed files: the schema and the scales of a sketch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.batches import Files, open_files
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.mixed_rows import MixedRows
from kermix.data.tables.schema import Schema
from kermix.errors import OptionError, TableError
from kermix.sketches.sampling import order_of_rows, sampled

__all__ = ["typed_sample"]


def typed_sample(
    sources: Sequence[str],
    reading: Reading,
    standardize: bool | Literal["auto"],
    seed: int,
    gaps: bool = False,
) -> tuple[Files, MixedRows | None, Tensor]:
    """The files, how their mixed rows are made (None: all are numbers), and a sample of them.

    Args:
        sources: Paths, globs, folders or fsspec addresses.
        reading: What was said about them.
        standardize: Whether columns may be scaled, as mixed rows are.
        seed: Of the sample.
        gaps: Whether there are known to be missing values, which the sample may not have.
    """
    nothing = torch.empty(0, 0)
    columns, exclude, kinds = reading.columns, reading.exclude, reading.kinds
    typed = open_files(sources, columns, True, reading)
    unknown = [n for n in (*exclude, *kinds) if n not in typed.columns]
    if unknown:
        raise TableError(
            f"{typed.addresses[0]} has no column {unknown[0]}; it has {', '.join(typed.columns)}."
        )
    kept = [n for n in typed.columns if n not in exclude]
    if not kept:
        raise TableError(f"{typed.addresses[0]}: no column is left.")
    if any(address.lower().endswith(".npy") for address in typed.addresses) and not gaps:
        chosen = kept if columns or exclude else None
        return open_files(sources, chosen, reading=reading), None, nothing
    if exclude:
        typed = open_files(sources, kept, True, reading)
    generator = order_of_rows(seed)
    table = _drawn(typed, generator)
    if not (gaps or kinds or typed.others or _gaps(table)):
        chosen = kept if columns or exclude else None
        return open_files(sources, chosen, reading=reading), None, nothing
    if standardize is False:
        raise OptionError(
            "standardize=False: numbers in tables with categories or missing values must be "
            "scaled to be comparable with codes; remove it, or select only numeric columns."
        )
    given: dict[str, Any] = dict(kinds)
    schema = Schema.of(table, kinds=given)
    if not schema.modelled:
        raise TableError(
            f"{typed.addresses[0]}: no column is left; {', '.join(schema.names)} are constants, "
            "keys or text."
        )
    encoded = schema.encode(table)
    maker = MixedRows.of(schema, [encoded], mark_all=True)
    files = open_files(sources, maker.column_names, True, reading)
    again = ("read again: values are missing, and the sample missed none.",) if gaps else ()
    notes = (*files.notes, *again, *schema.notes())
    return replace(files, notes=notes), maker, maker(encoded)


def _gaps(table: Any) -> bool:
    from pyarrow import compute

    types = load_pyarrow().types
    return any(
        c.null_count or (types.is_floating(c.type) and compute.any(compute.is_nan(c)).as_py())
        for c in table.columns
    )


def _drawn(files: Files, generator: np.random.Generator) -> Any:
    """Rows drawn at random, as an Arrow table."""
    arrow = load_pyarrow()
    return sampled(
        files,
        generator,
        lambda part: (_as_table(table) for table, _ in part.tables()),
        lambda tables: arrow.concat_tables(tables, promote_options="permissive"),
        lambda table, places: table.take(arrow.array(places)),
    )


def _as_table(table: Any) -> Any:
    arrow = load_pyarrow()
    return table if isinstance(table, arrow.Table) else arrow.Table.from_batches([table])
