"""The benchmark of generators of images, on digits that the test makes."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.catalogue import BENCHMARKS
from benchmarks.images import METHODS, SCALES, main, run_task, settings_of
from benchmarks.images_page import write_images_page

from kermix.errors import OptionError


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Files named as those of MNIST: digits are bars of ten heights."""
    root = tmp_path_factory.mktemp("data")
    (root / "mnist").mkdir()
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        labels = np.arange(100, dtype=np.uint8) % 10
        images = rng.integers(0, 30, (100, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[: 2 + 2 * label, 8:20] = 220
        head = struct.pack(">4i", 0x803, 100, 28, 28)
        (root / "mnist" / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">2i", 0x801, 100)
        (root / "mnist" / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return root


@pytest.fixture(autouse=True)
def _quicker(monkeypatch):
    small = {"encoder_steps": 3, "steps": 2, "batch_size": 40, "width": 8, "hidden": 16}
    monkeypatch.setitem(SCALES, "quick", replace(SCALES["quick"], settings=small, most=120))


def bench(digits, folder, task, methods):
    out = folder / f"{task}-{len(list(folder.iterdir()))}.json"
    main(
        ["--task", task, "--methods", methods, "--scale", "quick", "--device", "cpu",
         "--data-root", str(digits), "--work", str(folder / "work"),
         "--images", str(folder / "png"), "--out", str(out)]
    )  # fmt: skip
    return out


def test_tables_of_several_processes_are_joined(digits, tmp_path):
    first = bench(digits, tmp_path, "mnist", "references;svd")
    other = bench(digits, tmp_path, "mnist", "mixture svd+em")
    joined = tmp_path / "joined.json"
    main(["--task", "mnist", "--join", str(first), str(other), "--out", str(joined)])
    record = json.loads(joined.read_text())
    table = record["tables"]["mnist"]
    assert record["benchmark"] == "images"
    assert [row["method"] for row in table] == [
        "real training images", "their reconstructions", "svd", "mixture svd+em",
    ]  # fmt: skip
    assert table[2]["a_sample_is"] == "centre"
    assert table[3]["a_sample_is"] == "centre + learned noise"
    for row in table:
        assert 0 <= row["cnn_accuracy"] <= 1
        assert "frechet_in_own_features" in row
        assert not any("fid" in name.lower() for name in row)
    assert table[0]["distance_to_training_over_that_of_test"] == pytest.approx(0, abs=1e-6)
    assert {p.name for p in (tmp_path / "png").iterdir()} == {
        "mnist-svd.png", "mnist-mixture-svd-em.png",
    }  # fmt: skip
    # The second process read what the first had trained.
    assert table[3]["raw_autoencoder"] == table[2]["raw_autoencoder"]


def test_modes_of_stacked_digits_are_counted(digits, tmp_path):
    methods = "mixture em;products svd+em;svd, debiased"
    record = json.loads(bench(digits, tmp_path, "stacked", methods).read_text())
    rows = record["tables"]["stacked"]
    assert [row["method"] for row in rows] == methods.split(";")
    for row in rows:
        assert row["total"] == 1000
        assert 1 <= row["modes"] <= 300
        assert row["kl"] >= 0
    assert record["protocol"]["scale"]["name"] == "quick"


def test_methods_have_the_same_network_and_steps():
    assert "images" in BENCHMARKS
    full = SCALES["full"]
    for task in ("mnist", "cifar10"):
        costs = [m for m in METHODS[task] if not m.startswith("mixture")]
        settings = [settings_of(task, m, full).as_json() for m in costs]
        assert len({json.dumps({**s, "cost": "", "debias": False}) for s in settings}) == 1
    assert settings_of("stacked", "mixture em", full).steps == 0
    with pytest.raises(OptionError, match="has the methods"):
        run_task("mnist", ["gan"])


def test_the_page_shows_the_best_first(tmp_path):
    rows = [
        {"method": name, "a_sample_is": "centre", "cnn_accuracy": value, "kl": value}
        for name, value in (("svd", 0.5), ("mixture svd+em", 0.9), ("mmd", 0.7))
    ]
    machine = {"gpu": None, "cores": 2, "cpu": "a CPU"}
    for task in ("mnist", "stacked"):
        protocol = {"task": task, "scale": {"name": "small"}}
        record = {"machine": machine, "commit": "abc", "protocol": protocol}
        file = tmp_path / "results" / "bench" / f"images-{task}-cpu2.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**record, "tables": {task: rows}}))
    (tmp_path / "results" / "images").mkdir()
    (tmp_path / "results" / "images" / "mnist-svd.png").touch()
    text = write_images_page(tmp_path / "results", tmp_path / "docs" / "images.md").read_text()
    digits, stacked = text.split("## Stacked MNIST")
    assert digits.index("| mixture svd+em |") < digits.index("| mmd |") < digits.index("| svd |")
    assert (
        stacked.index("| svd |") < stacked.index("| mmd |") < stacked.index("| mixture svd+em |")
    )
    assert "| mmd | 70.0\u00a0% |" in digits
    assert "smaller networks (`--scale small`), commit `abc`" in digits
    assert "](../results/images/mnist-svd.png)" in digits
    assert ".png" not in stacked
    assert "CIFAR" not in text


@pytest.mark.parametrize(
    ("frechet", "recall", "best"),
    [((1, 2, 3, 4), (4, 3, 2, 1), "svd by Frechet, recall"),
     ((1, 2, 3, 4), (1, 2, 3, 4), "svd by Frechet; matrix by recall"),
     ((2, 1, 3, 4), (1, 2, 3, 4), "scalar by Frechet; matrix by recall")],
)  # fmt: skip
def test_the_page_says_which_cost_is_best_and_judges_nothing(tmp_path, frechet, recall, best):
    costs = ("svd", "scalar", "vector", "matrix")
    rows = [
        {"method": cost, "a_sample_is": "centre", "frechet_in_own_features": f, "recall": r}
        for cost, f, r in zip(costs, frechet, recall, strict=True)
    ]
    record = {
        "machine": {"gpu": "A GPU"}, "commit": "abc", "tables": {"cifar10": rows},
        "protocol": {"task": "cifar10", "scale": {"name": "full"}},
    }  # fmt: skip
    file = tmp_path / "results" / "bench" / "images-cifar10-gpu.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record))
    text = write_images_page(tmp_path / "results", tmp_path / "images.md").read_text()
    assert f"with the paper's loss, of one run each: {best}." in text
    assert "confirmed" not in text
