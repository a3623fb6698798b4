"""One process at a time trains a run: a lock of the operating system on a file in its folder.

The system releases it when the process ends in any way, `kill -9` included, so that no lock
outlives its holder. The file says who that is.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from kermix.errors import RunError

__all__ = ["is_held", "locked_run"]

FAR = 2**30  # Windows keeps others from reading the bytes that are locked
LOOKS, PAUSE = 4, 0.05  # a process that looks whether a run is held has it for a moment


@contextmanager
def locked_run(folder: Path) -> Iterator[None]:
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
    with _held(path) as file:
        who = {"process": os.getpid(), "host": socket.gethostname(), "since": _now()}
        file.truncate(0)
        file.seek(0)
        file.write(json.dumps(who).encode())
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # Windows keeps a file that is open
                path.unlink()


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
    try:
        file = (folder / "lock").open("r+b")
    except OSError as error:
        return not isinstance(error, FileNotFoundError)  # somebody else's is taken for held
    with file:
        try:
            _lock(file)
        except OSError:
            return True
    return False


def _held(path: Path) -> IO[bytes]:
    """The lock's file, open and locked; it is released when it is closed."""
    looks = LOOKS
    while True:
        try:
            file = path.open("a+b")
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror}).") from None
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            file.close()
            looks -= 1
            if looks:
                time.sleep(PAUSE)
                continue
            raise RunError(_held_by(path)) from None
        except OSError:
            return file  # a file system without locks; a run there is better than none
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its holder ended, and removed it, between the two


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


def _lock(file: IO[bytes]) -> None:
    """Lock an open file; BlockingIOError or PermissionError if somebody else has."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        file.seek(FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    else:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
