"""fit, sample, compare and evaluate, as in the README, of a table with ids and free text."""

import re
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import kermix as km
from commands import kermix
from internals import TableMixture, drawn_parts, open_run
from kermix.errors import SchemaError, TableError

TINY = ["--width", "16", "--blocks", "1", "--steps", "40", "--learning-rate", "0.01"]
FAST = ["--permutations", "50"]
IDS = ("order", "invoice", "token", "number")
WORDS = ["late", "a gift", "call first", "left with a neighbour", "fragile", "no bell", "ask Eva"]


def orders(rows=300, seed=0):
    """Ids of several kinds, days with gaps, a category, numbers, remarks."""
    rng = np.random.default_rng(seed)
    town = rng.choice(["Köln", "Bonn", "Aachen"], rows, p=[0.5, 0.3, 0.2])
    day = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, rows), "D"))
    remarks = [f"{', '.join(rng.choice(WORDS, 3))} ({chr(97 + k % 26)})" for k in range(rows)]
    return pd.DataFrame(
        {
            "order": [f"T-{k}" for k in 104_233 + np.sort(rng.permutation(9 * rows)[:rows])],
            "invoice": [f"{2013 + 4 * k // rows}-{1700 + k:06d}" for k in range(rows)],
            "token": [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(rows)],
            "paid": day.where(rng.random(rows) < 0.8).dt.strftime("%Y-%m-%d"),
            "town": town,
            "price": np.round(20 * rng.lognormal(0, 0.8, rows) + 30 * (town == "Bonn"), 2),
            "note": [text if k % 4 else None for k, text in enumerate(remarks)],
            "items": rng.integers(1, 60, rows),
            "number": np.arange(5001, 5001 + rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table, a run, and samples of it."""
    place = tmp_path_factory.mktemp("orders")
    orders().to_csv(place / "orders.csv", index=False)
    kermix("fit", place / "orders.csv", *TINY, "--out", place / "run")
    said = kermix("sample", place / "run", "-n", 700, "-o", place / "new.csv").stdout
    (place / "said.txt").write_text(said)
    new = pd.read_csv(place / "new.csv")
    new.drop(columns=["note", "paid"]).assign(stock=1).to_csv(place / "fewer.csv", index=False)
    new.assign(order=range(700), town="7").to_csv(place / "types.csv", index=False)
    return place


def words(text):
    return " ".join(text.split())


def check_ids(new, old):
    assert list(new.columns) == list(old.columns)
    for name in IDS:
        assert new[name].is_unique, name
        assert not set(new[name]) & set(old[name]), name
    assert new["order"].str.fullmatch(r"T-1\d{5}").all()
    assert new["invoice"].str.fullmatch(r"201\d-00\d{4}").all()
    assert {uuid.UUID(text).version for text in new["token"]} == {4}
    assert new["number"].dtype == old["number"].dtype
    assert new["note"].isna().all()


def test_samples_have_all_columns_and_new_ids(folder):
    old, new = (pd.read_csv(folder / name) for name in ("orders.csv", "new.csv"))
    assert len(new) == 700
    check_ids(new, old)
    assert (folder / "said.txt").read_text().splitlines()[1:] == [
        "note is empty: free text is not modelled."
    ]


def test_a_column_of_lists_and_one_without_a_name_are_said_too(tmp_path):
    lists = pa.array([[k % 3] for k in range(60)])
    size = pa.array(np.random.default_rng(0).normal(size=60))
    table = pa.table({"": pa.array(range(60)), "tags": lists, "size": size})
    parquet.write_table(table, tmp_path / "t.parquet")
    said = kermix("fit", tmp_path / "t.parquet", *TINY, "--out", tmp_path / "run").stdout
    assert "because (no name) is a key" in words(said)
    said = kermix("sample", tmp_path / "run", "-n", 5, "-o", tmp_path / "new.parquet").stdout
    assert "tags is empty: what holds list<element: int64> is not modelled." in words(said)
    new = parquet.read_table(tmp_path / "new.parquet")
    assert new.column_names == ["", "tags", "size"]
    assert new[""].to_pylist() == [60, 61, 62, 63, 64]


def test_samples_of_conditions_and_samples_far_from_the_data_have_ids_too(folder, tmp_path):
    kermix("sample", folder / "run", "-n", 50, "-o", tmp_path / "given.csv", "--given",
           "town=Bonn", "--deduplicate", "--min-distance", "0.001")  # fmt: skip
    new = pd.read_csv(tmp_path / "given.csv")
    check_ids(new, pd.read_csv(folder / "orders.csv"))
    assert set(new["town"]) == {"Bonn"}


def test_ids_do_not_depend_on_how_many_are_drawn_at_a_time(folder, monkeypatch):
    run = open_run(folder / "run")
    whole = run.sample(700, seed=3)
    monkeypatch.setattr("internals.table_run_module.network_rows_at_once", lambda network: 32)
    parts = [part.to_pandas() for part in run.sample_parts(700, seed=3)]
    assert len(parts) > 1
    joined = pd.concat(parts, ignore_index=True)
    for name in IDS:
        assert joined[name].tolist() == whole[name].tolist(), name
    assert not run.sample(700, seed=4)["order"].equals(whole["order"])
    assert run.model().sample(0).shape == (0, 9)


def test_samples_are_compared_without_a_word_on_ids_that_differ(folder):
    said = words(kermix("compare", folder / "orders.csv", folder / "new.csv", *FAST).stdout)
    table, _, notes = said.partition("Left out as keys: order, invoice, token, number.")
    assert notes.startswith(" Left out as free text: note.")
    assert not any(name in re.findall(r"\w+", table) for name in (*IDS, "note"))
    for name in ("paid", "town", "price", "items"):
        assert name in table
    strict = kermix("compare", folder / "orders.csv", folder / "new.csv", *FAST, "--strict")
    assert words(strict.stdout) == said


def test_samples_are_evaluated_without_their_ids(folder):
    said = words(kermix("evaluate", folder / "orders.csv", folder / "new.csv", *FAST).stdout)
    assert "Left out as keys: order, invoice, token, number." in said
    result = km.evaluate(folder / "orders.csv", folder / "new.csv", permutations=50, strict=True)
    names = {name for (name,), _ in result.tables.shape.each}
    assert names == {"paid", "town", "price", "items"}


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_tables_with_other_columns_are_compared_by_those_of_both(folder, command):
    files = folder / "orders.csv", folder / "fewer.csv"
    said = words(kermix(command, *files, *FAST).stdout)
    assert (
        "Compared by the columns that both have; left out: paid, note (only in orders.csv); "
        "stock (only in fewer.csv)." in said
    )
    with pytest.raises((SchemaError, TableError), match=r"only orders.csv has paid, note; only"):
        kermix(command, *files, *FAST, "--strict")


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_columns_of_other_types_are_left_out(folder, command):
    files = folder / "orders.csv", folder / "types.csv"
    said = words(kermix(command, *files, *FAST).stdout)
    assert (
        "left out: order (text in orders.csv, numbers in types.csv); town (text in orders.csv, "
        "numbers in types.csv)." in said
    )
    with pytest.raises(SchemaError, match="Column order holds int64 and string"):
        kermix(command, *files, *FAST, "--strict")


@pytest.mark.parametrize("strict", [True, False])
def test_tables_without_a_common_column_are_refused(strict):
    x, y = pd.DataFrame({"a": [0.5, 1.5] * 9}), pd.DataFrame({"b": [0.5, 1.5] * 9})
    for judge in (km.compare, km.evaluate):
        with pytest.raises((SchemaError, TableError), match=r"no column in common|columns differ"):
            judge(x, y, strict=strict)


def test_row_numbers_of_tables_of_numbers_are_not_compared():
    rng = np.random.default_rng(0)
    x, y = (pd.DataFrame({"row": range(first, first + 150), "a": rng.normal(size=150)})
            for first in (0, 500))  # fmt: skip
    found = km.compare(x, y, permutations=50)
    assert found.columns == ("a",)
    assert "Left out as keys: row." in found.reading_notes
    assert km.compare(x[["row"]], y[["row"]], permutations=50).verdict.different


def test_a_table_trained_from_disk_knows_the_ids_of_all_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("internals.training_data_module.scan.__defaults__", (64,))
    monkeypatch.setattr("internals.training_data_module.MOST_VALUES", 10)
    data = orders(300)
    data["order"] = [f"T-{100_000 + 7 * k % 3100}" for k in range(300)]
    data.to_parquet(tmp_path / "t.parquet")
    kermix("fit", tmp_path / "t.parquet", *TINY, "--from-disk", "--out", tmp_path / "run")
    new = open_run(tmp_path / "run").sample(1500)
    check_ids(new, data)


def test_a_mixture_that_was_better_makes_ids_too():
    normal = km.GaussianMixture(torch.ones(1), torch.zeros(1, 2), torch.ones(1))
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"code": [f"{k:04d}-X" for k in range(10, 310)],
                          "a": rng.normal(size=300), "b": rng.normal(size=300)})  # fmt: skip
    model = TableMixture(km.Schema.infer(table), normal, "pandas", "one Gaussian")
    new = pd.concat([part.to_pandas() for part in drawn_parts(model, 17_000, seed=0)])
    assert list(new) == ["code", "a", "b"]
    assert new["code"].is_unique
    assert not set(new["code"]) & set(table["code"])
    assert new["code"].str.fullmatch(r"\d{4,5}-X").all()
    assert model.sample(3)["code"].tolist() == ["0310-X", "0311-X", "0312-X"]
