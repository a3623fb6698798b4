"""Labelled images in every format: values, labels, splits, and errors that name the file."""

import gzip
import os

import numpy as np
import pytest
import torch
from PIL import Image

from kermix.data.images.image_rows import stacked_mnist
from kermix.data.images.image_sets import CLASSES
from kermix.data.images.labelled import load_labelled
from kermix.data.loading import load
from kermix.errors import ImageError, OptionError, ShapeError
from pictures import cifar_batches, cifar_pictures, digits, encoded, write_archive, write_mnist


@pytest.mark.parametrize("inner", ["", "mnist", "MNIST/raw"])
def test_mnist(inner, tmp_path):
    write_mnist(tmp_path / inner)
    train = load_labelled("mnist", "train", data_root=str(tmp_path), cache=str(tmp_path / "c"))
    images, labels = digits(20, 20)
    np.testing.assert_array_equal(train.images[:, 0], images)
    np.testing.assert_array_equal(train.labels, labels)
    assert train.images.dtype == np.uint8
    assert train.labels.dtype == np.int64
    assert train.classes == tuple("0123456789")
    assert load_labelled("mnist", "test", data_root=tmp_path).images.shape == (10, 1, 28, 28)


def test_mnist_unpacked(tmp_path):
    write_mnist(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load_labelled("mnist", "train", data_root=tmp_path)) == 20


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte.gz", lambda data: data[:-20], "cannot be read"),
        ("train-labels-idx1-ubyte.gz", lambda data: None, "there is no such file"),
        ("train-labels-idx1-ubyte.gz", lambda data: b"<html>", "not an IDX file"),
    ],
)
def test_damaged_mnist_names_the_file(name, change, message, tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / name
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ImageError, match=f"{name}: {message}"):
        load_labelled("mnist", "train", data_root=tmp_path)


def test_labels_of_another_file(tmp_path):
    write_mnist(tmp_path)
    other = tmp_path / "t10k-labels-idx1-ubyte.gz"
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(other.read_bytes())
    with pytest.raises(ImageError, match=r"train-labels.*10 labels for the 20 images"):
        load_labelled("mnist", "train", data_root=tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_binary(packed, tmp_path):
    batches = cifar_batches()
    if packed:
        contents = {f"cifar-10-batches-bin/{name}": data for name, data in batches.items()}
        write_archive(tmp_path / "cifar-10-binary.tar.gz", contents)
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, data in batches.items():
            (tmp_path / "cifar-10-batches-bin" / name).write_bytes(data)
    train = load_labelled("cifar10", "train", data_root=tmp_path)
    test = load_labelled("cifar10", "test", data_root=tmp_path)
    assert train.images.shape == (50, 3, 32, 32)
    assert test.classes == CLASSES
    assert test.labels.tolist() == list(range(10))
    rows = np.frombuffer(batches["data_batch_2.bin"], np.uint8).reshape(10, 3073)
    np.testing.assert_array_equal(train.images[10:20].reshape(10, -1), rows[:, 1:])
    torch.from_numpy(train.images)


def test_damaged_cifar_names_the_file(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    batches = cifar_batches()
    for name, data in batches.items():
        (folder / name).write_bytes(data)
    (folder / "data_batch_3.bin").write_bytes(batches["data_batch_3.bin"][:-5])
    with pytest.raises(ImageError, match=r"data_batch_3.bin: damaged; 30725 bytes"):
        load_labelled("cifar10", "train", data_root=tmp_path)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(ImageError, match=r"data_batch_3.bin: cannot be read"):
        load_labelled("cifar10", "train", data_root=tmp_path)
    wrong = bytearray(batches["data_batch_4.bin"])
    wrong[3 * 3073] = 12
    (folder / "data_batch_3.bin").write_bytes(batches["data_batch_3.bin"])
    (folder / "data_batch_4.bin").write_bytes(bytes(wrong))
    with pytest.raises(ImageError, match=r"data_batch_4.bin: not from CIFAR-10.*label 12"):
        load_labelled("cifar10", "train", data_root=tmp_path)
    (folder / "test_batch.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(ImageError, match=r"test_batch.bin: not from CIFAR-10.*label 11"):
        load_labelled("cifar10", "test", data_root=tmp_path)


def test_truncated_and_partial_archives(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    batches = cifar_batches()
    write_archive(path, batches)
    path.write_bytes(path.read_bytes()[:-30_000])
    with pytest.raises(ImageError, match=r"cifar-10-binary.tar.gz: damaged or incomplete"):
        load_labelled("cifar10", "test", data_root=tmp_path)
    write_archive(path, batches)
    path.write_bytes(path.read_bytes()[:80_000])  # within a batch that is read
    with pytest.raises(ImageError, match=r"cifar-10-binary.tar.gz: damaged or incomplete"):
        load_labelled("cifar10", "train", data_root=tmp_path)
    del batches["data_batch_4.bin"]
    write_archive(path, batches)
    with pytest.raises(ImageError, match=r"cifar-10-binary.tar.gz: data_batch_4.bin is not in"):
        load_labelled("cifar10", "train", data_root=tmp_path)
    path.unlink()
    path = tmp_path / "cifar10-jpeg.tar.xz"
    write_archive(path, cifar_pictures())
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(ImageError, match=r"cifar10-jpeg.tar.xz: damaged or incomplete"):
        load_labelled("cifar10", "test", data_root=tmp_path)


def check_cifar_pictures(data):
    assert len(data) == 30
    assert data.classes == CLASSES
    np.testing.assert_array_equal(data.labels, np.repeat(np.arange(10), 3))
    means = data.images.reshape(30, 3, -1).mean(2)
    np.testing.assert_allclose(means[:, 1], 20 * data.labels, atol=2)
    assert "JPEG copy" in data.notes[0]


def test_cifar_as_an_archive_of_pictures(tmp_path):
    write_archive(tmp_path / "cifar10-jpeg.tar.xz", cifar_pictures())
    cache = tmp_path / "cache"
    data = load_labelled("cifar10", "train", data_root=tmp_path, cache=cache)
    check_cifar_pictures(data)
    assert isinstance(data.images, np.memmap)
    torch.from_numpy(data.images)
    check_cifar_pictures(load_labelled("cifar10", "train", data_root=tmp_path, cache=cache))
    assert len(load_labelled("cifar10", "test", data_root=tmp_path, cache=cache)) == 20
    assert len(list(cache.iterdir())) == 2


def test_damaged_pictures_in_an_archive(tmp_path):
    pictures = cifar_pictures()
    pictures["test/bird/0001.jpg"] = pictures["test/bird/0001.jpg"][:300]
    write_archive(tmp_path / "cifar10-jpeg.tar.xz", pictures)
    data = load_labelled("cifar10", "test", data_root=tmp_path, cache=tmp_path / "cache")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, *np.repeat(np.arange(3, 10), 2)]
    assert "1 of 20 pictures are damaged and were skipped: test/bird/0001.jpg (" in data.notes[1]
    write_archive(
        tmp_path / "cifar10-jpeg.tar.xz", {"test/bird/1.jpg": b"", "test/cat/2.jpg": b""}
    )
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(
            ImageError, match=r"no picture could be read; the first is test/bird/1"
        ):
            load_labelled("cifar10", "test", data_root=tmp_path, cache=cache)


@pytest.mark.parametrize("inner", ["", "cifar10"])
def test_cifar_as_a_folder_of_pictures(inner, tmp_path):
    for name, content in cifar_pictures().items():
        path = tmp_path / inner / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    data = load_labelled("cifar10", "train", data_root=tmp_path)
    assert data.name == "cifar10"
    check_cifar_pictures(data)


def write_classes(folder, count, split=""):
    for label, name in enumerate(("cat", "dog")):
        (folder / split / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            path = folder / split / name / f"{i}.png"
            path.write_bytes(encoded((100 * label, i, 0), (6, 5), "PNG"))


def test_a_class_without_a_readable_picture_is_refused(tmp_path):
    write_classes(tmp_path, 4)
    for path in (tmp_path / "dog").iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(ImageError, match="no picture of the class 'dog' could be read"):
        load_labelled(str(tmp_path), "train", cache=tmp_path / "cache")


def test_class_folders_without_a_test_set_are_split_the_same_way_every_time(tmp_path):
    write_classes(tmp_path, 10)
    train, test = (load_labelled(str(tmp_path), part) for part in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    assert train.classes == ("cat", "dog")
    assert np.bincount(test.labels).tolist() == [2, 2]
    rows = [(tuple(i[:, 0, 0]), k) for part in (train, test)
            for i, k in zip(part.images, part.labels, strict=True)]  # fmt: skip
    assert sorted(rows) == [((100 * k, i, 0), k) for k in range(2) for i in range(10)]
    assert "a fifth of each class was held out, 4 in all" in test.notes[0]
    again = load_labelled(str(tmp_path), "test")
    np.testing.assert_array_equal(test.images, again.images)


def test_class_folders_with_a_test_set_get_one_form(tmp_path):
    write_classes(tmp_path, 3, "train")
    write_classes(tmp_path, 2, "test")
    for file in (tmp_path / "test").rglob("*.png"):
        Image.new("L", (9, 9), 77).save(file)
    test = load_labelled(str(tmp_path), "test")
    assert test.images.shape == (4, 3, 5, 6), "the form of both parts together"
    assert (test.images == 77).all()
    assert "resized to 6 x 5" in test.notes[0]
    assert load_labelled(str(tmp_path), "train", size=4).images.shape == (6, 3, 4, 4)
    (tmp_path / "test" / "bird").mkdir()
    (tmp_path / "test" / "bird" / "a.png").write_bytes(encoded((0, 0, 0)))
    with pytest.raises(ImageError, match=r"test/bird: a class without a folder"):
        load_labelled(str(tmp_path), "train")


def test_folders_that_cannot_be_classes(tmp_path):
    with pytest.raises(ImageError, match="neither a folder nor a labelled data set"):
        load_labelled(str(tmp_path / "none"), "train")
    with pytest.raises(ImageError, match="0 folders with images"):
        load_labelled(str(tmp_path), "train")
    write_classes(tmp_path, 1)
    with pytest.raises(ImageError, match="too few images per class"):
        load_labelled(str(tmp_path), "train")


def test_scikit_learns_digits():
    parts = [load_labelled("digits", part) for part in ("train", "test")]
    assert [len(p) for p in parts] == [1437, 360]
    assert parts[0].images.max() == 255
    assert np.bincount(parts[1].labels).min() >= 34, "stratified"
    keys = [{i.tobytes() for i in p.images} for p in parts]
    assert not keys[0] & keys[1]


def test_resizing_and_bad_options(tmp_path):
    write_mnist(tmp_path)
    images = load_labelled("mnist", "test", data_root=tmp_path, size=14).images
    assert images.shape == (10, 1, 14, 14)
    full = load_labelled("mnist", "test", data_root=tmp_path).images
    assert abs(images.mean() - full.mean()) < 1
    with pytest.raises(OptionError, match="split"):
        load_labelled("digits", "valid")
    with pytest.raises(OptionError, match="size"):
        load_labelled("digits", "test", size=0)
    with pytest.raises(ImageError, match="data_root is not a folder"):
        load_labelled("mnist", "test", data_root=tmp_path / "none")


def test_stacked_mnist():
    images, labels = digits(50)
    found = stacked_mnist(images[:, None], labels, 400, seed=3)
    assert found.images.shape == (400, 3, 28, 28)
    assert len(found.classes) == 1000
    whose = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for image, label in zip(found.images, found.labels, strict=True):
        assert found.classes[label] == "".join(str(whose[channel.tobytes()]) for channel in image)
    again = stacked_mnist(images[:, None], labels, 400, seed=3)
    np.testing.assert_array_equal(found.images, again.images)
    assert (stacked_mnist(images[:, None], labels, 400, seed=4).labels != found.labels).any()
    with pytest.raises(ShapeError, match=r"\(N, 1, H, W\)"):
        stacked_mnist(images, labels)
    with pytest.raises(OptionError, match="at least one"):
        stacked_mnist(images[:, None], labels, 0)


def test_load_gives_rows_with_labels(tmp_path):
    write_mnist(tmp_path)
    data = load("mnist", data_root=tmp_path)
    assert data.image == (1, 28, 28)
    assert data.stored.dtype == torch.uint8
    images, labels = digits(20, 20)
    expected = torch.from_numpy(images.reshape(20, -1)).float() / 255
    torch.testing.assert_close(data.values, expected)
    assert data.labels.tolist() == labels.tolist()
    some = load("mnist", rows=5, data_root=tmp_path)
    assert some.values.shape == (5, 784)
    places = [int((expected == row).all(1).nonzero()) for row in some.values]
    assert some.labels.tolist() == labels[places].tolist()
    stacked = load("stacked-mnist", rows=7, data_root=tmp_path)
    assert stacked.image == (3, 28, 28)
    assert stacked.values.shape == (7, 2352)
    assert len(load("mnist", split="test", data_root=tmp_path).values) == 10


def test_load_labels_pictures_by_their_folders(tmp_path):
    write_classes(tmp_path, 3)
    data = load(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    (tmp_path / "a.png").write_bytes(encoded((0, 0, 0), (6, 5), "PNG"))
    assert load(str(tmp_path)).labels is None


def test_load_reads_one_part_of_a_folder_in_the_form_of_both(tmp_path):
    write_classes(tmp_path, 3, "train")
    write_classes(tmp_path, 2, "test")
    Image.new("L", (9, 9), 77).save(tmp_path / "test" / "cat" / "0.png")
    parts = [load(str(tmp_path), split=part) for part in ("train", "test")]
    assert [len(p.values) for p in parts] == [6, 4]
    assert parts[0].image == parts[1].image == (3, 5, 6)
    assert parts[1].classes == ("cat", "dog")
    assert parts[1].labels.tolist() == [0, 0, 1, 1]
    assert "using the images in its folder test" in parts[1].notes[0]


def test_pictures_of_another_folder_are_not_taken_from_the_cache(tmp_path):
    for folder, level in (("a", 50), ("b", 150)):
        for name in ("cat", "dog"):
            (tmp_path / folder / "images" / name).mkdir(parents=True)
            for i in range(3):
                path = tmp_path / folder / "images" / name / f"{i}.bmp"
                path.write_bytes(encoded((level, level, level), (6, 6), "BMP"))
                os.utime(path, (1e9, 1e9))
    for folder, level in (("a", 50), ("b", 150)):
        source = str(tmp_path / folder / "images")
        data = load_labelled(source, "train", cache=tmp_path / "cache")
        assert np.unique(data.images).tolist() == [level]
