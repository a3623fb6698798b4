"""The benchmarks of scores in small, and what their committed files promise."""

import json

import pytest

from benchmarks import evaluate, evaluate_errors
from pages import ROOT

RESULTS = ROOT / "results" / "bench"


def test_the_parts_that_are_quick(monkeypatch):
    monkeypatch.setattr(evaluate, "GRID_SEEDS", 1)
    (million,) = evaluate._million(True)
    assert million["certified_relative_error"] < 0.01
    rows = evaluate._bounds(True)
    assert [row["violations"] for row in rows] == [0, 0, 0]
    copies = evaluate._copies(True)
    assert copies[0]["found_at_level_0.01"] == 0
    assert copies[1]["found_at_level_0.01"] == copies[1]["runs"]


def test_the_record_holds_what_is_promised():
    record = json.loads((RESULTS / "evaluate-cpu2.json").read_text())
    assert not record["quick"]
    tables = record["tables"]
    (million,) = tables["a_million_samples"]
    assert million["samples"] == 10**6
    assert million["at_least"] > 20
    assert million["certified_relative_error"] <= 0.01
    assert million["seconds"] < 60
    assert len(tables["against_fourier_features"]) >= 20
    assert all(row["nystrom_is_better"] for row in tables["against_fourier_features"])
    assert all(row["cases"] == 500 and not row["violations"]
               for row in tables["random_cases_of_the_bounds"])  # fmt: skip
    for row in tables["planted_novelty"]:
        assert row["all_found"] == row["ranked"] == row["runs"]
        assert row["exemplars_right"] >= 0.99
    null, *planted = tables["planted_copies"]
    assert null["found_at_level_0.01"] <= 1
    assert all(row["found_at_level_0.01"] == row["runs"] for row in planted)


@pytest.mark.parametrize("reference", ["vendi-score", "prdc", "torchmetrics"])
def test_scores_agree_with_other_implementations(reference):
    record = json.loads((RESULTS / "evaluate-references-cpu2.json").read_text())
    lines = [r for r in record["tables"]["scores"] if reference in r["reference"]]
    assert lines
    assert all(line["difference"] < 1e-6 for line in lines)


def test_error_bars_are_near_the_scatter_in_the_record():
    (tables,) = evaluate_errors.run(quick=True)
    (name,) = tables
    assert {row["score"] for row in tables[name]} == {*evaluate_errors.NAMES, "kid"}
    record = json.loads((RESULTS / "evaluate-errors-cpu2.json").read_text())
    rows = record["tables"][name]
    # Where all but a row or two lie inside, so few repetitions do not tell the scatter.
    ratios = [r["error_bar_over_scatter"] for r in rows if r["score"] == "kid" or r["mean"] < 0.98]
    assert len(ratios) > 40
    assert all(0.7 < ratio < 1.4 for ratio in ratios)
