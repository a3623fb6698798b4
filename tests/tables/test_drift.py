"""Sketches against sketches: the test of means is at its level, and a series shows its drift."""

import json

import pytest
import torch
from typer.testing import CliRunner

import kermix as km
from cases import normal
from internals import app, drift, mean_test
from kermix.errors import OptionError, SketchError

FEATURES = km.nystrom_features(normal(2000, 2, seed=99), 0.5, rank=60, tolerance=1e-8)


def sketch(points):
    return km.Sketch(FEATURES).update(points)


def test_the_mmd_is_that_of_all_pairs():
    x, y = normal(300, 2, seed=0), normal(200, 2, seed=1) + 0.3
    exact = km.two_sample_test(x, y, "mmd", 0.5, permutations=1).statistic ** 0.5
    assert mean_test(sketch(x), sketch(y)).mmd == pytest.approx(exact, rel=1e-3)


def test_level_and_power():
    """250 pairs of one source: rejections at 0.05 within three standard deviations."""
    pvalues, shifted, ratios = [], [], []
    for seed in range(250):
        x, y = normal(400, 2, seed=2 * seed), normal(250, 2, seed=2 * seed + 1)
        same, other = mean_test(sketch(x), sketch(y)), mean_test(sketch(x), sketch(y + 0.35))
        pvalues.append(same.pvalue)
        shifted.append(other.pvalue)
        ratios.append(same.mmd**2 / same.if_same**2)
    rejected = sum(p <= 0.05 for p in pvalues) / 250
    assert abs(rejected - 0.05) < 3 * (0.05 * 0.95 / 250) ** 0.5
    assert abs(sum(p <= 0.5 for p in pvalues) / 250 - 0.5) < 3 * 0.5 / 250**0.5
    assert sum(p <= 0.05 for p in shifted) / 250 > 0.9
    assert sum(ratios) / 250 == pytest.approx(1, abs=0.1), "if_same is what it says"


def test_weights_have_no_pvalue_and_equal_sketches_no_distance():
    x = normal(100, 2, seed=0)
    weighted = km.Sketch(FEATURES).update(x, torch.rand(100).double())
    assert mean_test(weighted, sketch(x)).pvalue is None
    same = km.compare(sketch(x), sketch(x))
    assert same.measure("bures").value < 1e-6
    assert same.measure("mmd").pvalue == pytest.approx(1, abs=1e-6)


@pytest.fixture
def folder(tmp_path):
    for day in range(5):
        points = normal(3000, 2, seed=day) + (0.3 if day > 2 else 0.0)
        sketch(points).save(tmp_path / f"day{day}.sketch")
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_folder_of_sketches_is_a_series(folder, tmp_path):
    page = tmp_path / "page.html"
    result = invoke("compare", folder, "--report", page)
    assert result.exit_code == 0, result.output
    assert "day4" in result.output
    assert result.output.strip().splitlines()[-1].startswith("Report: ")
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "day4 is farthest from day0." in text or "day3 is farthest from day0." in text
    content = json.loads(invoke("compare", folder, "--json").output)
    assert [s["pvalue"] < 1e-6 for s in content["to_first"]] == [False, False, True, True]
    assert [s["pvalue"] < 1e-6 for s in content["to_previous"]] == [False, False, True, False]
    assert [s["against"] for s in content["to_previous"]] == ["day0", "day1", "day2", "day3"]


def test_two_sketches_by_name(folder):
    result = invoke("compare", folder / "day0.sketch", folder / "day4.sketch", "--json")
    content = json.loads(result.output)
    assert content["names"] == ["day0.sketch", "day4.sketch"]
    assert content["rows"] == [3000, 3000]
    table = invoke("compare", folder / "day0.sketch", folder / "day4.sketch")
    assert "certificate" in table.output
    assert "Which columns" not in table.output


def test_what_cannot_be_compared(folder):
    other = km.nystrom_features(normal(500, 2, seed=3), 0.1, rank=10)
    km.Sketch(other).update(normal(50, 2)).save(folder / "day3.sketch")
    with pytest.raises(SketchError, match=r"day0 and day3: .*feature map.*--landmarks-from"):
        raise invoke("compare", folder).exception
    with pytest.raises(OptionError, match="sketch the other data set first"):
        km.compare(folder / "day0.sketch", normal(10, 2))
    for path in folder.glob("day[1-9].sketch"):
        path.unlink()
    assert "1 sketch;" in str(invoke("compare", folder).exception)
    assert "two files" in str(invoke("compare", folder / "day0.sketch").exception)
    with pytest.raises(SketchError, match="at least two"):
        drift([sketch(normal(9, 2))], ["one"])
