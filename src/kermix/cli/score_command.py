"""`kermix score`: one log-density for each row, in the order of the rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kermix.cli.options import AS_FOUND, check_there, reads_tables
from kermix.cli.output import check_writable, counting, notes_to, print_lines, print_notes, say
from kermix.cli.tables_command import csv_lines, ids_of, read_rows, write_tables
from kermix.data.readers.common import Reading, counted
from kermix.errors import OptionError
from kermix.runs.folder import check_run

if TYPE_CHECKING:
    import numpy as np

    from kermix.runs.run import Run

__all__ = ["score"]


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
