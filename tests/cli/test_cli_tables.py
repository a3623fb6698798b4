"""Commands on tables as people have them."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kermix as km
from internals import app
from kermix.errors import KermixError


def run(*words):
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def table(seed, n=150):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "id": [f"K{k:04d}" for k in range(n)],
        "price": rng.lognormal(3, 1, n).round(2),
        "town": rng.choice(["Köln", "Bonn", "Aachen"], n),
        "rating": np.where(rng.random(n) < 0.3, np.nan, rng.integers(1, 6, n)),
        "visits": rng.integers(0, 300, n),
    })  # fmt: skip


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(0).to_csv("a.csv", index=False, sep=";", decimal=",", encoding="latin-1")
    table(1).assign(town="Köln").to_parquet("b.parquet")
    return tmp_path


def test_compare_reads_a_messy_file_and_names_the_column(files):
    shown = run("compare", "a.csv", "b.parquet", "--permutations", 19, "--jackknife-groups", 0)
    assert "decimal comma" in shown
    assert "Latin-1" in shown
    columns = shown.partition("what changed")[2]
    assert columns.index("town") < columns.index("price")
    assert "-> 100 %" in columns
    found = json.loads(run("compare", "a.csv", "b.parquet", "--permutations", 0,
                           "--jackknife-groups", 0, "--json", "--exclude", "town",
                           "--kind", "rating=number"))  # fmt: skip
    assert found["columns"] == ["price", "rating", "visits"]
    assert found["rows"] == [150, 150]


def test_a_report_of_mixed_rows_is_written(files):
    run(
        "compare",
        "a.csv",
        "b.parquet",
        "--permutations",
        19,
        "--jackknife-groups",
        0,
        "--report",
        "r.html",
    )
    assert "more Köln" in (files / "r.html").read_text()


def test_schema_prints_and_saves(files):
    shown = run("schema", "a.csv", "-o", "s.json", "--exclude", "visits")
    assert "category" in shown
    assert "Left out as keys: id." in shown
    schema = km.Schema.load("s.json")
    assert [c.kind for c in schema] == ["key", "number", "category", "category"]
    assert json.loads(run("schema", "b.parquet", "--json"))["format"] == "kermix schema"


def test_sketches_of_typed_files_are_compared(files):
    run("sketch", "b.parquet", "-o", "b.sketch", "--exclude", "id", "--rank", 20)
    table(2).to_csv("c.csv", index=False)
    run("sketch", "c.csv", "-o", "c.sketch", "--landmarks-from", "b.sketch")
    shown = run("compare", "b.sketch", "c.sketch")
    assert "MixedKernel" in shown


def test_spectrum_of_mixed_rows(files):
    shown = run("spectrum", "a.csv", "b.parquet", "--report", "s.html", "-k", 3)
    assert "singular value" in shown
    assert (files / "s.html").exists()


def test_a_header_of_years_is_told_and_can_be_denied(files):
    for name in ("x.csv", "y.csv"):
        (files / name).write_text("2011,2012,2013\n" + "42.5,1.5,2.5\n3,4,5\n" * 20)
    options = ("--permutations", 0, "--jackknife-groups", 0, "--json")
    found = json.loads(run("compare", "x.csv", "y.csv", *options))
    assert found["columns"] == ["2011", "2012", "2013"]
    assert "--no-header" in found["notes"][0]
    assert json.loads(run("compare", "x.csv", "y.csv", "--no-header", *options))["rows"] == [
        41,
        41,
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kind", "town"), "NAME=KIND"),
        (("--kind", "town=colour"), "NAME=KIND"),
        (("--kind", "nope=number"), "no column nope"),
        (("--columns", "nope"), "no column nope"),
        (("--decimal", "x"), "decimal"),
        (("--encoding", "klingon"), "not known"),
    ],
)
def test_options_that_cannot_be_followed(files, words, message):
    result = CliRunner().invoke(app, ["schema", "a.csv", *words])
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)
    assert result.exception is None or isinstance(result.exception, KermixError | SystemExit)
