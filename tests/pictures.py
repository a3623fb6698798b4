"""Small sets of images in the formats of the large ones, and what is drawn in a picture."""

import gzip
import io
import tarfile

import numpy as np
from PIL import Image

from internals import CLASSES


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def digits(n, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    return generator.integers(256, size=(n, 28, 28), dtype=np.uint8), labels


def write_mnist(folder, train=20, test=10):
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        images, labels = digits(count, count)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


def cifar_batches(n=10):
    """Names and contents of the six binary batches, each with n images."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    found = {}
    for seed, name in enumerate(names):
        rows = np.random.default_rng(seed).integers(256, size=(n, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(n) % 10
        found[name] = rows.tobytes()
    return found


def write_archive(path, contents):
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def encoded(colour, size=(32, 32), kind="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind, quality=95)
    return file.getvalue()


def cifar_pictures(train=3, test=2):
    """Names and contents of an archive; the green of each picture says its class."""
    return {
        f"{split}/{name}/{i:04}.jpg": encoded((10, 20 * label, 10 * i))
        for split, count in (("train", train), ("test", test))
        for label, name in enumerate(CLASSES)
        for i in range(count)
    }


def ink(pixels):
    """The share of an array of pixels, (h, w, channels), that is not of the commonest colour."""
    places = 256 ** np.arange(pixels.shape[-1])
    _, counts = np.unique(pixels.astype(np.int64) @ places, return_counts=True)
    return 1 - counts.max() / counts.sum()


def ink_of_file(path):
    with Image.open(path) as picture:
        return ink(np.asarray(picture.convert("RGB")))
