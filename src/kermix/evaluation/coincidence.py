"""How likely rows of continuous columns are to be equal by chance."""

import math

import torch
from torch import Tensor

__all__ = ["chance_of_equal_rows", "poisson_tail"]

FINEST = 1e-7  # steps of a column that are told, relative to its range
ROUNDING = 2 * torch.finfo(torch.float32).eps  # of numbers that may have been float32
SAFE = 2.0  # times the estimate


def chance_of_equal_rows(rows: Tensor) -> float:  # (N, c)
    r"""About the probability that two independent rows are equal, at most.

    Equal rows are equal in each column, so the smallest of the columns' probabilities is taken:
    columns may depend on each other. That of a column is the larger of two: how many of its pairs
    are equal, and $u \int f^2$ with the step `u` that all its differences are multiples of
    (of counts 1, of prices 0.01), and the density `f` of its values. Numbers of which no step is
    found have one of a ten-millionth of their range.

    Example:
        >>> x = torch.rand(500, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> chance_of_equal_rows(x) < 1e-6, 0.1 < chance_of_equal_rows((10 * x).round()) < 0.4
        (True, True)
    """
    chances = [_chance_in(column.sort().values) for column in rows.mT]
    return min([1.0, *chances])


def _chance_in(ordered: Tensor) -> float:  # (N,)
    n = len(ordered)
    gaps = ordered.diff()
    width = float(ordered[-1] - ordered[0])
    if width == 0:
        return 1.0
    step = _step(gaps, max(FINEST * width, ROUNDING * float(ordered.abs().max())))
    _, counts = ordered.unique_consecutive(return_counts=True)
    equal = float((counts.double() * (counts - 1)).sum()) / (n * (n - 1))
    near = max(1, math.isqrt(n) // 2)
    spacings = (ordered[near:] - ordered[:-near]).clamp(min=step)
    return min(1.0, SAFE * max(equal, float((near * step / n / spacings).mean())))


def _step(gaps: Tensor, finest: float) -> float:
    """The greatest common divisor of gaps, up to rounding; not below the finest."""
    found = gaps[gaps > finest]
    if not len(found):
        return finest
    while True:
        step = found.min()
        rest = found.remainder(step)
        rest = torch.minimum(rest, step - rest)
        rest = rest[rest > finest]
        if not len(rest):
            return float(step)
        if float(rest.min()) < 4 * finest:
            return finest
        found = torch.cat([step[None], rest])


def poisson_tail(least: int, mean: float) -> float:
    """The probability of at least so many events.

    Example:
        >>> round(poisson_tail(3, 1.0), 4), poisson_tail(0, 2.0), poisson_tail(200, 0.1) < 1e-300
        (0.0803, 1.0, True)
    """
    if least <= 0:
        return 1.0
    # The lower incomplete gamma function, which does not cancel where the tail is tiny.
    shape, at = (torch.tensor(float(v), dtype=torch.float64) for v in (least, mean))
    return float(torch.special.gammainc(shape, at))
