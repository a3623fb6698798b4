"""Run folders: everything about a fit in one place, written so that nothing is ever lost.

=================  ==============================================================
`config.json`      data, settings, versions, machine, commit: how to repeat it
`metrics.csv`      step, loss, variance and held-out metric
`checkpoint/`      `last` (to go on from) and `best` (what is sampled from)
`samples.npy`      samples of the best model
`figure.png`       data against samples
`report.html`      all of it on one page, which needs nothing else
=================  ==============================================================
"""

import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kermix
from kermix.data.loading import BUILT_IN, Dataset, load
from kermix.distributed import Strategy
from kermix.distributed.launch import check_ranks, is_rank
from kermix.errors import ShapeError
from kermix.evaluation import energy_distance, mode_coverage
from kermix.models.scaled import ScaledModel
from kermix.records import environment, write_json
from kermix.report import Report
from kermix.runs.fit_figures import curves_figure, fit_figure
from kermix.runs.fit_notes import fit_notes
from kermix.runs.folder import (
    FIT,
    begin_folder,
    check_data,
    check_trained,
    lasting_source,
    read_config,
    write_metrics,
)
from kermix.training.build import Split, build_model, build_trainer, held_out_rows, split_rows
from kermix.training.checkpoints import load_checkpoint
from kermix.training.loop import Row, Trainer, check_shares, load_model, make_fabric
from kermix.training.settings import Settings
from kermix.writing import whole_file

__all__ = ["Run", "Summary"]

SAMPLES = 2500
COMPARED = 2000


@dataclass(frozen=True)
class Summary:
    """The numbers that a fit ends with, as (name, value) to show."""

    rows: list[tuple[str, str]]


@dataclass(frozen=True)
class Run:
    """A run folder that exists.

    Attributes:
        folder: Where it is.
        config: The content of `config.json`.
    """

    folder: Path
    config: dict[str, Any]

    @classmethod
    def create(
        cls,
        folder: Path,
        source: str,
        dataset: Dataset,
        settings: Settings,
        device: str = "auto",
        precision: str = "32-true",
        rows: int | None = None,
        devices: int = 1,
        nodes: int = 1,
        strategy: Strategy = "auto",
    ) -> "Run":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: What the data are loaded from: a name or a path.
            dataset: The data.
            settings: What the user chose.
            device: `"auto"`, `"cpu"`, `"cuda"`, ...
            precision: A precision of Fabric's.
            rows: Rows drawn of a built-in set.
            devices: Processes on each node.
            nodes: Nodes. The folder is made on the first one alone.
            strategy: How costs are computed over processes.
        """
        check_ranks(devices, nodes)
        split = split_rows(dataset.values, settings.seed)
        settings = settings.for_data(len(split.train))
        check_shares(settings, devices * nodes)
        main = _is_main(devices, nodes)
        _, variances = build_model(split.train, settings, dataset.image)
        if devices * nodes == 1:
            make_fabric(device, precision)  # refused, if it must be, before a folder is made
        if main:
            begin_folder(folder)
        config = {
            "kermix": kermix.__version__,
            "data": lasting_source(source, BUILT_IN),
            "rows": rows,
            "shape": list(dataset.values.shape),
            "fingerprint": _fingerprint(dataset.values),
            "columns": dataset.columns,
            "notes": fit_notes(dataset, split),
            "image": dataset.image,
            "settings": settings.as_json(),
            "variance": {"start": variances.start, "end": variances.end},
            "device": device,
            "precision": precision,
            "ranks": {"devices": devices, "nodes": nodes, "strategy": strategy},
            "environment": environment(),
        }
        if main:
            write_json(folder / "config.json", config)
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A run that was begun before."""
        config = read_config(folder, FIT, Settings.from_json)
        return cls(folder, config)

    @property
    def settings(self) -> Settings:
        """What the user chose."""
        return Settings.from_json(self.config["settings"])

    @property
    def ranks(self) -> tuple[int, int, Strategy]:
        """Processes on each node, nodes, and how costs are computed over them."""
        ranks = self.config.get("ranks", {})
        return ranks.get("devices", 1), ranks.get("nodes", 1), ranks.get("strategy", "auto")

    @property
    def is_main(self) -> bool:
        """Whether this process is, of those that share the run, the one that has its folder."""
        devices, nodes, _ = self.ranks
        return _is_main(devices, nodes)

    def with_ranks(
        self, devices: int | None = None, nodes: int | None = None, strategy: str | None = None
    ) -> "Run":
        """The same run, to go on with another number of processes; None keeps what there was."""
        asked = {"devices": devices, "nodes": nodes, "strategy": strategy}
        given = {name: value for name, value in asked.items() if value is not None}
        names = ("devices", "nodes", "strategy")
        before = dict(zip(names, self.ranks, strict=True))
        return replace(self, config={**self.config, "ranks": {**before, **given}})

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.folder / "checkpoint"

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width, if rows are images."""
        image = self.config["image"]
        return None if image is None else (image[0], image[1], image[2])

    @property
    def metric(self) -> str:
        """The name of the held-out metric."""
        return "NLL" if self.settings.is_mixture else "energy distance"

    def dataset(self) -> Dataset:
        """The data of the run, read again."""
        dataset = load(self.config["data"], self.settings.seed, self.config["rows"])
        check_data(self.folder, self.config, _fingerprint(dataset.values))
        return dataset

    def trainer(self, dataset: Dataset) -> Trainer:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        split = self.split(dataset)
        device, precision = self.config["device"], self.config["precision"]
        devices, nodes, strategy = self.ranks
        trainer = build_trainer(
            split,
            self.settings,
            dataset.image,
            device=device,
            precision=precision,
            devices=devices,
            nodes=nodes,
            strategy=strategy,
        )
        last = self.checkpoints / "last.safetensors"
        if trainer.main_says(last.exists()):
            trainer.load(last)
        return trainer

    def split(self, dataset: Dataset) -> Split:
        """The rows to train with and those held out."""
        return split_rows(dataset.values, self.settings.seed)

    def train(self, trainer: Trainer, **callbacks: Callable[..., Any] | None) -> bool:
        """Train to the end or an interruption; returns whether the end was reached."""
        on_report = callbacks.pop("on_report", None)

        def report(row: Row) -> None:
            write_metrics(self.folder, trainer.history)
            if on_report is not None:
                on_report(row)

        if trainer.is_main:
            write_metrics(self.folder, trainer.history)
        return trainer.run(folder=self.checkpoints, on_report=report, **callbacks)

    def model(self) -> ScaledModel:
        """The best model so far."""
        best = self.checkpoints / "best.safetensors"
        check_trained(self.folder, best)
        tensors, _ = load_checkpoint(best)
        # Any data of the right width will do: the scale comes from the checkpoint.
        blank = torch.zeros(2, self.config["shape"][1])
        model, _ = build_model(blank, self.settings, self.image)
        load_model(model, tensors)
        model.kernel_variance = self.config["variance"]["end"]
        return model.eval()

    def sample(self, n: int, seed: int) -> Tensor:  # (n, d)
        """Samples of the best model."""
        return self.model().sample(n, torch.Generator().manual_seed(seed))

    def score(self, values: Tensor, names: list[str] | None = None) -> Tensor:  # (n, d) -> (n,)
        """Log-density of rows under the best model; columns are matched by their names."""
        columns = self.config["columns"]
        if values.shape[1] != len(columns):
            raise ShapeError(
                f"The rows have {values.shape[1]} columns and the run in {self.folder} was "
                f"fitted to {len(columns)} ({', '.join(columns[:12])})."
            )
        unnamed = [f"x{i}" for i in range(len(columns))]
        if names is not None and sorted(names) == sorted(columns):
            values = values[:, [names.index(name) for name in columns]]
        elif names is not None and unnamed not in (names, columns):
            raise ShapeError(
                f"The rows have the columns {', '.join(names[:12])} and the run in "
                f"{self.folder} was fitted to {', '.join(columns[:12])}: the same names are "
                "needed, in any order."
            )
        return self.model().log_prob(values)

    def finish(self, dataset: Dataset, history: list[Row]) -> Summary:
        """Write samples, figure and report of the best model."""
        model = self.model()
        generator = torch.Generator().manual_seed(self.settings.seed + 1)
        samples = model.sample(SAMPLES, generator)
        _save_array(self.folder / "samples.npy", samples.numpy())
        split = self.split(dataset)
        rows = self._numbers(model, dataset, split, samples, history)
        mixture = model.mixture()
        figure = fit_figure(split.train, samples, mixture, dataset.columns, dataset.image)
        _save_figure(figure, self.folder / "figure.png")
        best = min(row["metric"] for row in history)
        curves = curves_figure(history, _of_rows(self.metric, split), best, split.apart)
        self._report(rows, figure, curves, split.apart)
        return Summary(rows)

    def _numbers(
        self,
        model: ScaledModel,
        dataset: Dataset,
        split: Split,
        samples: Tensor,
        history: list[Row],
    ) -> list[tuple[str, str]]:
        rows = [("data", f"{dataset.name}, {' x '.join(map(str, dataset.values.shape))}")]
        held_out = split.held_out[:COMPARED]
        log_density = model.log_prob(held_out)
        if model.is_mixture:
            rows.append((_of_rows("NLL", split), f"{-log_density.mean():.4f} nats"))
            if dataset.entropy is not None:
                rows.append(("entropy of the data", f"{dataset.entropy:.3f} nats"))
        scaled = model.scaler.scaled
        others = scaled(samples[: len(held_out)])
        held = scaled(held_out)
        shown = f"{float(energy_distance(held, others)):.5f}"
        if split.apart:
            floor = float(energy_distance(held, scaled(split.train[: len(others)])))
            shown += f" (two sets of data: {floor:.5f})"
        rows.append(("energy distance", shown))
        if dataset.modes is not None:
            found = mode_coverage(samples, dataset.modes.centres.double(), dataset.modes.deviation)
            rows.append(("modes covered", f"{found.modes} of {found.total}"))
            rows.append(("good samples", f"{found.high_quality:.1%} (a perfect sampler: 98.9%)"))
            rows.append(("KL of modes", f"{found.kl:.4f}"))
        what = "centre plus learned noise" if model.is_mixture else "centre"
        rows.append(("a sample is a", what))
        rows.append(("steps", f"{int(history[-1]['step'])}"))
        return rows

    def _report(self, rows: list[tuple[str, str]], figure: Any, curves: Any, apart: bool) -> None:
        settings = self.settings
        page = Report(
            f"Fit of {Path(self.config['data']).name}",
            f"A {settings.model} model trained with the {settings.cost} cost by kermix "
            f"{self.config['kermix']}.",
        )
        page.table(("", ""), rows)
        for note in self.config.get("notes", []):
            page.text(note)
        page.heading("Data and model")
        page.figure(figure, "The data, samples of the model and, in the plane, its density.")
        page.heading("Training")
        which = "held out" if apart else "fitted"
        page.figure(curves, f"Left: what counts, on data {which}. Right: the loss.")
        page.heading("Repeat it")
        page.code(self.command())
        page.text("More samples, and the log-density of other rows:")
        folder = shlex.quote(str(self.folder))
        page.code(f"kermix sample {folder} -n 1000 -o more.npy\nkermix score {folder} rows.csv")
        page.heading("Settings")
        found = {"variance": self.config["variance"]["end"], "rate": settings.peak_rate,
                 "start_variance": self.config["variance"]["start"]}  # fmt: skip
        page.table(("setting", "value"), list({**settings.as_json(), **found}.items()))
        machine = self.config["environment"]
        page.heading("Machine")
        page.table(
            ("", ""),
            [
                ("machine", machine["machine"]["gpu"] or machine["machine"]["cpu"]),
                ("commit", machine["commit"]),
                *machine["versions"].items(),
            ],
        )
        page.save(self.folder / "report.html")

    def command(self) -> str:
        """The command that repeats this run."""
        parts = ["kermix", "fit", shlex.quote(self.config["data"])]
        if self.config["rows"] is not None:
            parts += ["--rows", str(self.config["rows"])]
        rows = self.config["shape"][0]
        default = Settings().for_data(rows - held_out_rows(rows)).as_json()
        for name, value in self.settings.as_json().items():
            if value != default[name]:
                shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                parts += [f"--{name.replace('_', '-')}", shlex.quote(shown)]
        return " ".join(parts)


def _is_main(devices: int, nodes: int) -> bool:
    if devices * nodes == 1:
        return True
    return int(os.environ.get("RANK" if is_rank() else "NODE_RANK", 0)) == 0


def _of_rows(metric: str, split: Split) -> str:
    return f"held-out {metric}" if split.apart else f"{metric} of the rows fitted"


def _fingerprint(values: Tensor) -> str:
    digest = hashlib.sha256(str(tuple(values.shape)).encode())
    digest.update(values.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _save_array(path: Path, array: np.ndarray) -> None:
    with whole_file(path) as part, part.open("wb") as file:
        np.save(file, array)


def _save_figure(figure: Any, path: Path) -> None:
    with whole_file(path) as part:
        figure.savefig(part, dpi=150, format="png")
