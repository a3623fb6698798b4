"""The benchmark of a verdict's time and memory runs and says what was compared."""

import json

import pandas as pd

from benchmarks import verdict_speed


def test_quick_cases_with_flights(tmp_path, monkeypatch):
    def in_this_process(code):
        exec(code, {"peak": lambda: 500.0})
        return 500.0

    monkeypatch.setattr(verdict_speed, "peak_memory_of", in_this_process)
    months = pd.Series([1] * 30 + [7] * 30)
    table = pd.DataFrame({
        "rownames": range(60), "month": months, "time_hour": pd.Timestamp("2013-01-01"),
        "carrier": ["AA", "UA", "B6"] * 20, "distance": [float(k % 11) for k in range(60)],
    })  # fmt: skip
    table.to_parquet(tmp_path / "flights.parquet")
    out = tmp_path / "speed.json"
    path = verdict_speed.main(["--data", str(tmp_path), "--quick", "--out", str(out)])
    rows = json.loads(path.read_text())["tables"]["verdicts"]
    assert [row["case"] for row in rows] == ["rows", "columns", "flights"]
    assert [row["columns"] for row in rows] == [4, 60, 2]
    assert rows[2]["rows"] == "30 and 30"
    for row in rows:
        assert 0 < row["p"] <= 1
        assert row["seconds"] > 0
        assert row["peak MB"] == 500
