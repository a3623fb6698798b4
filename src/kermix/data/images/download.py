"""Downloads of MNIST and CIFAR-10: hash checked, with a bar, resumed where they broke off.

The MD5 sums are those that the sets' authors and PyTorch's own readers publish.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from kermix.data.images.cache import cache_folder
from kermix.errors import DownloadError, MissingExtraError

__all__ = ["FILES", "fetch", "fetch_all"]

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
TIMEOUT = 30  # seconds without an answer
CHUNK = 2**16  # bytes; as many may be fetched again after an interruption


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


def _resuming(part: Path, progress: bool) -> Callable[[str, str, Any], None]:
    """A downloader for pooch that leaves what it has in `part` when it is interrupted."""
    from pooch import HTTPDownloader
    from requests import RequestException

    def download(url: str, output: str, pooch: Any) -> None:
        start = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            with part.open("ab") as file:
                HTTPDownloader(
                    progressbar=progress,
                    chunk_size=CHUNK,
                    timeout=TIMEOUT,
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
