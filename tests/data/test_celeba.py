"""CelebA's layout, made small: parts, attributes, crops, what is missing or damaged."""

import numpy as np
import pytest
from PIL import Image

from kermix.data.images.image_sets import read_celeba
from kermix.data.images.labelled import load_labelled
from kermix.data.loading import load
from kermix.errors import ImageError, OptionError

ATTRIBUTES = "Male Smiling"


def write_faces(root, count=10, official=False):
    pictures = root / "Img" / "img_align_celeba" if official else root / "img_align_celeba"
    parts, names = (root / "Eval", root / "Anno") if official else (root, root)
    for folder in (pictures, parts, names):
        folder.mkdir(parents=True, exist_ok=True)
    files = [f"{i:06}.jpg" for i in range(1, count + 1)]
    for i, file in enumerate(files):
        # The face is red, what is around it blue.
        array = np.full((218, 178, 3), [0, 0, 255], np.uint8)
        array[35:183, 15:163] = [10 * i, 0, 0]
        Image.fromarray(array).save(pictures / file, quality=100, subsampling=0)
    kinds = [0] * (count - 3) + [1, 2, 2]
    lines = [f"{file} {kind}" for file, kind in zip(files, kinds, strict=True)]
    (parts / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{file}  {(-1) ** i} {(-1) ** (i // 2)}" for i, file in enumerate(files)]
    text = "\n".join([str(count), ATTRIBUTES, *rows]) + "\n"
    (names / "list_attr_celeba.txt").write_text(text)
    return pictures


@pytest.mark.parametrize("official", [False, True])
def test_parts_attributes_and_crop(official, tmp_path):
    write_faces(tmp_path / "celeba", official=official)
    faces = read_celeba(tmp_path, cache=tmp_path / "cache")
    assert faces.images.shape == (7, 3, 64, 64)
    means = faces.images.reshape(7, 3, -1).mean(2)
    np.testing.assert_allclose(means, [[10 * i, 0, 0] for i in range(7)], atol=2)
    assert faces.names == ("Male", "Smiling")
    assert faces.attribute("Male").tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert faces.attribute("Smiling").tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert faces.notes == ()
    assert [len(read_celeba(tmp_path, p).images) for p in ("valid", "test")] == [1, 2]
    uncropped = read_celeba(tmp_path, size=32, crop=178).images
    assert uncropped[0, 2, 16, 0] > 200, "what is around the face is blue"
    with pytest.raises(OptionError, match=r"'Bald' is not an attribute.*Male, Smiling"):
        faces.attribute("Bald")


def test_damaged_and_missing_faces_are_named(tmp_path):
    pictures = write_faces(tmp_path)
    content = (pictures / "000002.jpg").read_bytes()
    (pictures / "000002.jpg").write_bytes(content[: len(content) // 2])
    (pictures / "000004.jpg").unlink()
    Image.new("RGB", (178, 218)).save(pictures / "900000.jpg")
    faces = read_celeba(tmp_path)
    assert len(faces.images) == 5
    assert faces.attribute("Male").tolist() == [1, 1, 1, 0, 1]
    missing, extra, damaged = faces.notes
    assert "1 of 7 pictures in the list of the part train are not there, as 000004.jpg" in missing
    assert "1 images are in no list" in extra
    assert "1 of 6 pictures are damaged and were skipped: 000002.jpg (" in damaged


def test_without_lists(tmp_path):
    write_faces(tmp_path)
    (tmp_path / "list_eval_partition.txt").unlink()
    (tmp_path / "list_attr_celeba.txt").unlink()
    train, test = read_celeba(tmp_path), read_celeba(tmp_path, "test")
    assert (len(train.images), len(test.images)) == (8, 2)
    assert "no list_eval_partition.txt" in train.notes[0]
    with pytest.raises(OptionError, match=r"none, as there is no list_attr_celeba.txt"):
        train.attribute("Male")
    with pytest.raises(ImageError, match="no pictures of the part 'valid'"):
        read_celeba(tmp_path, "valid")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("list_eval_partition.txt", "000011.jpg 7", "line 11: not a name and 0, 1 or 2"),
        ("list_attr_celeba.txt", "000011.jpg 1", "line 13: not a name and 2 times"),
    ],
)
def test_damaged_lists_are_named(name, line, message, tmp_path):
    write_faces(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ImageError, match=f"{name}, {message}"):
        read_celeba(tmp_path)


def test_shortened_list_of_attributes(tmp_path):
    write_faces(tmp_path)
    path = tmp_path / "list_attr_celeba.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(ImageError, match=r"5 pictures are not in it, as 000003.jpg"):
        read_celeba(tmp_path)


def test_where_it_is_not(tmp_path):
    with pytest.raises(
        ImageError, match=r"no folder img_align_celeba in it\. It must be downloaded"
    ):
        read_celeba(tmp_path)
    (tmp_path / "img_align_celeba.zip").write_bytes(b"")
    with pytest.raises(ImageError, match="still packed"):
        read_celeba(tmp_path)
    with pytest.raises(ImageError, match="give its folder as data_root"):
        load("celeba")


def test_through_the_common_doors(tmp_path):
    write_faces(tmp_path)
    data = load("celeba", data_root=tmp_path, size=16)
    assert data.image == (3, 16, 16)
    assert data.values.shape == (7, 768)
    assert data.labels is None
    smiling = load("celeba:Smiling", data_root=tmp_path, size=16, rows=4)
    assert smiling.classes == ("not Smiling", "Smiling")
    assert smiling.labels.shape == (4,)
    labelled = load_labelled("celeba:Male", "test", data_root=tmp_path)
    assert labelled.images.shape == (2, 3, 64, 64)
    assert labelled.labels.tolist() == [1, 0]
    with pytest.raises(OptionError, match="celeba:Smiling"):
        load_labelled("celeba", "test", data_root=tmp_path)
