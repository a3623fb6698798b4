"""`kermix classify` and `kermix predict`: what they write, how they stop, what they refuse."""

import csv
import gzip
import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from internals import (
    Augmentation,
    Start,
    app,
    begin_classifier,
    classifier,
    load_checkpoint,
    load_labelled,
    open_run,
    preset,
    suited_settings,
)
from kermix.errors import KermixError, OptionError, RunError, ShapeError
from processes import command

SMALL = ["--width", "12", "--depth", "1", "--set", "output_width=16"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def kermix(*arguments):
    """Run a command; its error, if it raises one of ours, is raised here."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, KermixError):
        raise result.exception
    return result


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Bright and dark squares in colour, some of another size, one damaged."""
    root = tmp_path_factory.mktemp("pictures") / "squares"
    generator = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (root / name).mkdir(parents=True)
        for i in range(20):
            side = 10 if i else 15
            pixels = generator.integers(level - 50, level + 50, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    (root / "light" / "broken.png").write_bytes(b"\x89PNG no more")
    return root


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    result = kermix("classify", "--quick", "--batch-size", 96, "--epochs", 4, "--seed", 1,
                    "--out", folder)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert str(folder / "report.html") in result.output.replace("\n", "").split("report:")[1]
    return folder


@pytest.fixture(scope="module")
def squares(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "squares"
    result = kermix("classify", pictures, "--patch", 1, *SMALL, "--epochs", 15, "--out", folder)
    assert result.exit_code == 0, result.output
    assert "broken.png" in result.output
    return folder


def test_run_folder_holds_everything(digits):
    assert {p.name for p in digits.iterdir()} == {
        "config.json", "metrics.csv", "checkpoint", "result.json", "report.html",
    }  # fmt: skip
    rows = table(digits / "metrics.csv")
    assert [row["epoch"] for row in rows] == list("1234")
    assert open_run(digits).kind.name == "classify"
    result = json.loads((digits / "result.json").read_text())
    assert result["test_accuracy"] > 0.8
    assert float(rows[-1]["test_accuracy"]) == pytest.approx(result["test_accuracy"])
    assert np.sum(result["confusion"]) == 360
    right = np.trace(result["confusion"]) / 360
    assert right == pytest.approx(result["test_accuracy"])
    config = json.loads((digits / "config.json").read_text())
    assert config["classes"] == list("0123456789")
    assert config["environment"]["versions"]["torch"]


def test_report_page(digits):
    page = (digits / "report.html").read_text()
    wrong = 360 - np.trace(json.loads((digits / "result.json").read_text())["confusion"])
    assert page.count("<img") == min(24, wrong) + 2  # mistakes, filters and anchors
    command = "kermix classify --quick --batch-size 96 --epochs 4 --seed 1 --out"
    assert f"<pre>{command} {digits}</pre>" in page
    assert "Classes of digits" in page


def test_the_command_of_the_report_repeats_the_run(squares, tmp_path):
    arguments = open_run(squares).command().split()[1:]
    again = tmp_path / "again"
    assert kermix(*arguments, "--out", again).exit_code == 0
    assert open_run(again).settings == open_run(squares).settings
    first, _ = load_checkpoint(squares / "checkpoint" / "model.safetensors")
    second, _ = load_checkpoint(again / "checkpoint" / "model.safetensors")
    assert all(value.equal(second[name]) for name, value in first.items())


def test_labelled_folder_is_learned_and_predicted(squares, pictures, tmp_path):
    result = json.loads((squares / "result.json").read_text())
    assert result["test_accuracy"] == 1.0
    out = tmp_path / "classes.csv"
    found = kermix("predict", squares, pictures, "-o", out)
    assert found.exit_code == 0, found.output
    assert "broken.png" in found.output
    assert "40 images" in found.output
    rows = table(out)
    assert len(rows) == 40
    assert list(rows[0]) == ["file", "class", "probability"]
    assert all(row["file"].startswith(row["class"]) for row in rows)
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)
    with pytest.raises(RunError, match="exists"):
        kermix("predict", squares, pictures, "-o", out)


def test_one_picture_is_printed(squares, pictures):
    result = kermix("predict", squares, pictures / "dark" / "3.png")
    lines = result.stdout.splitlines()
    assert lines[0] == "file,class,probability"
    assert lines[1].startswith("3.png,dark,0.")


def test_arrays_and_idx_files_give_what_the_network_says(digits, tmp_path):
    test = load_labelled("digits", "test")
    images, trained = test.images[:30], classifier(open_run(digits))
    expected = trained.probabilities(torch.from_numpy(images))
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (30, 8, 8))
    (tmp_path / "x-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
    np.save(tmp_path / "bytes.npy", images)
    np.save(tmp_path / "last.npy", images.transpose(0, 2, 3, 1))
    np.save(tmp_path / "floats.npy", (images[:, 0] / 255).astype(np.float64))
    for name in ("x-ubyte.gz", "bytes.npy", "last.npy", "floats.npy"):
        out = tmp_path / f"{name}.csv"
        assert kermix("predict", digits, tmp_path / name, "--all", "-o", out).exit_code == 0
        rows = table(out)
        assert [row["row"] for row in rows] == [str(i) for i in range(30)]
        chances = np.array([[float(row[f"p({c})"]) for c in "0123456789"] for row in rows])
        np.testing.assert_allclose(chances, expected.numpy(), atol=2e-6)
        assert [row["class"] for row in rows] == [str(int(i)) for i in expected.argmax(1)]
    np.save(tmp_path / "large.npy", images.repeat(2, 2).repeat(2, 3))
    result = kermix("predict", digits, tmp_path / "large.npy", "-o", tmp_path / "large.csv")
    assert "resized from 16 x 16 to 8 x 8" in result.output
    assert len(table(tmp_path / "large.csv")) == 30


def test_many_images_are_predicted_like_few(digits, tmp_path):
    few = load_labelled("digits", "test").images[:, 0]
    np.save(tmp_path / "many.npy", np.concatenate([few] * 3))
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, pixels in enumerate(few[:130]):
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    kermix("predict", digits, tmp_path / "many.npy", "-o", tmp_path / "many.csv")
    kermix("predict", digits, folder, "-o", tmp_path / "pictures.csv")
    rows = [row["class"] for row in table(tmp_path / "many.csv")]
    assert len(rows) == 3 * len(few)  # more than are read at once, as the pictures are
    assert rows[: len(few)] == rows[len(few) : 2 * len(few)] == rows[2 * len(few) :]
    assert [row["class"] for row in table(tmp_path / "pictures.csv")] == rows[:130]


def test_a_folder_that_is_called_like_a_set_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    result = kermix("classify", *SMALL, "--epochs", 1, "--out", "run")
    assert "1 epoch of" in result.output
    assert open_run(Path("run")).config["data"] == "digits"
    monkeypatch.chdir("/")
    assert kermix("resume", tmp_path / "run").exit_code == 0


def test_large_images_get_steps_that_fit_into_memory():
    small = suited_settings("folder", "gaussian-product", 3, 50_000, 32)
    assert (small.stride, small.batch_size) == (1, 512)
    large = suited_settings("folder", "gaussian-product", 3, 50_000, 224)
    positions = ((224 - 3) // large.stride + 1) ** 2
    assert large.batch_size * positions * large.output_width <= 2**28
    assert large.batch_size >= 16


def _save(path, array):
    np.save(path, array)
    return path


def _text(path):
    path.write_text("hello")
    return path


BAD_IMAGES = {
    "missing": (lambda d: d / "none.png", "no such file"),
    "shape": (lambda d: _save(d / "x.npy", np.zeros((3, 8))), r"shape \(3, 8\)"),
    "one image": (lambda d: _save(d / "x.npy", np.zeros((8, 8, 3))), "may be one image"),
    "range": (lambda d: _save(d / "x.npy", np.full((3, 8, 8), 7.0)), r"outside \[0, 1\]"),
    "text": (lambda d: _save(d / "x.npy", np.full((3, 8, 8), "a")), "not pixels"),
    "damaged array": (lambda d: _text(d / "x.npy"), "not a readable .npy"),
    "damaged picture": (lambda d: _text(d / "x.png"), "not a readable image"),
    "damaged idx": (lambda d: _text(d / "x-ubyte"), "not an IDX file"),
    "table": (lambda d: _text(d / "x.csv"), "not an image"),
    "empty folder": (lambda d: d, "no images in this folder"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_bad_images_are_named_in_one_line(case, digits, tmp_path):
    make, expected = BAD_IMAGES[case]
    with pytest.raises(KermixError, match=expected) as caught:
        kermix("predict", digits, make(tmp_path), "-o", tmp_path / "out.csv")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["--patch", 2], "patch=2"),
     (["--patch", 9], "patch=9"), (["--set", "flip=1"], "flip=1"),
     (["--epochs", 0], "epochs=0"), (["--set", "depht=3"], "did you mean depth"),
     (["--set", "depth"], "NAME=VALUE"), (["--set", "epochs=many"], "epochs"),
     (["--set", "width=wide"], "width"), (["--learning-rate", -1], "learning_rate=-1"),
     (["--set", "anchor_grid=2.5"], "anchor_grid=2.5"), (["--seed", 2**40], "seed="),
     (["--set", 'anchors_at=["a"]'], "anchors_at"), (["--set", "output_width=0"], "=0"),
     (["--seed", -1], "seed=-1"), (["--device", "toaster"], "device='toaster'"),
     (["--precision", "half"], "precision='half'")],
)  # fmt: skip
def test_bad_options_are_refused_before_anything_is_written(options, expected, tmp_path):
    with pytest.raises(KermixError, match=expected):
        kermix("classify", "digits", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrong_choice_is_answered_by_those_that_there_are(tmp_path):
    result = CliRunner().invoke(app, ["classify", "digits", "--model", "tree"])
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    assert "'tree' is not one of 'gaussian-product', 'cnn'" in text


def test_sets_of_two_sizes_are_refused_before_a_folder_is_made(tmp_path):
    images = {split: load_labelled("digits", split) for split in ("train", "test")}
    images["test"] = replace(images["test"], images=images["test"].images[:, :, :6])
    settings = suited_settings("digits", "gaussian-product", 3, 1437, 8)
    start = Start(["kermix", "classify", "digits"])
    with pytest.raises(ShapeError, match=r"held-out images \(1, 6, 8\)"):
        begin_classifier(tmp_path / "run", "digits", tuple(images.values()), settings, start)
    assert not (tmp_path / "run").exists()


def test_bad_data_and_folders(digits, tmp_path):
    with pytest.raises(KermixError, match="nor a labelled data set"):
        kermix("classify", tmp_path / "none")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03")
    with pytest.raises(KermixError, match="train-images-idx3-ubyte: damaged"):
        kermix("classify", "mnist", "--data-root", tmp_path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="will not be overwritten"):
        kermix("classify", "--out", digits)
    with pytest.raises(RunError, match="not a run folder"):
        kermix("predict", tmp_path, tmp_path)
    (tmp_path / "config.json").write_text('{"kind": "fit", "settings": {"steps": 1}}')
    with pytest.raises(RunError, match="only fits of rows or images"):
        kermix("sample", digits, "-o", tmp_path / "s.npy")
    with pytest.raises(RunError, match="needs a classifier"):
        kermix("predict", tmp_path, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        kermix("resume", tmp_path)


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_predictions_on_a_device_that_is_not_there(device, squares, pictures):
    with pytest.raises(OptionError, match="cannot be used here"):
        kermix("predict", squares, pictures, "--device", device)


def test_changed_data_cannot_be_resumed(tmp_path):
    root = tmp_path / "data"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for i in range(5):
            Image.fromarray(np.full((6, 6), 40 * i, np.uint8)).save(root / name / f"{i}.png")
    run = tmp_path / "run"
    assert kermix("classify", root, *SMALL, "--epochs", 1, "--out", run).exit_code == 0
    Image.fromarray(np.full((6, 6), 255, np.uint8)).save(root / "a" / "0.png")
    with pytest.raises(RunError, match="has changed"):
        kermix("resume", run)


@pytest.mark.parametrize("source", ["mnist", "cifar10"])
@pytest.mark.parametrize("augment", [True, False])
def test_sets_of_the_table_have_its_settings(source, augment):
    found = suited_settings(source, "gaussian-product", 5, 60_000, 28, augment=augment)
    expected = preset(source, "gaussian-product", 5, augment)
    assert found == replace(expected, evaluate_every=1)


@pytest.mark.parametrize("source", ["mnist", "cifar10"])
@pytest.mark.parametrize("augment", [True, False])
def test_the_cnn_of_a_set_does_not_depend_on_a_patch(source, augment):
    found = {str(Augmentation(suited_settings(source, "cnn", patch, 60_000, 28, augment=augment)))
             for patch in (1, 3, 5, 7)}  # fmt: skip
    assert found == {str(Augmentation(preset(source, "cnn", None, augment)))}


def test_the_cnn_has_a_run_too(pictures, tmp_path):
    run = tmp_path / "run"
    result = kermix("classify", pictures, "--model", "cnn", "--epochs", 1, "--no-augment",
                    "--out", run)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert open_run(run).settings.shift == 0
    assert "Patch filters" not in (run / "report.html").read_text()


def test_ctrl_c_saves_and_the_resumed_run_ends_as_if_it_had_not_stopped(pictures, tmp_path):
    options = [pictures, *SMALL, "--epochs", "20", "--batch-size", "4"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    with command("classify", *options, "--out", stopped) as process:
        process.wait_for((stopped / "checkpoint" / "last.safetensors").exists)
        process.send(signal.SIGINT)
        assert process.wait() == 130, process.output
        assert "kermix resume" in process.output
    with pytest.raises(RunError, match="training is not finished"):
        kermix("predict", stopped, tmp_path)
    assert kermix("resume", stopped).exit_code == 0
    assert (stopped / "report.html").exists()
    assert kermix("classify", *options, "--out", whole).exit_code == 0
    first, _ = load_checkpoint(whole / "checkpoint" / "model.safetensors")
    second, _ = load_checkpoint(stopped / "checkpoint" / "model.safetensors")
    assert all(value.equal(second[name]) for name, value in first.items())
    # A finished run only writes its report again.
    before = (stopped / "metrics.csv").read_bytes()
    assert kermix("resume", stopped).exit_code == 0
    assert (stopped / "metrics.csv").read_bytes() == before
