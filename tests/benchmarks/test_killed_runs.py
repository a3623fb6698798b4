"""The benchmark of killed runs: what it takes for equal, and one run that it kills."""

import os

import pytest
import torch

from benchmarks import killed_runs
from internals import save_checkpoint


def write_run(folder, value=1.0, loss="0.5", name="last"):
    (folder / "checkpoint").mkdir(parents=True)
    tensors = {"model.weight": torch.tensor([value, 2.0])}
    save_checkpoint(folder / "checkpoint" / f"{name}.safetensors", tensors, {"step": 1})
    (folder / "metrics.csv").write_text(f"step,loss,seconds\n1,{loss},{folder.name}\n")
    return folder


@pytest.mark.parametrize(
    ("other", "count"),
    [
        ({}, 1),
        ({"value": 1.0 + 2**-23}, 0),
        ({"loss": "0.25"}, 0),
        ({"name": "best"}, 0),
    ],
)
def test_equal_runs_are_equal_bit_for_bit(other, count, tmp_path):
    first, second = write_run(tmp_path / "1"), write_run(tmp_path / "2", **other)
    assert killed_runs.equal_runs(first, second) == count


@pytest.mark.slow
def test_runs_are_killed_while_they_train():
    (row,) = list(killed_runs.run(quick=True))[-1]["killed runs"]
    assert row["killed"] == row["equal"] == 2
    assert row["printed command equal"]
    assert max(row["checkpoint steps when killed"]) < row["steps"]
    assert os.environ["OMP_NUM_THREADS"]
