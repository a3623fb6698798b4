"""Images as the paper makes them: sets, cells in files, numbers and claims."""

import copy
import json

import numpy as np
import pytest
import torch

from kermix.errors import ImageError, OptionError, RunError
from kermix.paper import image_cells, images
from kermix.paper.image_cells import (
    COSTS,
    CellTraining,
    cell_file,
    read_pictures,
    sets_in,
    shown_in,
)

SMALL = CellTraining(steps=2, batch_size=20, width=8, compared=30, judge_epochs=1, judge_width=8)
SUMMARY = {
    "data": {"energy of the mean image": 1.0},
    **{
        cost: {
            "energy": 0.1 + 0.01 * i, "frechet in random features": 1.0 + i,
            "coverage": 0.9 - 0.1 * i, "least frequent class": 0.05,
        }
        for i, cost in enumerate(COSTS)
    },
}  # fmt: skip


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
    monkeypatch.setattr(images, "QUICK", SMALL)
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
    monkeypatch.setattr(images, "QUICK", SMALL)
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
    assert all(claim.holds for claim in images.claims("mnist", 0.01, SUMMARY))
    changed = copy.deepcopy(SUMMARY)
    changed[cost][key] = value
    found = [claim.holds for claim in images.claims("mnist", 0.01, changed)]
    assert [i for i, holds in enumerate(found) if not holds] == failing


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
