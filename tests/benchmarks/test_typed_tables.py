"""The benchmark of typed tables, on small ones."""

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.typed_tables import main, validity

import kermix as km
from kermix import errors


def tables(folder, rows=160):
    """Tables with the names and some columns of the real ones."""
    rng = np.random.default_rng(0)
    price = rng.lognormal(3, 1, rows)
    base = {"rownames": np.arange(rows), "price": price.round(2),
            "color": rng.choice(["D", "E", "F"], rows)}  # fmt: skip
    diamonds = pd.DataFrame({**base, "cut": rng.choice(["Fair", "Good", "Ideal"], rows)})
    diamonds.to_csv(folder / "diamonds.csv.gz", index=False)
    for name in ("adult-train", "shoppers"):
        diamonds.assign(age=rng.integers(18, 90, rows)).to_csv(
            folder / f"{name}.csv.gz", index=False
        )
    rows *= 2
    month = np.repeat([1, 7], rows // 2)
    pd.DataFrame({
        "rownames": np.arange(rows), "year": 2013, "month": month,
        "dep_delay": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(-10, 60, rows)),
        "carrier": np.where(rng.random(rows) < np.where(month == 7, 0.9, 0.1), "AA", "UA"),
        "dest": rng.choice(["BOS", "LAX", "ORD"], rows),
        "time_hour": pd.date_range("2013-01-01", periods=rows, freq="h").astype(str),
    }).to_parquet(folder / "flights.parquet")  # fmt: skip
    return folder


def test_the_command_writes_a_record(tmp_path):
    out = tmp_path / "out.json"
    main(["--data", str(tables(tmp_path)), "--out", str(out), "--quick"])
    found = json.loads(out.read_text())["tables"]
    assert [row["table"] for row in found["samples"]] == ["diamonds", "adult", "shoppers",
                                                          "flights"]  # fmt: skip
    for row in found["samples"]:
        assert row["categories valid %"] == row["inside %"] == 100
        assert row["whole %"] in (None, 100)
        assert row["dtypes equal"]
    named = {r["case"]: r["columns with p below 0.05, in order"].split(", ")
             for r in found["drifts"]}  # fmt: skip
    assert set(named["diamonds, both"][:2]) == {"cut", "color"}
    assert named["diamonds, cut of one value"][0] == "cut"
    assert named["diamonds, 60 % of color emptied"][0] == "color"
    assert named["flights, January and July"][0] == "carrier"
    (months,) = found["months"]
    assert months["rows"] == 320
    assert months["peak MB"] > 100
    assert months["months that differ from the first"] == 1
    assert {row["test"] for row in found["level"]} >= {"mmd", "svd", "any column"}
    with pytest.raises(errors.OptionError, match="no part walk"):
        main(["--data", str(tmp_path), "--parts", "walk"])
    with pytest.raises(errors.OptionError, match=r"no flights\.parquet"):
        main(["--data", str(tmp_path / "none")])


def test_rows_that_are_not_valid_are_counted():
    table = pd.DataFrame({"c": ["a", "b"] * 20, "n": np.arange(40), "x": np.arange(40) / 8,
                          "g": [None, 1.5] * 20})  # fmt: skip
    schema = km.Schema.infer(table, kinds={"n": "number", "g": "number"})
    drawn = table.copy()
    assert validity(table, drawn, schema)["dtypes equal"]
    drawn.loc[:9, "c"] = "new"
    drawn["n"] = drawn["n"].astype(float)
    drawn.loc[:3, "n"] = 0.5
    drawn.loc[0, "x"] = 99.0
    drawn["g"] = 1.5
    found = validity(table, drawn, schema)
    assert found["categories valid %"] == pytest.approx(75)
    assert found["whole %"] == pytest.approx(90)
    assert found["inside %"] == pytest.approx(100 * 119 / 120)
    assert (found["largest difference of gaps, points"], found["in column"]) == (50, "g")
    assert not found["dtypes equal"]
