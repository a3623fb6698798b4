"""Reading tables: the rules for missing values and mixed types, and errors that name the cell."""

import numpy as np
import pandas as pd
import pytest
import torch

from internals import common_columns, read_table
from kermix.errors import TableError


def write(path, text):
    path.write_text(text)
    return path


def frame():
    return pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4, 5, 6], "on": [True, False, True]})


EXPECTED = torch.tensor([[1.0, 4, 1], [2, 5, 0], [3, 6, 1]], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_the_same_table_from_every_named_source(kind, tmp_path):
    source = frame() if kind == "frame" else tmp_path / f"t.{kind}"
    if kind == "csv":
        frame().to_csv(source, index=False)
    elif kind == "parquet":
        frame().to_parquet(source)
    table = read_table(source)
    assert table.columns == ["a", "b", "on"]
    torch.testing.assert_close(table.values, EXPECTED)


@pytest.mark.parametrize("kind", ["npy", "npz", "array", "tensor", "list"])
def test_the_same_numbers_from_every_array(kind, tmp_path):
    values = EXPECTED.numpy()
    source = {"array": values, "tensor": EXPECTED, "list": values.tolist()}.get(kind)
    if source is None:
        source = tmp_path / f"t.{kind}"
        np.save(source, values) if kind == "npy" else np.savez(source, data=values)
    table = read_table(source)
    assert table.columns == ["x0", "x1", "x2"]
    torch.testing.assert_close(table.values, EXPECTED)


def test_float32_stays_and_axes_after_the_first_are_flattened():
    table = read_table(np.ones((5, 2, 2), np.float32))
    assert table.values.dtype == torch.float32
    assert table.values.shape == (5, 4)
    assert read_table(torch.ones(3)).values.shape == (3, 1)


def test_rows_with_missing_values_are_left_out_and_counted(tmp_path):
    path = write(tmp_path / "t.csv", "a,b,c\n1,2,u\n,3,v\n4,NA,w\n5,6,\n")
    table = read_table(path)
    assert table.values.tolist() == [[1, 2], [5, 6]]
    assert (table.dropped, table.ignored) == (2, ("c",))
    assert "2 of 4 rows" in table.notes()[0]
    assert "c" in table.notes()[1]


def test_a_file_without_header_is_seen(tmp_path):
    table = read_table(write(tmp_path / "t.csv", "1;2\n3;4\n"))
    assert table.columns == ["x0", "x1"]
    assert table.values.tolist() == [[1, 2], [3, 4]]


def test_text_among_numbers_names_file_row_and_column(tmp_path):
    path = write(tmp_path / "t.csv", "a,b\n1,2\n2,oops\n3,4\n4,5\n")
    with pytest.raises(TableError, match=r"t\.csv, line 3, column b: 'oops'"):
        read_table(path)
    mixed = read_table(pd.DataFrame({"a": [1, 2, 3], "b": [1.0, "two", 3.0]}))
    assert (mixed.columns, mixed.ignored) == (["a"], ("b",))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n3\n", r"t\.csv, line 3: 1 cell, and there are 2 columns"),
        ("t.csv", "a,a\n1,2\n", "twice: a"),
        ("t.csv", "a,b\n1,inf\n", "row 2, column b: the value is infinite"),
        ("t.csv", "a,b\n1,\n,2\n", "no row is complete"),
        ("t.csv", "a,b\nu,v\nw,z\n", "no column holds numbers; it has a, b"),
        ("t.csv", "", "the file is empty"),
        ("t.csv", "\n1,2\n", "first line is empty"),
        ("t.csv", "a\0,b\0\n1\0,2\0\n", "not a text file in UTF-8"),
        ("t.xyz", "1", "files of type .xyz"),
        ("t.npy", "no", "not a readable NumPy file"),
        ("t.parquet", "no", "not a readable Parquet file"),
    ],
)
def test_unusable_files_say_why(name, text, message, tmp_path):
    with pytest.raises(TableError, match=message):
        read_table(write(tmp_path / name, text))


def test_a_file_that_is_not_there_and_an_archive_of_several(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(TableError, match="no such file"):
        read_table(tmp_path / "none")
    np.savez(tmp_path / "t.npz", a=np.ones((2, 1)), b=np.zeros((2, 1)))
    with pytest.raises(TableError, match=r"holds the arrays a, b; say which: .*t\.npz:a"):
        read_table(tmp_path / "t.npz")
    assert read_table(tmp_path / "t.npz", array="b").values.sum() == 0
    chosen = read_table(f"{tmp_path / 't.npz'}:b")
    assert chosen.values.sum() == 0
    assert chosen.name == "t.npz:b"
    with pytest.raises(TableError, match="'c' is not among them"):
        read_table(f"{tmp_path / 't.npz'}:c")
    with pytest.raises(TableError, match="a folder; name a file in it"):
        read_table(tmp_path)


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(TableError, match="not a readable NumPy file"):
        read_table(tmp_path / "t.npy")
    (tmp_path / "t.npy").write_bytes(b"\x01\x02 no array")
    with pytest.raises(TableError, match="not a readable NumPy file") as caught:
        read_table(tmp_path / "t.npy")
    assert "allow_pickle" not in str(caught.value)


def test_columns_are_matched_by_name_and_differences_listed():
    first = read_table(frame())
    second = read_table(frame()[["on", "b", "a"]])
    a, b = common_columns(first, second)
    assert a.columns == b.columns
    torch.testing.assert_close(a.values, b.values)
    with pytest.raises(TableError, match=r"only the first data frame has on\. .*a,b"):
        common_columns(first, read_table(frame()[["a", "b"]]))
    with pytest.raises(TableError, match="3 columns of numbers and list has 2"):
        common_columns(first, read_table([[1.0, 2.0]]))


def test_asked_columns_alone_are_read(tmp_path):
    path = write(tmp_path / "t.csv", "a,b,c\n1,2,u\n,3,v\n")
    assert read_table(path, columns=["b"]).values.tolist() == [[2], [3]]
    with pytest.raises(TableError, match="no column d; it has a, b, c"):
        read_table(path, columns=["d"])
    with pytest.raises(TableError, match="column c: holds string"):
        read_table(path, columns=["c"])
