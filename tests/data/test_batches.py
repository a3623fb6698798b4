"""Files in batches: every row once, whatever the pieces; errors name the file, row and column."""

import gzip
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from internals import Reading, open_files, read_frame, read_table
from internals import delimited_module as csv_parts
from internals import parts_module as parts
from kermix.errors import SchemaError, TableError

VALUES = np.random.default_rng(0).normal(size=(500, 3))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(csv_parts, "BLOCK", 700)
    monkeypatch.setattr(csv_parts, "PART_BYTES", 3000)
    monkeypatch.setattr(parts, "PART_BYTES", 3000)
    monkeypatch.setattr(parts, "ROWS", 64)


def frame(values=VALUES):
    table = pd.DataFrame(values.copy(), columns=["a", "b", "c"])
    table["label"] = "text"
    return table


def rows(files):
    return np.concatenate([b.values for part in files.parts for b in part.batches()])


def write(path, table=None):
    table = frame() if table is None else table
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        table.to_csv(path, index=False, sep="\t")
    elif path.suffix == ".parquet":
        table.to_parquet(path, row_group_size=37)
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_every_row_is_read_once_and_in_order(suffix, small_pieces, tmp_path):
    path = write(tmp_path / f"data{suffix}")
    files = open_files([path])
    assert len(files.parts) > 3
    assert files.columns == ("a", "b", "c")
    assert files.ignored == ("label",)
    np.testing.assert_array_equal(rows(files), VALUES)
    size = sum(b.size for part in files.parts for b in part.batches())
    assert 0.95 * files.size <= size <= files.size


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i4"])
def test_numpy_files(order, dtype, small_pieces, tmp_path):
    values = np.asarray(VALUES * 10, dtype=dtype, order=order)
    np.save(tmp_path / "data.npy", values)
    files = open_files([str(tmp_path / "data.npy")], ["x2", "x0"] if order == "C" else None)
    assert len(files.parts) > 1
    expected = values[:, [2, 0]] if order == "C" else values
    np.testing.assert_array_equal(rows(files), expected)


@pytest.mark.parametrize("size", range(1000, 1013))
def test_lines_at_the_edges_of_pieces_are_neither_lost_nor_doubled(size, monkeypatch, tmp_path):
    monkeypatch.setattr(csv_parts, "PART_BYTES", size)
    monkeypatch.setattr(csv_parts, "BLOCK", 97)
    path = tmp_path / "data.csv"
    path.write_text("".join(f"{k % 10}\n" for k in range(2000)))  # two bytes a line
    assert rows(open_files([str(path)]))[:, 0].tolist() == [k % 10 for k in range(2000)]


def test_the_rules_are_those_of_tables(small_pieces, tmp_path):
    table = frame()
    table.loc[3, "a"] = np.nan
    table.loc[400, "c"] = np.nan
    table["flag"] = table["a"] > 0
    table["whole"] = np.arange(len(table))
    for suffix in (".csv", ".parquet"):
        path = write(tmp_path / f"data{suffix}", table)
        whole, files = read_table(path), open_files([path])
        assert list(files.columns) == whole.columns
        np.testing.assert_array_equal(rows(files), whole.values.numpy())
        assert sum(b.dropped for p in files.parts for b in p.batches()) == whole.dropped == 2


def test_text_in_quotes_may_hold_line_ends(small_pieces, tmp_path):
    lines = [f'{k},"a ""word""\nand {k}"\n' for k in range(300)]
    (tmp_path / "data.csv").write_text("n,text\n" + "".join(lines))
    files = open_files([str(tmp_path / "data.csv")])
    assert rows(files)[:, 0].tolist() == list(range(300))


@pytest.mark.parametrize("line", [3, 250, 500])
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("1,inf,2,text", "column b: the value is infinite"),
        ("1,2", "2 cells, and there are 4 columns"),
        ("1,2,3,4,5", "5 cells, and there are 4 columns"),
    ],
)
def test_bad_cells_are_named(line, cells, message, small_pieces, tmp_path):
    path = tmp_path / "data.csv"
    write(path)
    lines = path.read_text().splitlines()
    lines[line - 1] = cells
    path.write_text("\n".join(lines))
    with pytest.raises(TableError, match=rf"data\.csv, line {line}[,:].*{message}"):
        rows(open_files([str(path)]))


def test_a_row_far_down_a_long_file(tmp_path):
    """Line 1,234,567, in another block than the one that told the types."""
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("n,m\n" + "1.5,123456789.125\n" * 1_234_565 + "1.5\n" + "2,3\n" * 10)
    with pytest.raises(TableError, match=r"long\.csv, line 1234567: 1 cell, and there are 2"):
        open_files([str(path)])


def test_a_code_far_down_a_long_file_makes_text_of_its_column(small_pieces, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("n,m\n" + "1.5,98102\n" * 3000 + "1.5,98102-5783\n" + "2,98103\n" * 10)
    files = open_files([str(path)])
    assert (files.columns, files.ignored) == (("n",), ("m",))
    tables = [t for part in open_files([str(path)], typed=True).parts for t, _ in part.tables()]
    assert {str(t.schema.field("m").type) for t in tables} == {"string"}


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("15:57", "time32[s]"),
        ("true", "bool"),
        ("1,234.5", "double"),
        ("2020-01-05", "date32[day]"),
    ],
)
def test_a_block_of_gaps_alone_has_the_type_of_the_others(cell, kind, small_pieces, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("n;m\n" + f"x;{cell}\n" * 900 + "x;-\n" * 900 + f"x;{cell}\n" * 9)
    files = open_files([str(path)], typed=True)
    tables = [t for part in files.parts for t, _ in part.tables()]
    assert {str(t.schema.field("m").type) for t in tables} == {kind}
    assert sum(t.column("m").null_count for t in tables) == 900


def test_truth_values_in_two_spellings_are_text_wherever_they_begin(small_pieces, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("n,m\n" + "x,0\nx,1\n" * 900 + "x,true\nx,false\n" * 900)
    (first, *_) = open_files([str(path)], typed=True).parts
    assert str(next(first.tables())[0].schema.field("m").type) == "string"


@pytest.mark.parametrize("typed", [True, False])
def test_a_word_far_down_a_long_file_is_named_with_its_line(typed, small_pieces, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("n,m\n" + '"1.5",7\n\n' * 3000 + "1.5,word\n" + "2,3\n" * 10)
    where = r"long\.csv, line 6002, column m: 'word' is not a number, so the column is text"
    for found in (open_files([str(path)], typed=typed), read_frame(path)[1]):
        notes = found.notes if hasattr(found, "notes") else found
        assert len(notes) == 1
        assert re.search(where, notes[0])
        assert "all but 1 of its 3,011 cells" in notes[0]
        assert notes[0].endswith("--missing word.")
    assert open_files([str(path)], ["n"], typed=typed).columns == ("n",)
    if not typed:
        with pytest.raises(TableError, match=where):
            open_files([str(path)], ["m"])
    said = Reading(kinds={"m": "number"})
    with pytest.raises(SchemaError, match=r"line 6002, column m: 'word' is not a number, and"):
        open_files([str(path)], typed=typed, reading=said)
    numbers = open_files([str(path)], reading=Reading(missing=("word",)))
    assert numbers.columns == ("n", "m")


def test_many_words_far_down_are_a_fault(small_pieces, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("n,m\n" + "".join(f"1.5,{k}\n" for k in range(3000)) + "1.5,word\n" * 200)
    with pytest.raises(
        SchemaError, match=r"line 3002, column m: 'word' is not a number, and most"
    ):
        open_files([str(path)])
    assert open_files([str(path)], ["n"]).columns == ("n",)


def damaged_page(path):
    content = bytearray(path.read_bytes())
    content[1000:4000] = bytes(3000)
    path.write_bytes(content)


DAMAGE = {
    "truncated Parquet": (".parquet", lambda p: p.write_bytes(p.read_bytes()[:-20])),
    "damaged page": (".parquet", damaged_page),
    "not Parquet": (".parquet", lambda p: p.write_text("hello")),
    "truncated NumPy": (".npy", lambda p: p.write_bytes(p.read_bytes()[:-8])),
    "not NumPy": (".npy", lambda p: p.write_text("hello")),
    "objects": (".npy", lambda p: np.save(p, np.array(["a", "b"]))),
    "empty text": (".csv", lambda p: p.write_text("")),
    "missing": (".csv", lambda p: p.unlink()),
    "folder": (".csv", lambda p: (p.unlink(), p.mkdir())),
    "no numbers": (".csv", lambda p: p.write_text("a,b\nx,y\nz,w\n")),
    "no rows": (".csv", lambda p: p.write_text("a,b\n")),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_files_are_named(case, tmp_path):
    suffix, damage = DAMAGE[case]
    path = tmp_path / f"bad{suffix}"
    np.save(path, VALUES) if suffix == ".npy" else write(path)
    damage(path)
    with pytest.raises(TableError, match="bad"):
        rows(open_files([str(path)]))


def test_another_schema_in_the_middle_is_named(tmp_path):
    for k in range(3):
        write(tmp_path / f"{k}.parquet")
    frame().drop(columns="b").to_parquet(tmp_path / "1.parquet")
    with pytest.raises(TableError, match=r"1\.parquet: there is no column b; .*0\.parquet has it"):
        open_files([str(tmp_path)])
    frame().assign(extra=1.0).to_parquet(tmp_path / "1.parquet")
    with pytest.raises(TableError, match=r"1\.parquet: column extra is not in .*0\.parquet"):
        open_files([str(tmp_path)])
    assert len(rows(open_files([str(tmp_path)], ["b", "a"]))) == 1500
    frame().assign(b="x").to_parquet(tmp_path / "1.parquet")
    with pytest.raises(TableError, match=r"1\.parquet: column b holds no numbers"):
        open_files([str(tmp_path)])


def test_addresses(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    first, _ = write(tmp_path / "1.csv"), write(tmp_path / "2.csv")
    everything = open_files([str(tmp_path / "*.csv"), first, str(tmp_path)])
    assert len(everything.addresses) == 2, "each file once"
    assert len(open_files([f"file://{tmp_path}/*.csv"]).addresses) == 2
    memory = fsspec.filesystem("memory")
    for suffix in ("csv", "parquet"):
        write(tmp_path / f"1.{suffix}")
        memory.pipe(f"/kermix-test/1.{suffix}", (tmp_path / f"1.{suffix}").read_bytes())
        found = open_files([f"memory://kermix-test/*.{suffix}"])
        np.testing.assert_array_equal(rows(found), VALUES)
    for bad in ("*.none", "memory://nothing/*.csv"):
        with pytest.raises(TableError, match="no file matches this name"):
            open_files([bad])
    with pytest.raises(TableError, match="nosuch"):
        open_files(["nosuch://a/b.csv"])
    (tmp_path / "x.docx").write_bytes(b"")
    with pytest.raises(TableError, match="docx are not read"):
        open_files([str(tmp_path / "x.docx")])
    memory.pipe("/kermix-test/1.jsonl", b'{"a": 1}\n')
    with pytest.raises(TableError, match="only read from this machine"):
        open_files(["memory://kermix-test/1.jsonl"])


@pytest.mark.parametrize("order", ["C", "F"])
def test_columns_of_numpy_files_come_in_the_order_they_are_asked_for(order, tmp_path):
    np.save(tmp_path / "data.npy", np.asarray(VALUES, order=order))
    files = open_files([str(tmp_path / "data.npy")], ["x1", "x2", "x0"])
    np.testing.assert_array_equal(rows(files), VALUES[:, [1, 2, 0]])


@pytest.mark.parametrize("size", range(2000, 2040, 3))
def test_text_in_quotes_may_come_late(size, monkeypatch, tmp_path):
    monkeypatch.setattr(csv_parts, "BLOCK", 700)
    monkeypatch.setattr(csv_parts, "PART_BYTES", size)
    lines = [f"{k},0,plain\n" for k in range(200)]
    lines += [f'{k},0,"one\n{k},7,two"\n' for k in range(200, 600)]
    (tmp_path / "data.csv").write_text("n,zero,text\n" + "".join(lines))
    files = open_files([str(tmp_path / "data.csv")])
    found = rows(files)
    assert found[:, 0].tolist() == list(range(600))
    assert not found[:, 1].any()
    piece = files.parts[0].piece(np.random.default_rng(0))
    assert all((b.values[:, 1] == 0).all() for b in piece.batches())


def test_names_that_differ_by_spaces_are_the_same(tmp_path):
    (tmp_path / "data.csv").write_text("a, a\n1,2\n")
    with pytest.raises(TableError, match="appear twice: a"):
        open_files([str(tmp_path / "data.csv")])


# --- Text as people have it, in pieces.

WORDS = ["Köln", "Bonn", "Çorum", "naïve, truly", "x"]


def messy(n=400):
    return pd.DataFrame({
        "ort": [WORDS[k % 5] for k in range(n)], "n": np.arange(n) + 0.5, "m": np.arange(n) % 7
    })  # fmt: skip


def cells(path, **said):
    """All rows of a file, in order, what was noted, and how many parts it has."""
    files = open_files([str(path)], typed=True, reading=Reading(**said))
    tables = [pa.table(t) if isinstance(t, pa.Table) else pa.Table.from_batches([t])
              for part in files.parts for t, _ in part.tables()]  # fmt: skip
    return pa.concat_tables(tables).to_pandas(), files


@pytest.mark.parametrize("packed", [None, ".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("decimal", [".", ","])
def test_messy_text_is_read_in_pieces(packed, encoding, decimal, small_pieces, tmp_path):
    text = messy().to_csv(index=False, sep=";", decimal=decimal).encode(encoding)
    path = tmp_path / f"t.csv{packed or ''}"
    with pa.output_stream(path, compression="detect" if packed else None) as stream:
        stream.write(text)
    found, files = cells(path)
    assert found["ort"].tolist() == messy()["ort"].tolist()
    assert found["n"].tolist() == messy()["n"].tolist()
    assert (len(files.parts) > 1) == (packed is None and encoding != "utf-16")
    assert any("Latin-1" in note for note in files.notes) == (encoding == "latin-1")
    assert any("decimal comma" in note for note in files.notes) == (decimal == ",")
    sizes = [size for part in files.parts for _, size in part.tables()]
    assert 0.9 * path.stat().st_size <= sum(sizes) <= path.stat().st_size
    said, files = cells(path, encoding=encoding, decimal=decimal, delimiter=";", header=True)
    assert said.equals(found)
    assert not files.notes


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_letter_of_latin_1_may_come_late(packed, quoted, small_pieces, tmp_path):
    """Far beyond the lines that were looked at, before or after a quotation mark."""
    lines = ["ort,n\n", *["Bonn,1\n"] * 20_000, "Köln,2\n", '"a,b",3\n' if quoted else "a,3\n"]
    content = "".join(lines).encode("latin-1")
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    found, files = cells(path)
    assert found["ort"].tolist()[-3:] == ["Bonn", "Köln", "a,b" if quoted else "a"]
    assert "read as Latin-1" in files.notes[-1]
    assert (len(files.parts) == 1) == (packed or quoted)
    with pytest.raises(TableError, match=r"t\.csv"):
        cells(path, encoding="utf-8")


def test_a_header_can_be_denied_in_pieces(small_pieces, tmp_path):
    (tmp_path / "t.csv").write_text("2011,2012\n" + "1.5,2.5\n" * 500)
    assert rows(open_files([str(tmp_path / "t.csv")])).shape == (500, 2)
    found = open_files([str(tmp_path / "t.csv")], reading=Reading(header=False))
    assert rows(found).shape == (501, 2)
    assert rows(found)[0].tolist() == [2011, 2012]
    assert "--no-header" in open_files([str(tmp_path / "t.csv")]).notes[0]


@pytest.mark.parametrize("suffix", [".feather", ".jsonl", ".jsonl.gz", ".xlsx", ".npz"])
def test_files_that_are_read_whole_come_in_batches_too(suffix, small_pieces, tmp_path):
    path = tmp_path / f"t{suffix}"
    table = messy()
    if suffix == ".feather":
        table.to_feather(path)
    elif suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        table.to_excel(path, index=False)
    elif suffix == ".npz":
        table = table[["n", "m"]]
        np.savez(path, table.to_numpy())
        table.columns = ["x0", "x1"]
    else:
        table.to_json(path, orient="records", lines=True, force_ascii=False)
    found, files = cells(path)
    assert found.astype(str).equals(table.astype({table.columns[-1]: found.iloc[:, -1].dtype})
                                    .astype(str))  # fmt: skip
    assert len(list(files.parts[0].tables())) == 7
    numbers = open_files([str(path)])
    assert rows(numbers)[:, 0].tolist() == table.iloc[:, -2].tolist()


@pytest.mark.parametrize("cell", ['"4,5', '4,"5'])
def test_a_quotation_mark_that_is_never_closed_is_found(cell, small_pieces, tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(f"a,b\n1,2\n{cell}\n".encode() + b"4,5\n" * 60_000))
    with pytest.raises(TableError, match=r"t\.csv\.gz, line 3: a quotation mark"):
        cells(path)


@pytest.mark.parametrize("packed", [".gz", ".zst", ".bz2"])
def test_packed_files_that_are_damaged_are_named(packed, tmp_path):
    path = tmp_path / f"t.csv{packed}"
    rng = np.random.default_rng(0)
    with pa.output_stream(path, compression="detect") as stream:
        stream.write(("a\n" + "".join(f"{x}\n" for x in rng.random(40_000))).encode())
    whole = path.read_bytes()
    for content in (b"no", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(TableError, match=rf"t\.csv\{packed}"):
            rows(open_files([str(path)]))
