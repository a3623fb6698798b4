"""Memorizing: samples of a generator that are nearer to training rows than new rows ever are.

In panels, tables whose rows are of entities at places, such as countries in years, rows of an
entity are near to each other because of the entity, and each of its places has one row. So how
near a new row is to others can only be told within its entity, and whatever its place.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_pair
from kermix.data.schema.columns import NumberColumn
from kermix.errors import OptionError
from kermix.tables.compare.coincidence import chance_of_equal_rows, poisson_tail
from kermix.tables.compare.column_changes import ColumnValues, ComparedRows
from kermix.two_sample.classifier_test import auc
from kermix.two_sample.column_scores import ColumnPlace

__all__ = [
    "FEWEST_HELD_OUT",
    "Memorizing",
    "Panel",
    "RowsOfEntities",
    "Within",
    "looked_at",
    "memorizing",
    "panel_of",
    "within_entities",
]

# Reasoned, no record.
LEVELS = (0.0, 0.01, 0.05, 0.25)  # shares of new rows that may be nearer than such samples
OF_EQUALITY = 0.05  # share of the level: tails of this test are steep
EXACT = 1e-6  # ratio below which a sample is a copy
PAIRED = 2  # training rows that are near to each other are so both
FEWEST_HELD_OUT = 20  # of entities with training rows: one in twenty may be nearer than samples
# Samples that are no copies are never distributed exactly as held-out rows are, so that many
# of them prove small differences: at least so many times as many must be too near.
TIMES = 2.0


class Within(NamedTuple):
    """Rows of entities: distances are within the entity, whose other rows set the scale.

    Attributes:
        rows: Training rows, samples and held-out rows, without what tells entities apart.
        entities: The numbers of their entities, (N,) each.
    """

    rows: tuple[Tensor, Tensor, Tensor]
    entities: tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Memorizing:
    """The result of `memorizing`.

    Attributes:
        copies: Share of exact copies: samples that equal a training row.
        copies_held_out: Share of held-out rows that do; without them, of training rows that equal
            another one.
        copies_pvalue: P-value of the hypothesis that samples equal training rows by coincidence
            alone, corrected for the number of tests.
        memorized: Estimated share of near copies, exact ones among them: samples closer to a
            training row than held-out rows are, beyond chance. None without held-out rows.
        interval: About 95 percent sure; None without held-out rows.
        near_pvalue: P-value of the hypothesis that samples are no closer to training rows than
            held-out rows are, corrected as well; None without them.
        pvalue: The smaller of both.
        nearer: How often a sample is closer to its nearest training row than a held-out row is to
            its own; 1/2 if nothing is memorized, and less if samples are far from all data. None
            without held-out rows.
        error: One standard error of `nearer`.
        rows: Samples and the training rows that they are nearest to, the worst first.
        held_out: Number of held-out rows that samples were compared with.
        entity: Columns within whose values distances were measured; none if the table is no panel.
    """

    copies: float
    copies_held_out: float
    copies_pvalue: float
    memorized: float | None
    interval: tuple[float, float] | None
    near_pvalue: float | None
    pvalue: float
    nearer: float | None
    error: float | None
    rows: tuple[tuple[int, int], ...]
    held_out: int
    entity: tuple[str, ...] = ()


class _Excess(NamedTuple):
    """Samples that are too near."""

    pvalue: float = 1.0
    share: float = 0.0  # in excess of new rows
    interval: tuple[float, float] = (0.0, 0.0)
    limit: float = 0.0  # of the ratio


@torch.no_grad()
def memorizing(
    training: Tensor,
    samples: Tensor,
    held_out: Tensor | None = None,
    columns: Tensor | None = None,
    within: Within | None = None,
    by_chance: float = math.inf,
) -> Memorizing:
    r"""Whether a generator copies its training rows: exactly, or nearly.

    **Exact copies** are samples that equal a training row. If no real row repeats one, the number
    of training rows that samples equal, if three or more, is compared with the number expected by
    chance: rows of categories and counts coincide, rows of measured numbers do not. If real rows
    are repeated, the share of samples that equal a training row must be more than twice that of
    held-out rows, or else that of training rows which equal another one, beyond chance.

    **Near copies** need held-out rows. For each sample, the distance to the nearest training row
    is divided by that to the second nearest: near 0 for a copy, whatever the local scale. If
    samples were new rows, these ratios would be distributed like those of held-out rows, so equal
    shares of both should be below any level; the p-value is exact for that (hypergeometric, for
    the smallest ratios and three more levels); twice as many samples must be below it. The same
    must hold against the distances of training rows to the other ones, because held-out rows may
    be further away for reasons of their own, such as a later year. There, two rows that are close
    to each other both have a small ratio, so they count half.

    Tests of exact copies get a twentieth of any level where there are held-out rows, and those of
    the four levels of near copies share the rest equally.

    Args:
        training: Training rows of the generator, shape (N, d), at least three.
        samples: Samples of the generator, shape (M, d).
        held_out: Real rows that it has not seen, shape (K, d).
        columns: Numbers of the training rows in their own units, shape (N, c), which show their
            resolution; by default the training rows.
        within: The same rows by entity, for near copies.
        by_chance: How many pairs of a training row and a sample would be equal by chance, if more
            is known of it than that single columns are equal.

    Example:
        >>> x = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
        >>> copied = torch.cat([x[:20] + 1e-4, x[1000:1500]])
        >>> found = memorizing(x[:1000], copied, x[1500:])
        >>> found.pvalue < 1e-4, 0.03 < found.memorized < 0.05, found.rows[0][0] < 20
        (True, True, True)
        >>> memorizing(x[:1000], copied).memorized is None
        True
    """
    check_pair(training, samples, ("training", "samples"))
    if held_out is not None:
        check_pair(training, held_out, ("training", "held_out"))
    if len(training) < 3:
        raise OptionError(f"training has {len(training)} rows; memorizing needs at least three.")
    columns = training if columns is None else columns
    every = _Nearness.of(training.double(), samples.double(), held_out)
    alike = PAIRED if held_out is None else 1
    exact = _exact_copies(every, columns, alike, by_chance)
    near = every if within is None else every.within(within)
    if held_out is None or (within is not None and len(near.new) < FEWEST_HELD_OUT):
        rows = _worst(exact.ratio, every.places[:, 0], EXACT if exact.pvalue < 0.05 else 0.0)
        return Memorizing(exact.share, exact.of_real, exact.pvalue, None, None, None,
                          exact.pvalue, None, None, rows, 0)  # fmt: skip
    return _with_near_copies(every, exact, near)


class _Nearness(NamedTuple):
    """How near rows are to training rows, the nearest first.

    Attributes:
        near: Samples, (M, 2).
        places: Their nearest training rows, (M, 2).
        new: Held-out rows, (K, 2); without them, `others`.
        others: Some training rows, to other ones, (S, 2).
        some: Which training rows these are.
        tiny: What is no distance.
    """

    near: Tensor
    places: Tensor
    new: Tensor
    others: Tensor
    some: Tensor
    tiny: float

    @classmethod
    def of(
        cls, training: Tensor, samples: Tensor, held_out: Tensor | None, most: int = 5000
    ) -> "_Nearness":
        """Of all columns; at most so many training rows are compared with the other ones."""
        from kermix.evaluation.sample_distances import nearest  # reports of fits need panels alone

        order = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))
        some = order[:most].to(training.device)
        near, places = nearest(samples, training, 2)
        others = nearest(training[some], training, 3)[0][:, 1:]  # the nearest is the row itself
        new = others if held_out is None else nearest(held_out.double(), training, 2)[0]
        typical = new[:, 0].median().clamp(min=1e-9 * float(training.abs().max()))
        return cls(near, places, new, others, some, 1e-9 * float(typical))

    def within(self, within: Within) -> "_Nearness":
        """The same within entities, of rows of entities with enough training rows."""
        from kermix.evaluation.sample_distances import nearest

        own, drawn, unseen = (rows.double() for rows in within.rows)
        groups, some = within.entities, self.some
        near, places = nearest(drawn, own, 2, groups[1], groups[0])
        new = nearest(unseen, own, 2, groups[2], groups[0])[0]
        others = nearest(own[some], own, 3, groups[0][some], groups[0])[0][:, 1:]
        new, others = (d[d[:, -1].isfinite()] for d in (new, others))
        return self._replace(near=near, places=places, new=new, others=others)


class _Exact(NamedTuple):
    """Exact copies: which samples are, their share, that of real rows, and the p-value of both."""

    equal: Tensor
    equal_new: Tensor
    ratio: Tensor
    pvalue: float

    @property
    def share(self) -> float:
        return float(self.equal.double().mean())

    @property
    def of_real(self) -> float:
        return float(self.equal_new.double().mean())

    def excess(self) -> "_Excess":
        """How many more samples are copies than real rows are."""
        samples, real = ((int(equal.sum()), len(equal)) for equal in (self.equal, self.equal_new))
        interval = _difference(*samples, *real)
        return _Excess(self.pvalue, self.share - self.of_real, interval, EXACT)


def _exact_copies(distances: _Nearness, columns: Tensor, alike: int, by_chance: float) -> _Exact:
    equal, equal_new = (d[:, 0] <= distances.tiny for d in (distances.near, distances.new))
    ratio = torch.where(equal, 0.0, _ratios(distances.near, distances.tiny))
    copied = distances.places[equal, 0]
    pvalue = _beyond_coincidence(equal, equal_new, copied, columns, alike, by_chance)
    return _Exact(equal, equal_new, ratio, pvalue)


def _with_near_copies(every: _Nearness, exact: _Exact, near: _Nearness) -> Memorizing:
    """What is said where there are held-out rows: tests of both kinds of copies, and a share."""
    ratio, of_new, of_others = (_ratios(d, every.tiny) for d in (near.near, near.new, near.others))
    found, among = _too_near(ratio, of_new, 1), _too_near(ratio, of_others, PAIRED)
    p_near = min(1.0, max(found.pvalue, among.pvalue) * len(LEVELS))
    excess = found if found.share <= among.share or p_near < 0.05 else among
    if exact.pvalue < 0.05 and exact.share - exact.of_real > excess.share:
        excess = exact.excess()
    if p_near >= 1 and exact.pvalue >= 1:
        excess = _Excess(interval=(0.0, excess.interval[1]))
    of_exact, of_near = min(1.0, exact.pvalue / OF_EQUALITY), min(1.0, p_near / (1 - OF_EQUALITY))
    limit = found.limit if p_near < 0.05 else EXACT if exact.pvalue < 0.05 else 0.0
    copied = exact.equal & (exact.pvalue < 0.05)
    at = torch.where(copied, every.places[:, 0], near.places[:, 0])
    rows = _worst(torch.where(copied, 0.0, ratio), at, limit)
    nearer, error = _nearer(near.near[:, 0], near.new[:, 0])
    return Memorizing(
        exact.share, exact.of_real, of_exact, excess.share, excess.interval, of_near,
        min(of_near, of_exact), nearer, error, rows, len(near.new),
    )  # fmt: skip


def _worst(
    ratio: Tensor, places: Tensor, limit: float, most: int = 20
) -> tuple[tuple[int, int], ...]:
    order = ratio.argsort(stable=True)[:most]
    return tuple((int(i), int(places[i])) for i in order if float(ratio[i]) < limit)


def _beyond_coincidence(
    equal: Tensor,
    equal_new: Tensor,
    places: Tensor,
    columns: Tensor,
    alike: int,
    by_chance: float,
    fewest: int = 3,
) -> float:
    """P-value of samples that equal training rows, against rows that are real.

    Args:
        equal: Which samples equal a training row, bool.
        equal_new: Which other real rows do.
        places: The training rows that samples equal.
        columns: Training rows in their own units.
        alike: How many of the real rows are alike.
        by_chance: How many pairs would be equal, at most.
        fewest: Training rows that must be copied: one or two may be a value that stands for
            something missing.
    """
    copied, k, j = len(places.unique()), int(equal.sum()), int(equal_new.sum())
    if copied < fewest:
        return 1.0
    if not j:
        mean = len(equal) * len(columns) * chance_of_equal_rows(columns.double())
        return poisson_tail(copied, min(mean, by_chance))
    if k / len(equal) <= TIMES * (j + 1) / len(equal_new):
        return 1.0
    few = -(-j // alike)
    return _hypergeometric(few, len(equal), len(equal_new) // alike, k + few)


def _ratios(distances: Tensor, tiny: float) -> Tensor:
    """Nearest to second nearest; 1 where both are equal rows, of which many are alike.

    It is also 1 where an entity has no two rows that could tell what is near.
    """
    first, second = distances[:, 0], distances[:, -1]
    told = (second > tiny) & second.isfinite()
    return torch.where(told, first / second.clamp(min=tiny), 1.0)


def _too_near(ratio: Tensor, new: Tensor, alike: int) -> _Excess:
    """The smallest p-value of samples that are too near, and the largest share that surely is.

    The number of samples below the j-th smallest ratio of m new rows is at least k if and only if
    at most j - 1 new rows are among the k + j - 1 smallest of all. New rows of which so many are
    alike count once. The share is that of the level with the highest lower end of its interval,
    were it sure for all levels together.
    """
    n, m = len(ratio), len(new)
    ordered = new.sort().values
    best, most = _Excess(), 0.0
    for level in LEVELS:
        j = int(level * m)  # new rows that may be nearer
        if j >= m:
            continue
        limit = float(ordered[j])
        k = int((ratio < limit).sum())
        few = -(-j // alike)
        many = k / n > TIMES * (j + 1) / m
        p = _hypergeometric(few, n, m // alike, k + few) if many else 1.0
        if p < best.pvalue:
            best = best._replace(pvalue=p, limit=limit)
        surely = _difference(k, n, j, m, 1 - 0.05 / len(LEVELS))[0]
        if surely >= most:
            most, share = surely, max(0.0, k / n - j / m)
            best = best._replace(share=share, interval=_difference(k, n, j, m))
    return best


def _difference(k: int, n: int, j: int, m: int, sure: float = 0.95) -> tuple[float, float]:
    """Bounds on how much larger one share is (Newcombe's, from Wilson's), not below 0."""
    from scipy.stats import binomtest

    p, q = k / n, j / m
    one, two = (binomtest(some, of).proportion_ci(sure, "wilson") for some, of in ((k, n), (j, m)))
    low = p - q - math.hypot(p - one.low, two.high - q)
    high = p - q + math.hypot(one.high - p, q - two.low)
    return max(0.0, low), max(0.0, high)


def _hypergeometric(most: int, n: int, m: int, drawn: int) -> float:
    """Probability of at most so many new rows among some of n samples and m new rows."""
    from scipy.stats import hypergeom

    return float(hypergeom.cdf(most, n + m, m, drawn))


def _nearer(samples: Tensor, new: Tensor) -> tuple[float, float]:
    """How often a sample is nearer than a new row, ties halved, and one standard error."""
    area, variance = auc(samples.cpu().numpy(), new.cpu().numpy())
    return area, max(0.0, variance) ** 0.5


@dataclass(frozen=True)
class Panel:
    """Which columns name the entity of a row, and which its place within the entity."""

    entity: tuple[str, ...]
    places: tuple[str, ...]


class RowsOfEntities(NamedTuple):
    """All rows, less what is usual for their entity at their place.

    Attributes:
        rows: Numbers, and then the codes of the given rows, without the columns of the panel.
        codes: How many codes.
        entities: A number for each row, (N,).
    """

    rows: Tensor
    codes: int
    entities: Tensor


def panel_of(columns: Mapping[str, ColumnValues], most_columns: int = 30) -> Panel | None:
    """The panel that a table is; None if it is none.

    Entities and places both have many rows, but a pair of them hardly ever two, although chance
    would give pairs.

    Args:
        columns: Some rows of the table (`looked_at`), by the names of the columns.
        most_columns: A table of more is not looked at.
    """
    if len(columns) > most_columns:
        return None
    codes = {name: _codes(c) for name, c in columns.items()}
    repeated = [n for n, c in codes.items() if 1 < len(np.unique(c)) <= len(c) / 2]
    named = [n for n in repeated if columns[n].codes is not None]
    for entities in ([(n,) for n in repeated], list(combinations(named, 2))):
        keys = [Panel(entity, tuple(_places_of(entity, repeated, codes))) for entity in entities]
        if keys := [key for key in keys if key.places]:
            return min(keys, key=lambda k: _strangeness(k, columns, codes))
    return None


def _places_of(
    entity: tuple[str, ...], among: Sequence[str], codes: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Columns that are a key together with those of an entity."""
    for name in among:
        if name not in entity and _is_key([codes[e] for e in entity], codes[name]):
            yield name


def looked_at(rows: int, most: int = 5000) -> Tensor:
    """Which of so many rows are enough to tell a panel: pairs of them tell a key from chance."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:most]


def _codes(column: ColumnValues) -> np.ndarray:
    if column.codes is not None:
        return column.codes
    assert column.numbers is not None
    return np.unique(np.nan_to_num(column.numbers), return_inverse=True)[1]


def _together(codes: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.stack(codes, 1), axis=0, return_inverse=True)[1].reshape(-1)


def _is_key(
    entity: list[np.ndarray],
    place: np.ndarray,
    fewest_pairs: float = 10.0,
    of_chance: float = 0.05,
) -> bool:
    """Whether an entity and a place have one row, where chance would give many pairs of rows.

    Args:
        entity: Codes of its columns.
        place: Those of the place.
        fewest_pairs: To be expected by chance: that there is none has probability exp(-10).
        of_chance: How many of those expected there may be.
    """
    one = _together(entity)
    by_chance = _pairs(one) * _pairs(place) / (len(place) * (len(place) - 1) / 2)
    pairs = _pairs(_together([one, place]))
    return by_chance >= fewest_pairs and pairs <= of_chance * by_chance


def _pairs(codes: np.ndarray) -> float:
    counts = np.bincount(codes).astype(float)
    return float((counts * (counts - 1)).sum() / 2)


def _strangeness(
    panel: Panel, columns: Mapping[str, ColumnValues], codes: dict[str, np.ndarray]
) -> tuple[int, float]:
    """What entities are by nature comes first: names, and what rows are alike by.

    Entity and place may be exchanged; rows of an entity are more alike than those of a place.
    """
    of_numbers = sum(columns[n].codes is None for n in panel.entity)
    of_names = sum(columns[n].codes is not None for n in panel.places)
    group = _together([codes[n] for n in panel.entity])
    shares = []
    for name, column in columns.items():
        if name in panel.entity or name in panel.places or column.numbers is None:
            continue
        # Ranks, so that one large value is not all that counts.
        ranks = column.numbers.argsort(kind="stable").argsort(kind="stable").astype(float)
        counts = np.bincount(group)
        means = np.bincount(group, ranks) / np.maximum(1, counts)
        within = ((ranks - means[group]) ** 2).sum() / max(1, len(ranks) - (counts > 0).sum())
        shares.append(within / max(ranks.var(), 1e-300))
    return of_numbers + of_names, float(np.mean(shares)) if shares else 0.0


def within_entities(rows: ComparedRows, panel: Panel, training: int) -> RowsOfEntities:
    """Rows without the columns of the panel, and numbers less what is usual at their place.

    What is usual is a line through the training rows of the entity at the nearest other places.
    A row that was trained with does not count for its own place, and neither does it for a sample
    at that place, so samples and new rows are treated alike. What is left is divided by what
    usually is for the entity.

    Args:
        rows: All rows, training rows first.
        panel: What entity and place are.
        training: How many are training rows.
    """
    entity = torch.from_numpy(_together([_codes(rows.column(n)) for n in panel.entity]))
    place = _number_of(rows.column(panel.places[0]))
    left = [p for p in rows.places if p.name not in (*panel.entity, *panel.places)]
    numbers = [p for p in left if p.numbers is not None]
    codes = rows.pooled[:, [p.codes for p in left if p.codes is not None]]
    values = torch.stack([_warped(rows, p, training) for p in numbers], 1)
    order = entity.argsort(stable=True)
    _, counts = entity[order].unique_consecutive(return_counts=True)
    for part in order.split(counts.tolist()):
        own = part[part < training]
        if len(own) > 1:
            off = values[part] - _usual(place[part], place[own], values[own])
            size = off[part < training].square().mean(0).sqrt()
            values[part] = off / torch.where(size > 0, size, 1.0)
    for q, p in enumerate(numbers):
        if p.codes is not None:
            values[:, q] = torch.where(rows.pooled[:, p.codes] == 0, values[:, q], 0.0)
    return RowsOfEntities(torch.cat([values, codes.double()], 1), codes.shape[1], entity)


def _warped(
    rows: ComparedRows, place: ColumnPlace, training: int, orders: float = 10.0
) -> Tensor:  # (N,)
    """A number of all rows: its logarithm, or its own units with a logarithm far out.

    Positive numbers of different size, tenfold or more, grow by shares, so their logarithms are
    even. Normal scores bend where they please, and what grows evenly would not be even in them.
    """
    found = rows.pooled[:, place.numbers].double()
    if rows.mixed is not None:
        q = place.numbers
        column = rows.mixed.schema[place.name]
        assert q is not None
        assert isinstance(column, NumberColumn)
        scores = found.numpy() * rows.mixed.spread[q] + rows.mixed.center[q]
        found = torch.from_numpy(column.map.inverse(scores))
    own = found[:training]
    if float(found.min()) > 0 and float(own.max()) > orders * float(own.min()):
        return found.log()
    low, middle, high = own.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    scale = high - low if high > low else own.std()
    return ((found - middle) / (scale if scale > 0 else 1.0)).asinh()


def _number_of(column: ColumnValues) -> Tensor:  # (N,)
    """Places in their order: numbers, names that are numbers, or else codes."""
    if column.numbers is not None:
        return torch.from_numpy(np.nan_to_num(column.numbers))
    assert column.codes is not None
    try:
        values = np.array([float(n) for n in column.names[:-1]] + [0.0])
    except ValueError:
        values = np.arange(len(column.names), dtype=float)
    return torch.from_numpy(values[column.codes])


def _usual(
    at: Tensor, places: Tensor, values: Tensor, near_places: int = 6, fewest: int = 5
) -> Tensor:  # (n,), (m,), (m, d) -> (n, d)
    """What lines through values at the nearest other places say, if these are not too few."""
    apart = (at[:, None] - places).abs()
    apart = torch.where(apart == 0, torch.inf, apart)
    some = apart.topk(min(near_places, len(places)), dim=1, largest=False)
    weight = some.values.isfinite().double()
    count = weight.sum(1, keepdim=True).clamp(min=1)
    near, value = places[some.indices].double(), values[some.indices]
    center = (weight * near).sum(1, keepdim=True) / count
    mean = (weight[..., None] * value).sum(1) / count
    off = weight * (near - center)
    slope = (off[..., None] * value).sum(1) / off.square().sum(1, keepdim=True).clamp(min=1e-300)
    steep = (weight.sum(1, keepdim=True) >= fewest) & (off.abs().sum(1, True) > 0)
    return mean + torch.where(steep, (at[:, None] - center) * slope, 0.0)
