"""A sample of the rows of typed files: the schema and the scales of a sketch."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.batches import Files, Part, open_files
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.mixed_rows import MixedRows
from kermix.data.tables.schema import Schema
from kermix.errors import OptionError, TableError

__all__ = ["typed_sample"]

SAMPLE = 20_000
PIECES = 32
READ_WHOLE_BELOW = 2**25  # bytes of files of which a sample may be drawn by reading all of them
FEW_ROWS = 100


def typed_sample(
    sources: Sequence[str],
    columns: Sequence[str] | None,
    exclude: Sequence[str],
    kinds: Mapping[str, str],
    standardize: bool | Literal["auto"],
    seed: int,
) -> tuple[Files, MixedRows | None, Tensor]:
    """The files, how their mixed rows are made (None: all are numbers), and a sample of them."""
    nothing = torch.empty(0, 0)
    typed = open_files(sources, columns, typed=True)
    unknown = [n for n in (*exclude, *kinds) if n not in typed.columns]
    if unknown:
        raise TableError(
            f"{typed.addresses[0]} has no column {unknown[0]}; it has {', '.join(typed.columns)}."
        )
    kept = [n for n in typed.columns if n not in exclude]
    if not kept:
        raise TableError(f"{typed.addresses[0]}: no column is left.")
    if any(address.endswith(".npy") for address in typed.addresses):
        return open_files(sources, kept if columns or exclude else None), None, nothing
    if exclude:
        typed = open_files(sources, kept, typed=True)
    generator = np.random.default_rng(seed)
    table = _drawn(typed, generator)
    if not (kinds or typed.ignored or _gaps(table)):
        return open_files(sources, kept if columns or exclude else None), None, nothing
    if standardize is False:
        raise OptionError(
            "standardize=False: tables with categories or gaps have their numbers scaled, so that "
            "they can be compared with codes; leave it out, or name columns of numbers."
        )
    chosen: dict[str, Any] = dict(kinds)
    schema = Schema.of(table, kinds=chosen)
    if not schema.modelled:
        raise TableError(
            f"{typed.addresses[0]}: no column is left; {', '.join(schema.names)} are constants, "
            "keys or text."
        )
    encoded = schema.encode(table)
    maker = MixedRows.of(schema, [encoded], mark_all=True)
    files = open_files(sources, maker.column_names, typed=True)
    return files, maker, maker(encoded)


def _gaps(table: Any) -> bool:
    from pyarrow import compute

    types = load_pyarrow().types
    return any(
        c.null_count or (types.is_floating(c.type) and compute.any(compute.is_nan(c)).as_py())
        for c in table.columns
    )


def _drawn(files: Files, generator: np.random.Generator) -> Any:
    """Rows drawn at random: of everything if that is little, else of random pieces.

    At most half of all rows, unless these are few: tests leave them out.
    """
    arrow = load_pyarrow()
    parts: list[Part] = list(files.parts)
    whole = files.size <= READ_WHOLE_BELOW
    if not whole:
        sizes = np.array([part.size for part in parts], dtype=float)
        drawn = generator.choice(len(sizes), PIECES, p=sizes / sizes.sum())
        parts = [parts[k].piece(generator) for k in drawn]
    kept, seen = [], 0
    for part in parts:
        for given, _ in part.tables():
            table = _as_table(given)
            seen += table.num_rows
            if not whole:
                most = -(-SAMPLE // PIECES)
                rows = generator.permutation(table.num_rows)[: min(most, table.num_rows // 2)]
                table = table.take(arrow.array(np.sort(rows)))
            kept.append(table)
    found = arrow.concat_tables(kept, promote_options="permissive")
    if whole:
        wanted = seen if seen < FEW_ROWS else min(SAMPLE, seen // 2)
        rows = generator.permutation(seen)[:wanted]
        found = found.take(arrow.array(rows))
    if not found.num_rows:
        raise TableError(f"{files.addresses[0]}: there are no rows in it, nor in any other file.")
    return found


def _as_table(table: Any) -> Any:
    arrow = load_pyarrow()
    return table if isinstance(table, arrow.Table) else arrow.Table.from_batches([table])
