"""The closed-form mixture that the table model is compared with on tables of numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_option, generator_from
from kermix.data.readers.frames import FRAME_KINDS, Frame, as_frame, build_frame, taken_rows
from kermix.data.readers.reading import read_frame
from kermix.data.schema.columns import NumberColumn
from kermix.data.schema.keys import key_seed
from kermix.data.schema.monotone import StraightMap
from kermix.data.schema.schema import EncodedTable, Schema, Unseen
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import OptionError, SampleError
from kermix.mixtures.mixture import (
    GaussianMixture,
    conditional_mixture,
    gap_patterns,
    marginal_mixture,
)
from kermix.tables.model.conditioning import encode_some, is_one_row, numbers_as_given, place_of
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.model.training_rows import KeepAway
from kermix.training.checkpoints import load_checkpoint, rebuilding, save_checkpoint
from kermix.training.mixture_search import choose_mixture

__all__ = ["Candidate", "TableMixture", "candidates"]

PARTS = ("weights", "means", "covariances")


class Candidate(NamedTuple):
    """A mixture fitted to the training rows, and the log-densities of the rows held out."""

    name: str
    mixture: GaussianMixture
    log_density: np.ndarray


def candidates(
    schema: Schema, frame: Frame, train: np.ndarray, held: np.ndarray, seed: int
) -> list[Candidate]:
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
        logs = mixture.log_prob(judged).numpy()
        if np.isfinite(logs.mean()):
            found.append(Candidate(name, mixture, logs))
    return found


def _matrix(schema: Schema, frame: Frame) -> Tensor:  # (N, d)
    """The modelled columns of a table, in their own units."""
    columns = []
    for column in schema.numbers:
        cells = frame.columns[column.name]
        if cells.null_count:
            raise OptionError(
                f"{frame.name}, column {column.name}: {cells.null_count} cells are empty, but "
                "the closed-form mixture of this run has no density for them; remove these rows."
            )
        columns.append(column.numbers(cells, frame.name))
    return torch.from_numpy(np.stack(columns, 1))


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
        >>> model = TableMixture(Schema.infer(rows), one, "dict", "one Gaussian")
        >>> model.score_samples({"a": [0.0], "b": [0.0]}).round(4)
        array([-1.8379])
    """

    n_iter_ = 0  # no step of a training was kept

    def __init__(
        self,
        schema: Schema,
        mixture: GaussianMixture,
        frame: str,
        name: str,
    ) -> None:
        self.schema_, self.mixture_, self._frame, self.name = schema, mixture, frame, name

    def save(self, path: Path) -> None:
        """Write the mixture; the schema is in the run's folder."""
        parts = {part: getattr(self.mixture_, part) for part in PARTS}
        save_checkpoint(path, parts, {"name": self.name})

    @classmethod
    def load(cls, path: Path, schema: Schema, frame: str) -> "TableMixture":
        """Read a mixture that was saved."""
        tensors, content = load_checkpoint(path)
        with rebuilding(path, tensors):
            mixture = GaussianMixture(tensors["weights"], tensors["means"], tensors["covariances"])
            return cls(schema, mixture, frame, content["name"])

    def generator(self, random_state: Any) -> torch.Generator:
        """The source of random numbers: one, or a seed."""
        if isinstance(random_state, torch.Generator):
            return random_state
        return generator_from(random_state)

    def sample(
        self,
        n_samples: int = 1,
        *,
        given: Any = None,
        random_state: Any = None,
        frame: str | None = None,
        on_rows: Callable[[int], None] | None = None,
        against: Any = None,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> Any:
        """Draw rows, rounded as the columns are; see `kermix.TableModel.sample`.

        What is given is the same for all rows: values by name.
        """
        source, seen, known = self._conditioned(given)
        kind = frame or self._frame
        check_option("frame", kind, FRAME_KINDS)
        generator = self.generator(random_state)
        drawn, keys = np.empty((n_samples, len(self.schema_.numbers))), key_seed(generator)

        def draw(rows: np.ndarray) -> EncodedTable:
            new = np.broadcast_to(known, (len(rows), len(known))).copy()
            if source is not None:
                new[:, ~seen] = source.sample((len(rows),), generator=generator).numpy()
            drawn[rows] = new
            table = as_frame(self._written(drawn[rows], "arrow", seed=None), "samples")
            types = {c.name: c.type for c in self.schema_.columns}
            return self.schema_.encode(replace(table, types=types), extra=True)

        if deduplicate or min_distance is not None:
            keep = KeepAway(self.schema_, against, deduplicate, min_distance)
            keep.settle(n_samples, draw, on_rows)
        else:
            draw(np.arange(n_samples))
            if on_rows is not None:
                on_rows(n_samples)
        return self._written(drawn, kind, given, keys)

    def _written(
        self, drawn: np.ndarray, kind: str, given: Any = None, seed: int | None = 0
    ) -> Any:
        """Numbers as a table, rounded as the columns are; those that were given as they were."""
        rows, arrays = len(drawn), {}
        places = {c.name: k for k, c in enumerate(self.schema_.numbers)}
        for column in self.schema_.columns:
            if isinstance(column, LeftOutColumn):
                if seed is None:
                    continue
                array = column.decode(rows, seed)
            else:
                assert isinstance(column, NumberColumn)
                # A mixture has tails beyond the data, and its samples too.
                own = replace(column, low=-np.inf, high=np.inf, map=StraightMap(0.0, 1.0))
                array = own.decode(np.zeros(rows, np.int64), drawn[:, places[column.name]])
            arrays[column.name] = array
        arrays |= numbers_as_given(self.schema_, given, arrays, rows)
        types = {c.name: c.type for c in self.schema_.columns if c.name in arrays}
        return build_frame(kind, arrays, types, rows)

    def score_samples(
        self, X: Any, *, orders: int | None = None, on_rows: Callable[[int], None] | None = None
    ) -> np.ndarray:  # (N,)
        """Log-density of each row; a mixture has no orders of columns to average over."""
        rows = _matrix(self.schema_, read_frame(X, self.schema_.reading())[0])
        logs: np.ndarray = self.mixture_.log_prob(rows).numpy()
        if on_rows is not None:
            on_rows(len(logs))
        return logs

    def _numbers_given(
        self, given: Any, unseen: Unseen = "error", without: str | None = None
    ) -> Tensor:  # (N, d)
        """What is given of each row, in units of the mixture; NaN where a cell is open."""
        if given is None or (isinstance(given, Mapping) and not given):
            return torch.full((1, len(self.schema_.numbers)), torch.nan, dtype=torch.float64)
        if is_one_row(given):
            given = {name: [value] for name, value in given.items()}
        names = [] if without is None else [without]
        _, frame = encode_some(self.schema_, given, unseen, without=names)
        found = np.full((frame.rows, len(self.schema_.numbers)), np.nan)
        for k, column in enumerate(self.schema_.numbers):
            cells = frame.columns.get(column.name)
            if cells is not None:
                there = ~np.asarray(cells.is_null().to_numpy())
                found[there, k] = column.numbers(cells, frame.name)
                self._check_near(k, found[:, k], frame)
        return torch.from_numpy(found)

    @property
    def farthest(self) -> float:
        """So many deviations of a component may what is given be away: squares are finite."""
        return float(torch.finfo(self.mixture_.means.dtype).max ** (1 / 3))

    def _check_near(self, place: int, numbers: np.ndarray, frame: Frame) -> None:
        """Refuse numbers so far out that no component is nearer than another: squares overflow."""
        means = self.mixture_.means[:, place].double().numpy()
        reach = self.farthest * self._deviations(place).double().numpy()
        far = (numbers < (means - reach).max()) | (numbers > (means + reach).min())
        if far.any():
            row, name = int(far.argmax()), self.schema_.numbers[place].name
            where = f", row {row + frame.first_row}" if frame.rows > 1 else ""
            raise OptionError(
                f"{frame.name}{where}: {name}={frame.columns[name][row]} is farther than "
                f"{self.farthest:.0e} standard deviations from a component of the {self.name}, "
                "which has no answer there."
            )

    def _deviations(self, place: int) -> Tensor:  # (K,)
        """Of the components, along one column."""
        spread = self.mixture_.covariances
        if spread.ndim > 1:
            spread = spread[:, place] if spread.ndim == 2 else spread[:, place, place]
        return spread.sqrt()

    def _conditioned(self, given: Any) -> tuple[GaussianMixture | None, np.ndarray, np.ndarray]:
        """The mixture of what is not given, which coordinates are, and their values."""
        row = self._numbers_given(given)
        if len(row) != 1:
            raise OptionError(f"given has {len(row)} rows; expected one value per column.")
        seen = ~row[0].isnan()
        if not bool(seen.any()):
            return self.mixture_, seen.numpy(), row[0].numpy()
        if bool(seen.all()):
            return None, seen.numpy(), row[0].numpy()
        batch = conditional_mixture(self.mixture_, seen, row[:, seen])
        one = GaussianMixture(batch.weights[0], batch.means[0], batch.covariances[0], False)
        return one, seen.numpy(), row[0].numpy()

    def conditional(
        self, column: str, given: Any = None, *, unseen: Unseen = "error"
    ) -> ColumnDistribution:
        """The distribution of a column, given others; see `kermix.TableModel.conditional`.

        Here it is a closed form.
        """
        place = place_of(self.schema_, column)
        rows = self._numbers_given(given, unseen, column)
        rows[:, place] = torch.nan
        count = len(self.mixture_.weights)
        weights, means, scales = (np.empty((len(rows), count)) for _ in range(3))
        for seen, at in gap_patterns(rows):
            known = seen.clone()
            known[place] = True  # what counts: the columns that are seen, and the one asked for
            part = marginal_mixture(self.mixture_, known)
            found = conditional_mixture(part, seen[known], rows[at][:, seen])
            variances = found.covariances.reshape(len(at), count, -1)[..., 0]
            weights[at], means[at] = found.weights.numpy(), found.means[..., 0].numpy()
            scales[at] = variances.sqrt().numpy()
        own = self._column(place)
        ones = np.ones((len(rows), 1))
        return ColumnDistribution(own, ones, weights, own.map(means), scales / own.map.scale)

    def conditionals(
        self, given: Mapping[str, Any] | None = None
    ) -> dict[str, ColumnDistribution]:
        """The distribution of every column; see `kermix.TableModel.conditionals`.

        A mixture has tails: numbers outside the range of the data are answered as well, here and
        by `sample` and `most_likely`. Refused are those whose squared distance is not finite.
        """
        return {c.name: self.conditional(c.name, given) for c in self.schema_.numbers}

    def most_likely(self, given: Mapping[str, Any] | None = None, frame: str = "dict") -> Any:
        """One whole row: what is given, and where the rest is densest.

        Of the components' means, given what is given, the one of the highest density.
        """
        source, seen, row = self._conditioned(given)
        if source is not None:
            best = source.log_prob(source.means).argmax()
            row[~seen] = source.means[best].numpy()
        return self._written(row[None], frame, given)

    def _column(self, place: int) -> NumberColumn:
        """A column as the mixture has it: in its own units, with tails beyond the data."""
        middle = self.mixture_.mean[place].item()
        scale = self.mixture_.variance[place].sqrt().item()
        return replace(
            self.schema_.numbers[place], atoms=np.empty(0), continuous=1.0,
            map=StraightMap(middle, scale), low=-np.inf, high=np.inf,
        )  # fmt: skip

    def impute(self, *args: Any, **options: Any) -> NoReturn:
        """Not offered."""
        self._refuse("filled gaps")

    def _refuse(self, what: str) -> NoReturn:
        raise OptionError(
            f"{what} need the table model, but this run kept the {self.name}, which was better "
            "on held-out rows; fit the table with model='table' (--model table)."
        )
