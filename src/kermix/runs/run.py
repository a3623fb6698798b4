"""A run folder: what all kinds of runs have in common.

| file          | contents                                                    |
| ------------- | ----------------------------------------------------------- |
| `config.json` | data, settings, versions, machine, commit: how to repeat it |
| `metrics.csv` | what was reported during training                           |
| `checkpoint/` | what to go on from, and what was best                       |
| `report.html` | all of it on one page, which needs nothing else             |

Kinds of runs (fits of rows, fits of images, classifiers) say in modules of their own what their
data, trainer, result and command are.
"""

import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from kermix.distributed.loss import Strategy
from kermix.environment import __version__, is_rank
from kermix.pages.page import Page, Repeat
from kermix.runs.folder import (
    begin_folder,
    check_trained,
    lasting_source,
    locked_run,
    read_config,
    write_metrics,
)
from kermix.runs.provenance import environment, write_json
from kermix.training.checkpoints import check_declared, load_checkpoint, rebuilding
from kermix.training.loop import Row, Trainer, make_fabric

__all__ = [
    "KEPT",
    "Numbers",
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
    """

    command: Sequence[str]
    device: str = "auto"
    precision: str = "32-true"
    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "auto"

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
class Run(ABC):
    """A run folder that exists.

    Attributes:
        folder: Where it is.
        config: The content of `config.json`.
    """

    folder: Path
    config: dict[str, Any]

    kind: ClassVar[str]
    facts: ClassVar[tuple[str, ...]]  # what the config has of this kind of run, beside READ
    reported: ClassVar[tuple[str, ...]] = ("step", "loss", "variance", "metric")

    @classmethod
    def begin(
        cls,
        folder: Path,
        source: str,
        built_in: Collection[str],
        settings: Any,
        start: Start,
        *,
        options: Mapping[str, Any],
        facts: Mapping[str, Any],
        writes: bool = True,
    ) -> Self:
        """Make the folder, which must not exist, and note how to repeat the run.

        Args:
            folder: Where.
            source: What the data are loaded from: a name or a path.
            built_in: Names of sets that come before files of the same name.
            settings: What the user chose.
            start: How the training is started.
            options: How the data are read: rows, data_root, size, where they are given.
            facts: What this kind of run notes of its data.
            writes: Whether this process writes; one of many does.
        """
        if writes:
            begin_folder(folder)
        in_memory = tuple(start.command[2:3]) == ("",)
        config = {
            "kind": cls.kind,
            "kermix": __version__,
            "command": [*start.command[:2], *([source] if in_memory else start.command[2:3]),
                        *start.command[3:]],
            "data": lasting_source(source, built_in),
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
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """A run that was begun before."""
        folder = Path(folder)
        return cls(folder, read_config(folder, cls.kind, (*READ, *cls.facts), cls._read_settings))

    @classmethod
    @abstractmethod
    def _read_settings(cls, content: dict[str, Any]) -> Any:
        """Settings from `config.json`; names that are not known are an error."""

    @cached_property
    def settings(self) -> Any:
        """What the user chose."""
        return self._read_settings(self.config["settings"])

    @cached_property
    def _in_memory(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {}

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
        return {"folder": self.folder, "config": self.config}

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
    ) -> Self:
        """The same run, to go on with another number of processes; None keeps what there was."""
        asked = {"devices": devices, "nodes": nodes, "strategy": strategy}
        given = {name: value for name, value in asked.items() if value is not None}
        names = ("devices", "nodes", "strategy")
        before = dict(zip(names, self.ranks, strict=True))
        return replace(self, config={**self.config, "ranks": {**before, **given}})

    def on_device(self, device: str) -> Self:
        """The same run, to be asked on another device than it was trained on."""
        return replace(self, config={**self.config, "device": device})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder alone; refused while another process, or this one, trains the run."""
        with locked_run(self.folder) if self.is_main else nullcontext():
            yield

    @abstractmethod
    def dataset(self) -> Any:
        """The data of the run, read again; refused if they have changed."""

    @abstractmethod
    def trainer(self, data: Any) -> Trainer[Any]:
        """A trainer at the last checkpoint, or at the first step if there is none."""

    def check_sizes(self) -> None:
        """Refuse settings that declare more than the last checkpoint holds, if there is one."""
        if self.last.exists():
            tensors, _ = load_checkpoint(self.last)
            with rebuilding(self.last, tensors):
                check_declared(self.settings, tensors)

    @abstractmethod
    def finish(self, data: Any, outcome: Outcome) -> Numbers:
        """Write results and report; returns the numbers to show."""

    def table_shown(self) -> Shown | None:
        """A table that follows the numbers on a terminal, if a kind of run has one."""
        return None

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

    @abstractmethod
    def shown(self, row: Row) -> dict[str, str]:
        """What a progress bar shows of a report: `stage` and `metric`."""

    def notes(self, data: Any) -> list[str]:
        """What a user should know before believing the numbers."""
        return list(self.config.get("notes", []))

    def on_report(self, trainer: Trainer[Any], row: Row) -> None:  # noqa: B027
        """Called after each report; a kind of run may keep more than the numbers."""

    def train(self, trainer: Trainer[Any], **callbacks: Callable[..., Any] | None) -> bool:
        """Train to the end or an interruption; returns whether the end was reached."""
        told = callbacks.pop("on_report", None)

        def report(row: Row) -> None:
            write_metrics(self.folder, trainer.history, self.reported)
            self.on_report(trainer, row)
            if told is not None:
                told(row)

        if trainer.is_main:
            write_metrics(self.folder, trainer.history, self.reported)
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
