"""Verdicts over seeds: what an interval says, and where it says nothing, a tie.

Every number that depends on a seed is judged by the 95 % interval of its mean over seeds
(Student's t), and two costs by the interval of their differences, seed by seed, since they share
data, noise and initial weights. A claim is confirmed where the whole interval speaks for it,
refuted where the whole interval speaks against it, and a tie otherwise.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean, stdev
from typing import Any, TypeAlias

from kermix.errors import MissingExtraError
from kermix.paper.artefact import Claim, Rows

__all__ = [
    "Spread",
    "best",
    "decided",
    "differences",
    "excess",
    "of_seeds",
    "ratio_claim",
    "ratios",
    "similar_excess",
    "spread",
]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its 95 % interval; of one seed, the interval is the whole line."""

    mean: float
    low: float
    high: float
    seeds: int

    def within(self, low: float, high: float, strict: bool = False) -> bool:
        """Whether the whole interval is from `low`, itself too low if `strict`, to `high`."""
        return (self.low > low if strict else self.low >= low) and self.high <= high

    def outside(self, low: float, high: float) -> bool:
        """Whether the whole interval is below `low` or above `high`."""
        return self.high < low or self.low > high


def of_seeds(
    rows: Rows, key: str, names: Iterable[str], by: str = "cost", **where: Any
) -> dict[str, list[float]]:
    """Numbers of each seed by cost, or by another column, of rows that have the given values.

    Example:
        >>> rows = [{"cost": "svd", "seed": 0, "nll": 1.0}, {"cost": "svd", "seed": 1, "nll": 2.0}]
        >>> of_seeds(rows, "nll", ["svd"])
        {'svd': [1.0, 2.0]}
    """
    own = [row for row in rows if all(row[column] == value for column, value in where.items())]
    return {name: [row[key] for row in own if row[by] == name] for name in names}


def excess(values: Mapping[str, Sequence[float]], of_data: Sequence[float],
           names: Iterable[str]) -> dict[str, list[float]]:  # fmt: skip
    """By how much the numbers of each seed exceed those of data."""
    return {n: [v - d for v, d in zip(values[n], of_data, strict=True)] for n in names}


def spread(values: Sequence[float]) -> Spread:
    """Mean and interval of numbers, one for each seed.

    Example:
        >>> found = spread([1.0, 2.0, 3.0])
        >>> round(found.low, 3), found.mean, round(found.high, 3)
        (-0.484, 2.0, 4.484)
    """
    middle, count = mean(values), len(values)
    if count < 2:
        return Spread(middle, -math.inf, math.inf, count)
    half = _student(count - 1) * stdev(values) / math.sqrt(count)
    return Spread(middle, middle - half, middle + half, count)


@functools.cache
def _student(freedom: int) -> float:
    """Student's 0.975 quantile, to the digits of the usual tables."""
    try:
        from scipy.special import stdtrit
    except ImportError:
        raise MissingExtraError("Intervals need SciPy: pip install 'kermix[scipy]'.") from None
    return round(float(stdtrit(freedom, 0.975)), 3)


def differences(better: Sequence[float], worse: Sequence[float]) -> Spread:
    """The interval of paired differences."""
    return spread([a - b for a, b in zip(better, worse, strict=True)])


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The geometric mean of paired ratios of positive numbers, with its interval.

    Example:
        >>> found = ratios([2.0, 8.0], [1.0, 1.0])
        >>> round(found.mean, 9), found.low > 0
        (4.0, True)
    """
    logs = differences(*([math.log(v) for v in own] for own in (numerators, denominators)))
    return Spread(_exp(logs.mean), _exp(logs.low), _exp(logs.high), logs.seeds)


def _exp(value: float) -> float:
    """The exponential; infinite where there is no such number."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


Level: TypeAlias = float | Mapping[str, float]


def decided(
    text: str,
    rule: str,
    tests: Mapping[str, Spread],
    *,
    least: Level = -math.inf,
    most: Level = math.inf,
    strict: bool = False,
    numbers: Mapping[str, float] | None = None,
    **how: Any,
) -> Claim:
    """A claim that holds if every number is at least `least` and at most `most`.

    Args:
        text: The claim.
        rule: In words.
        tests: The numbers, by name.
        least: The lower level, one for all or by name.
        most: The upper level, likewise.
        strict: Whether the lower level itself is too low.
        numbers: To show besides.
        how: Further fields of the claim.
    """
    low, high = (_levels(level, tests, side) for level, side in ((least, -1), (most, 1)))
    holds = all(t.within(low[n], high[n], strict) for n, t in tests.items())
    against = any(t.outside(low[n], high[n]) for n, t in tests.items())
    return Claim(
        text,
        rule,
        {**{name: t.mean for name, t in tests.items()}, **(numbers or {})},
        holds,
        state="judged" if holds or against else "tie",
        seeds=min(t.seeds for t in tests.values()),
        intervals={name: (t.low, t.high) for name, t in tests.items() if t.seeds > 1},
        **how,
    )


def _levels(level: Level, names: Iterable[str], side: int) -> dict[str, float]:
    if isinstance(level, Mapping):
        return {name: level.get(name, side * math.inf) for name in names}
    return dict.fromkeys(names, level)


def ratio_claim(
    text: str,
    rule: str,
    values: Mapping[str, Sequence[float]],
    factor: float,
    *,
    floor: float = 0.0,
    collapsed: Sequence[str] = (),
    **how: Any,
) -> Claim:
    """A claim that positive numbers lie within a factor of each other, pair by pair.

    Of those that collapsed nothing is said: how alike failures are is not counted.

    Args:
        text: The claim.
        rule: In words.
        values: By name, a number for each seed.
        factor: The largest allowed.
        floor: What is smaller counts as this.
        collapsed: Names of what failed.
        how: Further fields of the claim.
    """
    means = {name: mean(own) for name, own in values.items()}
    gone = [name for name in values if name in collapsed]
    if gone:
        why = "all collapsed" if len(gone) == len(values) else f"{', '.join(gone)} collapsed"
        return _not_counted(text, rule, values, means, why, how)
    least = {name: [max(v, floor) for v in own] for name, own in values.items()}
    tests = {f"{a} / {b}": ratios(least[a], least[b]) for a, b in combinations(values, 2)}
    claim = decided(text, rule, tests, least=1 / factor, most=factor, **how)
    return replace(claim, numbers=means | dict(claim.numbers))


def similar_excess(
    text: str,
    values: Mapping[str, Sequence[float]],
    *,
    rule: str = "their excess negative log-likelihoods are within a factor of two of each other",
    floor: float = 1e-3,
    **how: Any,
) -> Claim:
    """A claim that costs perform alike, by how much likelihood they lose against data.

    Args:
        text: The claim.
        values: By cost, the excess negative log-likelihood of each seed.
        rule: In words.
        floor: In nats: what is smaller is the noise of some thousand samples.
        how: Further arguments of `ratio_claim`.
    """
    return ratio_claim(text, rule, values, 2, floor=floor, **how)


def _not_counted(
    text: str,
    rule: str,
    values: Mapping[str, Sequence[float]],
    numbers: Mapping[str, float],
    why: str,
    how: Mapping[str, Any],
) -> Claim:
    """A claim of which these values, some for each seed, say nothing."""
    seeds = min(len(own) for own in values.values())
    return Claim(text, rule, numbers, False, state="not counted", why=why, seeds=seeds, **how)


def best(
    text: str,
    rule: str,
    values: Mapping[str, Sequence[float]],
    sign: int,
    *,
    data: Sequence[float] | None = None,
    collapsed: Sequence[str] = (),
    favourite: str = "svd",
    **how: Any,
) -> Claim:
    """Whether one cost is better than every other, by paired differences over seeds.

    Costs that collapsed are not compared with. Where real data are worse than a cost's samples, or
    the favourite itself collapsed, the reading says nothing, and is not counted.

    Args:
        text: The claim.
        rule: In words, what is better.
        values: By cost, a number for each seed.
        sign: 1 if much is better, -1 if little is.
        data: The same of real data.
        collapsed: Costs whose trainings failed.
        favourite: Whose victory is claimed.
        how: Further fields of the claim.
    """
    rest = [name for name in values if name != favourite and name not in collapsed]
    compared = {name: _times(sign, values[name]) for name in (favourite, *rest)}
    numbers = {name: mean(own) for name, own in values.items()}
    why = _of_collapsed(favourite, rest, collapsed)
    if data is not None:
        numbers["data"] = mean(data)
        why = why or _better_than_data(compared, _times(sign, data))
    if why:
        return _not_counted(text, rule, values, numbers, why, how)
    ours = compared.pop(favourite)
    tests = {f"{favourite} against {n}": differences(ours, own) for n, own in compared.items()}
    left_out = f"{', '.join(collapsed)} collapsed, not compared with" if collapsed else ""
    return decided(text, rule, tests, least=0, strict=True, numbers=numbers, why=left_out, **how)


def _times(sign: int, values: Sequence[float]) -> list[float]:
    return [sign * value for value in values]


def _of_collapsed(favourite: str, rest: Sequence[str], collapsed: Sequence[str]) -> str:
    """Why nothing is compared, if the favourite has collapsed, or all of the others."""
    if favourite in collapsed:
        return f"{favourite} collapsed" if rest else "all collapsed"
    return "" if rest else "all others collapsed"


def _better_than_data(values: Mapping[str, Sequence[float]], data: Sequence[float]) -> str:
    """Why a measure says nothing, if real data lose by it; much is better."""
    won = []
    for name, own in values.items():
        each = data if len(data) > 1 else [data[0]] * len(own)
        if differences(own, each).low > 0:
            won.append(name)
    return f"real data lose against {', '.join(won)}" if won else ""
