"""Tables written piece by piece, and read again."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kermix as km
from internals import CsvForm, open_files, read_frame, spreadsheet_safe, table_writer, truth_words
from kermix.errors import OptionError, TableError

TABLE = pd.DataFrame({
    "n": np.arange(40) % 7 + 0.25,
    "whole": np.arange(40) * 3,
    "word": pd.Categorical(["a", "b", None, "ä=\"x\", y"] * 10),
    "when": pd.date_range("2020-01-01", periods=40, freq="h"),
})  # fmt: skip


def pieces():
    schema = km.Schema.infer(TABLE, kinds={"whole": "number"})
    encoded = schema.encode(TABLE)
    for start in range(0, 40, 15):
        yield schema.decode(encoded[start : start + 15], "arrow")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.csv.zst", "t.tsv.bz2",
                                  "t.parquet", "t.feather", "t.jsonl"])  # fmt: skip
def test_what_is_written_in_pieces_is_read_as_one(name, tmp_path):
    with table_writer(tmp_path / name) as writer:
        for piece in pieces():
            writer.write(piece)
    frame, _ = read_frame(tmp_path / name)
    assert frame.columns["n"].to_pylist() == TABLE["n"].tolist()
    assert frame.columns["whole"].to_pylist() == TABLE["whole"].tolist()
    words = [None if pd.isna(w) else w for w in TABLE["word"]]
    assert frame.columns["word"].to_pylist() == words
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_numbers_become_an_array(tmp_path):
    with table_writer(tmp_path / "t.npy") as writer:
        for piece in pieces():
            writer.write(piece.select(["n", "whole"]))
    assert (np.load(tmp_path / "t.npy") == TABLE[["n", "whole"]].to_numpy()).all()


def written(path, tables):
    with table_writer(path) as writer:
        for piece in tables:
            writer.write(piece)


def failing():
    yield next(pieces())
    raise TableError("stop")


def test_what_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(TableError, match="column word is not all numbers"):
        written(tmp_path / "t.npy", pieces())
    with pytest.raises(OptionError, match="tables are written as"):
        written(tmp_path / "t.x", pieces())
    with pytest.raises(TableError, match="stop"):
        written(tmp_path / "t.csv", failing())
    assert not list(tmp_path.iterdir())


def test_formulas_are_escaped():
    table = pa.table({"=a": ["=1+1", "+x", "-y", "@z", "\tq", "fine", None, "a=b"], "n": range(8)})
    safe = spreadsheet_safe(table)
    assert safe.column_names == ["'=a", "n"]
    assert safe["'=a"].to_pylist() == ["'=1+1", "'+x", "'-y", "'@z", "'\tq", "fine", None, "a=b"]
    assert safe["n"].to_pylist() == list(range(8))


@pytest.mark.parametrize("words", [("False", "True"), ("FALSE", "TRUE"), ("false", "true")])
def test_truth_values_are_written_as_they_were(words, tmp_path):
    member = np.random.default_rng(0).random(60) < 0.4
    lines = [f"{words[int(m)]},{k}" for k, m in enumerate(member)]
    lines[0] = ",0"  # a gap comes first
    text = "\n".join(["member,x", *lines, ""])
    (tmp_path / "t.csv").write_text(text)
    frame, _ = read_frame(tmp_path / "t.csv")
    again = CsvForm.from_dict(json.loads(json.dumps(frame.form.to_dict())))
    assert again == frame.form == open_files([str(tmp_path / "t.csv")]).parts[0].form
    with table_writer(tmp_path / "out.csv", form=again) as writer:
        writer.write(pa.table(frame.columns))
    assert (tmp_path / "out.csv").read_text() == text


def test_of_a_word_that_is_not_there_the_other_tells():
    found = truth_words(pa.array([True, None]), pa.array(["True", None]))
    assert found == ("False", "True")
    nothing = truth_words(pa.array([None], pa.bool_()), pa.array([None], pa.string()))
    assert nothing == ("false", "true")
