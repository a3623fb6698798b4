"""Tables that are trained from disk: the same model, in little memory, resumed, of many files."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from pyarrow import parquet

import kermix as km
from commands import kermix
from internals import (
    OtherRows,
    RowStore,
    TableModelSettings,
    begin_fit,
    load_checkpoint,
    look_at_large,
    open_files,
    open_run,
    scan,
    schema_of,
    table_split,
)
from internals import table_training_module as table_model
from internals import training_data_module as table_store
from internals import training_rows_module as table_rows
from internals import training_rows_split_rows as split_rows
from kermix import EncodedTable, errors

TINY = {"width": 16, "blocks": 1, "steps": 40, "learning_rate": 0.01, "device": "cpu"}


def orders(rows=900, seed=0):
    rng = np.random.default_rng(seed)
    town = rng.choice(["Köln", "Bonn", "Aachen"], rows, p=[0.6, 0.39, 0.01])
    bill = rng.lognormal(3, 1, rows).round(2)
    return pd.DataFrame({
        "town": town, "bill": bill, "paid": np.where(rng.random(rows) < 0.6, bill, 0.0),
        "rating": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(1, 6, rows)),
        "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
    })  # fmt: skip


def trained(source, out, steps=None, **options):
    """A run without its report, stopped after some steps if that is said."""
    run, data = begin_fit(source, out=out, **{"from_disk": True, **TINY, **options})
    trainer = run.trainer(data)
    run.train(trainer, should_stop=lambda: steps is not None and trainer.step >= steps)
    assert steps is None or 0 < trainer.step < TINY["steps"]
    return run, trainer


def goes_on(run):
    run = open_run(run.folder)
    run.train(run.trainer(run.dataset()))


def weights(run):
    return load_checkpoint(run.checkpoints / "model.safetensors")[0]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    table = orders()
    table.to_parquet(path / "orders.parquet", row_group_size=100)
    for k in range(3):
        part = table.iloc[300 * k : 300 * (k + 1)]
        part.to_parquet(path / f"part-{k}.parquet", row_group_size=70)
    return path


@pytest.fixture(scope="module")
def run(folder):
    return km.fit(folder / "orders.parquet", from_disk=True, out=folder / "disk", **TINY)


def test_from_disk_is_bit_for_bit_what_memory_gives(run, folder):
    other = km.fit(folder / "orders.parquet", from_disk=False, out=folder / "memory", **TINY)
    assert same(weights(run), weights(other))
    assert schema_of(run).to_dict() == schema_of(other).to_dict() | {"frame": schema_of(run).frame}
    told = [json.loads((r.folder / "result.json").read_text()) for r in (run, other)]
    for name in ("log_density", "auc", "copies", "copies_held"):
        assert told[0][name] == pytest.approx(told[1][name], abs=1e-6), name
    assert run.sample(5, seed=3).equals(other.sample(5, seed=3))
    assert any("trained from disk" in note for note in run.notes(None))
    assert "--from-disk" in run.command()
    assert "--from-disk" not in other.command()


def test_several_files_are_one_table(run, folder):
    several, _ = trained(str(folder / "part-*.parquet"), folder / "parts")
    assert same(weights(run), weights(several))
    assert several.config["shape"] == [900, 5]


def test_stopped_and_resumed_without_the_source_ends_with_the_same_weights(run, folder, tmp_path):
    source = tmp_path / "gone.parquet"
    orders().to_parquet(source, row_group_size=100)
    again, _ = trained(source, tmp_path / "run", steps=25)
    source.unlink()  # all rows are in the folder
    goes_on(again)
    assert same(weights(run), weights(again))


def test_rows_that_were_changed_are_noticed(folder, tmp_path):
    begun, _ = begin_fit(folder / "orders.parquet", from_disk=True, out=tmp_path / "run", **TINY)
    content = bytearray((tmp_path / "run" / "rows.bin").read_bytes())
    content[5] ^= 1
    (tmp_path / "run" / "rows.bin").write_bytes(content)
    with pytest.raises(errors.RunError, match="has changed"):
        begun.dataset()
    (tmp_path / "run" / "rows.bin").unlink()
    with pytest.raises(errors.RunError, match="cannot be read"):
        begun.dataset()


@pytest.mark.parametrize("sample", [40, 899, 900, 901])
def test_a_look_finds_what_a_sample_misses(folder, tmp_path, sample):
    table = orders()
    table.loc[777, "town"] = "Ulm"
    table.loc[432, "bill"] = 9e6
    table.loc[11, "bill"] = -5.0
    table.loc[650, "day"] = pd.NaT
    table["rating"] = table["rating"].fillna(2)
    table.loc[888, "rating"] = np.nan
    table["row"] = np.arange(len(table)) + 17
    table.to_parquet(tmp_path / "t.parquet", row_group_size=64)
    look = scan(open_files([str(tmp_path / "t.parquet")], typed=True), 5, sample)
    assert look.rows == 900
    assert look.sample.rows <= min(900, sample + 40)
    large = look_at_large(tmp_path / "t.parquet", {}, 5, sample).schema
    whole = km.Schema.infer(table)
    assert large["town"].values == whole["town"].values
    assert (large["bill"].low, large["bill"].high) == (-5.0, 9e6)
    assert large["day"].has_missing
    assert large["rating"].has_missing
    assert large["row"].kind == whole["row"].kind == "key"


def test_the_sample_is_drawn_evenly(tmp_path):
    pd.DataFrame({"x": np.arange(5000) % 977 + 0.5}).to_parquet(tmp_path / "t.parquet",
                                                               row_group_size=500)  # fmt: skip
    files = open_files([str(tmp_path / "t.parquet")], typed=True)
    table = pyarrow.table({"x": np.arange(5000) + 0.5})
    parquet.write_table(table, tmp_path / "n.parquet", row_group_size=500)
    files = open_files([str(tmp_path / "n.parquet")], typed=True)
    found = [np.array(scan(files, s, 500).sample.columns["x"]) for s in range(8)]
    shares = np.histogram(np.concatenate(found), 10, (0, 5000))[0] / sum(map(len, found))
    assert abs(shares - 0.1).max() < 0.025
    assert all((np.diff(f) > 0).all() for f in found)


@pytest.mark.parametrize("counts", [(3, 200), (40_000, 2)])
def test_stored_rows_come_back_at_any_place(tmp_path, counts):
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(-1, c, 1000) for c in counts], 1)
    values = rng.normal(size=(1000, 3))
    with RowStore.writing(tmp_path / "r.bin", counts, 3) as writer:
        for start in range(0, 1000, 333):
            part = slice(start, start + 333)
            writer.write(EncodedTable(codes[part], values[part]))
    store = writer.store
    rows = rng.integers(0, 1000, 500)
    got = store.take(rows)
    np.testing.assert_array_equal(got[0], codes[rows])
    np.testing.assert_array_equal(got[1], values[rows].astype(np.float32))
    assert store.rows == sum(len(b) for b in store.blocks()) == 1000
    assert (tmp_path / "r.bin").stat().st_size == 1000 * store.form.itemsize


def test_all_rows_but_some_without_a_list_of_them():
    rng = np.random.default_rng(0)
    for rows, few in ((10, 0), (10, 9), (50, 7), (1000, 300)):
        gone = rng.choice(rows, few, replace=False)
        others = OtherRows(rows, torch.from_numpy(gone))
        wanted = np.setdiff1d(np.arange(rows), gone)
        assert len(others) == len(wanted)
        np.testing.assert_array_equal(others[torch.arange(len(others))].numpy(), wanted)


def test_very_many_rows_are_split_and_drawn_without_an_order_of_them(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(table_rows, "LARGEST_SHUFFLE", 500)
    monkeypatch.setattr(table_model, "LARGEST_SHUFFLE", 500)
    held, train = split_rows(10**12, 50, 3)
    assert len(set(held.tolist())) == 50
    assert len(train) == 10**12 - 50
    held, train = table_split(900, TableModelSettings())
    every = {*held.tolist(), *train[torch.arange(len(train))].tolist()}
    assert len(every) == 900
    whole, _ = trained(folder / "orders.parquet", tmp_path / "a")
    again, trainer = trained(folder / "orders.parquet", tmp_path / "b", steps=15)
    goes_on(again)
    assert same(weights(whole), weights(again))
    drawn = np.concatenate([trainer.task.batch(k)[0].numpy() for k in range(60)])
    assert not np.isin(drawn, held.numpy()).any()
    counts = np.bincount(drawn, minlength=900)
    assert np.isin(np.flatnonzero(counts == 0), held.numpy()).mean() > 0.9  # all others come


def test_what_memory_holds_not_goes_to_disk_by_itself(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(table_store, "free_memory", lambda: 2**15)
    shown = kermix("fit", folder / "orders.parquet", "--width", 16, "--blocks", 1, "--steps", 20,
                   "--device", "cpu", "--out", tmp_path / "run").output  # fmt: skip
    assert "trained from disk: in memory it may need" in " ".join(shown.split())
    assert (tmp_path / "run" / "rows.bin").exists()
    kermix("sample", tmp_path / "run", "-n", 10, "-o", tmp_path / "s.parquet")
    with pytest.raises(errors.OptionError, match="larger than memory"):
        kermix("sample", tmp_path / "run", "-o", tmp_path / "t.parquet", "--deduplicate")
    monkeypatch.setattr(table_store, "free_memory", lambda: 2**40)
    small, _ = begin_fit(folder / "orders.parquet", out=tmp_path / "small", **TINY)
    assert small.config["stored"] is None


def test_csv_files_are_trained_from_disk_too(tmp_path):
    orders().to_csv(tmp_path / "orders.csv", index=False)
    run, _ = trained(tmp_path / "orders.csv", tmp_path / "run")
    kinds = {c.name: c.kind for c in schema_of(run).columns}
    assert kinds == {"town": "category", "bill": "number", "paid": "number",
                     "rating": "category", "day": "time"}  # fmt: skip
    table = run.sample(50, seed=0)
    assert set(table["town"]) <= {"Köln", "Bonn", "Aachen"}


def test_what_cannot_be_trained_from_disk_is_said(folder, tmp_path):
    for data, options in ((orders(), {}), (folder / "orders.parquet", {"rows": 100}),
                          (folder / "orders.parquet", {"model": "mixture"})):  # fmt: skip
        with pytest.raises(errors.OptionError, match="trained from disk"):
            begin_fit(data, from_disk=True, out=tmp_path / "no", **options)
    assert not list(tmp_path.iterdir())


MEASURED = """
import resource, sys
from kermix.fitting.fit import begin_fit

def peak_after(source, steps):
    run, data = begin_fit(source, from_disk=True, out=source + "-run", width=16, blocks=1,
                          steps=steps, device="cpu")
    trainer = run.trainer(data)
    run.train(trainer)
    assert trainer.step == steps
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak_after(sys.argv[1], 3)
print(peak_after(sys.argv[2], 30) - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"x{k}" for k in range(6)]
    for name, blocks in (("small", 4), ("large", 14)):
        writer = None
        for _ in range(blocks):
            table = pyarrow.table(dict(zip(names, rng.normal(size=(6, 50_000)), strict=True)))
            writer = writer or parquet.ParquetWriter(tmp_path / f"{name}.parquet", table.schema)
            writer.write_table(table)
        writer.close()
    found = subprocess.run(
        [sys.executable, "-c", MEASURED, tmp_path / "small.parquet", tmp_path / "large.parquet"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    # In memory the other 500,000 rows would need 137 MiB.
    assert int(found.stdout) < 48 * 1024, f"{found.stdout} KiB more for half a million rows"
