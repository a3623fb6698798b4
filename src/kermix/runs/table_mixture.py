"""The closed-form mixture that the table model is compared with on tables of numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_option
from kermix.data.tables.closeness import KeepAway
from kermix.data.tables.columns import NumberColumn
from kermix.data.tables.frame_building import FRAME_KINDS, build_frame
from kermix.data.tables.frames import Frame, as_frame, taken_rows
from kermix.data.tables.left_out import LeftOutColumn
from kermix.data.tables.reading import read_frame
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.errors import OptionError, SampleError
from kermix.mixtures.mixture import GaussianMixture
from kermix.training.checkpoints import load_checkpoint, save_checkpoint
from kermix.training.mixture_search import choose_mixture

__all__ = ["Rival", "TableMixture", "has_densities", "rivals"]

PARTS = ("weights", "means", "covariances")


def has_densities(schema: Schema) -> bool:
    """Whether mixtures and the table model have densities of the same kind for a table.

    All modelled columns are numbers without gaps. A value that many rows share has a probability
    in the table model; to a mixture it is the interval of numbers that are rounded to it, which
    is known where numbers have so many decimals.
    """
    good = all((not len(c.atoms) or c.decimals is not None) and not c.has_missing and not c.time
               for c in schema.numbers)  # fmt: skip
    return good and 0 < len(schema.numbers) == len(schema.modelled)


class Rival(NamedTuple):
    """A mixture fitted to the training rows, and the log-densities of the rows held out."""

    name: str
    mixture: GaussianMixture
    log_density: np.ndarray


def rivals(
    schema: Schema, frame: Frame, train: np.ndarray, held: np.ndarray, seed: int
) -> list[Rival]:
    """What the table model has to be better than: the closed-form mixture, and one Gaussian.

    The size and kind of the mixture are chosen within the training rows: the rows held out are
    new to it. There is none where numbers are too large or too small to have variances.
    """
    fitted, judged = (_matrix(schema, taken_rows(frame, rows)) for rows in (train, held))
    found = []
    for name, size in (("closed-form mixture", None), ("one Gaussian", 1)):
        kind: Any = "auto" if size is None else "full"
        generator = torch.Generator().manual_seed(seed)
        try:
            mixture = choose_mixture(fitted, size, kind, generator=generator).mixture
        except SampleError:
            continue  # numbers too large or small to have variances
        logs = _log_density(schema, mixture, judged)
        if np.isfinite(logs.mean()):
            found.append(Rival(name, mixture, logs))
    return found


def _matrix(schema: Schema, frame: Frame) -> Tensor:  # (N, d)
    """The modelled columns of a table, in their own units."""
    columns = []
    for column in schema.numbers:
        cells = frame.columns[column.name]
        if cells.null_count:
            raise OptionError(
                f"{frame.name}, column {column.name}: {cells.null_count} cells are empty, and the "
                "closed-form mixture of this run has no density for them; leave the rows out."
            )
        columns.append(column.numbers(cells, frame.name))
    return torch.from_numpy(np.stack(columns, 1))


def _log_density(schema: Schema, mixture: GaussianMixture, rows: Tensor) -> np.ndarray:  # (N,)
    """As the table model counts: values that many rows share by their probability."""
    logs: np.ndarray = mixture.log_prob(rows).numpy()
    for column, cells in zip(schema.numbers, rows.numpy().T, strict=True):
        if len(column.atoms):
            assert column.decimals is not None
            logs = logs - np.isin(cells, column.atoms) * column.decimals * np.log(10)
    return logs


class TableMixture:
    """A mixture of the numbers of a table, with what runs ask of a table model.

    Args:
        schema: What the columns are; those that are modelled are numbers.
        mixture: Their density, in the units of the columns.
        frame: The kind of table that samples are.
        name: What it is called.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> rows = {"a": rng.normal(size=300), "b": rng.normal(size=300)}
        >>> one = GaussianMixture(torch.ones(1), torch.zeros(1, 2), torch.ones(1))
        >>> model = TableMixture(Schema.of(rows), one, "dict", "one Gaussian")
        >>> model.score_samples({"a": [0.0], "b": [0.0]}).round(4)
        array([-1.8379])
    """

    n_iter_ = 0  # no step of a training was kept

    def __init__(self, schema: Schema, mixture: GaussianMixture, frame: str, name: str) -> None:
        self.schema_, self.mixture_, self._frame, self.name = schema, mixture, frame, name

    def save(self, path: Path) -> None:
        """Write the mixture; the schema is in the run's folder."""
        parts = {part: getattr(self.mixture_, part) for part in PARTS}
        save_checkpoint(path, parts, {"name": self.name})

    @classmethod
    def load(cls, path: Path, schema: Schema, frame: str) -> "TableMixture":
        """Read a mixture that was saved."""
        tensors, content = load_checkpoint(path)
        mixture = GaussianMixture(tensors["weights"], tensors["means"], tensors["covariances"])
        return cls(schema, mixture, frame, content["name"])

    def sample(
        self,
        n_samples: int = 1,
        *,
        given: Any = None,
        random_state: int | torch.Generator = 0,
        frame: str | None = None,
        on_rows: Callable[[int], None] | None = None,
        against: Any = None,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> Any:
        """Draw rows, rounded as the columns are; see `kermix.TableModel.sample`."""
        if given:
            self._refuse("rows with given values")
        kind = frame or self._frame
        check_option("frame", kind, FRAME_KINDS)
        generator = random_state
        if not isinstance(generator, torch.Generator):
            generator = torch.Generator().manual_seed(generator)
        drawn = np.empty((n_samples, len(self.schema_.numbers)))

        def draw(rows: np.ndarray) -> EncodedTable:
            drawn[rows] = self.mixture_.sample((len(rows),), generator=generator).numpy()
            table = as_frame(self._written(drawn[rows], "arrow"), "samples")
            types = {c.name: c.type for c in self.schema_.columns}
            return self.schema_.encode(replace(table, types=types), extra=True)

        if deduplicate or min_distance is not None:
            keep = KeepAway(self.schema_, against, deduplicate, min_distance)
            keep.settle(n_samples, draw, on_rows)
        else:
            draw(np.arange(n_samples))
            if on_rows is not None:
                on_rows(n_samples)
        return self._written(drawn, kind)

    def _written(self, drawn: np.ndarray, kind: str) -> Any:
        """Numbers as a table, rounded as the columns are."""
        rows, arrays = len(drawn), {}
        places = {c.name: k for k, c in enumerate(self.schema_.numbers)}
        for column in self.schema_.columns:
            if isinstance(column, LeftOutColumn):
                array = column.decode(rows)
            else:
                assert isinstance(column, NumberColumn)
                # A mixture has tails beyond the data, and its samples too.
                endless = replace(column, low=-np.inf, high=np.inf)
                scores = endless.map(drawn[:, places[column.name]])
                array = endless.decode(np.zeros(rows, np.int64), scores)
            if array is not None:
                arrays[column.name] = array
        types = {c.name: c.type for c in self.schema_.columns if c.name in arrays}
        return build_frame(kind, arrays, types, rows)

    def score_samples(
        self, X: Any, *, orders: int | None = None, on_rows: Callable[[int], None] | None = None
    ) -> np.ndarray:  # (N,)
        """Log-density of each row; a mixture has no orders of columns to average over."""
        logs = _log_density(self.schema_, self.mixture_, _matrix(self.schema_, read_frame(X)[0]))
        if on_rows is not None:
            on_rows(len(logs))
        return logs

    def conditional(self, *args: Any, **options: Any) -> NoReturn:
        """Not offered."""
        self._refuse("predictions")

    def impute(self, *args: Any, **options: Any) -> NoReturn:
        """Not offered."""
        self._refuse("filled gaps")

    def _refuse(self, what: str) -> NoReturn:
        raise OptionError(
            f"{what} are those of the table model, and held-out rows preferred the {self.name} in "
            "this run; fit the table with model='table' (--model table)."
        )
