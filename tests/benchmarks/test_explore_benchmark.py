"""The benchmark of the page runs, and records what it says."""

import json

from benchmarks import explore


def test_a_quick_run_records_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(explore, "CHROMIUM", "/no/such/browser")
    monkeypatch.setattr(explore, "SETS", (0, 2))
    path = explore.main(["--quick", "--out", str(tmp_path / "explore.json")])
    record = json.loads(path.read_text())
    rows = record["tables"]["questions"]
    assert [row["set"] for row in rows] == [0, 2]
    assert all(0 < row["median s"] <= row["95 % s"] for row in rows)
    assert rows[0]["columns"] == 9
    assert record["quick"] is True


def test_adult_is_read_where_it_is(tmp_path):
    assert explore.table(tmp_path, 10).shape == (10, 9)
    explore.table(None, 20).to_csv(tmp_path / "adult-train.csv.gz", index=False)
    assert len(explore.table(tmp_path, 5)) == 5
