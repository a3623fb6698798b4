"""The benchmark of generated tables: its rows, its two commands."""

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.generated_tables import main, training_rows
from benchmarks.generators import peer_samples

from kermix import errors


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=200), "class": rng.choice(["g", "h"], 200)})
    table.to_csv(tmp_path / "magic.csv.gz", index=False)
    missing = pd.DataFrame({"pm2.5": [1.0, None] * 50, "cbwd": ["NW"] * 100})
    missing.to_csv(tmp_path / "beijing.csv.gz", index=False)
    return tmp_path


def test_rows_are_those_of_the_published_protocols(folder):
    assert len(training_rows("magic", folder)) == 180
    beijing = training_rows("beijing", folder)
    assert len(beijing) == 45
    assert beijing["pm2.5"].notna().all()
    assert training_rows("magic", folder).equals(training_rows("magic", folder))
    with pytest.raises(errors.OptionError, match="flowers"):
        training_rows("flowers", folder)


def test_samples_are_written_with_what_made_them(folder):
    small = ["--set", "steps=3", "--set", "width=8", "--set", "blocks=1"]
    out = folder / "samples"
    main(["train", "--data", str(folder), "--tables", "magic", "--out", str(out), *small])
    about = json.loads((out / "magic-0.json").read_text())
    assert about["rows"] == 180
    assert about["steps"] == 3
    drawn = pd.read_parquet(out / "magic-0.parquet")
    assert list(drawn.columns) == ["size", "class"]
    assert len(drawn) == 180
    with pytest.raises(errors.OptionError, match="train"):
        main(["judge", "--data", str(folder), "--samples", str(folder), "--out", "x.json"])


def test_peers_are_given_texts_and_give_back_values():
    rows = pd.DataFrame({"size": [1.0, 2.0], "new": [True, False]})
    seen = {}

    def fit(given):
        seen["given"] = given
        return lambda count: given.iloc[::-1].head(count).copy()

    drawn, told = peer_samples(rows, ["new"], fit)
    assert list(seen["given"]["new"]) == ["True", "False"]
    assert list(drawn["new"]) == [False, True]
    assert told["training_seconds"] >= 0


def test_a_missing_generator_is_named(folder):
    wanted = ["train", "--method", "gaussian-copula", "--tables", "magic"]
    with pytest.raises(errors.MissingExtraError, match="pip install sdv"):
        main([*wanted, "--data", str(folder), "--out", str(folder / "samples")])
