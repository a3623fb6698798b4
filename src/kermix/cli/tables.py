"""`kermix impute`, and what `sample`, `score` and `predict` do with a run of the table model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from kermix.cli.output import check_output, print_lines, print_notes
from kermix.cli.reading import Decimal, Delimiter, Encoding, Header, reading_options
from kermix.errors import OptionError, TableError

if TYPE_CHECKING:
    from kermix.data.tables.csv_form import CsvForm
    from kermix.data.tables.frames import Frame
    from kermix.data.tables.schema import Schema
    from kermix.models.table.distribution import ColumnDistribution
    from kermix.runs.table_run import TableRun

__all__ = ["impute", "predict_table", "sample_table", "score_table"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEW_CLASSES = 10  # whose probabilities are all written


def impute(
    run: Annotated[Path, typer.Argument(help="Folder of a run of the table model.")],
    data: Annotated[Path, typer.Argument(help="A table with gaps, as for fit.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Where to write the table without gaps.")
    ],
    draws: Annotated[
        int | None,
        typer.Option(
            help="Write so many tables (OUT-1, OUT-2, ...), in each of which gaps are drawn at "
            "random; by default one, with the most likely values."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed: same values.")] = 0,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    header: Header = None,
) -> None:
    """Fill the gaps of a table, and nothing else, by a fitted table model."""
    if draws is not None and draws < 1:
        raise OptionError(f"--draws {draws}: at least one table is needed.")
    opened = table_run(run)
    path = written_path(out, opened)
    paths = [path] if draws is None else [_numbered(path, k + 1) for k in range(draws)]
    for each in paths:
        _check_writable(each)
    frame = read_rows(opened, data, (delimiter, decimal, encoding, header))
    gaps = sum(
        frame.columns[c.name].null_count for c in opened.schema.modelled if c.name in frame.columns
    )
    with _counting("impute", frame.rows * (draws or 1)) as on_rows:
        found = opened.impute(frame, draws=draws, seed=seed, on_rows=on_rows)
    for each, table in zip(paths, [found] if draws is None else found, strict=True):
        _write_filled(each, data, frame, table, [c.name for c in opened.schema.modelled])
    where = f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
    _say(f"{gaps} gaps in {frame.rows} rows filled: {where}")


def sample_table(
    run: "TableRun", out: Path, n: int, seed: int, given: Sequence[str], safe: bool
) -> Path:
    """Write rows of the model, part by part; returns where they are."""
    path = written_path(out, run)
    _check_writable(path)
    known = parse_given(given, run.schema)
    with _counting("sample", n) as on_rows:
        parts = _counted(run.sample_parts(n, seed, known), on_rows)
        _write(path, parts, safe, run.csv_form(path.name))
    return path


def score_table(
    run: "TableRun",
    data: str,
    out: Path | None,
    look: Sequence[Any],
    *,
    sort: bool = False,
    id_column: str | None = None,
    orders: int | None = None,
) -> None:
    """Print or write one log-density for each row; rare rows first if they are sorted."""
    from pyarrow import array, table

    if out is not None:
        _check_writable(out)
    frame = read_rows(run, data, look)
    named, ids = _ids(frame, id_column)
    with _counting("score", frame.rows) as on_rows:
        values = run.score(frame, orders=orders, on_rows=on_rows)
    order = np.argsort(values, kind="stable") if sort else np.arange(len(values))
    labelled = sort or id_column is not None
    if out is not None:
        columns = {named: ids.take(array(order))} if labelled else {}
        _write(out, [table({**columns, "log_density": values[order]})])
    elif labelled:
        names = [str(cell) for cell in ids.take(array(order)).to_pylist()]
        pairs = zip(names, values[order], strict=True)
        print_lines(_csv_lines([[named, "log_density"], *([n, f"{v:.6f}"] for n, v in pairs)]))
    else:
        print_lines([f"{value:.6f}" for value in values])
    mean, error = values.mean(), values.std() / len(values) ** 0.5
    _say(f"mean log-density {mean:.4f} ± {error:.4f} nats over {len(values)} rows")
    if out is not None:
        _say(f"Log-densities: {out}")


def predict_table(
    run: "TableRun",
    data: Path,
    out: Path | None,
    target: str | None,
    look: Sequence[Any],
    *,
    every: bool = False,
    id_column: str | None = None,
) -> None:
    """Print or write, for each row, the target's probabilities, or its median and quantiles."""
    import pyarrow as arrow

    if out is not None:
        _check_writable(out)
    frame = read_rows(run, data, look)
    named, ids = _ids(frame, id_column)
    tables, start = [], 0
    with _counting("predict", frame.rows) as on_rows:
        for found in run.conditionals(frame, target):
            rows = ids.slice(start, len(found))
            start += len(found)
            tables.append(arrow.table({named: rows, **_predicted(found, every)}))
            on_rows(len(found))
    if out is not None:
        _write(out, tables)
        _say(f"{frame.rows} predictions in {out}")
        return
    shown = [list(tables[0].column_names)]
    for part in tables:
        shown += [[_cell(v) for v in row.values()] for row in part.to_pylist()]
    print_lines(_csv_lines(shown))
    _say(f"{frame.rows} predictions")


def _predicted(found: "ColumnDistribution", every: bool) -> dict[str, Any]:
    name = found.column.name
    if found.is_number:
        cells = {f"{name} {share:.0%}": found.quantile_cells(share) for share in QUANTILES}
        return {name: found.quantile_cells(0.5), **cells}
    chances = found.filled
    cells = {name: found.most_likely(), "probability": chances.max(1)}
    if every or chances.shape[1] <= FEW_CLASSES:
        shown = found.names[: chances.shape[1]]
        cells |= {f"p({n})": chances[:, k] for k, n in enumerate(shown)}
    return cells


def table_run(folder: Path) -> "TableRun":
    """The run in a folder, which must be one of the table model."""
    from kermix.runs.table_run import TableRun

    return TableRun.open(folder)


def read_rows(run: "TableRun", data: str | Path, look: Sequence[Any]) -> "Frame":
    """Rows of a file, read as the run's own, unless something else is said."""
    from kermix.data.tables.reading import read_frame

    options = reading_options(None, None, *look)
    frame, notes = read_frame(str(data), run.reading(**options))
    names = set(run.schema.names)
    more = [name for name in frame.columns if name not in names]
    if more:
        notes = [*notes, f"{frame.name}: passed over, because the run has none: {', '.join(more)}"]
    print_notes(notes, Console(stderr=True))
    return frame


def parse_given(texts: Sequence[str], schema: "Schema") -> dict[str, Any] | None:
    """Conditions that were written as NAME=VALUE; an empty value is a gap.

    Example:
        >>> from kermix.data.tables.schema import Schema
        >>> schema = Schema.of({"sex": ["f", "m"] * 20, "age": [20.5, 31.5, 42.25, 18.0] * 10})
        >>> parse_given(["sex=m"], schema)["sex"].to_pylist()
        ['m']
    """
    import pyarrow as arrow

    found: dict[str, Any] = {}
    for text in texts:
        names = [name for name in schema.names if text.startswith(f"{name}=")]
        if not names:
            raise OptionError(
                f"--given {text}: write COLUMN=VALUE; there are {', '.join(schema.names)}."
            )
        name = max(names, key=len)
        if name in found:
            raise OptionError(f"--given {text}: {name} is given twice.")
        column, value = schema[name], text[len(name) + 1 :]
        if column not in schema.modelled:
            raise OptionError(f"--given {text}: {name} is a {column.kind}, which is left out.")
        kind = _typed(column)
        try:
            found[name] = arrow.array([value or None], arrow.string()).cast(kind)
        except arrow.ArrowInvalid:
            raise OptionError(f"--given {text}: {value!r} is no {column.kind} ({kind}).") from None
    return found or None


def _typed(column: Any) -> Any:
    """What a value has to be for a column to take it."""
    import pyarrow as arrow

    from kermix.data.tables.columns import CategoryColumn
    from kermix.data.tables.frames import arrow_type

    if isinstance(column, CategoryColumn):
        return arrow_type(column.value_type)
    if column.text is not None:
        return arrow.string()
    return arrow_type(column.type.arrow) if column.time else arrow.float64()


def written_path(out: Path, run: "TableRun") -> Path:
    """Where to write: a name without an ending gets that of the run's data."""
    return out if out.suffix else out.with_name(out.name + run.config["form"])


def _check_writable(path: Path) -> None:
    from kermix.data.tables.writing import WRITABLE

    if not path.name.lower().endswith(WRITABLE):
        raise OptionError(f"{path}: the name must end in one of {', '.join(WRITABLE)}.")
    check_output(path)


def _numbered(path: Path, number: int) -> Path:
    name, dot, ending = path.name.partition(".")
    return path.with_name(f"{name}-{number}{dot}{ending}")


def _ids(frame: "Frame", column: str | None) -> tuple[str, Any]:
    import pyarrow as arrow

    if column is None:
        return "row", arrow.array(np.arange(frame.rows) + frame.first_row)
    if column not in frame.columns:
        raise TableError(
            f"{frame.name} has no column {column}; it has {', '.join(frame.columns)}."
        )
    return column, arrow.chunked_array(frame.columns[column]).combine_chunks()


def _write_filled(
    path: Path, data: Path, frame: "Frame", table: Any, names: Sequence[str]
) -> None:
    """Write a table without gaps; of a text file, all other cells stay as they were written."""
    from kermix.data.tables.filling import filled_text
    from kermix.data.tables.writing import is_text

    if frame.form is None or not is_text(path):
        _write(path, [table])
    else:
        form = frame.form.between(data.name, path.name)
        _write(path, filled_text(data, frame, table, names), form=form)


def _write(path: Path, parts: Any, safe: bool = False, form: "CsvForm | None" = None) -> None:
    from kermix.data.tables.writing import table_writer

    with table_writer(path, safe, form) as writer:
        for part in parts:
            writer.write(part)


def _counted(parts: Iterator[Any], on_rows: Callable[[int], None]) -> Iterator[Any]:
    for part in parts:
        yield part
        on_rows(len(part))


@contextmanager
def _counting(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of rows on the terminal, beside what is printed for programs."""
    from kermix.training.progress import progress_bar

    with progress_bar(label, total, console=Console(stderr=True)) as (bar, task):
        yield lambda rows: bar.advance(task, rows)


def _csv_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()[:-1].split("\n")


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _say(text: str) -> None:
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
