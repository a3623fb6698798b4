"""Runs that are killed and resumed end with the weights of a run that nobody stopped.

`python -m benchmarks killed-runs`. Every kind of run is trained three times and more, each time in
a process of its own:

- whole: `kermix fit` or `kermix classify`, not stopped.
- repeated: the command that the whole run has stored, executed as it is printed.
- killed: the same command, ended by SIGKILL at a random moment of its training (a step that is
  drawn has been reported, and a random part of the time between two reports has passed), and
  continued by `kermix resume`. A moment counts if the process was ended by that signal after
  training had begun (there is a `metrics.csv`) and before its last step (the last checkpoint, if
  there is one, is of an earlier step); another is drawn else.

Compared bit for bit are all tensors of the checkpoints that a finished run has, and the reports
in `metrics.csv`, but for seconds.
"""

import contextlib
import csv
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kermix.training.checkpoints import load_checkpoint

__all__ = ["RUNS", "equal_runs", "killed_and_resumed", "run", "write_data"]

MOMENTS = 20
SEED = 0
TABLE = ("--width", "32", "--blocks", "1", "--steps", "240", "--batch-size", "256")
RUNS: dict[str, tuple[str, ...]] = {
    "samples": ("fit", "ring8", "--rows", "600", "--components", "16", "--batch-size", "32",
                "--steps", "240", "--refine-steps", "80"),
    "samples, a network": ("fit", "moons", "--rows", "600", "--model", "network", "--components",
                           "16", "--batch-size", "32", "--steps", "240", "--refine-steps", "80"),
    "table": ("fit", "typed.csv", *TABLE),
    "table, from disk": ("fit", "typed.csv", *TABLE, "--from-disk"),
    # So slow a network does not learn in forty steps: the closed-form mixture is kept.
    "mixture": ("fit", "normal.csv", "--steps", "40", "--learning-rate", "1e-5"),
    "target": ("classify", "typed.csv", "--target", "size", *TABLE),
    "images": ("fit", "shapes", "--size", "16", "--quick", "--encoder-steps", "20", "--steps",
               "20", "--batch-size", "12", "--code", "3"),
    "classifier": ("classify", "digits", "--quick", "--epochs", "8", "--width", "16"),
}  # fmt: skip
PRELOADED = ["benchmarks.killed_runs", "kermix.cli.app", "kermix.fitting.fit", "lightning.fabric",
             "kermix.tables.model.table_estimator", "pyarrow.parquet", "sklearn.ensemble",
             "matplotlib.figure", "safetensors.torch", "typer.rich_utils"]  # fmt: skip


def write_data(folder: Path, rows: int = 600) -> None:
    """Tables and images to fit, always the same."""
    from PIL import Image

    rng = np.random.default_rng(SEED)
    sex = rng.choice(["f", "m"], rows)
    size = (170 + 8 * (sex == "m") + rng.normal(0, 6, rows)).round(1)
    age = rng.integers(18, 90, rows)
    lines = [",".join(map(str, cells)) for cells in zip(sex, age, size, strict=True)]
    (folder / "typed.csv").write_text("\n".join(["sex,age,size", *lines]) + "\n")
    pairs = rng.multivariate_normal([1.0, 200.0], [[4.0, 15.0], [15.0, 100.0]], rows)
    lines = [f"{a!r},{b!r}" for a, b in pairs.tolist()]
    (folder / "normal.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    for shade, name in enumerate(("dark", "light")):
        (folder / "shapes" / name).mkdir(parents=True)
        for number in range(24):
            pixels = np.full((16, 16, 3), 30 + 180 * shade, np.uint8)
            x, y = rng.integers(0, 10, 2)
            pixels[y : y + 6, x : x + 6] = (200, 60, 20)
            Image.fromarray(pixels).save(folder / "shapes" / name / f"{number:02}.png")


def _be(words: Sequence[str], output: str) -> None:
    """Be the command line."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch

    from kermix.cli import main

    torch.set_num_threads(1)
    sys.argv = ["kermix", *words]
    main()


class _Command:
    """A command in a process of its own: a copy of one that has read the modules."""

    def __init__(self, words: Sequence[str], output: Path) -> None:
        context: Any = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.output = output
        self.process = context.Process(target=_be, args=(tuple(words), str(output)))
        self.process.start()

    def end(self) -> int:
        """Wait for it; returns its exit code."""
        self.process.join()
        return int(self.process.exitcode)

    def succeed(self) -> None:
        """Wait for it; what it printed is the error if it failed."""
        if self.end() != 0:
            raise RuntimeError(self.output.read_text())


def _weights(run: Path) -> dict[str, Any]:
    """The tensors of the checkpoints that a finished run has, by file and name."""
    found = {}
    for path in sorted((run / "checkpoint").glob("*.safetensors")):
        if path.stem != "previous":  # of whichever moment came before the last
            tensors, _ = load_checkpoint(path)
            found |= {(path.name, name): tensor for name, tensor in tensors.items()}
    return found


def _reports(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def equal_runs(first: Path, second: Path) -> int:
    """How many tensors two runs have, all of which are equal; 0 if anything differs."""
    one, two = _weights(first), _weights(second)
    equal = one.keys() == two.keys() and _reports(first) == _reports(second)
    equal = equal and all(
        tensor.dtype == two[name].dtype and tensor.shape == two[name].shape
        and tensor.numpy().tobytes() == two[name].numpy().tobytes()
        for name, tensor in one.items()
    )  # fmt: skip
    return len(one) if equal else 0


def _step(run: Path) -> int:
    """The step of the last checkpoint; 0 before there is one."""
    path = run / "checkpoint" / "last.safetensors"
    return int(load_checkpoint(path)[1]["step"]) if path.exists() else 0


def _begun(command: _Command, run: Path) -> bool:
    """Wait for training to begin; False if the process ended before."""
    while not (run / "metrics.csv").exists():
        if command.process.exitcode is not None:
            return False
        time.sleep(0.001)
    return True


def _reported(run: Path) -> int:
    """The last step that was reported."""
    with contextlib.suppress(FileNotFoundError, IndexError, KeyError, ValueError):
        return int(_reports(run)[-1]["step"])
    return 0


def _whole(words: Sequence[str], run: Path) -> float:
    """Train without a stop; returns how many seconds are between two reports."""
    command = _Command(words, run.with_suffix(".txt"))
    _begun(command, run)
    start, times = time.perf_counter(), {0: 0.0}
    while command.process.exitcode is None:
        times.setdefault(_reported(run), time.perf_counter() - start)
        time.sleep(0.001)
    command.succeed()
    return max(times.values()) / max(1, len(times) - 1)


def killed_and_resumed(
    words: Sequence[str], run: Path, moment: tuple[int, float], steps: int
) -> dict[str, Any] | None:
    """Kill a run so many seconds after a step was reported, and continue it.

    Returns:
        Where it was; None if the moment was not one of its training.
    """
    command, (step, wait) = _Command(words, run.with_suffix(".txt")), moment
    if not _begun(command, run):
        raise RuntimeError(command.output.read_text())
    while _reported(run) < step and command.process.exitcode is None:
        time.sleep(0.001)
    time.sleep(wait)
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself, and does not count
        os.kill(command.process.pid, signal.SIGKILL)
    code, reached = command.end(), _step(run)
    if code != -signal.SIGKILL or reached >= steps or (run / "report.html").exists():
        return None
    _Command(("resume", str(run)), run.with_suffix(".txt")).succeed()
    return {"seconds": round(wait, 4), "checkpoint": reached}


def _of_kind(name: str, moments: int, generator: random.Random) -> dict[str, Any]:
    """One line: a kind of run, what was compared, and at which steps it was killed."""
    words, whole = RUNS[name], Path("whole")
    seconds = _whole((*words, "--out", str(whole)), whole)
    stored = _stored(whole)
    first = whole.rename("first")
    _Command(shlex.split(stored)[1:], Path("repeated.txt")).succeed()
    repeated = equal_runs(first, whole)
    steps, kills, drawn, equal = _step(first), [], 0, 0
    while len(kills) < moments:
        drawn += 1
        if drawn > 10 * moments:
            raise RuntimeError(f"{name}: training is too short to be killed.")
        run = Path(f"killed-{drawn}")
        moment = generator.randrange(steps), generator.uniform(0, seconds)
        found = killed_and_resumed((*words, "--out", str(run)), run, moment, steps)
        if found is not None:
            kills.append(found)
            equal += equal_runs(first, run) > 0
    return {
        "kind": name, "command": stored, "seed of the moments": SEED, "steps": steps,
        "seconds between reports": seconds,
        "files": ", ".join(dict.fromkeys(file for file, _ in _weights(first))),
        "tensors": len(_weights(first)), "killed": len(kills), "equal": equal,
        "printed command equal": repeated > 0, "drawn": drawn,
        "checkpoint steps when killed": [kill["checkpoint"] for kill in kills],
        "seconds after a report when killed": [kill["seconds"] for kill in kills],
    }  # fmt: skip


def _stored(run: Path) -> str:
    from kermix.fitting import open_run

    return open_run(run).command()


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The kinds so far, again after each."""
    rows: list[dict[str, Any]] = []
    generator = random.Random(SEED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    before = Path.cwd()
    for name in ["samples"] if quick else RUNS:
        with tempfile.TemporaryDirectory(prefix="kermix-bench-") as place:
            os.chdir(place)
            try:
                write_data(Path(place))
                rows.append(_of_kind(name, 2 if quick else MOMENTS, generator))
            finally:
                os.chdir(before)
        yield {"killed runs": rows}
