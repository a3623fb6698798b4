"""Cells of text files as they are written: codes with leading zeros are no numbers."""

import gzip
import json

import pytest

import kermix as km
from internals import GAPS, Reading, open_files, read_alike, read_frame
from internals import delimited_module as delimited

ROWS = 60


def column(path, cells, name="c"):
    lines = [f"n,{name}", *(f"{k * k},{cell}" for k, cell in enumerate(cells))]
    content = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def repeated(*cells):
    return [cells[k % len(cells)] for k in range(ROWS)]


CODES = {
    "zip": ("01067", "50667", "53111"),
    "as one number": ("007", "07", "7"),
    "padded months": ("01", "10", "12"),
    "telephone numbers": ("+4930123456", "+4989123456", "+331234567"),
    "with gaps": ("00012", "", "NA", "00013"),
    "longer than numbers": ("12345678901234567890", "12345678901234567891"),
    "longer, with zeros": ("00123456789012345678901", "123456789012345678902"),
}
NUMBERS = {
    "fractions": ("0.5", "0", "-0.5"),
    "padded fractions": ("00.50", "01.25", "10.00"),
    "signs": ("-05", "012", "7"),
    "pluses": ("+1", "+2", "-3"),
    "one long number": ("12345678901234567890", "7", "0"),
    "exponents": ("1e5", "2e6", "0"),
    "zeros": ("0", "1", "10"),
}


@pytest.mark.parametrize("case", CODES)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_codes_stay_text(case, ending, tmp_path):
    cells = repeated(*CODES[case])
    frame, notes = read_frame(column(tmp_path / f"t{ending}", cells))
    expected = [None if c in ("", "NA") else c for c in cells]
    assert frame.columns["c"].to_pylist() == expected
    assert str(frame.columns["n"].type) == "int64"
    assert len([n for n in notes if "digits of c are text" in n and "--kind c=number" in n]) == 1
    schema = km.Schema.infer(frame)
    assert schema["c"].kind == "category"
    assert set(schema["c"].values) == {c for c in expected if c}
    again = schema.decode(schema.encode(frame), "arrow")
    assert again["c"].to_pylist() == expected


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_stay_numbers(case, tmp_path):
    cells = repeated(*NUMBERS[case])
    frame, notes = read_frame(column(tmp_path / "t.csv", cells))
    assert frame.columns["c"].to_pylist() == [float(c) for c in cells]
    assert not notes


def test_a_zero_may_come_late(tmp_path, monkeypatch):
    """The first leading zero is in another block than the first rows."""
    monkeypatch.setattr(delimited, "BLOCK", 64)
    cells = [*(["12345"] * ROWS), "01067"]
    path = column(tmp_path / "t.csv", cells)
    assert read_frame(path)[0].columns["c"].to_pylist() == cells
    files = open_files([str(path)], typed=True)
    tables = [t for part in files.parts for t, _ in part.tables()]
    assert len(tables) > 2
    assert [c for t in tables for c in t.column("c").to_pylist()] == cells


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("around", ["", '"', " "])
def test_codes_are_found_however_they_are_written(encoding, around, tmp_path):
    path = tmp_path / "t.csv"
    text = "".join(f"{k};{around}{c}{around};é\r\n" for k, c in enumerate(repeated("7", "07")))
    path.write_bytes(f"n;c;e\r\n{text}".encode(encoding))
    found = read_frame(path)[0].columns["c"].to_pylist()
    assert [c.strip() for c in found] == repeated("7", "07")


def test_what_is_said_counts(tmp_path):
    path = column(tmp_path / "t.csv", repeated("007", "7"))
    frame, notes = read_frame(path, Reading(kinds={"c": "number"}))
    assert set(frame.columns["c"].to_pylist()) == {7}
    assert not notes


def test_codes_are_alike_in_several_files(tmp_path):
    first = column(tmp_path / "a.csv", repeated("01067", "50667"))
    second = column(tmp_path / "b.csv", repeated("50667", "53111"))
    for order in ([first, second], [second, first]):
        frames = [frame for frame, _ in read_alike(order)]
        assert {str(f.columns["c"].type) for f in frames} == {"string"}
        assert km.Schema.infer(*order)["c"].values == ("01067", "50667", "53111")
        assert read_frame(order)[0].columns["c"].null_count == 0
        found = km.compare(*order, permutations=20, jackknife_groups=0)
        assert "c" in [c.column for c in found.verdict.columns]
    schema = km.Schema.infer(first)
    assert schema.encode(second, unseen="unknown").codes[0, 1] == 1
    words = column(tmp_path / "c.csv", repeated("x", "y"))
    with pytest.raises(km.errors.SchemaError, match="holds int64 and string"):
        km.Schema.infer(second, words)


def test_schemas_that_took_codes_for_numbers_read_them_so(tmp_path):
    path = column(tmp_path / "t.csv", repeated("01067", "50667"))
    old = km.Schema.infer({"n": [k * k for k in range(ROWS)], "c": [1067, 50667] * (ROWS // 2)})
    saved = json.loads(json.dumps(old.to_dict()))
    encoded = km.Schema.from_dict(saved).encode(path)
    assert encoded.codes[:2, -1].tolist() == [0, 1]


def test_codes_are_text_in_parts_of_files(tmp_path):
    path = column(tmp_path / "t.csv", repeated("01067", "50667"))
    files = open_files([str(path)], typed=True)
    table, _ = next(files.parts[0].tables())
    assert table.column("c").to_pylist()[:2] == ["01067", "50667"]


# --- Numbers and gaps as people write them.

MARKED = {
    "dash": ("1.5", "-", "2.25"),
    "dashes": ("7", "--", "9"),
    "question": ("1.5", "?", "-2"),
    "none": ("1e3", "None", "none", "2"),
    "with known ones": ("1.5", "n/a", "NA", "-", ""),
}


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("case", MARKED)
def test_marks_among_numbers_are_gaps(case, decimal, tmp_path):
    cells = repeated(*MARKED[case])
    path = tmp_path / "t.csv"
    rows = [f"{k * k},5;{c}".replace(",", decimal).replace(".", decimal)
            for k, c in enumerate(cells)]  # fmt: skip
    path.write_text("\n".join(["n;c", *rows, ""]))
    frame, notes = read_frame(path, Reading(decimal=decimal))
    expected = [None if c in GAPS else float(c) for c in cells]
    assert frame.columns["c"].to_pylist() == expected
    assert len([n for n in notes if "in c means missing" in n and "--kind c=category" in n]) == 1
    kept, notes = read_frame(path, Reading(decimal=decimal, kinds={"c": "category"}))
    assert str(kept.columns["c"].type) == "string"
    assert not [n for n in notes if "missing" in n]


def test_gaps_do_not_hide_a_decimal_comma(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("n;c\n1;1,5\n2;-\n3;NA\n4;2,25\n")
    frame, notes = read_frame(path)
    assert frame.columns["c"].to_pylist() == [1.5, None, None, 2.25]
    assert any("decimal comma" in n for n in notes)


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("wrong", [1, 4])
def test_a_wrong_cell_is_named_whatever_the_decimal_mark(decimal, wrong, tmp_path):
    """Few of 60 make the column text, and a note says so; more are a fault."""
    cells = [f"{k}{decimal}5" for k in range(ROWS)]
    cells[3 : 3 + wrong] = ["oops"] * wrong
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["n;c", *(f"{k};{c}" for k, c in enumerate(cells)), ""]))
    said = Reading(decimal=decimal)
    where = "line 5, column c: 'oops' is not a number"
    if wrong > ROWS / 20:
        with pytest.raises(km.errors.SchemaError, match=f"{where}, and most cells"):
            read_frame(path, said)
        return
    frame, notes = read_frame(path, said)
    assert frame.columns["c"].to_pylist() == cells
    assert [n for n in notes if where in n and n.endswith("as gaps: --missing oops.")] == notes
    assert not any("oops" in n for n in km.Schema.infer(frame).notes()), "which is said once"
    assert any("'oops'" in note for note in km.Schema.infer(path).notes())
    numbers, notes = read_frame(path, Reading(decimal=decimal, missing=("oops",)))
    assert str(numbers.columns["c"].type) == "double"
    assert notes == []


STRAY = {
    "one": (["unknown"], "'unknown' is not a number, so", "--missing unknown."),
    "two": (["unknown", "c"], "(nor is 'c'), so", "--missing c."),
    "seven": (
        ["a b", *"bcdefg"],
        "(nor are 'b', 'c', 'd', 'e' and more), so",
        "--missing e and so on.",
    ),
}


@pytest.mark.parametrize("case", STRAY)
@pytest.mark.parametrize("kind", ["csv", "dict"])
def test_few_words_among_numbers_make_text_and_are_told(case, kind, tmp_path):
    words, middle, end = STRAY[case]
    cells = [str(k * k) for k in range(1000)]
    cells[10 : 10 + len(words)] = words
    source = {"c": cells} if kind == "dict" else column(tmp_path / "t.csv", cells)
    frame, (note,) = read_frame(source)
    assert str(frame.columns["c"].type) == "string"
    assert ("row 10" if kind == "dict" else "t.csv, line 12") + ", column c: " in note
    assert middle in note
    assert f"all but {len(words)} of its 1,000 cells are numbers" in note
    assert note.endswith(end)
    kinds = Reading(kinds={"c": "number"})
    with pytest.raises(km.errors.SchemaError, match=f"{words[0]!r} is not a number"):
        read_frame(source, kinds)


def test_few_words_in_one_of_several_files_make_text_of_all(tmp_path):
    cells = [str(k * k) for k in range(1000)]
    paths = [column(tmp_path / "a.csv", cells), column(tmp_path / "b.csv", [*cells, "unknown"])]
    frame, (note,) = read_frame(paths)
    assert frame.columns["c"].to_pylist() == [*cells, *cells, "unknown"]
    assert "b.csv, line 1002, column c: 'unknown' is not a number" in note
    files = open_files([str(p) for p in paths], typed=True)
    assert files.notes == (note,)
    kinds = {str(t.schema.field("c").type) for part in files.parts for t, _ in part.tables()}
    assert kinds == {"string"}


SHIFTED = {
    "to the right": (",ann,7,1.5", "column age: 'ann' is not a number"),
    "to the left": ("7,1.5,rome,", "column size: 'rome' is not a number"),
    "two words": ("ann,rome,bob,rome", "column age: 'rome' is not a number"),
    "names again": ("name,age,size,city", "the names of columns are there again"),
}


@pytest.mark.parametrize("case", SHIFTED)
def test_a_shifted_row_is_a_fault_although_it_is_one(case, tmp_path):
    row, message = SHIFTED[case]
    lines = [f"{['ann', 'bob'][k % 2]},{k % 90},{k / 8},{['rome', 'oslo'][k % 3 // 2]}"
             for k in range(500)]  # fmt: skip
    lines[200] = row
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["name,age,size,city", *lines, ""]))
    with pytest.raises(km.errors.SchemaError, match=rf"t\.csv, line 202[,:] {message}"):
        read_frame(path)
    lines[200] = "ann,unknown,unknown,rome"  # the same word is no sign of that
    path.write_text("\n".join(["name,age,size,city", *lines, ""]))
    assert len(read_frame(path)[1]) == 2


def test_marks_among_words_and_codes_stay_text(tmp_path):
    for cells in (("a", "-", "b"), ("007", "-", "7"), ("-", "?", "--")):
        frame, notes = read_frame(column(tmp_path / "t.csv", repeated(*cells)))
        assert frame.columns["c"].to_pylist() == repeated(*cells)
        assert not [n for n in notes if "missing" in n]


GROUPED = {
    "German": (";", ("2.480,29", "7,5", "1.234.567,00", "-12"), [2480.29, 7.5, 1234567.0, -12.0]),
    "whole, German": (";", ("2.480", "7,5", "12"), [2480, 7.5, 12]),
    "English": (";", ("2,480.29", "7.5", "-1,234,567.5"), [2480.29, 7.5, -1234567.5]),
    "quoted": (",", ('"2,480"', "12", '"1,000,000"'), [2480, 12, 1000000]),
}


@pytest.mark.parametrize("case", GROUPED)
def test_marks_between_thousands_are_read(case, tmp_path):
    delimiter, cells, expected = GROUPED[case]
    path = tmp_path / "t.csv"
    rows = [f"{k}{delimiter}{c}" for k, c in enumerate(repeated(*cells))]
    path.write_text("\n".join([f"n{delimiter}c", *rows, ""]))
    frame, notes = read_frame(path)
    assert frame.columns["c"].to_pylist() == repeated(*expected)
    assert len([n for n in notes if "c has thousands separators" in n]) == 1


@pytest.mark.parametrize("cells", [("1,23,456", "1"), ("1,2345.5", "2.5"), ("12,", "1,234.5")])
def test_other_marks_are_no_thousands(cells, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["n;c", *(f"{k};{c}" for k, c in enumerate(repeated(*cells))), ""]))
    frame, notes = read_frame(path, Reading(decimal="."))
    assert frame.columns["c"].to_pylist() == repeated(*cells)
    assert not [n for n in notes if "thousands" in n]
