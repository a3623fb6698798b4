"""The benchmark of conditional densities, on small sets and with the peers that are there."""

import json

import numpy as np
import pytest
from benchmarks.conditional import main, measure_split, split_of, step_of

from benchmarks import conditional
from kermix import errors


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        conditional, "OURS", {"target_share": 1.0, "width": 16, "blocks": 1, "steps": 30}
    )
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 2))
    target = features[:, 0] + 0.5 * rng.normal(size=400)
    (tmp_path / "uci").mkdir()
    splits = {f"test_{k}": np.arange(k * 50, k * 50 + 50) for k in range(2)}
    for name, y in (("yacht", target), ("wine-quality-red", target.round())):
        np.savez(tmp_path / "uci" / f"{name}.npz", features=features, target=y, **splits)
    return tmp_path


def test_test_rows_are_those_of_the_split(folder):
    inputs, target, test, wanted = split_of(folder / "uci" / "yacht.npz", 1)
    whole = np.load(folder / "uci" / "yacht.npz")
    assert (test == whole["features"][50:100]).all()
    assert (wanted == whole["target"][50:100]).all()
    assert len(inputs) == len(target) == 350
    with pytest.raises(errors.OptionError, match="no split 2"):
        split_of(folder / "uci" / "yacht.npz", 2)


def test_steps_of_rounded_targets():
    assert step_of(np.array([3.0, 7.0])) == 1
    assert step_of(np.array([0.95, 0.951])) == pytest.approx(0.001)
    assert step_of(np.random.default_rng(0).normal(size=9)) == 0


def test_rows_of_our_model(folder):
    for name in ("yacht", "wine-quality-red"):
        (row,) = measure_split(name, folder / "uci" / f"{name}.npz", 0, ["kermix"])
        # The entropy of the target given its inputs, and that of the target alone.
        assert 0.5 < row["nll"] < 1.7
        assert row["nll_of_step"] == pytest.approx(row["nll"], abs=0.1)
        assert 0.7 < row["inside_90"] <= row["inside_95"]


@pytest.mark.parametrize(
    ("method", "package"),
    [("NGBoost", "ngboost"), ("xgboost-distribution", "xgboost_distribution")],
)
def test_rows_of_peers(folder, method, package):
    pytest.importorskip(package)
    (row,) = measure_split("yacht", folder / "uci" / "yacht.npz", 0, [method])
    assert 0.5 < row["nll"] < 1.7
    assert row["nll_of_step"] == row["nll"]


@pytest.fixture
def few_steps(folder, monkeypatch):
    monkeypatch.setitem(conditional.OURS, "steps", 2)


@pytest.mark.usefixtures("few_steps")
def test_the_command_writes_a_record(folder):
    out = folder / "out.json"
    main(["--data", str(folder), "--sets", "yacht", "--methods", "kermix", "--splits", "2",
          "--out", str(out)])  # fmt: skip
    tables = json.loads(out.read_text())["tables"]
    assert [row["split"] for row in tables["splits"]] == [0, 1]
    (line,) = tables["negative_log_likelihood"]
    assert line["splits"] == 2
    assert line["kermix"] == pytest.approx(np.mean([row["nll"] for row in tables["splits"]]))
    assert tables["means"][0]["nll"] == line["kermix"]
    with pytest.raises(errors.OptionError, match="flowers"):
        main(["--data", str(folder), "--sets", "flowers"])


@pytest.mark.usefixtures("few_steps")
def test_rows_of_an_earlier_record_are_kept_and_others_added(folder):
    out = folder / "out.json"
    base = ["--data", str(folder), "--sets", "yacht", "--methods", "kermix", "--out", str(out)]
    main([*base, "--splits", "1"])
    record = json.loads(out.read_text())
    (row,) = record["tables"]["splits"]
    assert row.pop("test_rows") == 50  # records of earlier versions do not have it
    before = row["nll"]
    row["nll"] = 123.0
    other = {**row, "method": "NGBoost", "nll": 7.0}
    record["tables"]["splits"] = [row, other]
    out.write_text(json.dumps(record))
    main([*base, "--splits", "2", "--keep", "NGBoost"])
    again = json.loads(out.read_text())
    rows = {(r["method"], r["split"]): r for r in again["tables"]["splits"]}
    assert set(rows) == {("NGBoost", 0), ("kermix", 0), ("kermix", 1)}
    assert rows["NGBoost", 0]["nll"] == 7
    assert rows["kermix", 0]["nll"] == before
    assert again["protocol"]["kept"].startswith("NGBoost: 1 rows of")
    (line,) = [m for m in again["tables"]["means"] if m["method"] == "kermix"]
    assert line["test_rows"] == 100
    assert line["inside_90, error"] == pytest.approx(0.03)


@pytest.mark.usefixtures("few_steps")
def test_records_are_joined_and_the_later_one_holds(folder):
    paths = [folder / "a.json", folder / "b.json"]
    base = ["--data", str(folder), "--sets", "yacht", "--methods", "kermix"]
    for path, splits in zip(paths, ("2", "1"), strict=True):
        main([*base, "--splits", splits, "--out", str(path)])
    second = json.loads(paths[1].read_text())
    second["tables"]["splits"][0]["nll"] = 5.0
    paths[1].write_text(json.dumps(second))
    main(["--join", *map(str, paths), "--out", str(folder / "joined.json")])
    joined = json.loads((folder / "joined.json").read_text())
    assert [(row["split"], row["nll"] == 5) for row in joined["tables"]["splits"]] == [
        (0, True), (1, False),
    ]  # fmt: skip
    assert joined["protocol"]["measured_at"] == [second["commit"]]


def test_joining_again_keeps_where_it_was_measured(folder, tmp_path):
    path = tmp_path / "a.json"
    main(["--data", str(folder), "--sets", "yacht", "--methods", "kermix", "--splits", "1",
          "--out", str(path)])  # fmt: skip
    record = json.loads(path.read_text())
    record["machine"], record["commit"] = {"name": "elsewhere"}, "abc"
    path.write_text(json.dumps(record))
    for _ in range(2):
        main(["--join", str(path), "--out", str(path)])
    told = json.loads(path.read_text())["protocol"]
    assert told["measured_on"] == {"name": "elsewhere"}
    assert told["measured_at"] == ["abc"]
