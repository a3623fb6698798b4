"""`kermix schema`, `kermix impute` and `kermix score`, and what `predict` needs of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kermix.cli.options import AS_FOUND, check_there, reads_tables
from kermix.cli.output import (
    check_output,
    check_writable,
    counting,
    notes_to,
    print_json,
    print_lines,
    print_notes,
    print_table,
    say,
    split_names,
    written_path,
)
from kermix.data.readers.common import READABLE_SHOWN, Reading, counted, listed
from kermix.errors import OptionError, TableError
from kermix.runs.folder import check_run

if TYPE_CHECKING:
    import numpy as np

    from kermix.data.readers.common import CsvForm
    from kermix.data.readers.frames import Frame
    from kermix.runs.run import Run
    from kermix.tables.model.distribution import ColumnDistribution

__all__ = [
    "impute",
    "predict_table",
    "read_rows",
    "schema",
    "score",
    "table_run",
    "write_tables",
]

NO_VALUE = "p(no value)"


@reads_tables
def schema(
    data: Annotated[
        list[str],
        typer.Argument(help=f"A table: {READABLE_SHOWN}; several files are read as one table."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the schema to this JSON file.")
    ] = None,
    reading: Reading = AS_FOUND,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show what each column of a table is.

    Kinds are category, number, time, constant, key and free text.
    """
    if out is not None:
        check_output(out, ".json")
    check_there(*data)
    from kermix.data.readers.reading import read_frame
    from kermix.data.schema.schema import Schema

    frame, notes = read_frame(data[0] if len(data) == 1 else data, reading)
    known: dict[str, Any] = dict(reading.kinds)
    found = Schema.infer(frame, kinds=known)
    if as_json:
        print_json(found.to_dict())
    else:
        print_notes(notes)
        what = f"{counted(frame.rows, 'row')}, {counted(len(found), 'column')}"
        heads = ("column", "kind", "type", "gaps", "codes", "what it holds")
        print_table(f"{frame.name}: {what}", heads, found.table(), found.notes())
    if out is not None:
        found.save(out)
        if not as_json:
            Console().print(f"Schema: {out}", markup=False, highlight=False, soft_wrap=True)


@reads_tables
def impute(
    run: Annotated[Path, typer.Argument(help="Run folder of the table model.")],
    data: Annotated[Path, typer.Argument(help="A table with missing values, as for fit.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File for the completed table.")],
    draws: Annotated[
        int | None,
        typer.Option(
            help="Number of tables to write (OUT-1, OUT-2, ...), with gaps drawn at random in "
            "each. By default one table, with the most likely values."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns to fill, separated by commas. By default all but categories that are "
            "empty in most rows, such as remarks."
        ),
    ] = None,
    fill_all: Annotated[
        bool,
        typer.Option(
            "--fill-all",
            help="Fill also cells that have no value, as far as the other columns of their row "
            "tell (columns that are nearly always empty in such rows), and categories that are "
            "empty in most rows.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    reading: Reading = AS_FOUND,
) -> None:
    """Fill the gaps of a table, and change nothing else.

    With a table model that was fitted to it, or to one like it.
    """
    if draws is not None and draws < 1:
        raise OptionError(f"--draws {draws}: must be at least 1.")
    check_run(run)
    check_there(data)
    opened = table_run(run)
    fill = opened.answer("impute")
    path = written_path(out, opened)
    paths = [path] if draws is None else [_numbered(path, k + 1) for k in range(draws)]
    for each in paths:
        check_writable(each)
    frame = read_rows(opened, data, reading)
    chosen = split_names(columns)
    with counting("impute", frame.rows * (draws or 1)) as on_rows:
        found = fill(
            frame, columns=chosen, fill_all=fill_all, draws=draws, seed=seed, on_rows=on_rows
        )
    tables = [found] if draws is None else found
    for each, table in zip(paths, tables, strict=True):
        _write_filled(opened, each, data, frame, table)
    where = f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
    say(_told_of_gaps(opened, frame, tables, chosen, fill_all))
    say(f"{_span([frame.rows], 'row')} in {where}")


def _told_of_gaps(
    run: "Run",
    frame: "Frame",
    tables: Sequence[Any],
    chosen: Sequence[str] | None,
    fill_all: bool,
) -> str:
    """How many gaps were filled, and why others were not."""
    gaps = {n: c.null_count for n, c in frame.columns.items() if chosen is None or n in chosen}
    left = {n: [t.column(n).null_count for t in tables] for n in gaps if gaps[n]}
    filled = [sum(gaps.values()) - sum(row) for row in zip(*left.values(), strict=True)] or [0]
    told = f"Filled {_span(filled, 'gap')}"
    left = {name: counts for name, counts in left.items() if max(counts)}
    if not left:
        return f"{told}."
    return f"{told}; {_told_of_left(run, left, fill_all)}"


def _told_of_left(run: "Run", left: Mapping[str, Sequence[int]], fill_all: bool) -> str:
    """How many gaps of which columns are left in each table, and why."""
    from kermix.tables.runs.table_run import table_model

    model = table_model(run)
    absences = {} if fill_all else model.rarely_filled | model.absences
    clauses = []
    for name, counts in left.items():
        why = absences.get(name) or _why_left(run, name)
        clauses.append(why if len(left) == 1 else f"{why} ({_span(counts)})")
    total = _span([sum(row) for row in zip(*left.values(), strict=True)])
    able = [name for name in left if name in absences]
    more = f" To fill {listed(able)} too, use --fill-all." if able else ""
    return f"left {total} empty: {'; '.join(clauses)}.{more}"


def _why_left(run: "Run", name: str) -> str:
    """Why no gap of a column is filled, though its rows do not say so."""
    from kermix.tables.runs.table_run import schema_of

    kinds = {column.name: column for column in schema_of(run).columns}
    if name not in kinds:
        return f"{name} is not a column of the run"
    column = kinds[name]
    if column.kind == "key":
        if column.details().startswith("all different"):
            return f"{name} is a key"
        why, _, _ = column.details().partition(";")
        return f"{name} is a key ({why}; kermix fit --kind {name}=category to model it)"
    if column.kind == "text":
        return f"{name} is free text"
    if column.gaps:
        return f"{name} is empty in all rows that the model was fitted to"
    return (
        f"{name} is always {column.details().removeprefix('always ')} in the rows that the "
        "model was fitted to, but not here"
    )


def _span(counts: Sequence[int], word: str = "") -> str:
    """A number that may differ from table to table."""
    low, high = min(counts), max(counts)
    most = counted(high, word) if word else f"{high:,}"
    return most if low == high else f"{low:,} to {most}"


def predict_table(
    run: "Run",
    data: Path,
    out: Path | None,
    target: str | None,
    reading: Reading,
    *,
    every: bool = False,
    id_column: str | None = None,
) -> None:
    """Print or write, for each row, the target's probabilities, or its median, mean, quantiles."""
    import pyarrow as arrow

    from kermix.runs.folder import TARGET
    from kermix.tables.runs.table_run import missing_columns, told_of_open_cells

    if out is not None:
        check_writable(out)
    frame = read_rows(run, data, reading, id_column)
    named, ids = ids_of(frame, id_column)
    tables, start, absent, column = [], 0, 0, target or ""
    gappy = run.kind.name != TARGET  # rows without the target are left out of a model of it alone
    with counting("predict", frame.rows) as on_rows:
        for found in run.conditionals(frame, target):
            rows = ids.slice(start, len(found))
            start += len(found)
            tables.append(arrow.table({named: rows, **_predicted(found, every, gappy)}))
            column = found.column.name
            absent += _without_value(tables[-1])
            on_rows(len(found))
    missing = missing_columns(run, frame, target)
    if missing:
        say(
            f"{frame.name} has no {listed(missing)}: treated as unknown. "
            f"{told_of_open_cells(run)}".strip()
        )
    if absent:
        say(
            f"{column} probably has no value in {counted(absent, 'row')}, as {NO_VALUE} tells; "
            "there, what is predicted is what it would be if it had one."
        )
    if out is not None:
        write_tables(out, tables)
        say(f"{counted(frame.rows, 'prediction')} in {out}")
        return
    shown = [list(tables[0].column_names)]
    for part in tables:
        shown += [[_cell(v) for v in row.values()] for row in part.to_pylist()]
    print_lines(csv_lines(shown))
    say(counted(frame.rows, "prediction"))


def _without_value(table: Any) -> int:
    """In how many rows it is more likely that there is no value."""
    named = NO_VALUE in table.column_names
    return int((table[NO_VALUE].to_numpy() > 0.5).sum()) if named else 0


def _predicted(
    found: "ColumnDistribution",
    every: bool,
    gappy: bool,
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95),
) -> dict[str, Any]:
    name = found.column.name
    empty = gappy and found.column.has_missing
    absent = {NO_VALUE: found.probabilities[:, -1]} if empty else {}
    if found.is_number:
        cells = {f"{name} {share:.0%}": found.quantile_cells(share) for share in quantiles}
        # A time has no mean: the middle between two days is not a number of anything.
        mean = {} if found.column.kind == "time" else {f"{name} mean": found.mean()}
        return {name: found.quantile_cells(0.5), **mean, **cells, **absent}
    from numpy import arange

    chances = found.filled
    cells = {name: found.most_likely(), "probability": chances.max(1)}
    if every or chances.shape[1] <= 10:
        values: Any = found.column.decode(arange(chances.shape[1]))  # type: ignore[call-arg]
        shown = found.names[: chances.shape[1]]
        if str(values.type) in ("double", "float"):  # 1, as cells are written, not 1.0
            shown = tuple(values.cast("string").fill_null("(other)").to_pylist())
        cells |= {f"p({n})": chances[:, k] for k, n in enumerate(shown)}
    return cells | absent


def table_run(folder: Path) -> "Run":
    """The run in a folder, which must be one of the table model, of all columns or of one."""
    from kermix.fitting import open_run
    from kermix.runs.folder import TABLE, TARGET, check_kind

    check_kind(folder, TABLE, TARGET)
    return open_run(folder)


def read_rows(
    run: "Run", data: str | Path, reading: Reading, id_column: str | None = None
) -> "Frame":
    """Rows of a file, read as the run's own, unless something else is said."""
    from kermix.data.readers.reading import read_frame
    from kermix.tables.runs.table_run import read_as, schema_of

    frame, notes = read_frame(str(data), read_as(run, reading))
    names = {*schema_of(run).names, id_column}
    more = [name for name in frame.columns if name not in names]
    if more:
        notes = [
            *notes,
            f"{frame.name}: ignoring columns that the run does not have: {', '.join(more)}",
        ]
    print_notes(notes, notes_to())
    return frame


def _numbered(path: Path, number: int) -> Path:
    name, dot, ending = path.name.partition(".")
    return path.with_name(f"{name}-{number}{dot}{ending}")


def ids_of(frame: "Frame", column: str | None) -> tuple[str, Any]:
    """What names the rows, and their names: a column, or their numbers in the file."""
    import numpy as np
    import pyarrow as arrow

    if column is None:
        return "row", arrow.array(np.arange(frame.rows) + frame.first_row)
    if column not in frame.columns:
        raise TableError(
            f"{frame.name} has no column {column}; it has {', '.join(frame.columns)}."
        )
    return column, arrow.chunked_array(frame.columns[column]).combine_chunks()


def _write_filled(run: "Run", path: Path, data: Path, frame: "Frame", table: Any) -> None:
    """Write a table with fewer gaps; of a text file, all other cells stay as they were written.

    What a column of gaps alone does not tell is written as in the table of the run.
    """
    from kermix.data.writing import filled_lines, filled_text, is_text
    from kermix.tables.runs.table_run import csv_form

    if frame.form is None or not is_text(path):
        write_tables(path, [table])
        return
    ways = {**csv_form(run, path.name).ways, **frame.form.ways}
    frame = replace(frame, form=replace(frame.form, ways=ways))
    assert frame.form is not None
    form = frame.form.between(data.name, path.name)
    # Several files that make one table are written as one, in the form of the first.
    parts: Any = [table]
    if data.is_file():
        lines = filled_lines(data, frame, table) if form == frame.form else None
        parts = filled_text(data, frame, table) if lines is None else lines
    write_tables(path, parts, form=form)


def write_tables(path: Path, parts: Any, form: "CsvForm | None" = None) -> None:
    """Write Arrow tables to one file, one after the other."""
    from kermix.data.writing import table_writer

    with table_writer(path, form=form) as writer:
        for part in parts:
            writer.write(part)


def csv_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of a text file."""
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()[:-1].split("\n")


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@reads_tables
def score(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    data: Annotated[str, typer.Argument(help="A built-in data set or a path, as for fit.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="File for the log-density of each row. By default it is printed."
        ),
    ] = None,
    sort: Annotated[
        bool, typer.Option("--sort", help="Rarest rows first, with their row numbers.")
    ] = False,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column that identifies the rows.")
    ] = None,
    orders: Annotated[
        int | None,
        typer.Option(help="Table model: number of column orders to average over. By default 1."),
    ] = None,
    reading: Reading = AS_FOUND,
) -> None:
    """Log-density of each row under a fitted model, in nats.

    For a model of one column (kermix classify --target), the log-density of that column given the
    others.
    """
    check_run(run)
    check_there(data)
    import numpy as np

    from kermix.fitting import open_run

    opened = open_run(run)
    opened.answer("score")
    if out is not None:
        check_writable(out)
    named, ids, values = _scored(opened, data, reading, id_column, orders)
    order = np.argsort(values, kind="stable") if sort else np.arange(len(values))
    _write(out, named, ids.take(order) if sort or id_column is not None else None, values[order])
    say(_mean_of(values))
    if out is not None:
        say(f"Log-densities: {out}")


def _write(out: Path | None, named: str, ids: Any, values: "np.ndarray") -> None:
    """Write densities, or print them, beside what names their rows, if that is asked for."""
    if out is not None:
        from pyarrow import table

        columns = {} if ids is None else {named: ids}
        write_tables(out, [table({**columns, "log_density": values})])
        return
    texts = [f"{value:.6f}" for value in values]
    if ids is None:
        print_lines(texts)
    else:
        names = [str(cell) for cell in ids.to_pylist()]
        print_lines(csv_lines([[named, "log_density"], *zip(names, texts, strict=True)]))


def _mean_of(values: "np.ndarray") -> str:
    """The mean and its standard error, in words; rows of density zero are counted apart."""
    import numpy as np

    some = values[np.isfinite(values)]
    if not len(some):
        return "no row has a log-density above -inf"
    error = f" ± {some.std() / len(some) ** 0.5:.4f}" if len(some) > 1 else ""
    left = len(values) - len(some)
    rest = f" (without {counted(left, 'row')} of -inf)" if left else ""
    rows = counted(len(some), "row")
    return f"mean log-density {some.mean():.4f}{error} nats over {rows}{rest}"


def _scored(
    run: "Run", data: str, reading: Reading, id_column: str | None, orders: int | None
) -> tuple[str, Any, "np.ndarray"]:
    """What names the rows, their names, and the log-density of each."""
    from kermix.runs.folder import TABLE, TARGET

    if run.kind.name in (TABLE, TARGET):
        frame = read_rows(run, data, reading, id_column)
        named, ids = ids_of(frame, id_column)
        with counting("score", frame.rows) as on_rows:
            return named, ids, run.score(frame, orders=orders, on_rows=on_rows)
    if orders is not None:
        raise OptionError(f"{run.folder}: --orders is for the table model.")
    return _by_mixture(run, data, reading, id_column)


def _by_mixture(
    run: "Run", data: str, reading: Reading, id_column: str | None
) -> tuple[str, Any, "np.ndarray"]:
    """The same of a fit of numbers: of a table with more columns, those of the fit are used."""
    import numpy as np
    from pyarrow import array
    from pyarrow import table as arrow_table

    from kermix.data.loading import is_table, load
    from kermix.data.readers.reading import read_frame
    from kermix.data.sources import read_table, table_of_arrow

    if not is_table(data):
        if id_column is not None or reading.said():
            raise OptionError(f"{data}: --id and how a table is read are for tables with columns.")
        path = Path(data)
        if path.is_file() and path.suffix.lower() in (".npy", ".npz"):
            values = run.score(read_table(path)).numpy()
        else:
            dataset = load(data, seed=1)
            print_notes(dataset.notes, notes_to())
            values = run.score(dataset.values, dataset.columns).numpy()
        return "row", array(np.arange(len(values))), values
    frame, notes = read_frame(data, reading)
    print_notes(notes, notes_to())
    named, ids = ids_of(frame, id_column)
    own = run.config["columns"]
    names = own if set(own) <= set(frame.columns) else list(frame.columns)
    columns = arrow_table({name: frame.columns[name] for name in names})
    rows = table_of_arrow(columns, frame.name, None, first_row=frame.first_row)
    print_notes(rows.notes() if not rows.dropped else [], notes_to())
    return named, ids, run.score(rows).numpy()
