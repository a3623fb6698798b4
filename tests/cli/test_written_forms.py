"""Cells of new files are written as those that were read; what predictions and scores tell."""

import io
import re

import numpy as np
import pandas as pd
import pytest

from commands import kermix

TINY = ["--width", "16", "--blocks", "1", "--steps", "20"]
FORMS = {
    "alive": "True|False",
    "age": r"\d+\.0",
    "price": r"\d+\.\d\d",
    "size": r"-?\d+(\.\d+)?",
    "berlin": r"2023-\d\d-\d\d \d\d:\d\d:\d\d\+0[12]:00",
    "fixed": r"2023-\d\d-\d\dT\d\d:\d\d:\d\d-0500",
    "universal": r"2023-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "day": r"2023-\d\d-\d\dT\d\d:\d\d:\d\d",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file with many ways to write cells, and one with gaps."""
    place = tmp_path_factory.mktemp("forms")
    rng, rows = np.random.default_rng(0), 300
    at = pd.Series(pd.Timestamp("2023-01-02") + pd.to_timedelta(rng.integers(0, 31_000_000, rows),
                                                                "s"))  # fmt: skip
    table = pd.DataFrame({
        "alive": rng.choice(["True", "False"], rows),
        "age": [f"{v}.0" for v in rng.integers(20, 90, rows)],
        "price": [f"{v:.2f}" for v in rng.gamma(3, 10, rows)],
        "size": [f"{v:.3g}" for v in 1 + rng.gamma(3, 10, rows)],
        "berlin": at.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin").astype(str),
        "fixed": at.dt.strftime("%Y-%m-%dT%H:%M:%S-0500"),
        "universal": at.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "day": at.dt.strftime("%Y-%m-%dT%H:%M:%S"),
    })  # fmt: skip
    table.to_csv(place / "t.csv", index=False)
    gaps = table.copy()
    gaps.loc[::7] = ""
    gaps["alive"], gaps.loc[3, "size"] = "", "1.5"
    gaps.to_csv(place / "gaps.csv", index=False)
    return place


@pytest.mark.parametrize("way", ["--in-memory", "--from-disk"])
def test_samples_and_filled_gaps_are_written_as_the_table_is(folder, tmp_path, way):
    kermix("fit", folder / "t.csv", *TINY, way, "--out", tmp_path / "run")
    kermix("sample", tmp_path / "run", "-n", 300, "-o", tmp_path / "new.csv")
    kermix("impute", tmp_path / "run", folder / "gaps.csv", "-o", tmp_path / "full.csv",
           "--fill-all")  # fmt: skip
    gaps = pd.read_csv(folder / "gaps.csv", dtype=str)
    for file in ("new.csv", "full.csv"):
        drawn = pd.read_csv(tmp_path / file, dtype=str)
        for name, form in FORMS.items():
            if way == "--from-disk" and name in ("berlin", "fixed"):
                continue  # from disk, text with offsets is no time
            wrong = [cell for cell in drawn[name] if not re.fullmatch(form, str(cell))]
            assert not wrong, (file, name, wrong[:3])
    for name in FORMS:
        kept = gaps[name].notna()
        assert (drawn[name][kept] == gaps[name][kept]).all()


def test_a_zone_in_summer_is_that_of_its_day(folder, tmp_path):
    kermix("fit", folder / "t.csv", *TINY, "--out", tmp_path / "run")
    kermix("sample", tmp_path / "run", "-n", 300, "-o", tmp_path / "new.csv")
    drawn = pd.read_csv(tmp_path / "new.csv", dtype=str)["berlin"]
    summer = pd.to_datetime(drawn, utc=True).between("2023-03-26T01:00Z", "2023-10-29T00:59:59Z")
    assert (drawn.str.endswith("+02:00") == summer).all()
    assert 0.3 < summer.mean() < 0.9


@pytest.fixture(scope="module")
def storms(tmp_path_factory):
    """A model of a table in which only hurricanes have a category."""
    place = tmp_path_factory.mktemp("storms")
    rng = np.random.default_rng(0)
    hurricane = rng.random(400) < 0.4
    pd.DataFrame({
        "status": np.where(hurricane, "hurricane", "storm"),
        "category": np.where(hurricane, rng.integers(1, 4, 400), np.nan),
        "wind": np.where(hurricane, 100, 40) + rng.normal(size=400).round(1),
    }).to_csv(place / "t.csv", index=False)  # fmt: skip
    kermix("fit", place / "t.csv", "--width", "16", "--blocks", "1", "--steps", "200",
           "--learning-rate", "0.01", "--out", place / "run")  # fmt: skip
    (place / "row.csv").write_text("status,wind\nstorm,40.2\n")
    return place


def test_predictions_say_where_there_is_no_value(storms):
    done = kermix("predict", storms / "run", storms / "t.csv", "--target", "category")
    rows = pd.read_csv(io.StringIO(done.stdout))
    assert list(rows.columns[1:]) == [
        "category", "probability", "p(1)", "p(2)", "p(3)", "p(no value)",
    ]  # fmt: skip
    table = pd.read_csv(storms / "t.csv")
    empty = table["category"].isna()
    assert rows["p(no value)"][empty].min() > 0.5 > rows["p(no value)"][~empty].max()
    told = f"category probably has no value in {empty.sum()} rows, as p(no value) tells"
    assert told in " ".join(done.stderr.split())
    assert set(rows["category"]) <= {1, 2, 3}


def test_one_row_is_told_in_the_singular_and_without_an_error(storms):
    said = kermix("predict", storms / "run", storms / "row.csv", "--target", "category").stderr
    assert "no value in 1 row," in said
    assert "1 prediction" in said.splitlines()
    (storms / "one.csv").write_text("status,category,wind\nhurricane,1,100.2\n")
    said = kermix("score", storms / "run", storms / "one.csv").stderr
    assert re.search(r"mean log-density -?\d+\.\d{4} nats over 1 row$", said.strip())


def test_codes_are_told_of_columns_that_are_used(tmp_path):
    rng = np.random.default_rng(0)
    pd.DataFrame({
        "plz": [f"{k:05d}" for k in rng.choice([1067, 50667, 53111], 60)],
        "no": [f"{k:05d}" for k in rng.permutation(9000)[:60]],
        "x": rng.normal(size=60),
    }).to_csv(tmp_path / "t.csv", index=False)  # fmt: skip
    said = [
        " ".join(kermix("schema", tmp_path / "t.csv", *more).output.split())
        for more in ([], ["--exclude", "plz"], ["--columns", "x,no"], ["--kind", "plz=category"])
    ]
    assert "digits of plz are text" in said[0]
    assert "no=number" not in said[0]
    assert not any("digits of" in text for text in said[1:])
