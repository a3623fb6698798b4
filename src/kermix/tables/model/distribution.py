"""The distribution of one column, given others: probabilities, quantiles, draws."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from kermix.checks import rows_at_once
from kermix.data.readers.frames import build_frame
from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.data.schema.times import time_cells, zone_of
from kermix.errors import OptionError
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.network import ColumnParts, TableNetwork, log_scales_of

__all__ = ["ColumnDistribution", "column_distribution", "conditional_distribution"]

# Reasoned, no record.
HALVINGS = 80
POINT = 1e-9  # deviation of a Gaussian that stands for one number, on the scale of normal scores
NEGLIGIBLE = 1e-6  # probability of a case that is not looked at


@dataclass(frozen=True, eq=False)
class ColumnDistribution:
    """The distribution of a column, row by row.

    Attributes:
        column: The column of the schema.
        probabilities: Probabilities of its codes, (rows, codes), in the order of `names`. Code 0
            of a number is its continuous part.
        weights: Weights of the Gaussians of the continuous part, (rows, components), on the scale
            of normal scores; None for a category.
        means: Their means.
        scales: Their standard deviations.
    """

    column: CategoryColumn | NumberColumn
    probabilities: np.ndarray
    weights: np.ndarray | None = None
    means: np.ndarray | None = None
    scales: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each code."""
        return self.column.code_names

    @property
    def is_number(self) -> bool:
        """Whether it is a number, which has quantiles."""
        return isinstance(self.column, NumberColumn)

    @cached_property
    def filled(self) -> np.ndarray:
        """Probabilities of the codes but "missing", which sum to one."""
        found = self.probabilities
        if self.column.has_missing:
            found = found[:, :-1]
        return np.asarray(found / found.sum(1, keepdims=True).clip(min=1e-300))

    @classmethod
    def certain(
        cls, column: CategoryColumn | NumberColumn, codes: np.ndarray, scores: np.ndarray | None
    ) -> "ColumnDistribution":
        """Of cells that are known.

        Args:
            column: Their column.
            codes: Of the cells, (rows,).
            scores: Normal scores of numbers, (rows,); None for a category.
        """
        probabilities = np.eye(len(column.code_names))[codes]
        if scores is None:
            return cls(column, probabilities)
        one = np.ones((len(codes), 1))
        return cls(column, probabilities, one, scores[:, None].astype(np.float64), POINT * one)

    @staticmethod
    def mixture(
        cases: Sequence[tuple[np.ndarray, "ColumnDistribution"]],
    ) -> "ColumnDistribution":
        """What holds where one of some cases does.

        Args:
            cases: The probability of each case in each row, (rows,), and what holds then.
        """
        column = cases[0][1].column
        probabilities = sum(share[:, None] * found.probabilities for share, found in cases)
        assert isinstance(probabilities, np.ndarray)
        if not isinstance(column, NumberColumn):
            return ColumnDistribution(column, probabilities)
        inside = [share * found.probabilities[:, 0] for share, found in cases]
        # Where all mass is on atoms and gaps, no Gaussian counts, but their weights sum to one.
        total = np.maximum(sum(inside), 1e-300)
        shares = [np.where(total > 1e-300, one / total, share)
                  for one, (share, _) in zip(inside, cases, strict=True)]  # fmt: skip
        gaussians = [found._gaussians() for _, found in cases]
        weights = [share[:, None] * own[0] for share, own in zip(shares, gaussians, strict=True)]
        means, scales = (np.concatenate([own[k] for own in gaussians], 1) for k in (1, 2))
        return ColumnDistribution(column, probabilities, np.concatenate(weights, 1), means, scales)

    def repeated(self, times: int, whole: bool = False) -> "ColumnDistribution":
        """The distribution of the first row, or of all rows in turn, repeated this many times."""
        parts = (self.probabilities, self.weights, self.means, self.scales)
        rows = len(self) if whole else 1
        every = (None if part is None else np.tile(part[:rows], (times, 1)) for part in parts)
        return ColumnDistribution(self.column, *every)  # type: ignore[arg-type]

    def as_number(self, rows: np.ndarray) -> "ColumnDistribution":  # (rows,), bool
        """The same, but in some rows known to be neither an atom nor missing."""
        if not rows.any():
            return self
        number = np.zeros_like(self.probabilities)
        number[:, 0] = 1.0
        return replace(self, probabilities=np.where(rows[:, None], number, self.probabilities))

    def cdf(self, values: Any) -> np.ndarray:  # (rows,)
        """Probability of at most this value, if the cell is not missing; one value per row.

        Args:
            values: A number or a time, or one for each row. A time without a zone is one of the
                column's zone.
        """
        column = self._numbers("cdf")
        try:
            wanted = np.broadcast_to(self._wanted(column, values), (len(self),))
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"cdf({values!r}): one {column.kind}, or {len(self)} of them, are asked for "
                f"column {column.name} ({error})."
            ) from None
        if np.isnan(wanted).any():
            raise OptionError(f"cdf({values!r}): a missing value has no order.")
        upto = wanted
        if column.decimals is not None:
            # What lies within half a step of a value is rounded to it.
            step = 10.0**-column.decimals
            upto = np.floor(wanted / step * (1 + 1e-12) + 1e-9) * step + step / 2
        found = self._cdf_of_scores(column.map(upto), wanted)
        return np.where(wanted >= column.high, 1.0, np.where(wanted < column.low, 0.0, found))

    def _wanted(self, column: NumberColumn, values: Any) -> np.ndarray:
        """Values as the column looks at them: from its origin, in its steps."""
        if column.time:
            every = np.asarray(values)
            if every.dtype.kind != "M":  # nanoseconds would become integers without a unit
                every = np.asarray(values, dtype=object)
            cells = time_cells(list(every.ravel()), column.time_type, column.text)
            return column.numbers(cells, "cdf")
        return np.asarray(values, dtype=np.float64) - column.origin

    def ends(self, reach: float = 9.0) -> tuple[np.ndarray, np.ndarray]:  # (rows,), (rows,)
        """Between what a number lies, from its origin: its column's range, or of its Gaussians.

        A column without a range has the tails of the Gaussians, which differ from row to row.

        Args:
            reach: Deviations of a Gaussian, beyond which there is nothing.
        """
        column = self._numbers("range")
        weights, means, scales = self._gaussians()
        counts, away = weights > 0, reach * scales
        low = column.map.inverse(np.where(counts, means - away, np.inf).min(1))
        high = column.map.inverse(np.where(counts, means + away, -np.inf).max(1))
        return (low if np.isneginf(column.low) else np.full(len(self), column.low),
                high if np.isposinf(column.high) else np.full(len(self), column.high))  # fmt: skip

    def _cdf_of_scores(self, scores: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        column = self._numbers("cdf")
        weights, means, scales = self._gaussians()
        z = torch.from_numpy((scores[:, None] - means) / scales)
        inside = (weights * torch.special.ndtr(z).numpy()).sum(1)
        below = np.searchsorted(column.atoms, numbers, side="right")
        rows = np.arange(len(self))
        return np.asarray(self.filled[:, 0] * inside + self._below_atoms[rows, below])

    @cached_property
    def _below_atoms(self) -> np.ndarray:  # (rows, atoms + 1)
        """Probability of the atoms before each, and of all."""
        return np.concatenate([np.zeros((len(self), 1)), self.filled[:, 1:].cumsum(1)], 1)

    def shares(self, edges: np.ndarray) -> np.ndarray:  # (E,) -> (rows, E - 1)
        """Probabilities of the intervals between edges, if the cell is not missing.

        Values beyond the first and the last edge count in the outermost intervals.

        Args:
            edges: Increasing, as the column looks at its numbers: from its origin, in its steps.
        """
        column = self._numbers("shares")
        inner = np.asarray(edges, dtype=np.float64)[1:-1]
        weights, means, scales = self._gaussians()
        z = (column.map(inner)[None, :, None] - means[:, None]) / scales[:, None]
        inside = (weights[:, None] * torch.special.ndtr(torch.from_numpy(z)).numpy()).sum(2)
        below = self.filled[:, 1:] @ (column.atoms[:, None] <= inner)
        upto = self.filled[:, :1] * inside + below
        ends = np.zeros((len(self), 1)), np.ones((len(self), 1))
        return np.diff(np.concatenate([ends[0], upto, ends[1]], 1), axis=1).clip(min=0)

    def quantile(self, share: float) -> np.ndarray:  # (rows,)
        """The value below which this share lies, in the column's units; for times, a time.

        Where the column has a time zone, these are times of Python or pandas in that zone.
        """
        column = self._numbers("quantile")
        if column.time:
            cells = self.quantile_cells(share)
            if zone_of(cells.type) is not None:  # times of NumPy have no zone
                return np.array(cells.to_pylist(), dtype=object)
            return np.asarray(cells.to_numpy(zero_copy_only=False))
        return self._quantile(share) + column.origin

    def _quantile(
        self, share: float | np.ndarray, few_rows: int = 16, sections: int = 64
    ) -> np.ndarray:
        """The quantile as the column looks at it: from its origin, in its steps."""
        column = self._numbers("quantile")
        if not np.all((np.asarray(share) > 0) & (np.asarray(share) < 1)):
            raise OptionError(f"quantile({share}): must be between 0 and 1.")
        low, high = self._narrowed(column, *self.ends(), share)
        # Of few rows, several places are looked at together: a look at any takes as long.
        parts = sections if len(self) <= few_rows else 2
        every, rows = self.repeated(parts - 1, whole=True), np.arange(len(self))
        inner = (np.arange(1, parts) / parts)[:, None]
        # An atom is reached exactly, because it is where the probability jumps.
        for _ in range(math.ceil(HALVINGS / math.log2(parts))):
            places = np.concatenate([low[None], low + (high - low) * inner, high[None]])
            looked = places[1:-1].ravel()
            upto = every._cdf_of_scores(column.map(looked), looked).reshape(parts - 1, -1)
            below = (upto < share).sum(0)
            low, high = places[below, rows], places[below + 1, rows]
        if len(column.atoms):
            place = np.searchsorted(column.atoms, high).clip(0, len(column.atoms) - 1)
            for k in (place, (place - 1).clip(min=0)):
                near = np.abs(column.atoms[k] - high) <= 1e-9 * np.maximum(1, np.abs(high))
                high = np.where(near, column.atoms[k], high)
        if column.decimals is not None:
            high = rounded(high, column.decimals)
        return high

    def _narrowed(
        self,
        column: NumberColumn,
        low: np.ndarray,
        high: np.ndarray,
        share: float | np.ndarray,
        wide: float = 2.0**40,
        farthest: float = 1e6,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Nearer ends for a quantile, by halving scores: for a range that is far wider than usual.

        Halving the range would end long before numbers of usual size are told apart.

        Args:
            column: The column.
            low: Lower ends.
            high: Upper ends.
            share: Of the quantile.
            wide: How often a range has what is between the scores -1 and 1, to be wide.
            farthest: Score that is looked at.
        """
        usual = float(np.diff(column.map.inverse(np.array([-1.0, 1.0])))[0])
        if not (high / 2 - low / 2).max(initial=0.0) > wide * usual:
            return low, high
        scores = [np.maximum(column.map(low), -farthest),
                  np.minimum(column.map(high), farthest)]  # fmt: skip
        for _ in range(HALVINGS):
            middle = scores[0] / 2 + scores[1] / 2
            looked = column.map.inverse(middle).clip(low, high)
            below = self._cdf_of_scores(column.map(looked), looked) < share
            low, high = np.where(below, looked, low), np.where(below, high, looked)
            scores = [np.where(below, middle, scores[0]), np.where(below, scores[1], middle)]
        return low, high

    def interval(self, share: float) -> tuple[np.ndarray, np.ndarray]:
        """The central interval with this share: its lower and upper ends."""
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)

    def randomized_ranks(self, values: Any, seed: int = 0) -> np.ndarray:  # (rows,)
        """Places of true values in their distributions: uniform from 0 to 1 if these are right.

        A value with a probability of its own, such as a rounded number, is anywhere within its
        step of the distribution function, drawn at random: an interval whose ends are such values
        would otherwise seem to hold too many rows.

        Args:
            values: True numbers or times, one for each row.
            seed: Of the draws.
        """
        column = self._numbers("randomized_ranks")
        wanted = np.broadcast_to(self._wanted(column, values), (len(self),))
        upto = self.cdf(values)
        if column.decimals is not None:
            step = 10.0**-column.decimals
            edge = (np.floor(wanted / step * (1 + 1e-12) + 1e-9) - 0.5) * step
            below = self._cdf_of_scores(column.map(edge), wanted - step / 2)
        else:
            below = self._cdf_of_scores(column.map(wanted), np.nextafter(wanted, -np.inf))
        below = np.where(wanted <= column.low, 0.0, np.minimum(below, upto))
        return np.asarray(below + np.random.default_rng(seed).random(len(upto)) * (upto - below))

    def log_density(self, codes: np.ndarray, scores: np.ndarray) -> np.ndarray:  # (rows,)
        """Log-density of encoded cells, in the user's units.

        The probability of a value that is rounded is divided by its step; categories, gaps and
        values of which all digits count have their probability itself.
        """
        rows = np.arange(len(self))
        found = np.log(self.probabilities[rows, codes].clip(min=1e-300))
        if isinstance(self.column, NumberColumn):
            weights, means, scales = (torch.from_numpy(t) for t in self._gaussians())
            z = (torch.from_numpy(scores)[:, None] - means) / scales
            logs = weights.clamp(min=1e-300).log() - scales.log() - 0.5 * z.square()
            logs = logs.masked_fill(scales <= POINT, -torch.inf)
            inside = torch.logsumexp(logs, 1).numpy() - 0.5 * np.log(2 * np.pi)
            inside = np.logaddexp(
                inside + self.column.log_derivative(codes, scores), self._log_of_points(scores)
            )
            atoms = self.column.log_derivative(codes, scores)
            found = found + np.where(codes == 0, inside, atoms)
        return np.asarray(found)

    def _log_of_points(self, scores: np.ndarray) -> np.ndarray:  # (rows,)
        """Logarithms of the probability of single numbers, divided by the step of rounding."""
        column = self._numbers("density")
        weights, means, scales = self._gaussians()
        own, points = (column.map.inverse(places) for places in (scores[:, None], means))
        same = np.abs(scores[:, None] - means) <= 9 * POINT
        if column.decimals is not None:
            same = rounded(own, column.decimals) == rounded(points, column.decimals)
        mass = np.where((scales <= POINT) & same, weights, 0.0).sum(1)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(mass) + column.log_density_of_one)

    def most_likely(self) -> Any:
        """The most likely value of a category, or the median of a number, as an Arrow array."""
        codes, scores = self.most_likely_codes()
        if isinstance(self.column, NumberColumn):
            assert scores is not None
            return self.column.decode(codes, scores)
        return self.column.decode(codes)

    def mean(self) -> np.ndarray:  # (rows,)
        r"""The mean of the number, if the cell is not missing, in the column's units.

        Values lie in the column's range, as samples do. The mean of each Gaussian's values,
        `E g(m + s Z)` with the map's inverse `g`, is a Gauss-Hermite sum.
        """
        column = self._numbers("mean")
        if column.time:
            raise OptionError(f"Column {column.name} is a time: it has quantiles but no mean.")
        return self._mean() + column.origin

    def _mean(self, nodes_of_gaussian: int = 32) -> np.ndarray:
        column = self._numbers("mean")
        nodes, shares = hermegauss(nodes_of_gaussian)
        shares = shares / shares.sum()
        weights, means, scales = self._gaussians()
        inside = np.zeros(len(self))
        at_once = rows_at_once(weights.size, 10_000)
        for start in range(0, nodes_of_gaussian, at_once):
            some = slice(start, start + at_once)
            places = means + scales * nodes[some, None, None]
            values = column.map.inverse(places).clip(column.low, column.high)
            inside += np.einsum("n,rk,nrk->r", shares[some], weights, values)
        return np.asarray(self.filled[:, 0] * inside + self.filled[:, 1:] @ column.atoms)

    def most_likely_codes(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The code of the most likely value, and the normal score of a number's median.

        The one best guess of a cell, for predictions and filled gaps. A median is a value that
        cells have, whatever the tails are, and the same in dollars and in their logarithms; a
        mean of sums that are mostly zero is a value that nobody has.
        """
        if isinstance(self.column, NumberColumn):
            return self.coded(self._quantile(0.5))
        return self.filled.argmax(1), None

    def quantile_cells(self, share: float | np.ndarray) -> Any:
        """`quantile` in the column's own type, as an Arrow array.

        Args:
            share: One for all rows, or one for each.
        """
        codes, scores = self.coded(self._quantile(share))
        return self._numbers("quantile").decode(codes, scores)

    def values(self) -> Any:
        """`most_likely` as pandas values."""
        frame = build_frame("pandas", {self.column.name: self.most_likely()},
                            {self.column.name: self.column.type}, len(self))  # fmt: skip
        return frame[self.column.name]

    def coded(self, shifted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes and normal scores of numbers as the column looks at them."""
        column = self._numbers("quantile")
        codes = np.zeros(len(shifted), np.int64)
        if len(column.atoms):
            place = np.searchsorted(column.atoms, shifted).clip(max=len(column.atoms) - 1)
            codes = np.where(column.atoms[place] == shifted, place + 1, 0)
        return codes, np.where(codes == 0, column.map(shifted), 0.0)

    def _gaussians(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self.weights is not None
        assert self.means is not None
        assert self.scales is not None
        return self.weights, self.means, self.scales

    def _numbers(self, what: str) -> NumberColumn:
        if not isinstance(self.column, NumberColumn):
            raise OptionError(
                f"Column {self.column.name} is a category: it has probabilities but no {what}."
            )
        return self.column


@torch.no_grad()
def column_distribution(
    network: TableNetwork, parts: ColumnParts, place: int, column: CategoryColumn | NumberColumn
) -> ColumnDistribution:
    """The distribution of the column at a place among those that are modelled."""
    first = int(network.layout.offsets[place])
    logits = parts.logits[:, first : first + network.layout.units[place]]
    logs = logits.double().log_softmax(1)
    if network.within is not None:
        logs = network.within.of_codes(place, logs, parts.values)
    probabilities = logs.exp().cpu().numpy()
    if place not in network.layout.numbers:
        return ColumnDistribution(column, probabilities)
    k = network.layout.numbers.index(place)
    weights, means, scales = (
        t.double().cpu().numpy()
        for t in (
            torch.softmax(parts.weights[:, k], -1),
            parts.means[:, k],
            log_scales_of(parts)[:, k].exp(),
        )
    )
    return ColumnDistribution(column, probabilities, weights, means, scales)


@torch.no_grad()
def conditional_distribution(
    network: TableNetwork,
    parts_of: Callable[[tuple[Tensor, Tensor, Tensor]], ColumnParts],
    place: int,
    columns: Sequence[CategoryColumn | NumberColumn],
    cells: tuple[Tensor, Tensor, Tensor],
) -> ColumnDistribution:
    """The distribution of a column given cells, with what follows from them as samples have it.

    Whether a relation that tells the column holds, and whether the column equals another, is as
    likely as the network says; where it does, the column is known.

    Args:
        network: The model.
        parts_of: What the network says of some cells.
        place: The column's place among those that are modelled.
        columns: These.
        cells: Codes, numbers and which of them are seen, without those of the column.
    """
    layout = network.layout
    codes, values, seen = cells[0].clone(), cells[1].double(), cells[2].clone()
    deciders, before = layout.deciders(place, seen)
    for decider in before:
        layout.transferred(codes, values, seen)
        chances = _chances(layout, parts_of((codes, values.float(), seen)), decider)
        codes[:, decider] = torch.where(seen[:, decider], codes[:, decider], chances.argmax(1))
        seen[:, decider] = True
    return _by_cases(network, parts_of, place, columns, (codes, values, seen), deciders)


def _by_cases(
    network: TableNetwork,
    parts_of: Callable[[tuple[Tensor, Tensor, Tensor]], ColumnParts],
    place: int,
    columns: Sequence[CategoryColumn | NumberColumn],
    cells: tuple[Tensor, Tensor, Tensor],
    deciders: Sequence[int],
) -> ColumnDistribution:
    """The mixture over what the deciders may be, one after the other."""
    layout, (codes, values, seen) = network.layout, cells
    parts = parts_of((codes, values.float(), seen))
    if not deciders or not len(codes):
        found = column_distribution(network, parts, place, columns[place])
        numbers = network.linked_numbers(codes, seen)
        return found if numbers is None else found.as_number(numbers[:, place].cpu().numpy())
    decider, *others = deciders
    chances = _chances(layout, parts, decider)
    cases = []
    for code in range(chances.shape[1]):
        chosen = torch.where(seen[:, decider], codes[:, decider] == code, chances[:, code])
        share = chosen.double().cpu().numpy()
        if share.max(initial=0.0) < NEGLIGIBLE:
            continue
        case = codes.clone(), values.clone(), seen.clone()
        case[0][:, decider], case[2][:, decider] = code, True
        _follow(layout, case, place)
        known = case[2][:, place].cpu().numpy()
        if (share * known).any():
            told = _told(layout, decider, place, columns, case)
            cases.append((share * known, told))
        if (share * ~known).max(initial=0.0) >= NEGLIGIBLE or not cases:
            open_ = _by_cases(network, parts_of, place, columns, case, others)
            cases.append((share * ~known, open_))
    total = sum(share for share, _ in cases)
    return ColumnDistribution.mixture([(share / total, found) for share, found in cases])


def _follow(layout: TableLayout, case: tuple[Tensor, Tensor, Tensor], place: int) -> None:
    """Fill in what follows from cells that are seen, the column computed back if need be."""
    layout.transferred(*case)
    if layout.exact is not None and not bool(case[2][:, place].all()):
        layout.exact.solve(*case)
        layout.transferred(*case)


def _told(
    layout: TableLayout,
    decider: int,
    place: int,
    columns: Sequence[CategoryColumn | NumberColumn],
    case: tuple[Tensor, Tensor, Tensor],
) -> ColumnDistribution:
    """What a decider says that a column is, in rows in which it is known."""
    codes, values, seen = (cells.cpu() for cells in case)
    column, number = columns[place], int(layout.number_of_column[place])
    known = np.where(seen[:, place].numpy(), codes[:, place].numpy(), 0)
    if not isinstance(column, NumberColumn):
        return ColumnDistribution.certain(column, known, None)
    scores = values[:, number].numpy()
    link = decider - (layout.columns - len(layout.links))
    if link >= 0:  # links move scores between two columns by a table, numbers are exact
        ends = layout.links[link].first, layout.links[link].second
        other = ends[0] if ends[1] in layout.equal_to(place) else ends[1]
        source = columns[other]
        assert isinstance(source, NumberColumn)
        moved = values[:, int(layout.number_of_column[other])].numpy()
        numbers = source.numbers_of(codes[:, other].numpy(), moved)
        if source.decimals is not None:
            numbers = rounded(numbers, source.decimals)
        exact = ColumnDistribution.certain(column, known, scores)
        known, scores = exact.coded(numbers + source.origin - column.origin)
    there = seen[:, place].numpy() & np.isfinite(
        scores
    )  # others count for nothing, but are numbers
    return ColumnDistribution.certain(column, known, np.where(there, scores, 0.0))


def _chances(layout: TableLayout, parts: ColumnParts, decider: int) -> Tensor:  # (N, C)
    """How likely each code of a decider is: no exception where the fitted table has none."""
    first = int(layout.offsets[decider])
    logits = parts.logits[:, first : first + layout.units[decider]].double()
    for code in layout.impossible(decider):
        logits[:, code] = -torch.inf
    return logits.softmax(1)
