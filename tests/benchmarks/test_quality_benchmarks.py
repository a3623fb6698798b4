"""The benchmarks of quality in small: they run, and their files hold what is promised."""

import json
import math

import pytest
from benchmarks.catalogue import BENCHMARKS

from benchmarks import density, modes, regression
from pictures import ink_of_file


def read(path):
    record = json.loads(path.read_text())
    for rows in record["tables"].values():
        assert len({tuple(row) for row in rows}) == 1
    assert {"machine", "versions", "commit", "command", "protocol"} <= set(record)
    return record["tables"]


def test_they_are_in_the_catalogue():
    assert {"modes", "density", "regression"} <= set(BENCHMARKS)


def test_modes(tmp_path, monkeypatch):
    monkeypatch.setattr(modes, "POINTS", 2000)
    out = tmp_path / "modes.json"
    options = "--seeds 2 --steps 30 --sets ring8 --methods svd,energy --components 16"
    tables = read(modes.main([*options.split(), "--device", "cpu", "--out", str(out)]))
    assert [row["method"] for row in tables["modes"]] == ["svd", "energy"]
    assert len(tables["seeds"]) == 4
    assert ink_of_file(out.with_suffix(".png")) > 0.02


@pytest.mark.filterwarnings("ignore")
def test_density_of_all_methods(tmp_path, monkeypatch):
    pytest.importorskip("ot", reason="POT is not installed")
    pytest.importorskip("zuko", reason="zuko is not installed")
    for name, value in (
        ("TRAIN", 1500), ("TEST", 500), ("SAMPLES", 100), ("GMM_COMPONENTS", (2, 8)),
        ("FLOW_STEPS", 3), ("FLOW_BATCH", 64), ("BANDWIDTHS", (0.03, 0.1)),
    ):  # fmt: skip
        monkeypatch.setattr(density, name, value)
    options = (
        "--sets 8gaussians --components 16 --steps 20 --refine-steps 10 --repeats 1 --device cpu"
    )
    rows = read(density.main([*options.split(), "--out", str(tmp_path / "d.json")]))["density"]
    assert [row["method"] for row in rows] == list(density.METHODS)
    by_method = {row["method"]: row for row in rows}
    assert abs(by_method["GaussianMixture"]["gap"]) < 0.1
    assert all(math.isfinite(row["gap"]) for row in rows)


def test_regression(tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "TRAIN", 2000)
    monkeypatch.setattr(regression, "TEST", 500)
    options = (
        "--seeds 1 --components 4 --width 16 --steps 3 --refine-steps 60 --refine-batch-size 128"
    )
    out = tmp_path / "r.json"
    rows = read(regression.main([*options.split(), "--device", "cpu", "--out", str(out)]))
    assert len(rows["regression"]) == 6
    assert all(0 < row["gap"] < 4 for row in rows["regression"])


@pytest.mark.parametrize("problem", regression.PROBLEMS)
def test_entropies_of_the_problems(problem):
    # h(target | context) = h(target) + h(context | target) - h(context), the last by a histogram.
    import numpy as np
    import torch

    draw, entropy = regression.PROBLEMS[problem]
    context, _ = draw(400_000, torch.Generator().manual_seed(0))
    counts, edges = np.histogram(context.numpy(), bins=400)
    share = counts / counts.sum()
    width = edges[1] - edges[0]
    context_entropy = -np.sum(share[share > 0] * np.log(share[share > 0] / width))
    known = {
        "bishop": np.log(1.0) + np.log(0.2),
        "wave": np.log(21.0) + 0.5 * np.log(2 * np.pi * np.e),
    }[problem]
    assert abs(known - context_entropy - entropy) < 0.005
