"""Run folders, sketches and checkpoints of version 0.1 open, and runs go on to the same end."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import kermix as km
from kermix.cli.app import app
from kermix.training.conditional import load_conditional

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1"
EXPECTED = json.loads((OLD / "expected.json").read_text())
NEAR = {"rel": 1e-3, "abs": 1e-6}  # trained elsewhere: other processors round otherwise


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path / "cache"))


def command(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def copy(name, folder):
    return Path(shutil.copytree(OLD / name, folder / name))


def same_history(run, expected):
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    assert len(rows) == len(expected)
    for row, truth in zip(rows, expected, strict=True):
        for name, value in truth.items():
            found = None if row[name] in ("", "nan") else float(row[name])
            assert found == (None if value is None else pytest.approx(value, **NEAR)), name


def test_a_fit_of_rows(tmp_path):
    run, expected = copy("rows", tmp_path), EXPECTED["rows"]
    command("sample", run, "-n", 5, "--seed", 1, "-o", tmp_path / "drawn.npy")
    assert np.load(tmp_path / "drawn.npy") == pytest.approx(np.array(expected["sample"]), **NEAR)
    rows = tmp_path / "rows.csv"
    rows.write_text("x0,x1\n0,0.5\n1,-0.5\n2,0\n")
    command("score", run, rows, "-o", tmp_path / "density.npy")
    density = np.load(tmp_path / "density.npy").ravel()
    assert density == pytest.approx(np.array(expected["score"]), **NEAR)
    command("resume", run)
    same_history(run, expected["history"])
    command("sample", run, "-n", 5, "--seed", 1, "-o", tmp_path / "last.npy")
    whole = np.array(expected["sample of the whole"])
    assert np.load(tmp_path / "last.npy") == pytest.approx(whole, **NEAR)
    assert (run / "report.html").is_file()


def test_a_classifier(tmp_path):
    run, expected = copy("classify", tmp_path), EXPECTED["classify"]
    digits = np.random.default_rng(1).integers(0, 256, (4, 1, 8, 8), np.uint8)
    np.save(tmp_path / "digits.npy", digits)
    for again in (False, True):
        if again:
            command("resume", run)
            same_history(run, expected["history"])
        table = tmp_path / f"{again}.csv"
        command("predict", run, tmp_path / "digits.npy", "--all", "-o", table)
        rows = list(csv.reader(table.read_text().splitlines()))[1:]
        found = np.array([[float(cell) for cell in row[3:]] for row in rows])
        assert found == pytest.approx(np.array(expected["chances"]), rel=1e-2, abs=1e-4)


def test_a_fit_of_images(tmp_path):
    run, expected = copy("images", tmp_path), EXPECTED["images"]
    command("sample", run, "-n", 3, "--seed", 1, "-o", tmp_path / "drawn.npy")
    drawn = np.load(tmp_path / "drawn.npy")
    assert drawn.shape == (3, 1, 16, 16)
    truth = np.array(expected["sample"]) * 255
    assert np.abs(drawn.ravel()[::101] - truth).max() < 1
    # The pictures are not where they were.
    config = json.loads((run / "config.json").read_text())
    config["data"] = str(pictures(tmp_path / "pictures"))
    (run / "config.json").write_text(json.dumps(config))
    command("resume", run)
    same_history(run, expected["history"])


def pictures(folder):
    """Those that write.py drew."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("circle", "square")):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            array = np.full((16, 16), 30 + 160 * number, np.uint8)
            x, y = rng.integers(0, 10, 2)
            array[y : y + 6, x : x + 6] = rng.integers(0, 255)
            Image.fromarray(array).save(folder / name / f"{i:02}.png")
    return folder


def test_a_sketch_of_points():
    sketch, expected = km.Sketch.load(OLD / "points.sketch"), EXPECTED["points.sketch"]
    assert sketch.count == expected["count"] == 300
    generator = torch.Generator().manual_seed(5)
    points = torch.randn(300, 2, generator=generator, dtype=torch.float64)[:20] + 0.3
    for name, cost in (("svd", km.svd_cost), ("scalar", km.scalar_cost)):
        found = float(cost(sketch, points, normalized=True))
        assert found == pytest.approx(expected[name], rel=1e-9)
    assert (sketch + sketch).count == 600


def test_a_sketch_of_a_file(tmp_path):
    sketch, expected = km.Sketch.load(OLD / "file.sketch"), EXPECTED["file.sketch"]
    assert (sketch.count, list(sketch.origin.columns)) == (60, expected["columns"])
    result = command("compare", OLD / "file.sketch", OLD / "file.sketch", "--json")
    measures = {m["name"]: m for m in json.loads(result.stdout)["measures"]}
    assert measures["svd"]["normalized"] == pytest.approx(1, abs=0.02)  # a small sketch


def test_a_conditional_fit():
    model = load_conditional(OLD / "conditional.safetensors")
    context = torch.linspace(-1, 1, 80, dtype=torch.float64)[::20, None]
    with torch.no_grad():
        density = model(context).log_prob(context**2)
    assert density.tolist() == pytest.approx(EXPECTED["conditional"]["density"], rel=1e-5)


def test_they_are_small():
    sizes = [path.stat().st_size for path in OLD.rglob("*") if path.is_file()]
    assert len(sizes) > 12
    assert sum(sizes) < 400_000
