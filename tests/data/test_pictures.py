"""Decoding: every mode of a picture, sizes, damaged files, worker processes."""

import os
import sys

import numpy as np
import pytest
from PIL import Image

from internals import Form, decode, decode_all, is_picture, prepare_files, probe
from kermix.errors import ImageError, MissingExtraError

GREY, COLOUR = Form(1, 4, 6), Form(3, 4, 6)


def save(path, array, mode=None, **options):
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey_stays_grey(mode, tmp_path):
    array = np.zeros((4, 6), np.uint8)
    array[1, 2] = 255
    path = save(tmp_path / "a.png", array, mode)
    assert probe(path) == (1, 4, 6)
    np.testing.assert_array_equal(decode(path, GREY), array[None])
    np.testing.assert_array_equal(decode(path, COLOUR), np.stack([array] * 3))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits(suffix, tmp_path):
    array = np.linspace(0, 65535, 24).astype(np.uint16).reshape(4, 6)
    path = save(tmp_path / f"a.{suffix}", array)
    assert probe(path) == (1, 4, 6)
    np.testing.assert_array_equal(decode(path, GREY)[0], np.rint(array / 257))


def test_floating_point_pictures(tmp_path):
    unit = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)
    a = save(tmp_path / "a.tif", unit)
    b = save(tmp_path / "b.tif", 255 * unit)
    np.testing.assert_array_equal(decode(a, GREY)[0], np.rint(255 * unit))
    np.testing.assert_array_equal(decode(b, GREY)[0], np.rint(255 * unit))


def test_what_is_transparent_becomes_white(tmp_path):
    array = np.zeros((4, 6, 4), np.uint8)
    array[..., 0], array[:, 3:, 3] = 200, 255
    array[0, 0] = [0, 0, 0, 51]
    image = decode(save(tmp_path / "a.png", array), COLOUR)
    np.testing.assert_array_equal(image[:, 1, 1], [255, 255, 255])
    np.testing.assert_array_equal(image[:, 1, 4], [200, 0, 0])
    np.testing.assert_array_equal(image[:, 0, 0], [204, 204, 204])
    grey = np.zeros((4, 6, 2), np.uint8)
    grey[:, 3:, 1] = 255
    path = tmp_path / "b.png"
    Image.fromarray(grey, "LA").save(path)
    assert probe(path)[0] == 1
    np.testing.assert_array_equal(decode(path, GREY)[0, 0], [255] * 3 + [0] * 3)


def test_palettes_with_and_without_transparency(tmp_path):
    array = np.full((4, 6, 3), [0, 0, 255], np.uint8)
    array[:, 3:] = [255, 0, 0]
    path = save(tmp_path / "a.png", array, "P")
    assert probe(path)[0] == 3
    np.testing.assert_array_equal(decode(path, COLOUR), array.transpose(2, 0, 1))
    image = Image.fromarray(array).quantize(2)
    image.save(tmp_path / "b.png", transparency=image.getpixel((0, 0)))
    np.testing.assert_array_equal(decode(tmp_path / "b.png", COLOUR)[:, 0, 0], [255] * 3)
    np.testing.assert_array_equal(decode(tmp_path / "b.png", COLOUR)[:, 0, 5], [255, 0, 0])


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_the_first_frame_of_an_animation(suffix, tmp_path):
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue", "green")]
    path = tmp_path / f"a.{suffix}"
    options = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(decode(path, COLOUR)[:, 0, 0], [255, 0, 0])


def test_cmyk_and_orientation(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("CMYK", (6, 4), (0, 255, 255, 0)).save(path, quality=100)
    np.testing.assert_allclose(decode(path, COLOUR)[:, 2, 2], [255, 0, 0], atol=3)
    array = np.zeros((4, 6), np.uint8)
    array[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: the first row is the right edge
    Image.fromarray(array).save(tmp_path / "b.png", exif=exif)
    assert probe(tmp_path / "b.png") == (1, 6, 4)
    turned = decode(tmp_path / "b.png", Form(1, 6, 4))
    np.testing.assert_array_equal(turned[0], np.rot90(array, -1))


def test_crop_and_resize_keep_proportions(tmp_path):
    array = np.zeros((20, 60), np.uint8)
    array[:, 20:40] = 255
    path = save(tmp_path / "a.png", array)
    assert decode(path, Form(1, 10, 10)).min() > 200, "the middle square is white"
    assert decode(path, Form(1, 10, 30))[0, 5, [2, 15, 27]].tolist() == [0, 255, 0]
    small = save(tmp_path / "b.png", np.full((8, 8), 7, np.uint8))
    assert (decode(small, Form(1, 4, 4, crop=100)) == 7).all(), "no black frame is added"
    assert decode(path, Form(1, 4, 4, crop=20)).min() == 255


def test_names_of_pictures():
    assert is_picture("a/b.JPG")
    assert is_picture("b.webp")
    assert not is_picture("a/._b.jpg")
    assert not is_picture("jpg")


def broken_folder(folder):
    noise = np.random.default_rng(0).integers(256, size=(50, 60, 3), dtype=np.uint8)
    for i in range(6):
        save(folder / f"{i}.png", noise)
    content = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(content[: len(content) // 2])
    (folder / "3.png").write_bytes(b"")
    return noise


def test_truncated_pictures_are_named_and_skipped(tmp_path):
    noise = broken_folder(tmp_path)
    files = sorted(tmp_path.iterdir())
    found = prepare_files("x", tmp_path, files)
    np.testing.assert_array_equal(found.images, np.stack([noise.transpose(2, 0, 1)] * 4))
    assert found.labels.tolist() == [0, 2, 4, 5]
    assert [d.split()[0] for d in found.damaged] == ["1.png", "3.png"]
    assert "truncated" in found.damaged[0]
    for i in (0, 2, 4, 5):
        content = (tmp_path / f"{i}.png").read_bytes()
        (tmp_path / f"{i}.png").write_bytes(content[:1000])
    with pytest.raises(ImageError, match=r"no image could be read; the first is 0\.png \(.*trunc"):
        prepare_files("x", tmp_path, files)


def test_worker_processes_give_the_same(tmp_path):
    broken_folder(tmp_path)
    files = [(f.name, f) for f in sorted(tmp_path.iterdir())] * 25
    here = list(decode_all(files, len(files), COLOUR, workers=1))
    there = list(decode_all(files, len(files), COLOUR, workers=2))
    assert len(here) == len(there) == 3
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a.images, b.images)
        assert a.kept == b.kept
        assert a.damaged == b.damaged
    assert [i for part in there for i in part.kept] == [
        i for i in range(150) if i % 6 not in (1, 3)
    ]


def test_pictures_that_nobody_waits_for_any_more_are_left_in_silence(tmp_path, recwarn):
    """As where the disk runs full: joblib's own loop would warn, and keep its processes."""
    broken_folder(tmp_path)
    files = [(f.name, f) for f in sorted(tmp_path.iterdir())] * 100
    decoded = decode_all(files, len(files), COLOUR, workers=2)
    next(decoded)
    decoded.close()
    assert not [str(w.message) for w in recwarn]


class Ends:
    """Content that ends the process which unpacks it, as a system without memory does."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_worker_that_was_ended():
    with pytest.raises(ImageError, match=r"was killed.*workers=1"):
        list(decode_all([("a", Ends())], 1, GREY, workers=2))


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"needs Pillow: pip install 'kermix\[images\]'"):
        probe(tmp_path / "a.png")
