"""Fits of rows: run folders of `kermix fit` and `kermix.fit`.

Beside what every run has: `checkpoint/best` is what is sampled from, `samples.npy` are samples of
it, and `figure.svg` shows data against samples. The page warns of what a user should know about
the data before believing its numbers.
"""

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from kermix.costs.baselines import energy_distance, mode_coverage
from kermix.data.dataset import Dataset
from kermix.data.readers.common import counted, listed
from kermix.data.sources import BUILT_IN, Source, load, read_table
from kermix.distributed.launch import check_ranks
from kermix.errors import SampleError, ShapeError, TableError
from kermix.files import write_array
from kermix.fitting.samples_page import FitQuality, write_fit_report
from kermix.networks.scaled import ScaledModel, column_moments
from kermix.runs.folder import FIT, check_data
from kermix.runs.run import Numbers, Outcome, Start, has_folder
from kermix.runs.run import Run as AnyRun
from kermix.runs.train import stage_of
from kermix.training.build import Split, build_model, build_trainer, split_rows
from kermix.training.checkpoints import check_declared, load_checkpoint, rebuilding
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Row, Trainer, load_model
from kermix.training.mixture_search import clearly_better, gaussian_log_densities
from kermix.training.samples_task import RowTask, check_shares

__all__ = ["FitRun", "fit_notes", "of_rows"]


def fit_notes(dataset: Dataset, split: Split) -> list[str]:
    """One sentence or two for each thing: what was left out, too few rows, constant columns.

    Example:
        >>> from kermix.training.build import split_rows
        >>> rows = torch.tensor([[1.0, 5.0], [2.0, 5.0]])
        >>> for note in fit_notes(Dataset("two", rows, ["a", "b"]), split_rows(rows, 0)):
        ...     print(note)
        two: 2 rows are too few to hold some out; metrics are for the training rows only.
        two: constant column: b. Samples vary around its value; leave it out if they must not.
    """
    notes = list(dataset.notes)
    if not split.apart:
        count = len(split.train)
        notes.append(
            f"{dataset.name}: {count} row{'s are' if count != 1 else ' is'} too few to hold some "
            "out; metrics are for the training rows only."
        )
    if dataset.image is not None or len(split.train) == 1:
        return notes
    scale = column_moments(split.train)[1][0]
    constant = [name for name, s in zip(dataset.columns, scale.tolist(), strict=True) if s == 0]
    if constant:
        one = len(constant) == 1
        notes.append(
            f"{dataset.name}: constant column{'' if one else 's'}: {listed(constant)}. Samples "
            f"vary around {'its value; leave it' if one else 'their values; leave them'} out if "
            "they must not."
        )
    return notes


def of_rows(metric: str, split: Split) -> str:
    """A metric's name with the rows that it is of."""
    return f"held-out {metric}" if split.apart else f"{metric} of the rows fitted"


SAMPLES = 2500
COMPARED = 2000


class FitRun(AnyRun):
    """A fit of rows: a mixture or a generator of rows, with its folder."""

    kind: ClassVar[str] = FIT
    facts: ClassVar[tuple[str, ...]] = ("shape", "columns", "image", "variance")

    @classmethod
    def create(
        cls,
        folder: Path,
        source: str,
        dataset: Dataset,
        settings: FitSettings,
        start: Start,
        options: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> "FitRun":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: What the data are loaded from: a name or a path.
            dataset: The data.
            settings: What the user chose.
            start: How the training is started.
            options: Further arguments of `kermix.data.sources.load`: rows, data_root, size.
            notes: What a user should know of the choice of the model.
        """
        check_ranks(start.devices, start.nodes)
        split = split_rows(dataset.values, settings.seed)
        settings = settings.for_data(len(split.train))
        check_shares(settings, start.devices * start.nodes)
        _, variances = build_model(split.train, settings, dataset.image)
        start.check_device()
        return cls.begin(
            folder,
            source,
            BUILT_IN,
            settings,
            start,
            options=options or {},
            facts={
                "shape": list(dataset.values.shape),
                "fingerprint": _fingerprint(dataset.values),
                "columns": dataset.columns,
                "notes": [*notes, *fit_notes(dataset, split)],
                "image": dataset.image,
                "variance": {"start": variances.start, "end": variances.end},
                "ranks": start.ranks,
            },
            writes=has_folder(start.devices, start.nodes),
        )

    @classmethod
    def _read_settings(cls, content: dict[str, Any]) -> FitSettings:
        return FitSettings.from_json(content)

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
        dataset = load(self.source, self.settings.seed, **self.options)
        check_data(self.folder, self.config, _fingerprint(dataset.values))
        return dataset

    def trainer(self, dataset: Dataset) -> Trainer[RowTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        self.check_sizes()
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
        if trainer.broadcast_from_main(self.last.exists()):
            trainer.load(self.last)
        return trainer

    def split(self, dataset: Dataset) -> Split:
        """The rows to train with and those held out."""
        return split_rows(dataset.values, self.settings.seed)

    def shown(self, row: Row) -> dict[str, str]:
        """The stage with its cost, and the held-out metric."""
        settings = self.settings
        return {**stage_of(settings, row), "metric": f"{self.metric} {row['metric']:.4f}"}

    def model(self) -> ScaledModel:
        """A copy of the best model so far."""
        return deepcopy(self.trained_model())

    def trained_model(self) -> ScaledModel:
        """The model itself, loaded once: to be asked, not to be changed."""
        best = self.checkpoints / "best.safetensors"
        return self.loaded(best, lambda: self._read_model(best))

    def _read_model(self, best: Path) -> ScaledModel:
        tensors, _ = load_checkpoint(best)
        # Any data of the right width will do: the scale comes from the checkpoint.
        with rebuilding(best, tensors):
            check_declared(self.settings, tensors)
            blank = torch.zeros(2, self.config["shape"][1])
            model, _ = build_model(blank, self.settings, self.image)
            load_model(model, tensors)
            model.kernel_variance = self.config["variance"]["end"]
        return model.eval()

    def sample(self, n: int, seed: int) -> Tensor:  # (n, d)
        """Samples of the best model."""
        return self.trained_model().sample(n, torch.Generator().manual_seed(seed))

    def score(self, rows: Source, names: list[str] | None = None) -> Tensor:  # (n, d) -> (n,)
        """Log-density of rows under the best model; columns are matched by their names.

        Args:
            rows: A data frame, an array, a tensor, a list of rows, or a file of them.
            names: Names of the columns, where the rows have none.
        """
        table = read_table(rows)
        if table.dropped:
            raise TableError(
                f"{table.name}: {table.dropped} of "
                f"{counted(len(table) + table.dropped, 'row')} have missing values and therefore "
                "no density; remove them."
            )
        values = table.values
        names = table.columns if names is None and table.named else names
        columns = self.config["columns"]
        if values.shape[1] != len(columns):
            raise ShapeError(
                f"The rows have {counted(values.shape[1], 'column')}, but the run in "
                f"{self.folder} was fitted to {len(columns)} ({', '.join(columns[:12])})."
            )
        unnamed = [f"x{i}" for i in range(len(columns))]
        if names is not None and sorted(names) == sorted(columns):
            values = values[:, [names.index(name) for name in columns]]
        elif names is not None and unnamed not in (names, columns):
            raise ShapeError(
                f"The rows have the columns {', '.join(names[:12])} and the run in {self.folder} "
                f"was fitted to {', '.join(columns[:12])}: the names must match, in any order."
            )
        return self.trained_model().log_prob(values)

    def finish(self, data: Dataset, outcome: Outcome) -> Numbers:
        """Write samples, figure and report of the best model."""
        model, history = self.trained_model(), outcome.history
        generator = torch.Generator().manual_seed(self.settings.seed + 1)
        samples = model.sample(SAMPLES, generator)
        write_array(self.folder / "samples.npy", samples.numpy())
        split = self.split(data)
        quality = _quality(model, split, samples)
        rows = self._numbers(quality, data, split, samples, history)
        write_fit_report(self, rows, quality, (data, split), samples, model.mixture(), history)
        return rows

    def _numbers(
        self,
        quality: FitQuality,
        dataset: Dataset,
        split: Split,
        samples: Tensor,
        history: list[Row],
    ) -> Numbers:
        rows = [("data", f"{dataset.name}, {' x '.join(map(str, dataset.values.shape))}")]
        if quality.nll is not None:
            rows.append((of_rows("NLL", split), f"{quality.nll:.4f} nats"))
            if quality.gaussian is not None:
                rows.append(("NLL of one Gaussian", f"{quality.gaussian:.4f} nats"))
                if not quality.clear:
                    rows.append(("warning", "the model is not clearly better than one Gaussian"))
            if dataset.entropy is not None:
                rows.append(("entropy of the data", f"{dataset.entropy:.3f} nats"))
        shown = f"{quality.distance:.5f}"
        if quality.floor is not None:
            shown += f" (two sets of data: {quality.floor:.5f})"
        rows.append(("energy distance", shown))
        if dataset.modes is not None:
            found = mode_coverage(samples, dataset.modes.centres.double(), dataset.modes.deviation)
            rows.append(("modes covered", f"{found.modes} of {found.total}"))
            rows.append(("good samples", f"{found.high_quality:.1%} (a perfect sampler: 98.9%)"))
            rows.append(("KL of modes", f"{found.kl:.4f}"))
        what = "centre plus learned noise" if quality.nll is not None else "centre"
        rows.append(("a sample is a", what))
        rows.append(("steps", f"{int(history[-1]['step'])}"))
        return rows


def _quality(model: ScaledModel, split: Split, samples: Tensor) -> FitQuality:
    """How good a model is on rows held out, or else on those fitted."""
    held_out = split.held_out[:COMPARED]
    nll = gaussian = None
    clear = False
    if model.is_mixture or model.is_continuous:
        log_density = model.log_prob(held_out)
        nll = float(-log_density.mean())
        reference = _gaussian(split, held_out)
        if reference is not None:
            gaussian = float(-reference.mean())
            clear = clearly_better(log_density.double() - reference)
    others, held = model.scaler.scaled(samples[: len(held_out)]), model.scaler.scaled(held_out)
    floor = None
    if split.apart:
        floor = float(energy_distance(held, model.scaler.scaled(split.train[: len(others)])))
    return FitQuality(nll, gaussian, clear, float(energy_distance(held, others)), floor)


def _gaussian(split: Split, judged: Tensor) -> Tensor | None:
    """Log-densities of a single Gaussian, if there is one."""
    if not bool((split.train != split.train[0]).any(0).all()):
        return None  # densities of constant columns are as high as one likes
    try:
        return gaussian_log_densities(split.train, judged)
    except SampleError:
        return None  # numbers too large or small to have variances


def _fingerprint(values: Tensor) -> str:
    digest = hashlib.sha256(str(tuple(values.shape)).encode())
    digest.update(values.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
