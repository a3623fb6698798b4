"""Memorizing: samples of a generator that are nearer to training rows than new rows ever are."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.checks import check_pair
from kermix.errors import OptionError
from kermix.evaluation.neighbours import nearest
from kermix.tables.compare.coincidence import chance_of_equal_rows, poisson_tail
from kermix.two_sample.classifier_test import auc

__all__ = ["FEWEST_HELD_OUT", "Memorizing", "Within", "memorizing"]

# Reasoned, no record.
LEVELS = (0.0, 0.01, 0.05, 0.25)  # shares of new rows that may be nearer than such samples
SHOWN = 20
MOST_COMPARED = 5000  # training rows that are compared with the other ones
EQUAL = 1e-9  # of a typical distance
FEWEST_COPIED = 3  # training rows: one or two may be a value that stands for something missing
OF_EQUALITY = 0.05  # share of the level: tails of this test are steep
EXACT = 1e-6  # ratio below which a sample is a copy
PAIRED = 2  # training rows that are near to each other are so both
FEWEST_HELD_OUT = 20  # of entities with training rows: one in twenty may be nearer than samples
# Samples that are no copies are never distributed exactly as held-out rows are, so that many
# of them prove small differences: at least so many times as many must be too near.
TIMES = 2.0
WIDE = 1.96  # standard errors of an interval of 95 percent


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
    training, samples = training.double(), samples.double()
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))
    some = order[:MOST_COMPARED].to(training.device)
    near, places = nearest(samples, training, 2)
    others = nearest(training[some], training, 3)[0][:, 1:]  # the nearest is the row itself
    new = others if held_out is None else nearest(held_out.double(), training, 2)[0]
    tiny = EQUAL * float(new[:, 0].median().clamp(min=EQUAL * float(training.abs().max())))
    equal, equal_new = near[:, 0] <= tiny, new[:, 0] <= tiny
    alike = PAIRED if held_out is None else 1
    copies, of_real = float(equal.double().mean()), float(equal_new.double().mean())
    p_exact = _beyond_coincidence(equal, equal_new, places[equal, 0], columns, alike, by_chance)
    copied = equal & (p_exact < 0.05)
    worst, at = torch.where(equal, 0.0, _ratios(near, tiny)), places[:, 0]
    if held_out is None:
        rows = _worst(worst, at, EXACT if p_exact < 0.05 else 0.0)
        return Memorizing(copies, of_real, p_exact, None, None, None, p_exact, None, None, rows, 0)
    if within is not None:
        groups = within.entities
        own, drawn, unseen = (r.double() for r in within.rows)
        near, places = nearest(drawn, own, 2, groups[1], groups[0])
        new, _ = nearest(unseen, own, 2, groups[2], groups[0])
        others = nearest(own[some], own, 3, groups[0][some], groups[0])[0][:, 1:]
        new, others = (d[d[:, -1].isfinite()] for d in (new, others))
    if len(new) < FEWEST_HELD_OUT and within is not None:
        rows = _worst(worst, at, EXACT if p_exact < 0.05 else 0.0)
        return Memorizing(copies, of_real, p_exact, None, None, None, p_exact, None, None, rows, 0)
    ratio, ratio_new, ratio_others = (_ratios(d, tiny) for d in (near, new, others))
    found = _too_near(ratio, ratio_new, 1)
    among = _too_near(ratio, ratio_others, PAIRED)
    p_near = min(1.0, max(found.pvalue, among.pvalue) * len(LEVELS))
    excess = found if found.share <= among.share or p_near < 0.05 else among
    if p_exact < 0.05 and copies - of_real > excess.share:
        low, high = _difference(int(equal.sum()), len(equal), int(equal_new.sum()), len(equal_new))
        excess = _Excess(p_exact, copies - of_real, (low, high), EXACT)
    if p_near >= 1 and p_exact >= 1:
        excess = _Excess(interval=(0.0, excess.interval[1]))
    pvalue = min(1.0, p_near / (1 - OF_EQUALITY), p_exact / OF_EQUALITY)
    limit = found.limit if p_near < 0.05 else EXACT if p_exact < 0.05 else 0.0
    rows = _worst(torch.where(copied, 0.0, ratio), torch.where(copied, at, places[:, 0]), limit)
    nearer, error = _nearer(near[:, 0], new[:, 0])
    return Memorizing(
        copies, of_real, min(1.0, p_exact / OF_EQUALITY), excess.share, excess.interval,
        min(1.0, p_near / (1 - OF_EQUALITY)), pvalue, nearer, error, rows, len(new),
    )  # fmt: skip


def _worst(ratio: Tensor, places: Tensor, limit: float) -> tuple[tuple[int, int], ...]:
    order = ratio.argsort(stable=True)[:SHOWN]
    return tuple((int(i), int(places[i])) for i in order if float(ratio[i]) < limit)


def _beyond_coincidence(
    equal: Tensor,
    equal_new: Tensor,
    places: Tensor,
    columns: Tensor,
    alike: int,
    by_chance: float,
) -> float:
    """p-value of samples that equal training rows, against rows that are real.

    Args:
        equal: Which samples equal a training row, bool.
        equal_new: Which other real rows do.
        places: The training rows that samples equal.
        columns: Training rows in their own units.
        alike: How many of the real rows are alike.
        by_chance: How many pairs would be equal, at most.
    """
    copied, k, j = len(places.unique()), int(equal.sum()), int(equal_new.sum())
    if copied < FEWEST_COPIED:
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
    """At the level of the smallest p-value, samples that are too near, of which many are so.

    The number of samples below the j-th smallest ratio of m new rows is at least k if and only if
    at most j - 1 new rows are among the k + j - 1 smallest of all. New rows of which so many are
    alike count once.
    """
    n, m = len(ratio), len(new)
    ordered = new.sort().values
    best = _Excess()
    for level in LEVELS:
        j = int(level * m)  # new rows that may be nearer
        if j >= m:
            continue
        limit = float(ordered[j])
        k = int((ratio < limit).sum())
        few = -(-j // alike)
        many = k / n > TIMES * (j + 1) / m
        p = _hypergeometric(few, n, m // alike, k + few) if many else 1.0
        if p < best.pvalue or (p == best.pvalue == 1.0):
            best = _Excess(p, max(0.0, k / n - j / m), _difference(k, n, j, m), limit)
    return best


def _difference(k: int, n: int, j: int, m: int) -> tuple[float, float]:
    """About 95 percent sure bounds on how much larger one share is (Newcombe), not below 0."""
    (p, low_p, high_p), (q, low_q, high_q) = _wilson(k, n), _wilson(j, m)
    low = p - q - math.hypot(p - low_p, high_q - q)
    high = p - q + math.hypot(high_p - p, q - low_q)
    return max(0.0, low), max(0.0, high)


def _wilson(k: int, n: int) -> tuple[float, float, float]:
    p, z = k / n, WIDE**2 / n
    middle, half = (p + z / 2) / (1 + z), WIDE * math.sqrt(p * (1 - p) / n + z / (4 * n)) / (1 + z)
    return p, max(0.0, middle - half), min(1.0, middle + half)


def _hypergeometric(most: int, n: int, m: int, drawn: int) -> float:
    """Probability of at most so many new rows among some of n samples and m new rows."""

    def log_ways(a: int, b: int) -> float:
        return math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(a - b + 1)

    whole = log_ways(n + m, drawn)
    return sum(
        math.exp(log_ways(m, i) + log_ways(n, drawn - i) - whole)
        for i in range(max(0, drawn - n), min(most, m, drawn) + 1)
    )


def _nearer(samples: Tensor, new: Tensor) -> tuple[float, float]:
    """How often a sample is nearer than a new row, ties halved, and one standard error."""
    area, variance = auc(samples.cpu().numpy(), new.cpu().numpy())
    return area, max(0.0, variance) ** 0.5
