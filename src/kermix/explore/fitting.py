"""A fit in a process of its own, which the page's process watches and may stop.

`python -m kermix.explore.fitting FOLDER` trains the run in a folder. A line that says "keep" on
its input ends the training with the best that it has found, and writes the results; the end of
the input, because the page's process has ended in whatever way, stops it, and it can go on later.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from kermix.errors import KermixError
from kermix.runs.kinds import open_run
from kermix.runs.training import keep, train

__all__ = ["Fitting", "main"]

KEEP = "keep"
COMMAND = (sys.executable, "-m", "kermix.explore.fitting")
PATIENCE = 20.0  # seconds that a training has for its last step and checkpoint
TOLD = 2000  # letters of what a failed training said


class Fitting:
    """The process that trains a run.

    Args:
        folder: Of the run, which was begun.
    """

    def __init__(self, folder: Path) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        command = [*COMMAND, str(folder)]
        # A session of its own: Ctrl-C in a terminal is for the page's process, which sees to it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said,
            start_new_session=True,
        )  # fmt: skip
        self.keeping, self._why = False, ""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def failed(self) -> str | None:
        """What it said when it ended with an error."""
        if self.running or self._process.returncode == 0:
            return None
        if not self._why:
            self._why = self._last_words(self._process.returncode)
        return self._why

    def _last_words(self, status: int) -> str:
        if status < 0:
            known = {number.value: number.name for number in signal.Signals}
            name = known.get(-status, -status)
            return f"its process was killed by signal {name}, as when memory runs out."
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip()[-TOLD:].splitlines()
        return lines[-1] if lines else f"its process ended with status {status}."

    def keep(self) -> None:
        """End the training, and keep the best that it has found."""
        if self.keeping or not self.running:
            return
        self.keeping = True
        assert self._process.stdin is not None
        with suppress(OSError):  # it has just ended by itself
            self._process.stdin.write(f"{KEEP}\n".encode())
            self._process.stdin.flush()

    def stop(self) -> None:
        """Stop the training, which is saved, and wait for that."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._why = f"it did not stop within {PATIENCE:g} seconds and was killed."
        self._why = self.failed or ""
        self._said.close()


def main(folder: str) -> int:
    """Train the run in a folder; returns the status of the process."""
    kept, trained = threading.Event(), threading.Event()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == KEEP and not trained.is_set():
                kept.set()
                signal.raise_signal(signal.SIGINT)  # seen between two steps
        if not kept.is_set() or trained.is_set():  # a second signal would end it before it saves
            signal.raise_signal(signal.SIGINT)

    try:
        run = open_run(folder)
        data = run.dataset()
        with run.held():
            threading.Thread(target=listen, daemon=True).start()
            outcome = train(run, data)
            trained.set()
            if outcome is not None and outcome.finished:
                run.finish(data, outcome)
            elif kept.is_set():
                keep(run, data)
    except KeyboardInterrupt:
        return 0  # the checkpoint is there
    except KermixError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(status)  # a thread still reads the input, which the end of the interpreter waits for
