"""What all run folders share: a folder of their own, `config.json`, `metrics.csv`, and a lock.

One process at a time trains a run. The operating system releases the lock when the process ends in
any way, `kill -9` included, so that no lock outlives its holder; the file says who that is.
"""

import csv
import errno
import hashlib
import json
import os
import shlex
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from kermix.data.readers.common import is_pattern, is_remote
from kermix.errors import OptionError, RunError
from kermix.files import whole_file

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "begin_folder",
    "check_data",
    "check_kind",
    "check_new_folder",
    "check_run",
    "check_trained",
    "digest_of",
    "is_held",
    "kind_of_run",
    "lasting_source",
    "locked_run",
    "next_free",
    "next_free_folder",
    "read_config",
    "write_metrics",
]

WHOLE = ("epoch", "step")
FIT = "fit"  # the kind of a run whose config does not name one
IMAGES, CLASSIFY, TABLE, TARGET = "images", "classify", "table", "target"
KINDS = {
    FIT: "a fit of rows (kermix fit)",
    IMAGES: "a fit of images (kermix fit)",
    CLASSIFY: "a classifier (kermix classify)",
    TABLE: "a fit of the table model (kermix fit)",
    TARGET: "a model of one column of a table (kermix classify)",
}


def next_free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """A folder of that name that does not exist: `runs/moons`, `runs/moons-2`, ..."""
    return next_free(parent, name)


def next_free(parent: Path, name: str, suffix: str = "") -> Path:
    """A path that does not exist: `name`, `name-2`, ..., each with the suffix."""
    path, number = parent / f"{name}{suffix}", 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}{suffix}"
    return path


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that exists; asked before data are read, too."""
    if folder.exists():
        again = f", or continue it: kermix resume {shlex.quote(str(folder))}"
        raise RunError(
            f"{folder} exists and will not be overwritten; choose another "
            f"--out{again if kind_of_run(folder) else ''}."
        )


def lasting_source(source: str, names: Collection[str]) -> str:
    """What a run notes of its data: the name of a set, or an address that holds from any folder.

    A name comes before a file or folder that is called the same, as it does in reading.

    Example:
        >>> lasting_source("moons", ("moons",)), lasting_source("/", ("moons",))
        ('moons', '/')
    """
    if source.partition(":")[0] in names or is_remote(source):
        return source
    before, npz, array = source.rpartition(".npz:")
    if npz:
        return f"{Path(before + '.npz').resolve()}:{array}"
    path = Path(source)
    if is_pattern(source):
        return str(path.absolute())
    return str(path.resolve()) if path.exists() else source


def begin_folder(folder: Path) -> None:
    """Make a folder, which must not exist."""
    check_new_folder(folder)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created ({error.strerror}).") from None


def check_run(folder: Path) -> None:
    """Refuse a folder that is no run."""
    if not folder.exists():
        raise RunError(f"{folder}: there is no such folder; give a run folder.")
    if not (folder / "config.json").is_file():
        raise RunError(f"{folder}: not a run folder; it has no config.json.")


def kind_of_run(folder: Path) -> str | None:
    """One of `"fit"`, `"table"`, `"target"`, `"images"`, `"classify"`; None if it is no run."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config.get("kind") if isinstance(config, dict) else None


def read_config(
    folder: Path,
    kind: str,
    facts: Collection[str],
    settings: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """The content of `config.json` of a run of this kind.

    Args:
        folder: Where the run is.
        kind: What it must be.
        facts: Names without which it cannot be read.
        settings: Reads the run's settings; what it raises shows that they are damaged.
    """
    check_kind(folder, kind)
    file = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text())
        if "kind" not in config:
            raise KeyError("no 'kind'")
        missing = sorted({*facts} - config.keys())
        if missing:
            raise KeyError(f"no {missing[0]!r}")
        settings(config["settings"])
    except (ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
        why = error.args[0] if isinstance(error, KeyError) else error
        raise RunError(f"{file}: damaged, or from another version ({why}).") from None
    return config


def check_kind(folder: Path, *kinds: str) -> None:
    """Refuse a run of another kind than one of these."""
    check_run(folder)
    found = kind_of_run(folder)
    if found is None:
        return  # damaged, as is said where it is read
    if found not in KINDS:
        raise RunError(
            f"{folder}: a run of kind {found!r}, which this version of kermix does not know; a "
            "newer version has probably written it."
        )
    if found not in kinds:
        raise RunError(f"{folder}: {KINDS[found]}; this needs {KINDS[kinds[0]]}.")


def check_data(folder: Path, config: dict[str, Any], fingerprint: str) -> None:
    """Refuse to go on with other data than a run began with."""
    if fingerprint != config["fingerprint"]:
        raise RunError(
            f"{config['data']} has changed since the run in {folder} began; restore it, or start "
            "a new run."
        )


def digest_of(parts: "Iterable[str | np.ndarray]") -> str:
    """What tells whether data have changed: a digest of arrays, and of their shapes as text."""
    import numpy as np

    digest = hashlib.sha256()
    for part in parts:
        told = part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes()
        digest.update(told)
    return digest.hexdigest()[:16]


def check_trained(folder: Path, checkpoint: Path) -> None:
    """Refuse a run that was stopped before there was anything to keep."""
    if not checkpoint.exists():
        raise RunError(
            f"{folder}: training is not finished; continue it with: kermix resume "
            f"{shlex.quote(str(folder))}."
        )


def write_metrics(
    folder: Path,
    history: Sequence[dict[str, float]],
    columns: Sequence[str] = ("step", "loss", "variance", "metric"),
) -> None:
    """Write `metrics.csv` in one step."""
    path = folder / "metrics.csv"
    with whole_file(path) as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in history:
            writer.writerow({k: int(v) if k in WHOLE else v for k, v in row.items()})


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of some file systems


@contextmanager
def locked_run(folder: Path, patience: float = 0.2) -> Iterator[None]:
    """Hold a run folder alone; refused while another process, or this one, holds it.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with locked_run(Path(folder.name)):
        ...     sorted(p.name for p in Path(folder.name).iterdir())
        ['lock']
        >>> folder.cleanup()
    """
    path = folder / "lock"
    lock = FileLock(path, timeout=patience, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(_held_by(path)) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RunError(f"{path}: cannot be written ({error.strerror}).") from None
        yield  # a run without a lock is better than none
        return
    try:
        who = {"process": os.getpid(), "host": socket.gethostname(), "since": _now()}
        with suppress(OSError):  # Windows keeps a file that is locked
            path.write_text(json.dumps(who))
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process holds the run folder; one that was killed does not, and leaves its file.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = (Path(folder.name) / "lock").write_text("{}")
        >>> is_held(Path(folder.name))
        False
        >>> with locked_run(Path(folder.name)):
        ...     is_held(Path(folder.name))
        True
        >>> folder.cleanup()
    """
    path = folder / "lock"
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0, fallback_to_soft=False):
            return False
    except Timeout:
        return True
    except OSError as error:
        return error.errno not in NO_LOCKS  # somebody else's is taken for held


def _held_by(path: Path) -> str:
    try:
        who = json.loads(path.read_bytes())
        holder = f"process {who['process']} on {who['host']}, since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        holder = "another process"
    return (
        f"{path.parent} is already being trained by {holder}: wait for it, or stop it (Ctrl-C "
        "saves the run) and try again."
    )


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
