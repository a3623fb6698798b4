"""Ratios of one run, and what fell since the last record."""

import json

import benchmarks.__main__ as command
import pytest
import torch
from benchmarks.catalogue import record_path
from benchmarks.comparing import ALLOWED, changes, recorded_ratios
from benchmarks.range_parts import range_parts
from benchmarks.spectra import bounds
from typer.testing import CliRunner

from benchmarks import calls, speed
from kermix.errors import OptionError


def record(path, **ratios):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"what": what, "ratio": ratio} for what, ratio in ratios.items()]
    path.write_text(json.dumps({"tables": {"ratios": rows}}))
    return path


def test_only_what_fell_by_more_than_runs_differ_is_slower():
    before = {"same": 3.0, "noise": 3.0, "fell": 3.0, "rose": 3.0, "gone": 1.0}
    now = {"same": 3.0, "noise": 3.0 * (1 - ALLOWED + 0.01), "fell": 2.0, "rose": 6.0, "new": 1.0}
    rows = changes(before, now)
    assert rows[0]["what"] == "fell"
    assert {row["what"]: row["verdict"] for row in rows} == {
        "fell": "slower", "noise": "as before", "same": "as before", "rose": "faster",
    }  # fmt: skip


def test_a_machine_without_a_record_is_named(tmp_path):
    with pytest.raises(OptionError, match="no record of this machine yet"):
        recorded_ratios(tmp_path / "speed-x.json")
    other = tmp_path / "svd-x.json"
    other.write_text(json.dumps({"tables": {}}))
    with pytest.raises(OptionError, match="records no ratios"):
        recorded_ratios(other)


@pytest.mark.parametrize(("now", "code"), [(2.9, 0), (1.0, 1)])
def test_the_command_compares_and_leaves_the_record(now, code, tmp_path, monkeypatch):
    kept = record(record_path("speed", tmp_path), a=3.0)
    text = kept.read_text()

    def run(name, out, quick):
        return record(record_path(name, out), a=now), {}

    monkeypatch.setattr(command, "run_benchmark", run)
    said = CliRunner().invoke(command.app, ["speed", "--compare", "--out", str(tmp_path)])
    assert said.exit_code == code
    assert ("1 of the ratios fell" in said.output) == bool(code)
    assert kept.read_text() == text


def test_every_ratio_of_a_table_is_among_the_ratios():
    tables = {"one": [{"what": "x", "times_y": 2.0, "seconds": 1.0}, {"what": "z"}]}
    assert speed._with_ratios(tables)["ratios"] == [{"what": "one: x: times_y", "ratio": 2.0}]


def test_the_ways_that_are_compared_agree():
    x, y = speed._points(60, "uniform")
    values = [-float(way(x, y)) for way in (speed.papers_way, speed.eigenvector_way)]
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_a_step_changes_the_network():
    x, _ = speed._points(40, "uniform")
    seen = []

    def loss(x, y):
        seen.append(y.detach().clone())
        return (y - x).square().mean()

    step = speed._step(loss, x, 40)
    step()
    step()
    assert not torch.equal(*seen)


def test_bounds_of_polar_factors_hold():
    rows = bounds(quick=True)
    assert {row["what"].split(",")[0] for row in rows} == {"random spectra", "repeated entries"}
    assert all(row["violations"] == 0 and row["largest_error_over_bound"] < 1 for row in rows)
    assert max(row["largest_error"] for row in rows) > 1e-4  # the looser tolerance is made use of


def test_parts_of_a_low_rank_add_up():
    *parts, whole = range_parts(60, 20)
    assert whole["s"] == pytest.approx(sum(row["s"] for row in parts))
    assert len(parts) == len({row["what"] for row in parts}) == 8
    assert all(row["N"] == 60 and row["rank"] == 20 for row in [*parts, whole])


def test_calls_are_timed_however_a_cost_is_called():
    *_, tables = calls.run(quick=True)
    rows = {(row["what"], row["d"]): row for row in tables["calls"]}
    ways = {"kept_ms", "new_ms", "function_ms", "eager_ms"}
    for cost in ("scalar", "vector", "matrix", "svd"):
        for d in (2, 64):
            assert all(rows[cost, d][way] > 0 for way in ways)
