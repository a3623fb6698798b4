"""Text files whose gaps are filled, and nothing else is changed."""

import csv
import gzip
import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from internals import CsvForm, csv_lines, filled_text, read_frame, table_writer
from internals import delimited_module as delimited
from internals import writing_module as writing
from kermix.errors import TableError

GAPS = ("", "NA")
NEW = {"price": 3.25, "zip": "00001", "flag": True, "when": None, "plus": 0.5, "word": 'né"u";x'}


def write(path, form, rows=120, seed=0):
    """A file in which most cells are written as no program would write them again."""
    rng = np.random.default_rng(seed)
    lines = []
    for k in range(rows):
        cells = {
            "id": f"{k:04d}",
            "price": f"{rng.lognormal(3, 0.5):.2f}0".replace(".", form.decimal),
            "zip": f"{rng.integers(0, 40):05d}",
            "flag": ["TRUE", "FALSE"][rng.integers(2)],
            "when": f"2024-03-1{rng.integers(9)}T0{rng.integers(9)}:00:00+01:00",
            "plus": f"{rng.normal():+.1f}".replace(".", form.decimal),
            "word": rng.choice(["é", 'say "so"', f"a{form.delimiter}b", "two\nlines", " x "]),
            "note": rng.choice(["NA", "", "fine"]),
        }
        for name in NEW:
            if rng.random() < 0.2:
                cells[name] = GAPS[k % 2]
        lines.append(cells)
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(lines[0]), delimiter=form.delimiter, lineterminator=form.line_end
    )
    if form.named:
        writer.writeheader()
    writer.writerows(lines)
    content = text.getvalue().encode(form.encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def cells_of(path, form):
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    text = content.decode(form.encoding)
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=form.delimiter))


def filled_by(frame, new):
    """The columns with new values in their gaps."""
    columns = {}
    for name, column in frame.columns.items():
        value = new.get(name)
        if name == "when":
            value = column.drop_null()[0].as_py()
        columns[name] = (
            column if value is None else column.fill_null(pa.scalar(value, column.type))
        )
    return pa.table(columns)


FORMS = {
    "plain": CsvForm(),
    "German": CsvForm(";", ",", "latin-1", "\r\n"),
    "tabs": CsvForm("\t", ",", "utf-16", "\n"),
    "marked": CsvForm(",", ".", "utf-8-sig", "\r\n"),
}


@pytest.mark.parametrize("block", [2**24, 512])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_filled_cells_stay_as_they_are_written(name, ending, block, tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", block)
    monkeypatch.setattr(writing, "ROWS", 50)
    form = FORMS[name]
    path = write(tmp_path / f"t{ending}", form)
    frame, _ = read_frame(path)
    assert replace(frame.form, ways={}) == replace(form, truths=("FALSE", "TRUE"))
    new = tmp_path / f"new{ending}"
    with table_writer(new, form=frame.form) as writer:
        for part in filled_text(path, frame, filled_by(frame, NEW)):
            writer.write(part)
    before, after = cells_of(path, form), cells_of(new, form)
    assert len(before) == len(after) == 121
    assert before[0] == after[0]
    when = next(r[4] for r in before[1:] if r[4] not in GAPS)
    shown = {"price": "3.250".replace(".", form.decimal), "zip": "00001", "flag": "TRUE",
             "plus": "+0.5".replace(".", form.decimal), "word": NEW["word"],
             "when": when}  # fmt: skip
    changed = 0
    for old, row in zip(before[1:], after[1:], strict=True):
        for column, was, now in zip(before[0], old, row, strict=True):
            if column in NEW and was in GAPS:
                changed += 1
                assert now == shown[column]
            else:
                assert now == was
    assert changed > 50
    if ending == ".csv":
        mark = form.encoding.encode() and "".encode(form.encoding)
        assert new.read_bytes().startswith(mark)
        ends = form.line_end.encode("utf-16-le" if form.encoding == "utf-16" else "ascii")
        assert new.read_bytes().endswith(ends)


def test_a_file_without_names_gets_none(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1.50,0.25\n,0.5\n2.75,\n")
    frame, _ = read_frame(path)
    found = pa.table({"x0": [1.5, 9.5, 2.75], "x1": [0.25, 0.5, 8.5]})
    with table_writer(tmp_path / "new.csv", form=frame.form) as writer:
        for part in filled_text(path, frame, found):
            writer.write(part)
    assert (tmp_path / "new.csv").read_text() == "1.50,0.25\n9.50,0.5\n2.75,8.5\n"


def test_a_file_that_changes_is_noticed(tmp_path):
    path = write(tmp_path / "t.csv", CsvForm())
    frame, _ = read_frame(path)
    write(path, CsvForm(), rows=100)
    with pytest.raises(TableError, match="has changed while it was read; 100 rows, not 120"):
        list(filled_text(path, frame, filled_by(frame, NEW)))


def test_rows_of_one_empty_cell_are_rows():
    table = pa.table({"a": pa.array(["x", None, "", 'q"', "a\rb"])})
    text = "".join(csv_lines(table, CsvForm()))
    assert text == 'x\n""\n""\n"q"""\n"a\rb"\n'


def test_letters_that_an_encoding_has_not_are_named(tmp_path):
    with (
        pytest.raises(TableError, match="'€' cannot be written in latin-1"),
        table_writer(tmp_path / "t.csv", form=CsvForm(encoding="latin-1")) as writer,
    ):
        writer.write(pa.table({"a": ["1 €"]}))
    assert not list(tmp_path.iterdir())
