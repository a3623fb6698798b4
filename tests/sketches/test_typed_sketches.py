"""Sketches of typed files: text, gaps, values that the sample did not have."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import kermix as km
from internals import MixedRows, Reading, drift, typed_sample
from internals import sketch_sampling_module as sampling
from kermix.errors import KermixError, OptionError, TableError
from table_faults import FAULTS, write


def table(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "row": range(n),
        "x": rng.normal(shift, 1, n).round(3),
        "gappy": np.where(rng.random(n) < 0.3, np.nan, rng.normal(0, 5, n).round(2)),
        "word": rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1]),
        "many": rng.choice([f"v{k}" for k in range(200)], n),
    })  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("typed")
    for k in range(4):
        frame = table(1500, k)
        if k == 3:
            frame["word"] = "c"
        if k % 2:
            frame.to_csv(path / f"{k}.csv", index=False)
        else:
            frame.to_parquet(path / f"{k}.parquet", row_group_size=400)
    return path


def test_all_rows_and_columns_are_sketched(folder, tmp_path):
    first = km.sketch_files(folder / "0.parquet", rank=40, exclude=["row"])
    assert first.count == 1500
    assert first.origin.columns == ("x", "gappy", "word", "many")
    assert sum(f.dropped for f in first.origin.files) == 0
    others = [km.sketch_files(folder / n, landmarks_from=first)
              for n in ("1.csv", "2.parquet", "3.csv")]  # fmt: skip
    steps = drift([first, *others], list("0123")).to_first
    assert [s.pvalue < 1e-3 for s in steps] == [False, False, True]
    first.save(tmp_path / "0.sketch")
    again = km.sketch_files(folder / "1.csv", landmarks_from=tmp_path / "0.sketch")
    assert torch.equal(again.sums.first, others[0].sums.first)


def test_sums_are_those_of_the_rows(folder):
    sketch = km.sketch_files(folder / "0.parquet", rank=30, exclude=["row"])
    maker = MixedRows.from_dict(sketch.origin.mixed)
    frame = pd.read_parquet(folder / "0.parquet")
    rows = maker(maker.schema.encode(frame, unseen="unknown", extra=True))
    assert torch.allclose(sketch.feature_map(rows).sum(0), sketch.sums.first, atol=1e-8)


def test_values_and_gaps_that_the_sample_did_not_have(folder, tmp_path):
    first = km.sketch_files(folder / "0.parquet", rank=30, exclude=["row"])
    new = table(300, 9).assign(word="never seen", x=None)
    new.to_parquet(tmp_path / "new.parquet")
    found = km.sketch_files(tmp_path / "new.parquet", landmarks_from=first)
    assert found.count == 300
    assert drift([first, found], ["a", "b"]).to_first[0].pvalue < 1e-6


def test_engines_agree(folder):
    first = km.sketch_files(folder / "0.parquet", rank=20, exclude=["row"])
    whole = km.sketch_files(folder, landmarks_from=first)
    parts = [km.sketch_files(p, landmarks_from=first) for p in sorted(folder.iterdir())]
    merged = parts[0] + parts[1] + parts[2] + parts[3]
    assert torch.allclose(whole.sums.second, merged.sums.second, atol=1e-9)


def test_kinds_can_be_said_and_faults_are_named(folder, tmp_path):
    sketch = km.sketch_files(folder / "0.parquet", rank=5, kinds={"many": "text", "row": "key"})
    assert sketch.origin.columns == ("x", "gappy", "word")
    with pytest.raises(TableError, match="no column nope"):
        km.sketch_files(folder / "0.parquet", exclude=["nope"])
    with pytest.raises(OptionError, match="standardize=False"):
        km.sketch_files(folder / "0.parquet", standardize=False)
    with pytest.raises(OptionError, match="landmarks_from"):
        km.sketch_files(folder / "1.csv", landmarks_from=sketch, exclude=["x"])
    table(50, 0).drop(columns="word").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(TableError, match="no column word"):
        km.sketch_files(tmp_path / "less.csv", landmarks_from=sketch)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "one odd cell"])  # that makes text
def test_files_with_a_fault_are_named(fault, tmp_path):
    name, content, _ = FAULTS[fault]
    with pytest.raises(KermixError) as caught:
        km.sketch_files(write(tmp_path / name, content))
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


MESSY = {
    "t.csv": {"sep": ";", "decimal": ",", "encoding": "latin-1"},
    "t.csv.gz": {"sep": ";", "decimal": ",", "encoding": "latin-1"},
    "t.csv.zst": {},
    "t.tsv": {"sep": "\t", "encoding": "utf-16"},
}


@pytest.mark.parametrize("name", [*MESSY, "t.feather", "t.jsonl"])
def test_files_of_every_kind_give_the_same_sketch(name, tmp_path):
    frame = table(600, 5).drop(columns="row")
    frame["word"] = frame["word"].replace("a", "Köln")
    frame["gappy"] = frame["gappy"].where(frame["gappy"].notna(), None)
    path = tmp_path / name
    if name in MESSY:
        with pa.output_stream(path, compression="detect") as stream:
            text = frame.to_csv(index=False, **{k: v for k, v in MESSY[name].items()
                                                if k != "encoding"})  # fmt: skip
            stream.write(text.encode(MESSY[name].get("encoding", "utf-8")))
    elif name == "t.feather":
        frame.to_feather(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    frame.to_parquet(tmp_path / "t.parquet")
    known = km.sketch_files(tmp_path / "t.parquet", rank=30)
    found = km.sketch_files(path, landmarks_from=known)
    assert found.count == 600
    assert torch.allclose(found.sums.first, known.sums.first, atol=1e-9)
    alone = km.sketch_files(path, rank=30)
    assert alone.origin.columns == known.origin.columns
    assert found.origin.columns == known.origin.columns


def test_a_sample_of_a_packed_file_is_bounded_and_takes_of_all_rows(tmp_path, monkeypatch):
    """Whole files, and files that are too large to be read whole and cannot be divided."""
    frame = pd.DataFrame({"x": np.arange(5000) / 8, "w": np.repeat(["a", "b"], 2500)})
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    monkeypatch.setattr(sampling, "SAMPLE", 200)
    for below in (2**25, 0):
        monkeypatch.setattr(sampling, "READ_WHOLE_BELOW", below)
        _, maker, rows = typed_sample([str(tmp_path / "t.csv.gz")], Reading(), "auto", 0)
        assert 190 <= len(rows) <= 230
        low, high = maker.schema["x"].low, maker.schema["x"].high
        assert low < 625 * 0.1 < 625 * 0.9 < high
        assert len(rows.unique(dim=0)) == len(rows), "no row twice"


def test_text_that_looks_like_numbers_in_the_next_file_stays_text(tmp_path):
    words = ["1", "2", "x", "y", "z"]
    pd.DataFrame({"w": words * 30, "x": np.arange(150) / 8}).to_csv(
        tmp_path / "a.csv", index=False
    )
    pd.DataFrame({"w": ["1", "2"] * 75, "x": np.arange(150) / 8}).to_csv(
        tmp_path / "b.csv", index=False
    )
    first = km.sketch_files(tmp_path / "a.csv", rank=20)
    second = km.sketch_files(tmp_path / "b.csv", landmarks_from=first)
    assert second.count == 150
    assert second.moments.residual == pytest.approx(0, abs=0.1), "codes that are known"


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npy"])
def test_a_gap_that_the_sample_did_not_have_loses_no_row(name, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=3000).round(3), "b": rng.normal(size=3000)})
    frame.loc[77, "b"] = np.nan
    path = tmp_path / name
    if name == "t.npy":
        np.save(path, frame.to_numpy())
    else:
        getattr(frame, "to_csv" if name == "t.csv" else "to_parquet")(path, index=False)
    monkeypatch.setattr(sampling, "SAMPLE", 40)
    sketch = km.sketch_files(path, rank=10, seed=2)
    assert sketch.count == 3000
    assert sketch.origin.files[0].dropped == 0
    assert sketch.origin.mixed is not None
    plain = km.sketch_files(path, rank=10, seed=2, standardize=False)
    assert (plain.count, plain.origin.files[0].dropped) == (2999, 1)
    assert plain.origin.mixed is None, "the gap is not in the sample"


def test_a_table_made_with_the_seed_of_the_sketch_is_sampled_fairly(tmp_path):
    """Seen before: a category of two values left out as a constant."""
    high = np.random.default_rng(0).random(240) < 0.5
    table = pd.DataFrame({"sex": np.where(high, "f", "m"), "age": np.arange(240) % 71})
    table.to_csv(tmp_path / "t.csv", index=False)
    told = km.sketch_files([tmp_path / "t.csv"], seed=0)
    assert "sex" in told.origin.columns
