"""Files as people have them: headers, delimiters, decimal marks, encodings, and faults."""

import gzip
import io
import json
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import kermix as km
from internals import Reading, csv_lines, look_at_csv, open_files, read_frame
from internals import formats_module as formats
from kermix.errors import KermixError, OptionError, SchemaError, SizeError, TableError
from table_faults import FAULTS, PLAIN, write


def cells(frame):
    return {n: c.to_pylist() for n, c in frame.columns.items()}


# --- Headers: what is taken for names, and whether it is said.

HEADERS = {
    "text": ("a,b\n1,2\n", True, False),
    "one text": ("a,2\n1,2\n", True, False),
    "data": ("1.5,2\n3,4\n", False, False),
    "data of counts": ("1,2\n3,4\n", False, False),
    "pandas' default": ("0,1,2\n0.5,0.25,9\n3,4,5\n", True, True),
    "pandas' default, two": ("0,1\n0.5,3\n", True, True),
    "zeros and ones": ("0,1\n1,0\n0,0\n", False, True),
    "years": ("2011,2012,2013\n5.5,3,8\n", True, True),
    "years above years": ("1999,2001\n2005,2012\n", False, True),
    "numbers above text": ("1,2\nx,3\n", True, True),
    "another scale": ("101,102,103\n0.5,0.25,0.1\n1,2.5,3\n", True, True),
    "the same scale": ("5,9,7\n4.5,9.5,6.5\n6,8.5,8\n", False, False),
    "twice the same": ("3,3\n0.5,0.1\n", False, False),
    "only a line": ("1,2,3\n", False, False),
    "decimal commas": ("2011;2012\n1,5;2,5\n", True, True),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_are_judged(case):
    text, named, said = HEADERS[case]
    look = look_at_csv(text.encode(), "t.csv")
    assert look.form.named == named
    told = [note for note in look.notes if "first line" in note]
    assert bool(told) == said
    if said:
        assert ("--no-header" if named else "--header") in told[0]
    for given in (True, False):
        asked = look_at_csv(text.encode(), "t.csv", Reading(header=given)) if (
            case != "twice the same" or not given) else None  # fmt: skip
        assert asked is None or (
            asked.form.named == given and not any("first" in n for n in asked.notes)
        )


def test_a_header_of_years_is_no_row(tmp_path):
    path = write(tmp_path / "y.csv", "2011,2012,2013\n42.6,1,2\n3,4,5\n")
    frame, notes = read_frame(path)
    assert list(frame.columns) == ["2011", "2012", "2013"]
    assert frame.rows == 2
    assert "--no-header" in notes[0]
    frame, _ = read_frame(path, Reading(header=False))
    assert frame.rows == 3


# --- How text is written.


def test_decimal_commas_are_recognized_and_said(tmp_path):
    path = write(tmp_path / "t.csv", "ort;preis\nKöln;1,50\nBonn;12,25\n")
    frame, notes = read_frame(path)
    assert cells(frame) == {"ort": ["Köln", "Bonn"], "preis": [1.5, 12.25]}
    assert "decimal comma" in notes[0]
    frame, notes = read_frame(path, Reading(decimal=","))
    assert not notes
    assert cells(frame)["preis"] == [1.5, 12.25]


def test_a_comma_file_of_decimal_commas_without_header_is_split_at_semicolons():
    look = look_at_csv(b"1,5;2,5\n3,5;4,5\n", "t.csv")
    assert (look.form.delimiter, look.form.decimal, look.form.named) == (";", ",", False)


@pytest.mark.parametrize("late", [False, True])
def test_latin_1_is_recognized_and_said(tmp_path, late):
    text = "ort,n\n" + "Bonn,1\n" * (20_000 if late else 0) + "Köln,2\n"
    path = write(tmp_path / "t.csv", text, "latin-1")
    frame, notes = read_frame(path)
    assert cells(frame)["ort"][-1] == "Köln"
    assert "read as Latin-1" in notes[-1]
    frame, notes = read_frame(path, Reading(encoding="latin-1"))
    assert not notes


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marks_of_unicode_are_followed(tmp_path, encoding):
    frame, _ = read_frame(write(tmp_path / "t.csv", "größe,n\nä,1\nö,2\n", encoding))
    assert cells(frame) == {"größe": ["ä", "ö"], "n": [1, 2]}


@pytest.mark.parametrize(("delimiter", "name"), [(";", "t.csv"), ("\t", "t.tsv"), ("|", "t.txt")])
def test_delimiters_are_found(tmp_path, delimiter, name):
    frame, _ = read_frame(write(tmp_path / name, PLAIN.replace(",", delimiter)))
    assert cells(frame) == {"name": ["ann", "bob"], "size": [1.5, 2.5]}


def test_a_delimiter_can_be_said(tmp_path):
    path = write(tmp_path / "t.csv", "a:b\n1:x,y\n2:z,w\n")
    frame, _ = read_frame(path, Reading(delimiter=":"))
    assert cells(frame) == {"a": [1, 2], "b": ["x,y", "z,w"]}


def test_cells_in_quotes_may_hold_line_ends(tmp_path):
    frame, _ = read_frame(write(tmp_path / "t.csv", 'a,b\n1,"two\nlines"\n3,x\n'))
    assert cells(frame)["b"] == ["two\nlines", "x"]


# --- Kinds of files.


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_packed_text_is_read(tmp_path, suffix):
    path = tmp_path / f"t.csv{suffix}"
    with pa.output_stream(path, compression="detect") as stream:
        stream.write(PLAIN.encode())
    frame, _ = read_frame(path)
    assert cells(frame) == {"name": ["ann", "bob"], "size": [1.5, 2.5]}


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".jsonl", ".ndjson"])
def test_other_files_are_read(tmp_path, suffix):
    table = pa.table({"name": ["ann", "bob"], "size": [1.5, 2.5]})
    path = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    frame, _ = read_frame(path)
    assert cells(frame) == table.to_pydict()


def test_several_files_are_one_table(tmp_path):
    paths = [tmp_path / f"{k}.parquet" for k in range(3)]
    for k, path in enumerate(paths):
        pyarrow.parquet.write_table(pa.table({"n": [k], "w": ["x"]}), path)
    frame, _ = read_frame(paths)
    assert cells(frame) == {"n": [0, 1, 2], "w": ["x"] * 3}
    pyarrow.parquet.write_table(pa.table({"m": [1]}), paths[2])
    with pytest.raises(TableError, match=r"2\.parquet: its columns are m"):
        read_frame(paths)


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
def test_the_index_that_pandas_wrote_is_no_column(tmp_path, suffix):
    """As it does after rows were chosen, without being asked."""
    rows = pd.DataFrame({"w": ["x", "y"] * 20, "n": np.arange(40) / 8})
    path = tmp_path / f"t{suffix}"
    chosen = rows.sample(20, random_state=0)
    if suffix == ".parquet":
        chosen.to_parquet(path)
    else:
        pyarrow.feather.write_feather(pa.Table.from_pandas(chosen), path)
    assert "__index_level_0__" in pa.Table.from_pandas(chosen).column_names
    assert list(read_frame(path)[0].columns) == ["w", "n"]
    files = open_files([str(path)], typed=True)
    assert files.columns == ("w", "n")
    assert [t.schema.names for part in files.parts for t, _ in part.tables()] == [["w", "n"]]


def test_columns_are_chosen_and_left_aside(tmp_path):
    path = write(tmp_path / "t.csv", PLAIN)
    assert list(read_frame(path, Reading(columns=("size",)))[0].columns) == ["size"]
    assert list(read_frame(path, Reading(exclude=("size",)))[0].columns) == ["name"]


# --- Faults: a named error that names the file, the row and the column.


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_file(fault, tmp_path):
    name, content, message = FAULTS[fault]
    with pytest.raises(KermixError, match=message) as caught:
        read_frame(write(tmp_path / name, content))
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


OPTIONS = {
    "decimal": ({"decimal": ";"}, "decimal"),
    "delimiter": ({"delimiter": ",,"}, "one character"),
    "both": ({"delimiter": ",", "decimal": ","}, "both"),
    "encoding": ({"encoding": "klingon"}, "not known"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_are_checked(case):
    options, message = OPTIONS[case]
    with pytest.raises(OptionError, match=message):
        Reading(**options)


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading(columns=("nope",)), "no column nope; it has name, size"),
        (Reading(exclude=("nope",)), "no column nope"),
        (Reading(kinds={"nope": "number"}), "no column nope"),
        (Reading(exclude=("name", "size")), "no column is left"),
        (Reading(encoding="ascii"), "not in ascii"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(reading, message, tmp_path):
    path = write(tmp_path / "t.csv", PLAIN.replace("ann", "änn") + "x,1\n" * 9)
    with pytest.raises(TableError, match=message):
        read_frame(path, reading)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        read_frame(tmp_path / "none.csv")
    with pytest.raises(TableError, match="a folder"):
        read_frame(tmp_path)


def test_hostile_names_are_names_and_nothing_more(tmp_path):
    names = ["=cmd|' /C calc'!A0", "__class__", "[bold red]x[/]", "../../etc/passwd", "a\tb", "💥"]
    table = pd.DataFrame({n: ["u", "v"] * 15 for n in names})
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    frame, _ = read_frame(path)
    assert list(frame.columns) == names
    schema = km.Schema.infer(frame)
    assert schema.names == tuple(names)
    assert schema.decode(schema.encode(table)).equals(table)


# --- Files that announce more than they should: refused before memory is taken.


def announced(shape, dtype="<f8"):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def test_a_numpy_file_that_announces_too_much(tmp_path):
    path = write(tmp_path / "t.npy", announced((10**12, 10)) + b"\0" * 800)
    with pytest.raises(TableError, match="announces 80000000000000 bytes"):
        read_frame(path)
    with pytest.raises(TableError, match="announces"):
        km.compare(path, path)


@pytest.mark.parametrize("lie", ["header", "content", "none"])
def test_a_bomb_of_arrays(tmp_path, lie):
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        rows = {"header": 10**12, "content": 2**23, "none": 80 * 2**14}[lie]
        with archive.open("a.npy", "w", force_zip64=True) as file:
            file.write(announced((rows, 8)))
            for _ in range({"header": 0, "content": 64, "none": 80}[lie]):
                file.write(bytes(2**20))
    with pytest.raises(SizeError, match="announces"):
        read_frame(path)


def test_a_bomb_of_text(tmp_path):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb", 9) as file:
        file.write(b"a,b,c,d\n")
        for _ in range(80):
            file.write(b"1,2,3,4\n" * 2**17)
    with pytest.raises(SizeError, match="would expand from"):
        read_frame(path)


def test_a_bomb_of_equal_cells(tmp_path, monkeypatch):
    """A few bytes of Parquet stand for many rows, which a sketch reads in parts."""
    path = tmp_path / "t.parquet"
    table = pa.table({"a": np.zeros(2**20), "b": ["x"] * 2**20})
    pyarrow.parquet.write_table(table, path)
    assert path.stat().st_size < 2**14
    assert read_frame(path)[0].rows == 2**20
    monkeypatch.setattr(formats._check_announced, "__defaults__", (2**23,))
    with pytest.raises(SizeError, match=r"1048576 rows, at least 12 MiB.*kermix sketch"):
        read_frame(path)


def test_text_that_is_mostly_numbers_may_be_called_a_category(tmp_path):
    path = write(tmp_path / "t.csv", "a\n1\n2\n3\nx\n")
    with pytest.raises(SchemaError, match="--kind a=category"):
        read_frame(path)
    frame, _ = read_frame(path, Reading(kinds={"a": "category"}))
    assert cells(frame)["a"] == ["1", "2", "3", "x"]


# --- Excel, where openpyxl is there.


@pytest.fixture
def sheet(tmp_path):
    pytest.importorskip("openpyxl")
    table = pd.DataFrame({
        "ort": ["Köln", None, "=1+1", "Bonn"],
        "n": [1, 2, 3, 4],
        "x": [0.5, np.nan, 1.25, -3.0],
        "tag": pd.to_datetime(["2024-01-05", "2024-02-06", None, "2024-03-07"]),
        "ja": [True, False, True, True],
    })  # fmt: skip
    path = tmp_path / "t.xlsx"
    table.to_excel(path, index=False)
    return path


def test_excel_is_read(sheet):
    path = sheet
    frame, _ = read_frame(path, Reading(exclude=("ort",)))
    found = cells(frame)
    assert found["n"] == [1, 2, 3, 4]
    assert found["x"] == [0.5, None, 1.25, -3.0]
    assert found["ja"] == [True, False, True, True]
    assert [None if t is None else t.isoformat()[:10] for t in found["tag"]] == [
        "2024-01-05", "2024-02-06", None, "2024-03-07"]  # fmt: skip
    text, _ = read_frame(path, Reading(columns=("ort",)))
    assert cells(text)["ort"][0] == "Köln"
    assert "2" not in cells(text)["ort"], "nothing is computed"
    schema = km.Schema.infer(path)
    assert schema["tag"].kind == "time"
    assert schema["x"].gaps == 0.25


def test_excel_is_compared_with_the_same_rows_elsewhere(tmp_path):
    pytest.importorskip("openpyxl")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"w": rng.choice(["a", "b"], 40), "x": rng.normal(size=40).round(2)})
    table.to_excel(tmp_path / "t.xlsx", index=False)
    table.to_csv(tmp_path / "t.csv", index=False)
    found = km.compare(tmp_path / "t.xlsx", tmp_path / "t.csv", permutations=0, jackknife_groups=0)
    assert found.columns == ("w", "x")
    assert found.measure("mmd").value == pytest.approx(0, abs=1e-7)


def test_a_bomb_in_excel_is_refused_by_what_it_announces(sheet):
    path = sheet
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("xl/media/image1.bin", "w", force_zip64=True) as file,
    ):
        for _ in range(80):
            file.write(bytes(2**20))
    with pytest.raises(SizeError, match=r"t\.xlsx: announces"):
        read_frame(path)


def test_an_excel_file_without_a_sheet_of_rows_is_refused(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    openpyxl.Workbook().save(tmp_path / "t.xlsx")
    with pytest.raises(KermixError, match=r"t\.xlsx"):
        read_frame(tmp_path / "t.xlsx")
    with zipfile.ZipFile(tmp_path / "u.xlsx", "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(TableError, match=r"u\.xlsx: not a readable Excel file"):
        read_frame(tmp_path / "u.xlsx")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('a,"line\nbreak",c\n1,2,3\n', r"column 2, 'line\\nbreak', spans several lines"),
        ('a,"li""ne\r\nbreak"\r\n1,2\r\n', r"column 2, 'li\"ne\\r\\nbreak', spans"),
        ('"b\n",c\n1,2\n', r"column 1, 'b\\n', spans several lines"),
    ],
)
def test_a_name_over_several_lines_is_told(tmp_path, text, told):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    with pytest.raises(TableError, match=told):
        read_frame(path)


FIRST_OF_DATA = {
    "flowers": ("5.1,3.5,rose\n4.9,3.0,rose\n6.1,2.0,lily\n", ["x0", "x1", "x2"], "for data"),
    "passengers": ("1,male,22\n2,female,38\n3,male,26\n", ["x0", "x1", "x2"], "for data"),
    "years": ("country,2019,2020\nDE,1.5,2.5\nFR,1.0,2.0\n", ["country", "2019", "2020"], None),
    "quantiles": ("name,0.25,0.75\na,1.5,2.5\nb,1.0,2.0\n", ["name", "0.25", "0.75"],
                  "column names"),
    "words": ("sex,smoker\nmale,yes\nfemale,no\nmale,no\n", ["sex", "smoker"], None),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST_OF_DATA)
def test_a_line_of_numbers_and_words_is_data_if_its_words_come_again(case, tmp_path):
    text, names, said = FIRST_OF_DATA[case]
    frame, notes = read_frame(write(tmp_path / "t.csv", text))
    assert list(frame.columns) == names
    assert any(f"taken for {said}" in n or said in n for n in notes) if said else not notes


@pytest.mark.parametrize("late", [False, True])
def test_letters_of_windows_are_read_and_written(late, tmp_path):
    rows = ["Köln;1"] * 9000 if late else []
    text = "\n".join(["city;n", *rows, "\u201eBonn\u201c;2", "€uro;3", ""])
    path = write(tmp_path / "t.csv", text, "cp1252")
    frame, notes = read_frame(path)
    assert frame.columns["city"].to_pylist()[-2:] == ["\u201eBonn\u201c", "€uro"]
    assert frame.form.encoding == "cp1252"
    assert "read as Windows-1252" in notes[0]
    files = open_files([str(path)], typed=True)
    assert [n for n in files.notes if "Windows-1252" in n]


FIRST_LINES = {
    "spreadsheet": ("sep=;\na;b\n1;2\n", "'sep=;', is for spreadsheets"),
    "title": ("My report\na,b\n1,2\n", "line 2: 2 cells, and there is 1 column; remove the"),
    "names alone": ("a,b", "there are no rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST_LINES)
def test_what_is_above_a_table_is_said(case, tmp_path):
    text, said = FIRST_LINES[case]
    with pytest.raises(TableError, match=said):
        read_frame(write(tmp_path / "t.csv", text))


def test_what_is_no_text_of_its_encoding_is_said(tmp_path):
    with pytest.raises(TableError, match="not in utf-16"):
        read_frame(write(tmp_path / "t.csv", "a,b\n1,2\n"), Reading(encoding="utf-16"))
    lines = write(tmp_path / "t.jsonl", '{"a": "\u00fc"}\n', "latin-1")
    with pytest.raises(TableError, match="not readable as JSON lines"):
        read_frame(lines)


def test_files_of_the_same_columns_in_another_order_are_one_table(tmp_path):
    first = write(tmp_path / "1.csv", "a,b\n1,x\n")
    second = write(tmp_path / "2.csv", "b,a\ny,2\n")
    frame, _ = read_frame([first, second])
    assert {n: c.to_pylist() for n, c in frame.columns.items()} == {"a": [1, 2], "b": ["x", "y"]}


WRITTEN = {
    "thousands": ("a;b\n1.234,5;x\n2.345.678,25;y\n12,0;x\n",
                  "1.234,5;x\n2.345.678,25;y\n12,0;x\n"),
    "whole thousands": ('a,b\n"1,234",x\n"2,345,678",y\n', '"1,234",x\n"2,345,678",y\n'),
    "points first": ("a,b\n.5,x\n.25,y\n1.5,x\n", ".5,x\n.25,y\n1.5,x\n"),
    "minutes": ("a,b\n2020-01-05 15:57,x\n2020-02-05 10:07,y\n",
                "2020-01-05 15:57,x\n2020-02-05 10:07,y\n"),
    "clocks": ("a,b\n15:57,x\n10:07,y\n", "15:57,x\n10:07,y\n"),
    "microseconds": ("a,b\n2020-01-05 15:57:51.732550,x\n", "2020-01-05 15:57:51.732550,x\n"),
    "some parts of seconds": (
        "a,b\n2020-01-05T15:57:51.732551,x\n2020-01-05T15:57:51,y\n",
        "2020-01-05T15:57:51.732551,x\n2020-01-05T15:57:51,y\n",
    ),
    "minutes of a zone": ("a,b\n2020-01-05T15:57Z,x\n", "2020-01-05T15:57Z,x\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_cells_are_written_as_they_were_read(case, tmp_path):
    text, rows = WRITTEN[case]
    frame, _ = read_frame(write(tmp_path / "t.csv", text))
    assert "".join(csv_lines(pa.table(frame.columns), frame.form)) == rows
