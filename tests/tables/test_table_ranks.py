"""The table model over several processes: what one process does, up to rounding."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
import rank_checks
from commands import kermix
from internals import launch, load_checkpoint, open_run
from kermix.errors import OptionError

TINY = ["--model", "table", "--width", "16", "--blocks", "1", "--learning-rate", "0.01"]


def assert_same(first, second, tolerance):
    for key in ("step", "loss", "metric"):
        np.testing.assert_allclose(
            *([row[key] for row in history] for history in (first[2], second[2])), rtol=tolerance
        )
    assert first[3] == second[3]
    for name, weights in first[4].items():
        torch.testing.assert_close(weights, second[4][name], rtol=0, atol=50 * tolerance)


def test_two_processes_train_as_one_does():
    one, two = rank_checks.table_training(1), launch(rank_checks.table_training, 2, devices=2)
    assert one[1] == [40]
    assert two[1] == [40, 40]
    # Batches of 33 rows: the shares are 17 and 16, and the weights of rows differ.
    assert_same(one, two, 1e-4)


def test_processes_end_together_when_patience_does():
    # Such steps make nothing better, so the main process, which alone looks, ends it early.
    one, two = hasty(1), launch(hasty, 2, devices=2)
    assert one[0]
    assert two[0]
    assert two[1] == 2 * one[1]
    assert one[1][0] < 40


def hasty(devices):
    """A training that patience ends."""
    return rank_checks.table_training(devices, learning_rate=1.0, patience=3)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    kind = rng.choice(["x", "y"], 260)
    path = tmp_path_factory.mktemp("tables") / "t.csv"
    size = (rng.normal(size=260) + 2 * (kind == "x")).round(3)
    pd.DataFrame({"kind": kind, "size": size}).to_csv(path, index=False)
    return path


def test_a_command_with_devices_gives_the_run_of_one_process(table, tmp_path):
    for name, devices in (("one", ()), ("two", ("--devices", 2))):
        kermix("fit", table, *TINY, "--steps", 12, *devices, "--out", tmp_path / name)
    one, two = (open_run(tmp_path / name) for name in ("one", "two"))
    assert one.ranks == (1, 1, "auto")
    assert two.ranks == (2, 1, "auto")
    assert {p.name for p in one.folder.iterdir()} == {p.name for p in two.folder.iterdir()}
    rows = pd.read_csv(table)
    np.testing.assert_allclose(one.score(rows), two.score(rows), atol=1e-3)
    metrics = [np.loadtxt(r.folder / "metrics.csv", delimiter=",", skiprows=1) for r in (one, two)]
    np.testing.assert_allclose(*metrics, rtol=1e-3)
    config = json.loads((two.folder / "config.json").read_text())
    assert "schema" not in config
    # It can be resumed by another number of processes.
    assert kermix("resume", tmp_path / "two", "--devices", 1).exit_code == 0
    weights = [load_checkpoint(r.checkpoints / "model.safetensors")[0] for r in (one, two)]
    for name, tensor in weights[0].items():
        # Where a gradient is nothing but rounding, Adam makes steps of it.
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=5e-3)


def test_numbers_of_processes_that_cannot_be(table, tmp_path):
    with pytest.raises(OptionError, match="shared among 2 processes"):
        kermix("fit", table, *TINY, "--batch-size", 1, "--devices", 2, "--out", tmp_path / "run")
    with pytest.raises(OptionError, match="MASTER_ADDR"):
        kermix("fit", table, *TINY, "--nodes", 2, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_table_in_memory_is_read_by_processes_on_one_machine(table, tmp_path):
    rows = pd.read_csv(table)
    run = km.fit(rows, out=tmp_path / "run", model="table", width=8, blocks=1, steps=3, devices=2,
                 device="cpu")  # fmt: skip
    assert run.sample(3).shape == (3, 2)
