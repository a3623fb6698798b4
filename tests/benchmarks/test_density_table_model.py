"""The benchmark of the table model's densities, on a small table."""

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.density_table_model import main, spline_flow, summary, table_model

from kermix import errors

SMALL = {"width": 16, "blocks": 1, "steps": 60}


def test_a_record_of_our_model_and_mixtures(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(600, 2)), columns=["x0", "x1"]).assign(**{"class": 0})
    rows.to_csv(tmp_path / "phoneme.csv.gz", index=False)
    out = tmp_path / "out.json"
    main(["--data", str(tmp_path), "--tables", "phoneme", "--without-flow", "--settings",
          json.dumps(SMALL), "--out", str(out)])  # fmt: skip
    record = json.loads(out.read_text())
    (line,) = record["tables"]["summary"]
    entropy = -np.log(2 * np.pi * np.e)
    assert line["kermix TableModel"] == pytest.approx(entropy, abs=0.3)
    others = [line[m] for m in line if m.startswith(("one", "scikit", "kermix Kernel"))]
    assert len(others) == 4
    assert line["ahead"] == pytest.approx(line["kermix TableModel"] - max(others))
    assert record["protocol"]["settings"] == SMALL
    with pytest.raises(errors.OptionError, match="flowers"):
        main(["--data", str(tmp_path), "--tables", "flowers"])


def test_codes_are_no_densities():
    rows = np.random.default_rng(0).normal(size=(300, 2))
    rows[:100, 1] = 0.5
    with pytest.raises(errors.OptionError, match="infinite"):
        table_model(rows, rows[:5], 0, "cpu", SMALL)


def test_means_over_splits():
    rows = [
        {"table": "phoneme", "seed": seed, "model": model, "log_density": value + seed}
        for seed in (0, 1)
        for model, value in (("kermix TableModel", 2.0), ("zuko NSF", 1.5), ("one Gaussian", 0.0))
    ]
    (line,) = summary(rows)
    assert line["splits"] == 2
    assert line["zuko NSF"] == 2.0
    assert line["ahead"] == 0.5


def test_a_flow_is_trained_for_as_long_as_it_is_told():
    pytest.importorskip("zuko")
    rows = np.random.default_rng(0).normal(size=(600, 2))
    found, told = spline_flow(rows[:500], rows[500:], 0, "cpu", seconds=2.0)
    assert found.shape == (100,)
    assert found.mean() == pytest.approx(-np.log(2 * np.pi * np.e), abs=0.5)
    assert 2.0 <= told["seconds"] < 6
    assert told["best_step"] <= told["steps"]
