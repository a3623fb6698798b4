"""The benchmark of the table model's speed, on a small table."""

import json
import time

import numpy as np
import pandas as pd
import pytest
from benchmarks.table_throughput import main, timed, with_gaps
from benchmarks.wide_table import houses

from kermix import errors


def adult(rows=120):
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "age": rng.integers(17, 80, rows), "sex": rng.choice(["Female", "Male"], rows),
        "hours": rng.normal(40, 5, rows), "income": rng.choice(["<=50K", ">50K"], rows),
    }).assign(age=lambda t: t["age"].where(t.index != 3, 40))  # fmt: skip


def test_rows_a_second_are_rows_over_seconds():
    found = timed(lambda: time.sleep(0.05), 100, 3)
    assert found["rows_per_second"] == pytest.approx(100 / found["median_s"])
    assert 1000 < found["rows_per_second"] < 2000
    assert found["rows_per_core_second"] > 3 * found["rows_per_second"]  # sleeping uses none


def test_every_call_is_measured_and_recorded(tmp_path):
    adult().to_csv(tmp_path / "adult-train.csv.gz", index=False)
    path = main(["--data", str(tmp_path), "--device", "cpu", "--rows", "150", "--repeats", "1",
                 "--steps", "1", "--out", str(tmp_path / "r.json")])  # fmt: skip
    rows = json.loads(path.read_text())["tables"]["rows_a_second"]
    calls = ["sample", "sample, two columns given", "score", "impute", "predict"]
    assert [row["call"] for row in rows] == calls
    assert all(row["rows"] == 150 and row["rows_per_second"] > 0 for row in rows)
    with pytest.raises(errors.OptionError, match="there is no such file"):
        main(["--data", str(tmp_path / "no"), "--device", "cpu"])


def test_gaps_are_a_share_of_the_cells():
    table = with_gaps(adult(3000))
    assert table.isna().to_numpy().mean() == pytest.approx(0.3, abs=0.02)


def test_parts_of_a_wide_fit_are_measured_in_turns(tmp_path):
    path = main(["--wide", "--rows", "300", "--steps", "2", "--out", str(tmp_path / "r.json")])
    relations, step = json.loads(path.read_text())["tables"]["wide_fit"]
    assert relations["same"]
    assert step["times_before"] == pytest.approx(step["before_cpu_s"] / step["cpu_s"])


def test_houses_are_a_wide_table_of_many_categories():
    table = houses(400)
    assert table.shape == (400, 74)
    assert sum(not pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes) == 40
    assert (
        table["living_area"] == table[["first_floor", "second_floor", "low_quality"]].sum(axis=1)
    ).all()
    assert table.equals(houses(400))
