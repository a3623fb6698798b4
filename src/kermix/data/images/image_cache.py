"""What is kept between runs: decoded pictures as memory-mapped files, and downloads.

An entry of pictures is a folder with `images.npy`, `labels.npy` and `entry.json` (checksum,
damaged pictures, notes), named by a fingerprint of the source: changed pictures make a new entry.
It is written under a temporary name and renamed when whole; when two processes prepare the same
entry, the first to finish wins.

Downloads are resumed where they broke off, and compared with the MD5 sums that the sets' authors
and PyTorch's own readers publish.
"""

import glob
import hashlib
import io
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from kermix.errors import DownloadError, MissingExtraError

__all__ = [
    "FILES",
    "Decoded",
    "Plan",
    "Prepared",
    "cache_folder",
    "content_digest",
    "fetch",
    "fetch_all",
    "fingerprint",
    "prepared",
]

VERSION = 1  # of the decoding: raised when the same pictures give other numbers
ARRAYS = ("images.npy", "labels.npy")


@dataclass(frozen=True)
class Decoded:
    """Some pictures in their order, those that could be read, and why others could not."""

    images: np.ndarray  # uint8, (n, C, H, W)
    kept: list[int]  # which of the pictures these are
    damaged: list[str]  # "name (reason)"


@dataclass(frozen=True)
class Plan:
    """How images are prepared: their number and form, and what decodes them."""

    shape: tuple[int, int, int, int]  # N, C, H, W, if no picture is damaged
    labels: np.ndarray  # int64, (N,)
    blocks: Callable[[], Iterable[Decoded]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """Decoded images.

    Attributes:
        images: uint8, (N, C, H, W); mapped from the cache, or in memory.
        labels: int64, (N,).
        damaged: "name (reason)" of each picture that was skipped.
        notes: What went otherwise than usual.
    """

    images: np.ndarray
    labels: np.ndarray
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Where prepared data are kept: `$KERMIX_CACHE`, or the user's folder for such files."""
    if chosen := os.environ.get("KERMIX_CACHE"):
        return Path(chosen)
    try:
        from pooch import os_cache
    except ImportError:
        raise MissingExtraError(
            "Caching prepared images needs pooch: pip install 'kermix[images]'."
        ) from None
    return os_cache("kermix")


def content_digest(path: Path, *options: object) -> str:
    """Twenty hexadecimal digits of a file's content and of options."""
    return hashlib.sha256(f"{_checksum(path)} {VERSION} {options}".encode()).hexdigest()[:20]


def fingerprint(root: Path, files: Iterable[Path], *options: object) -> str:
    """Twenty hexadecimal digits of the files' places, sizes and times, and of options."""
    digest = hashlib.sha256(repr((VERSION, options, str(root.resolve()))).encode())
    for file in files:
        status = file.stat()
        line = f"{file.relative_to(root).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:20]


def prepared(
    name: str, plan: Callable[[], Plan], cache: Path | None, worth_keeping: int = 2**24
) -> Prepared:
    """Images from the cache, or decoded now and kept there.

    Where the cache cannot be written, or the disk is full, they stay in memory and a note says so.

    Args:
        name: Of the entry, with the fingerprint of the source.
        plan: Looks at the pictures and says how to decode them; not called if the entry exists.
        cache: The folder; by default `cache_folder`, and only for what takes some time.
        worth_keeping: From so many bytes on; less is decoded in a moment.
    """
    folder = cache_folder() if cache is None else cache
    entry = folder / name
    found = _read(entry)
    if found is not None:
        return found
    chosen = plan()
    size = math.prod(chosen.shape)
    if cache is None and size < worth_keeping:
        return _in_memory(chosen)
    try:
        with _temporary(folder, name) as temporary:
            _check_space(temporary, size)
            _write(temporary, chosen)
            _put(temporary, entry)
        found = _read(entry)
    except OSError as error:
        note = f"Not cached in {folder}: {error.strerror or error}."
    else:
        if found is not None:
            return found
        note = f"Not cached in {folder}: it could not be read back."
    return _in_memory(chosen, note)


def _in_memory(plan: Plan, *notes: str) -> Prepared:
    parts = list(plan.blocks())
    images = np.concatenate([p.images for p in parts])
    labels = plan.labels[[i for p in parts for i in p.kept]]
    damaged = tuple(d for p in parts for d in p.damaged)
    return Prepared(images, labels, damaged, (*plan.notes, *notes))


@contextmanager
def _temporary(folder: Path, name: str, forgotten: float = 24 * 3600.0) -> Iterator[Path]:
    """A folder for an entry; what a killed process left so many seconds ago is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{glob.escape(name)}.*.part"):
        with suppress(FileNotFoundError):  # another process may have just finished with it
            if time.time() - left.stat().st_mtime > forgotten:
                shutil.rmtree(left, ignore_errors=True)
    # Not made by tempfile, whose folders other users of a common cache cannot read.
    temporary = folder / f"{name}.{uuid.uuid4().hex}.part"
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{size / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")


def _write(folder: Path, plan: Plan) -> None:
    kept: list[int] = []
    damaged: list[str] = []
    # Written piece by piece, not through a map: on a full disk a map ends the whole process.
    with (folder / "images.npy").open("wb") as file:
        _write_header(file, plan.shape)
        for block in plan.blocks():
            file.write(np.ascontiguousarray(block.images).data)
            kept += block.kept
            damaged += block.damaged
        # NumPy leaves room for another number of rows: this header is as long as the first.
        file.seek(0)
        _write_header(file, (len(kept), *plan.shape[1:]))
    np.save(folder / "labels.npy", plan.labels[kept])
    sums = {name: _checksum(folder / name) for name in ARRAYS}
    content = {"sha256": sums, "damaged": damaged, "notes": plan.notes}
    (folder / "entry.json").write_text(json.dumps(content, indent=1))


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    file.write(header.getvalue())


def _put(temporary: Path, entry: Path) -> None:
    try:
        temporary.rename(entry)
    except OSError:
        # Another process was first, or there is a damaged entry.
        if _read(entry) is None:
            aside = temporary.with_suffix(".old.part")
            with suppress(OSError):
                entry.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
            temporary.rename(entry)


def _read(entry: Path) -> Prepared | None:
    """An entry, or nothing if there is none or it is damaged."""
    try:
        content = json.loads((entry / "entry.json").read_text())
        if any(_checksum(entry / name) != content["sha256"][name] for name in ARRAYS):
            return None
        # Copy on write: torch.from_numpy takes it as it is, and the file never changes.
        images = np.load(entry / "images.npy", mmap_mode="c")
        labels = np.load(entry / "labels.npy")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Prepared(images, labels, tuple(content["damaged"]), tuple(content["notes"]))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Downloads.

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
CIFAR_HOMES = ("https://www.cs.toronto.edu/~kriz/",)

# For each set: where its files are, and their MD5 sums.
FILES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "mnist": (
        MNIST_MIRRORS,
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "cifar10": (
        CIFAR_HOMES,
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
}


def fetch_all(name: str, cache: Path | None = None, progress: bool = True) -> Path:
    """Fetch the files of a set that are not there yet; returns the folder that holds them.

    Args:
        name: "mnist" or "cifar10".
        cache: The folder `downloads` in it is used; by default that of prepared data.
        progress: Show a bar for each file on stderr.
    """
    homes, files = FILES[name]
    folder = (cache_folder() if cache is None else cache) / "downloads" / name
    for file, md5 in files.items():
        fetch([home + file for home in homes], md5, folder / file, progress)
    return folder


def fetch(urls: Sequence[str], md5: str, target: Path, progress: bool = True) -> None:
    """Fetch a file from the first address that gives it, unless it is there and whole.

    What a broken connection has left, in a file of the same name with `.part`, is gone on with.
    """
    pooch = _pooch()
    if target.is_file() and pooch.file_hash(str(target), "md5") == md5:
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Another process that wants the same file waits, and then finds it.
        with FileLock(target.with_name(target.name + ".lock")):
            failures = []
            for url in urls:
                try:
                    pooch.retrieve(
                        url,
                        known_hash=f"md5:{md5}",
                        fname=target.name,
                        path=target.parent,
                        downloader=_resuming(target.with_name(target.name + ".part"), progress),
                    )
                except (_Unreachable, ValueError) as error:
                    failures.append(f"{url}: {_reason(error)}")
                else:
                    return
    except OSError as error:
        raise DownloadError(f"{target}: cannot be written ({error.strerror or error}).") from None
    raise DownloadError(
        f"{target.name} could not be downloaded ({'; '.join(failures)}). Try again (interrupted "
        "downloads resume), or put the file into a folder and give that folder: --data-root "
        "FOLDER."
    )


class _Unreachable(Exception):
    """The server cannot be reached or does not have the file; kept apart from errors of disks."""


def _resuming(
    part: Path, progress: bool, seconds: float = 30, step: int = 2**16
) -> Callable[[str, str, Any], None]:
    """A downloader for pooch that leaves what it has in `part` when it is interrupted.

    Args:
        part: The file.
        progress: Whether a bar is shown.
        seconds: How long it waits for an answer.
        step: Bytes; as many may be fetched again after an interruption.
    """
    from pooch import HTTPDownloader
    from requests import RequestException

    def download(url: str, output: str, pooch: Any) -> None:
        start = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            with part.open("ab") as file:
                HTTPDownloader(
                    progressbar=progress,
                    chunk_size=step,
                    timeout=seconds,
                    headers=headers,
                    hooks={"response": lambda answer, **_: _restart_if_whole(answer, file)},
                )(url, file, pooch)
        except RequestException as error:
            if start and not part.stat().st_size:
                download(url, output, pooch)
                return
            raise _Unreachable(str(error)) from None
        part.replace(output)

    return download


def _restart_if_whole(answer: Any, file: BinaryIO) -> None:
    # 200: the server sends everything from the start; 416: there is nothing after what we have.
    if answer.status_code in (200, 416):
        file.truncate(0)


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, ValueError):
        return "the downloaded file is not the official one (its MD5 sum differs)"
    return "no connection" if "Max retries" in text or "resolve" in text else text


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise MissingExtraError(
            "Downloading data needs pooch: pip install 'kermix[images]'; or give a data_root "
            "that holds the files."
        ) from None
    return pooch
