"""A run folder: what all kinds of runs have in common.

| file          | contents                                                    |
| ------------- | ----------------------------------------------------------- |
| `config.json` | data, settings, versions, machine, commit: how to repeat it |
| `metrics.csv` | what was reported during training                           |
| `checkpoint/` | what to go on from, and what was best                       |
| `report.html` | all of it on one page, which needs nothing else             |

What differs from kind to kind (of rows, tables, images; classifiers) is in a record, `Kind`, which
the module of that kind fills in.
"""

import functools
import json
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from kermix.distributed.processes import make_fabric
from kermix.environment import __version__, environment, is_rank
from kermix.errors import OptionError, RunError
from kermix.files import write_json
from kermix.pages.page import Page, Repeat
from kermix.runs.folder import (
    TABLE,
    begin_folder,
    check_trained,
    lasting_source,
    locked_run,
    read_config,
    write_metrics,
)
from kermix.settings import Settings, Strategy
from kermix.training.checkpoints import check_declared, load_checkpoint, rebuilding
from kermix.training.loop import Row, Trainer

__all__ = [
    "KEPT",
    "Draw",
    "Kind",
    "Numbers",
    "OnRows",
    "Outcome",
    "Run",
    "Shown",
    "Start",
    "equivalent_command",
    "has_folder",
]

KEPT = {True: "data.parquet", False: "data.npy"}  # by whether columns have names
READ = (
    "command",
    "data",
    "options",
    "settings",
    "device",
    "precision",
    "fingerprint",
)  # of every kind of run
T = TypeVar("T")
Numbers = list[tuple[str, str]]  # what a run ends with, as (name, value) to show
OnRows = Callable[[int], None]
Shown = tuple[str, list[str], list[list[str]]]  # a table: its title, its columns, its rows


class Outcome(NamedTuple):
    """How training ended."""

    finished: bool  # False: it was interrupted, and saved
    step: int
    history: list[Row]
    trainer: Trainer[Any] | None = None  # None where other processes have trained


@dataclass(frozen=True)
class Start:
    """How a training is started.

    Attributes:
        command: The words of the command that starts it, typed or equivalent to a call in Python;
            an empty third word stands for data that were in memory, and are kept in the folder.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        precision: A precision of Fabric's.
        devices: Processes on each node.
        nodes: Nodes. The folder is made on the first one alone.
        strategy: How costs are computed over processes.
        began: When, as `time.monotonic` has it; a budget counts from there.
    """

    command: Sequence[str]
    device: str = "auto"
    precision: str = "32-true"
    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "auto"
    began: float = field(default_factory=time.monotonic)

    @property
    def alone(self) -> bool:
        """Whether one process trains."""
        return self.devices * self.nodes == 1

    @property
    def ranks(self) -> dict[str, Any]:
        """The processes, as a run notes them."""
        return {"devices": self.devices, "nodes": self.nodes, "strategy": self.strategy}

    def check_device(self) -> None:
        """Refuse a device or a precision that is not there, before a folder is made."""
        if self.alone:
            make_fabric(self.device, self.precision)


@dataclass(frozen=True)
class Draw:
    """Samples that are asked for, to be written to a file.

    Attributes:
        n: How many.
        seed: Same seed, same samples.
        label: Of images: the name of the class to draw.
        given: Of tables: conditions, each written as COLUMN=VALUE.
        spreadsheet_safe: Of tables: whether to escape text that looks like a formula.
        deduplicate: Of tables: whether rows that equal a row of the data are drawn again.
        min_distance: Of tables: rows nearer than this to a row of the data are drawn again.
    """

    n: int
    seed: int = 0
    label: str | None = None
    given: Sequence[str] = ()
    spreadsheet_safe: bool = False
    deduplicate: bool = False
    min_distance: float | None = None

    @property
    def of_table(self) -> bool:
        """Whether something is asked for that only the table model has."""
        asked = (self.given, self.spreadsheet_safe, self.deduplicate)
        return any(asked) or self.min_distance is not None


@dataclass(frozen=True)
class Kind:
    """What a kind of run has of its own: a record of functions, each of which is given the run.

    Attributes:
        name: As `config.json` has it.
        settings: The class of its settings.
        facts: What the config notes of its data, beside what all runs have.
        dataset: Reads the data again; refused if they have changed.
        trainer: Makes the trainer of its task, from the run and the data; at the first step.
        shown: What a progress bar shows of a report: `stage` and `metric`.
        finish: Writes results and report; returns the numbers to show.
        weights: Files of the trained model among the checkpoints; the first that is there counts.
        read_model: Reads the trained model from one of them.
        answers: What the trained model answers, by name (`"sample"`, `"sample_parts"`,
            `"write_samples"`, `"score"`, `"impute"`, `"conditionals"`), as functions.
        refusal: Why it does not answer what has a name, as a sentence; None if it does.
        sets: Names of sets of data, which come before files of the same name.
        reported: Columns of `metrics.csv`.
        model: A copy of the trained model for whoever asks; by default one of what was read.
        notes: What a user should know before believing the numbers, beside what was noted.
        on_report: Called after each report: a kind may keep more than the numbers.
        table_shown: A table that follows the numbers on a terminal.
    """

    name: str
    settings: type[Settings]
    facts: tuple[str, ...]
    dataset: Callable[["Run"], Any]
    trainer: Callable[["Run", Any], Trainer[Any]]
    shown: Callable[["Run", Row], dict[str, str]]
    finish: Callable[["Run", Any, Outcome], Numbers]
    weights: tuple[str, ...]
    read_model: Callable[["Run", Path], Any]
    answers: Mapping[str, Callable[..., Any]]
    refusal: Callable[["Run", str], str | None]
    sets: Collection[str] = ()
    reported: tuple[str, ...] = ("step", "loss", "variance", "metric")
    model: Callable[["Run"], Any] | None = None
    notes: Callable[["Run", Any], list[str]] | None = None
    on_report: Callable[["Run", Trainer[Any], Row], None] | None = None
    table_shown: Callable[["Run"], Shown | None] | None = None


@dataclass(frozen=True)
class Run:
    """A run folder that exists.

    Attributes:
        folder: Where it is.
        config: The content of `config.json`.
        kind: What is its own, of all kinds of runs.
    """

    folder: Path
    config: dict[str, Any]
    kind: Kind

    @classmethod
    def begin(
        cls,
        kind: Kind,
        folder: Path,
        source: str,
        settings: Any,
        start: Start,
        *,
        options: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> "Run":
        """Make the folder, which must not exist, and note how to repeat the run.

        Of many processes one does. A device that is not there is refused before.

        Args:
            kind: Which kind of run it is.
            folder: Where.
            source: What the data are loaded from: a name or a path.
            settings: What the user chose.
            start: How the training is started.
            options: How the data are read: rows, data_root, size, where they are given.
            facts: What this kind of run notes of its data.
        """
        start.check_device()
        writes = has_folder(start.devices, start.nodes)
        if writes:
            begin_folder(folder)
        in_memory = tuple(start.command[2:3]) == ("",)
        config = {
            "kind": kind.name,
            "kermix": __version__,
            "command": [*start.command[:2], *([source] if in_memory else start.command[2:3]),
                        *start.command[3:]],
            "data": lasting_source(source, kind.sets),
            "options": {
                name: str(Path(value).resolve()) if name == "data_root" else value
                for name, value in options.items()
                if value is not None
            },
            **facts,
            "settings": settings.as_json(),
            "device": start.device,
            "precision": start.precision,
            "environment": {**environment(), "directory": str(Path.cwd())},
        }  # fmt: skip
        if writes:
            write_json(folder / "config.json", config)
        return cls(folder, config, kind)

    @classmethod
    def open(cls, folder: Path, kind: Kind) -> "Run":
        """A run that was begun before."""
        facts = (*READ, *kind.facts)
        return cls(folder, read_config(folder, kind.name, facts, kind.settings.from_json), kind)

    @cached_property
    def settings(self) -> Any:
        """What the user chose."""
        return self.kind.settings.from_json(self.config["settings"])

    @cached_property
    def _in_memory(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {}

    def once(self, name: str, read: Callable[[], T]) -> T:
        """What is read when it is first asked for, and never changes."""
        if name not in self._in_memory:
            self._in_memory[name] = ((), read())
        return cast(T, self._in_memory[name][1])

    def loaded(self, path: Path, load: Callable[[], T]) -> T:
        """What a file of the run holds, loaded once; again when training has written another."""
        check_trained(self.folder, path)
        found = path.stat()
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        before, content = self._in_memory.get(path.name, ((), None))
        if before != mark:
            content = load()
            self._in_memory[path.name] = (mark, content)
        return cast(T, content)

    def __getstate__(self) -> dict[str, Any]:
        """A run is sent to other processes without what it has loaded."""
        return {"folder": self.folder, "config": self.config, "kind": self.kind}

    @property
    def source(self) -> str:
        """What the data are read from; those kept in the folder, wherever it is now."""
        kept = self.folder / Path(self.config["data"]).name
        return str(kept) if kept.name in KEPT.values() and kept.exists() else self.config["data"]

    @property
    def options(self) -> dict[str, Any]:
        """How the data are read again."""
        options = dict(self.config["options"])
        if options.get("data_root") is not None:
            options["data_root"] = Path(options["data_root"])
        return options

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.folder / "checkpoint"

    @property
    def last(self) -> Path:
        """The checkpoint to go on from."""
        return self.checkpoints / "last.safetensors"

    @property
    def ranks(self) -> tuple[int, int, Strategy]:
        """Processes on each node, nodes, and how costs are computed over them."""
        ranks = self.config.get("ranks", {})
        return ranks.get("devices", 1), ranks.get("nodes", 1), ranks.get("strategy", "auto")

    @property
    def is_main(self) -> bool:
        """Whether this process is, of those that share the run, the one that has its folder."""
        devices, nodes, _ = self.ranks
        return has_folder(devices, nodes)

    def with_ranks(
        self, devices: int | None = None, nodes: int | None = None, strategy: str | None = None
    ) -> "Run":
        """The same run, to go on with another number of processes; None keeps what there was."""
        asked = {"devices": devices, "nodes": nodes, "strategy": strategy}
        given = {name: value for name, value in asked.items() if value is not None}
        names = ("devices", "nodes", "strategy")
        before = dict(zip(names, self.ranks, strict=True))
        return replace(self, config={**self.config, "ranks": {**before, **given}})

    def on_device(self, device: str) -> "Run":
        """The same run, to be asked on another device than it was trained on."""
        return replace(self, config={**self.config, "device": device})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder alone; refused while another process, or this one, trains the run."""
        with locked_run(self.folder) if self.is_main else nullcontext():
            yield

    def dataset(self) -> Any:
        """The data of the run, read again; refused if they have changed."""
        return self.kind.dataset(self)

    def trainer(self, data: Any) -> Trainer[Any]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        self.check_sizes()
        trainer = self.kind.trainer(self, data)
        if trainer.broadcast_from_main(self.last.exists()):
            trainer.load(self.last)
        return trainer

    def trained_model(self) -> Any:
        """The trained model itself, loaded once: to be asked, not to be changed."""
        files = [self.checkpoints / f"{name}.safetensors" for name in self.kind.weights]
        path = next((file for file in files if file.exists()), files[-1])
        return self.loaded(path, lambda: self.kind.read_model(self, path))

    def model(self) -> Any:
        """A copy of the trained model."""
        return self.kind.model(self) if self.kind.model else deepcopy(self.trained_model())

    def answer(self, name: str) -> Callable[..., Any]:
        """The function that answers a question, of this run; refused if its kind has none."""
        why = self.kind.refusal(self, name)
        if why is not None:
            raise RunError(f"{self.folder}: {why}")
        return functools.partial(self.kind.answers[name], self)

    def sample(self, n: int, seed: int = 0, *given: Any, **options: Any) -> Any:
        """Samples of the trained model: rows, images with their classes, or a table.

        Args:
            n: How many.
            seed: Same seed, same samples.
            given: Of tables, values of some columns (see `kermix.TableModel.sample`); of images,
                the class of each.
            options: Of tables, `given`, `deduplicate` and `min_distance`.
        """
        return self.answer("sample")(n, seed, *given, **options)

    def sample_parts(self, n: int, seed: int = 0, *given: Any, **options: Any) -> Iterator[Any]:
        """Of tables: what `sample` draws as Arrow tables, some ten thousand rows at a time."""
        found: Iterator[Any] = self.answer("sample_parts")(n, seed, *given, **options)
        return found

    def check_draw(self, draw: Draw) -> None:
        """Refuse samples that this kind of run does not have, before any are drawn."""
        self.answer("write_samples")
        if draw.of_table and self.kind.name != TABLE:
            raise OptionError(
                f"{self.folder}: --given, --spreadsheet-safe, --deduplicate and --min-distance "
                "are for the table model."
            )
        if draw.label is not None and "classes" not in self.config:
            raise OptionError(f"--label {draw.label}: the run in {self.folder} has no classes.")

    def write_samples(self, path: Path, draw: Draw, on_rows: OnRows | None = None) -> None:
        """Write samples to a file, in the form that its name asks for.

        Args:
            path: Where.
            draw: What is asked for.
            on_rows: Called with the number of samples that are written, part by part.
        """
        self.answer("write_samples")(path, draw, on_rows or (lambda rows: None))

    def score(self, rows: Any, *names: Any, **options: Any) -> Any:  # (N,)
        """Log-density of each row, in their order.

        Args:
            rows: A data frame, an array, a tensor, a list of rows, or a file of them.
            names: Of a mixture, the names of the columns where the rows have none.
            options: Of tables, `orders` of the columns to average over, and `on_rows`.
        """
        return self.answer("score")(rows, *names, **options)

    def impute(self, table: Any, **options: Any) -> Any:
        """The table with its gaps filled; see `kermix.TableModel.impute`, whose seed is `seed`."""
        return self.answer("impute")(table, **options)

    def conditionals(self, table: Any, target: str | None = None) -> Iterator[Any]:
        """Distributions of a column given the other cells of each row, part by part."""
        found: Iterator[Any] = self.answer("conditionals")(table, target)
        return found

    def predict(self, table: Any, target: str | None = None) -> np.ndarray:  # (N,)
        """The most likely value of a column, or the median of a number, for each row."""
        parts = self.conditionals(table, target)
        return np.concatenate([np.asarray(part.values()) for part in parts])

    def check_sizes(self) -> None:
        """Refuse settings that declare more than the last checkpoint holds, if there is one."""
        if self.last.exists():
            tensors, _ = load_checkpoint(self.last)
            with rebuilding(self.last, tensors):
                check_declared(self.settings, tensors)

    def finish(self, data: Any, outcome: Outcome) -> Numbers:
        """Write results and report; returns the numbers to show."""
        return self.kind.finish(self, data, outcome)

    def command(self) -> str:
        """The command that started this run, to be typed again in the same directory."""
        return shlex.join(self.config["command"])

    def write_page(
        self,
        template: str,
        title: str,
        shown: Mapping[str, Any],
        found: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `report.html`: what a template shows, and how the run is repeated.

        Args:
            template: Its name in `pages/templates`.
            title: Heading of the page.
            shown: What the template shows, by name.
            found: Settings that were left to the data, by name.
        """
        made, settings = self.config["environment"], {**self.settings.as_json(), **(found or {})}
        content = {"folder": str(self.folder), "made_by": f"kermix {self.config['kermix']}",
                   "notes": self.config.get("notes", []), **shown}  # fmt: skip
        repeat = Repeat.of(self.command(), made, settings)
        Page(template, title, content).repeated_by(repeat).save(self.folder / "report.html")

    def notes(self, data: Any) -> list[str]:
        """What a user should know before believing the numbers."""
        found = [] if self.kind.notes is None else self.kind.notes(self, data)
        return [*self.config.get("notes", []), *found]

    def table_shown(self) -> Shown | None:
        """A table that follows the numbers on a terminal, if this kind of run has one."""
        return None if self.kind.table_shown is None else self.kind.table_shown(self)

    def train(self, trainer: Trainer[Any], **callbacks: Callable[..., Any] | None) -> bool:
        """Train to the end or an interruption; returns whether the end was reached."""
        told = callbacks.pop("on_report", None)

        def report(row: Row) -> None:
            write_metrics(self.folder, trainer.history, self.kind.reported)
            if self.kind.on_report is not None:
                self.kind.on_report(self, trainer, row)
            if told is not None:
                told(row)

        if trainer.is_main:
            write_metrics(self.folder, trainer.history, self.kind.reported)
        return trainer.run(folder=self.checkpoints, on_report=report, **callbacks)


SWITCHES = {
    "quick": ("--quick", ""), "header": ("--header", "--no-header"),
    "from_disk": ("--from-disk", "--in-memory"), "augment": ("--augment", "--no-augment"),
    "debias": ("--debias", "--no-debias"),
}  # fmt: skip


def equivalent_command(
    name: str, source: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """The words of the command that does what a call in Python did.

    Args:
        name: `"fit"` or `"classify"`.
        source: The data.
        options: What the command has options of its own for; what is None was not given.
        settings: What is given by `--set`.

    Example:
        >>> options = {"steps": 9, "header": False, "kinds": {"zip code": "category"}}
        >>> print(shlex.join(equivalent_command("fit", "a.csv", options, {"calibrate": None})))
        kermix fit a.csv --steps 9 --no-header --kind 'zip code=category' --set calibrate=null
    """
    words = ["kermix", name, source]
    for option, value in options.items():
        words += [] if value is None else _option_words(option, value)
    for setting, value in settings.items():
        shown = json.dumps(value, separators=(",", ":"), default=lambda number: number.item())
        words += ["--set", f"{setting}={shown}"]
    return words


def _option_words(name: str, value: Any) -> list[str]:
    if name == "kinds":
        return [word for column, kind in value.items() for word in ("--kind", f"{column}={kind}")]
    if name in SWITCHES:
        return [word for word in (SWITCHES[name][not value],) if word]
    shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return [f"--{name.replace('_', '-')}", shown]


def has_folder(devices: int, nodes: int) -> bool:
    """Whether this process is, of so many that share a run, the one that makes its folder."""
    if devices * nodes == 1:
        return True
    return int(os.environ.get("RANK" if is_rank() else "NODE_RANK", 0)) == 0
