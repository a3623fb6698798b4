"""Folders of pictures and IDX files: values, shapes, and errors that name the file."""

import gzip

import numpy as np
import pytest
import torch
from PIL import Image

from kermix.data.images.image_rows import read_idx, read_image_folder
from kermix.data.images.image_sets import is_idx
from kermix.data.loading import load
from kermix.errors import ImageError
from pictures import idx


def test_grey_and_coloured_pictures(tmp_path):
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(grey).save(tmp_path / "a.png")
    images = read_image_folder(tmp_path)
    assert images.image == (1, 3, 4)
    torch.testing.assert_close(images.values[0], torch.from_numpy(grey.ravel() / 255).float())
    (tmp_path / "sub").mkdir()
    Image.fromarray(np.full((3, 4, 3), [255, 0, 51], np.uint8)).save(tmp_path / "sub" / "b.png")
    images = read_image_folder(tmp_path)
    assert images.image == (3, 3, 4)
    torch.testing.assert_close(images.values[1, ::12], torch.tensor([1.0, 0.0, 0.2]))
    torch.testing.assert_close(images.values[0].view(3, 12)[2], images.values[0].view(3, 12)[0])
    assert load(str(tmp_path)).image == (3, 3, 4)


def test_other_sizes_are_resized_and_damaged_pictures_skipped_with_notes(tmp_path):
    for name in ("a", "c"):
        Image.fromarray(np.full((3, 4), 100, np.uint8)).save(tmp_path / f"{name}.png")
    Image.fromarray(np.full((8, 8), 50, np.uint8)).save(tmp_path / "b.png")
    (tmp_path / "d.png").write_text("no picture")
    images = read_image_folder(tmp_path)
    assert images.image == (1, 3, 4)
    torch.testing.assert_close(images.values[:, 0] * 255, torch.tensor([100.0, 50.0, 100.0]))
    resized, damaged = images.notes
    assert "1 of 3 images were centre-cropped and resized to 4 x 3" in resized
    assert "1 of 4 pictures are damaged and were skipped: d.png (no picture)" in damaged
    assert load(str(tmp_path)).notes == images.notes


def test_a_folder_in_which_no_picture_can_be_read(tmp_path):
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(ImageError, match=r"none of 1 pictures can be read, as a.png"):
        read_image_folder(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_idx(packed, tmp_path):
    array = np.arange(24).reshape(2, 3, 4)
    path = tmp_path / ("x-idx3-ubyte" + ".gz" * packed)
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    assert is_idx(path)
    images = read_idx(path)
    assert images.image == (1, 3, 4)
    torch.testing.assert_close(images.values, torch.from_numpy(array.reshape(2, 12) / 255).float())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not an IDX"),
        (b"\x01\x02\x03\x04", "not an IDX"),
        (idx(np.zeros((2, 2)))[:-1], "damaged"),
        (b"\x1f\x8b\x00", "cannot be read"),
    ],
)
def test_damaged_idx(content, expected, tmp_path):
    path = tmp_path / "x-ubyte"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=expected):
        read_idx(path)


def test_missing_idx(tmp_path):
    with pytest.raises(ImageError, match="no such file"):
        read_idx(tmp_path / "x-ubyte")
