"""Images as the paper makes them: sets, cells in files, numbers and claims."""

import copy
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from internals import CellTraining, app, cell_file, read_pictures, read_record, sets_in, shown_in
from internals import image_cells_COSTS as COSTS
from internals import image_cells_module as image_cells
from internals import images_module as images
from kermix.errors import ImageError, OptionError, RunError

SMALL = CellTraining(steps=2, batch_size=20, width=8, compared=30, judge_epochs=1, judge_width=8)
SUMMARY = {
    "data": {
        "energy of the mean image": 1.0, "energy": 0.01, "frechet in random features": 0.5,
        "coverage": 0.99,
    },
    **{
        cost: {
            "energy": 0.1 + 0.01 * i, "frechet in random features": 1.0 + i,
            "coverage": 0.9 - 0.1 * i, "least frequent class": 0.05,
        }
        for i, cost in enumerate(COSTS)
    },
}  # fmt: skip


def rows_of(summary, name, seeds=4):
    """Rows of several seeds, whose numbers are those of the summary."""
    return [
        {"set": name, "method": method, "variance": 0.01, "seed": seed, **numbers}
        for method, numbers in summary.items()
        for seed in range(1 if method == "data" else seeds)
    ]


def faces(folder, people=4, each=5):
    (folder / "faces").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (people * each, 50, 40), dtype=np.uint8)
    person = np.repeat(np.arange(people), each)
    np.savez(folder / "faces" / "orl-faces.npz", images=pixels, person=person)
    return pixels, person


def test_sets_are_those_whose_files_are_there(tmp_path):
    assert sets_in(tmp_path) == ("mnist",)
    faces(tmp_path)
    (tmp_path / "celeba" / "img_align_celeba").mkdir(parents=True)
    assert sets_in(tmp_path) == ("mnist", "faces", "celeba")


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, True])
def test_the_command_runs_on_files_in_the_layout_of_celeba(tmp_path, monkeypatch, official):
    """`kermix reproduce fig-images --data-root DATA`, as those who have CelebA would call it."""
    root = tmp_path / "CelebA"
    pictures = root / "Img" / "img_align_celeba" if official else root / "img_align_celeba"
    lists = root / "Eval" if official else root
    pictures.mkdir(parents=True)
    lists.mkdir(exist_ok=True)
    rows = np.random.default_rng(0)
    names = [f"{i:06}.jpg" for i in range(1, 61)]
    for name in names:
        Image.fromarray(rows.integers(0, 255, (218, 178, 3), dtype=np.uint8)).save(pictures / name)
    (lists / "list_eval_partition.txt").write_text(
        "".join(f"{name} {0 if i < 40 else 2}\n" for i, name in enumerate(names))
    )
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(CellTraining, "quick", lambda: SMALL)
    monkeypatch.setattr(images, "sets_in", lambda root: tuple(
        name for name in sets_in(root) if name != "mnist"
    ))  # fmt: skip
    out = tmp_path / "out"
    arguments = ["reproduce", "fig-images", "--quick", "--data-root", tmp_path, "--out", out]
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    record = read_record(out / "fig-images.json")
    assert {row["set"] for row in record["tables"]["seeds"]} == {"celeba"}
    assert all("CelebA" in claim["text"] and not claim["ours"] for claim in record["claims"])


def test_other_faces_do_not_count_as_celeba():
    for name, ours in (("mnist", False), ("celeba", False), ("faces", True), ("digits", True)):
        assert {claim.ours for claim in images.claims(name, 0.01, rows_of(SUMMARY, name))} == {
            ours
        }


def test_faces_are_squares_with_two_of_each_person_held_out(tmp_path):
    pixels, _ = faces(tmp_path)
    read = read_pictures("faces", tmp_path)
    assert read.train.shape == (12, 1, 32, 32)
    assert read.test.shape == (8, 1, 32, 32)
    # The mean of a picture survives; the first two of the first person are tested with.
    square = pixels[0, 5:45].astype(float)
    assert abs(read.test[0].mean() - square.mean()) < 1
    assert abs(read.train[0].mean() - pixels[2, 5:45].mean()) < 1
    assert "AT&T" in read.notes[0]


def test_files_that_are_no_faces_are_refused(tmp_path):
    (tmp_path / "faces").mkdir()
    np.savez(tmp_path / "faces" / "orl-faces.npz", other=np.zeros(3))
    with pytest.raises(ImageError, match="orl-faces"):
        read_pictures("faces", tmp_path)
    with pytest.raises(OptionError, match="mnist"):
        read_pictures("flowers", tmp_path)


def test_cells_are_kept_and_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(CellTraining, "quick", lambda: SMALL)
    options = {"cells": tmp_path, "seeds": 1, "device": "cpu"}
    first = images.run(True, **options)
    assert len(list(tmp_path.iterdir())) == 5
    titles = [axes.get_title() for axes in first.figure.axes]
    assert titles[0] == "data"
    assert all(titles)
    monkeypatch.setattr(images, "train_image_cell", None)  # nothing is trained again
    again = images.run(True, **options)
    assert again.tables == first.tables
    path = cell_file(tmp_path, "digits", "svd", 0.01, 0)
    cell = json.loads(path.read_text())
    shown = shown_in(cell)
    assert shown.shape == (24, 1, 8, 8)
    assert 0 <= float(shown.min()) <= float(shown.max()) <= 1
    path.write_text("{}")
    with pytest.raises(RunError, match="not a cell"):
        images.run(True, **options)


def test_a_network_that_draws_the_data_has_the_numbers_of_the_data():
    pictures = read_pictures("digits", None, 200)
    test = torch.from_numpy(pictures.test).float() / 255
    training = CellTraining(compared=200, judge_epochs=1, judge_width=8)
    same = image_cells.measured(pictures, test, training)
    assert same["energy"] == pytest.approx(0, abs=1e-6)
    assert same["frechet in random features"] == pytest.approx(0, abs=1e-3)
    assert same["precision"] == same["recall"] == same["coverage"] == 1
    blank = image_cells.measured(pictures, torch.zeros_like(test), training)
    assert blank["energy"] > 0.1
    assert blank["coverage"] < 0.5


def test_seeds_that_are_not_whole_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(CellTraining, "quick", lambda: SMALL)
    options = {"cells": tmp_path, "device": "cpu"}
    images.run(True, seeds=1, **options)
    for path in list(tmp_path.glob("digits-[sv]*.json")):
        (tmp_path / path.name.replace("-0.json", "-3.json")).write_bytes(path.read_bytes())
    made = images.run(True, seeds=2, **options)  # the matrix cost has no seed 3
    assert made.settings["seeds"] == {"digits": 1}
    cell_file(tmp_path, "digits", "vector", 0.01, 0).unlink()
    with pytest.raises(RunError, match="no set"):
        images.run(True, **options)


@pytest.mark.parametrize(
    ("cost", "key", "value", "failing"),
    [
        ("matrix", "energy", 0.24, [4]),
        ("matrix", "energy", 0.26, [0, 4]),
        ("vector", "least frequent class", 0.005, [0]),
        ("scalar", "energy", 0.05, [1, 4]),
        ("vector", "frechet in random features", 0.5, [2]),
        ("matrix", "coverage", 0.95, [3]),
    ],
)
def test_claims_of_images_can_fail(cost, key, value, failing):
    assert all(claim.holds for claim in images.claims("mnist", 0.01, rows_of(SUMMARY, "mnist")))
    changed = copy.deepcopy(SUMMARY)
    changed[cost][key] = value
    found = images.claims("mnist", 0.01, rows_of(changed, "mnist"))
    assert [i for i, claim in enumerate(found) if not claim.holds] == failing
    assert all(claim.state == "judged" for claim in found)


def test_what_says_nothing_of_images_is_not_counted():
    worse_data = copy.deepcopy(SUMMARY)
    worse_data["data"]["coverage"] = 0.5
    found = images.claims("mnist", 0.01, rows_of(worse_data, "mnist"))
    assert [claim.state for claim in found] == ["judged"] * 3 + ["not counted", "judged"]
    assert "real data lose against svd" in found[3].why
    gone = copy.deepcopy(SUMMARY)
    for cost in COSTS:
        gone[cost]["least frequent class"] = 0.0
    found = images.claims("mnist", 0.01, rows_of(gone, "mnist"))
    assert [claim.state for claim in found[1:]] == ["not counted"] * 4
    assert {claim.why for claim in found[1:]} == {"all collapsed"}
    assert not found[0].holds
    alone = copy.deepcopy(SUMMARY)
    alone["scalar"]["least frequent class"] = 0.0
    found = images.claims("mnist", 0.01, rows_of(alone, "mnist"))
    assert found[1].holds
    assert found[1].why == "scalar collapsed, not compared with"
    assert (found[4].state, found[4].why) == ("not counted", "scalar collapsed")


def test_the_command_trains_what_is_not_there(tmp_path, capsys):
    options = [
        "--set", "digits", "--cost", "data,scalar", "--variance", "0.01", "--seeds", "0",
        "--cells", str(tmp_path), "--steps", "1", "--width", "8", "--images", "60",
        "--compared", "40", "--device", "cpu",
    ]  # fmt: skip
    image_cells.main(options)
    assert {p.name for p in tmp_path.iterdir()} == {
        "digits-data.json", "digits-scalar-v0.01-0.json",
    }  # fmt: skip
    assert "digits-scalar" in capsys.readouterr().out
    image_cells.main(options)
    assert not capsys.readouterr().out
