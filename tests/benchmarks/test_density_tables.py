"""The benchmark of densities of tables, on a small one."""

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.density_tables import main, split_of

from kermix import errors


def test_rows_are_divided_dithered_and_standardized():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 5, 500), rng.normal(7, 3, 500), np.ones(500)])
    train, test = split_of(rows.astype(float), 1)
    assert train.shape == (400, 2)
    assert test.shape == (100, 2)
    assert train.mean(0) == pytest.approx(np.zeros(2), abs=1e-9)
    assert train.std(0) == pytest.approx(np.ones(2))
    assert len(np.unique(train[:, 0])) == 400


def test_the_command_writes_a_record(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(400, 2)), columns=["x0", "x1"]).assign(**{"class": 0})
    rows.to_csv(tmp_path / "phoneme.csv.gz", index=False)
    out = tmp_path / "out.json"
    main(["--data", str(tmp_path), "--tables", "phoneme", "--seeds", "0", "--out", str(out)])
    record = json.loads(out.read_text())
    found = {r["model"]: r["log_density"] for r in record["tables"]["density"]}
    assert len(found) == 4
    entropy = -np.log(2 * np.pi * np.e)
    assert all(value == pytest.approx(entropy, abs=0.4) for value in found.values())
    with pytest.raises(errors.OptionError, match="flowers"):
        main(["--data", str(tmp_path), "--tables", "flowers"])
