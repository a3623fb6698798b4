"""`kermix fit` of images: folders, faces, reports, stops, a full disk."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from test_celeba import write_faces
from test_fit_command import kermix

from internals import FitSettings, Start, begin_images, load_checkpoint, open_run
from kermix.errors import OptionError, RunError

SHORT = ["--quick", "--encoder-steps", "8", "--steps", "6", "--batch-size", "12", "--code", "3",
         "--device", "cpu"]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="module")
def _small_networks():
    # Checkpoints of 15 MB after each step take most of the time else.
    quick = FitSettings.quick
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitSettings, "quick", lambda s: replace(quick(s), width=8, hidden=32))
        yield


def write_squares(folder, classes=("circle", "square"), count=12, side=20):
    rng = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            array = np.full((side, side, 3), 30 + 180 * number, np.uint8)
            x, y = rng.integers(0, side - 8, 2)
            array[y : y + 8, x : x + 8] = (200, 60, 20)
            Image.fromarray(array).save(folder / name / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    return write_squares(tmp_path_factory.mktemp("data") / "shapes")


def test_the_papers_own_loss_can_be_asked_for(squares, tmp_path):
    trained = {}
    for given in ((), ("--no-debias",), ("--debias",)):
        folder = tmp_path / "-".join(("run", *given))
        result = kermix("fit", squares, "--size", 16, *SHORT, "--model", "codes", *given,
                        "--out", folder)  # fmt: skip
        assert result.exit_code == 0, result.output
        run = open_run(folder)
        assert ("--no-debias" in run.command()) == ("--no-debias" in given)
        with np.load(folder / "samples.npz") as samples:
            trained[given] = samples["images"]
    np.testing.assert_array_equal(trained[()], trained["--debias",])
    assert not np.array_equal(trained[()], trained["--no-debias",])


@pytest.fixture(scope="module")
def fitted(squares, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    result = kermix("fit", squares, "--size", 16, *SHORT, "--out", folder)
    assert result.exit_code == 0, result.output
    assert str(folder / "report.html") in result.output.replace("\n", "")
    return folder


def test_run_folder_of_images_holds_everything(fitted):
    names = {p.name for p in fitted.iterdir()}
    assert names == {"config.json", "metrics.csv", "checkpoint", "samples", "samples.npz",
                     "report.html"}  # fmt: skip
    assert open_run(fitted).kind.name == "images"
    with np.load(fitted / "samples.npz") as saved:
        assert saved["images"].dtype == np.uint8
        assert saved["images"].shape == (2000, 3, 16, 16)
        assert set(saved["labels"]) == {0, 1}
    moments = sorted(p.name for p in (fitted / "samples").iterdir())
    assert moments[-1] == "step-000014.png"
    assert 3 <= len(moments) <= 8
    with Image.open(fitted / "samples" / moments[0]) as picture:
        assert picture.size == (10 * 17 - 1, 8 * 17 - 1)
    lines = (fitted / "metrics.csv").read_text().splitlines()
    assert len(lines) == 15


def test_report_of_images_shows_what_matters(fitted, squares):
    page = (fitted / "report.html").read_text()
    for text in ("The nearest training images", "nearest training image to its right",
                 "Interpolation between noise vectors", "reconstruction",
                 "one class a column (circle, square)",
                 "Step 14"):  # fmt: skip
        assert text in page, text
    assert page.count("data:image/png;base64,") >= 9
    assert re.search(r"src=\"http|href=\"http", page) is None
    command = f"kermix fit {squares} --size 16 --quick --encoder-steps 8 --steps 6"
    assert f"<pre>{command} --batch-size 12 --code 3 --device cpu --out {fitted}</pre>" in page


def test_samples_of_a_class_on_request(fitted, tmp_path):
    kermix("sample", fitted, "-n", 6, "--label", "square", "-o", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as saved:
        assert saved["labels"].tolist() == [1] * 6
    kermix("sample", fitted, "-n", 6, "-o", tmp_path / "a.npy")
    kermix("sample", fitted, "-n", 6, "--seed", 1, "-o", tmp_path / "b.npy")
    first, other = (np.load(tmp_path / name) for name in ("a.npy", "b.npy"))
    assert first.shape == (6, 3, 16, 16)
    assert not np.array_equal(first, other)
    kermix("sample", fitted, "-n", 6, "-o", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (2 * 101, 2 * 16)  # no wider than six
    with pytest.raises(RunError, match="exists"):
        kermix("sample", fitted, "-o", tmp_path / "a.png")
    with pytest.raises(OptionError, match="circle, square"):
        kermix("sample", fitted, "--label", "moon", "-o", tmp_path / "b.png")
    with pytest.raises(OptionError, match=r"end in \.png, \.npy or \.npz"):
        kermix("sample", fitted, "-o", tmp_path / "a.csv")
    with pytest.raises(RunError, match="no density"):
        kermix("score", fitted, "moons")


def test_options_that_images_do_not_have(squares, tmp_path):
    for wrong, text in (
        (["--refine-with", "likelihood"], "refine_with does not apply"),
        (["--spaces", "sky"], "spaces="),
        (["--model", "code-mixture", "--spaces", "pixels"], "mixture"),
    ):
        with pytest.raises(OptionError, match=text):
            kermix("fit", squares, "--size", 16, *wrong, "--out", tmp_path / "run")
    with pytest.raises(OptionError, match="square images of at least 16"):
        kermix("fit", "moons", "--code", 4, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def faces_run(root, out, source="celeba"):
    return kermix("fit", source, "--data-root", root, "--size", 16, *SHORT, "--out", out)


def test_faces_from_reading_to_report(tmp_path):
    pictures = write_faces(tmp_path, 24, official=True)
    (pictures / "000002.jpg").write_bytes((pictures / "000002.jpg").read_bytes()[:300])
    result = faces_run(tmp_path, tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "000002.jpg" in result.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["images"] == 20
    assert config["classes"] == []
    page = (tmp_path / "run" / "report.html").read_text()
    assert "20 images of 3 x 16 x 16" in page
    assert page.count("<img") >= 3
    result = faces_run(tmp_path, tmp_path / "smile", "celeba:Smiling")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "smile" / "config.json").read_text())
    assert config["classes"] == ["not Smiling", "Smiling"]
    kermix("sample", tmp_path / "smile", "-n", 4, "--label", "Smiling", "-o", tmp_path / "s.png")


def test_folder_of_mixed_sizes_and_modes(tmp_path):
    folder = tmp_path / "mixed"
    write_squares(folder, ("all",), 10)
    rng = np.random.default_rng(0)
    for mode, size in (("L", (20, 20)), ("RGBA", (31, 18)), ("1", (20, 20)), ("P", (40, 40))):
        array = rng.integers(0, 255, (*size, 4), dtype=np.uint8)
        picture = Image.fromarray(array, "RGBA").convert(mode)
        picture.save(folder / "all" / f"mode-{mode}.png")
    frames = [Image.new("P", (20, 20), i) for i in range(3)]
    frames[0].save(folder / "all" / "moving.gif", save_all=True, append_images=frames[1:])
    whole = (folder / "all" / "00.png").read_bytes()
    (folder / "all" / "cut.png").write_bytes(whole[: len(whole) // 2])
    result = kermix("fit", folder, *SHORT, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "cut.png" in result.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["image"] == [3, 20, 20]
    assert config["images"] == 15


def test_stopped_run_of_images_goes_on_to_the_same_end(fitted, squares, tmp_path):
    run = begin_images(
        tmp_path / "run", str(squares), open_run(fitted).dataset(),
        open_run(fitted).settings, Start(["kermix", "fit"], device="cpu"),
        options={"size": 16},
    )  # fmt: skip
    trainer = run.trainer(run.dataset())
    assert not run.train(trainer, should_stop=lambda: trainer.step == 11)
    result = kermix("resume", run.folder)
    assert result.exit_code == 0, result.output
    whole, again = (load_checkpoint(r.last)[0] for r in (open_run(fitted), run))
    for name, tensor in whole.items():
        np.testing.assert_allclose(again[name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


def test_changed_data_are_noticed(fitted, squares, tmp_path):
    run = open_run(fitted)
    other = write_squares(tmp_path / "shapes", count=11)
    moved = replace(run, config={**run.config, "data": str(other)})
    with pytest.raises(RunError, match="has changed"):
        moved.dataset()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize(
    # What was reported in vain is not saved: it is reported again.
    ("name", "step"),
    [("samples.npz", 14), ("samples/step-000014.png", 13)],
)
def test_full_disk_keeps_the_checkpoint(name, step, fitted, tmp_path):
    run = open_run(fitted)
    fresh = replace(run, folder=tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(run.config))
    trap = tmp_path / f"{name}.{os.getpid()}.part"
    trap.parent.mkdir(exist_ok=True)
    trap.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cannot be written \(No space left on device\)"):
        kermix("resume", tmp_path)
    assert load_checkpoint(fresh.last)[1]["step"] == step
    assert not (tmp_path / name).exists()
    trap.unlink(missing_ok=True)
    result = kermix("resume", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / name).exists()


def test_numbers_of_too_few_images_say_so(fitted, tmp_path):
    write_squares(tmp_path / "few", ("circle",), 3)
    options = ["--size", 16, *SHORT, "--out", tmp_path / "run"]
    result = kermix("fit", tmp_path / "few", *options)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "run" / "report.html").read_text()
    for shown in (" ".join(result.output.split()), page):
        assert "3 images are too few to hold some out" in shown
        assert "energy distance of those fitted" in shown
        assert "held-out" not in shown
        assert "distance to training images" not in shown
    page = (fitted / "report.html").read_text()
    assert "held-out energy distance" in page
    assert "distance to training images" in page


def test_some_images_on_a_device_that_is_there(squares, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(OptionError, match="device='toaster'"):
        kermix("fit", squares, "--size", 16, *SHORT, "--device", "toaster", "--out", run)
    assert not run.exists()
    result = kermix("fit", squares, "--size", 16, *SHORT, "--rows", 5, "--out", run)
    assert "5 images of 3 x 16 x 16" in " ".join(result.output.split())
