"""Pairs of samples of one source, as awkward as real ones, for the benchmark of levels.

Every source draws the rows of both sides at once, exchangeable ones: whoever tells the sides apart
more often than the level allows is wrong.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["GROUPINGS", "SOURCES", "WEIGHTINGS", "Draw", "draw"]

Source = Callable[[int, int, Generator], Tensor]
Sides = tuple[Tensor | None, Tensor | None]

FAR = 1e10
MONTH = 30 * 86400
SPRING_2024 = 1.71e9  # in Unix seconds
GROUP_ROWS = 5


@dataclass(frozen=True)
class Draw:
    """One repetition's data: two sides of one source, and what belongs to their rows."""

    x: Tensor
    y: Tensor
    more: Callable[[int], Tensor]  # other rows of the source, for what is chosen beforehand
    weights: Sides
    groups: tuple[Tensor, Tensor] | None


def draw(
    source: str,
    sizes: tuple[int, int],
    d: int,
    generator: Generator,
    *,
    dtype: torch.dtype = torch.float64,
    weights: str = "",
    groups: str = "",
    in_order: bool = False,
) -> Draw:
    """Draw both sides.

    Args:
        source: One of `SOURCES`.
        sizes: Rows of the two sides, or groups of rows if there are `groups`.
        d: Number of columns.
        generator: Where the random numbers come from.
        dtype: Of the rows and weights.
        weights: One of `WEIGHTINGS`, or none.
        groups: One of `GROUPINGS`, or none.
        in_order: Whether each side's rows are sorted by their first column, as if by time.
    """
    n, m = sizes
    labels = GROUPINGS[groups](n + m, generator) if groups else None
    count = n + m if labels is None else len(labels)
    rows = SOURCES[source](count, d, generator)
    if labels is not None:
        # What the rows of one group have in common is larger than what they differ by.
        rows = rows + 2 * torch.randn(n + m, d, generator=generator, dtype=rows.dtype)[labels]
        n = int((labels < n).sum())
    rows = rows.to(dtype)
    x, y = rows[:n], rows[n:]
    if in_order:
        x, y = (side[side[:, 0].argsort()] for side in (x, y))
    sides = WEIGHTINGS[weights](x, y, generator) if weights else (None, None)

    def more(count: int) -> Tensor:
        return SOURCES[source](count, d, generator).to(dtype)

    return Draw(x, y, more, sides, None if labels is None else (labels[:n], labels[n:]))


def _normal(count: int, d: int, generator: Generator) -> Tensor:
    return torch.randn(count, d, generator=generator, dtype=torch.float64)


def _integers(count: int, d: int, generator: Generator) -> Tensor:
    return torch.randint(4, (count, d), generator=generator).double()


def _binary(count: int, d: int, generator: Generator) -> Tensor:
    return (torch.rand(count, d, generator=generator) < 0.3).double()


def _half_constant(count: int, d: int, generator: Generator) -> Tensor:
    rows = _normal(count, d, generator)
    rows[:, d // 2 :] = 5.0
    return rows


def _constant(count: int, d: int, generator: Generator) -> Tensor:
    del generator
    return torch.full((count, d), 5.0, dtype=torch.float64)


def _one_far(count: int, d: int, generator: Generator) -> Tensor:
    rows = _normal(count, d, generator)
    rows[torch.randint(count, (), generator=generator)] = FAR
    return rows


def _cauchy(count: int, d: int, generator: Generator) -> Tensor:
    angles = torch.rand(count, d, generator=generator, dtype=torch.float64) - 0.5
    return (math.pi * angles).tan()


def _lognormal(count: int, d: int, generator: Generator) -> Tensor:
    return (2 * _normal(count, d, generator)).exp()


def _scales(count: int, d: int, generator: Generator) -> Tensor:
    return _normal(count, d, generator) * torch.logspace(-6, 6, d, dtype=torch.float64)


def _offset(count: int, d: int, generator: Generator) -> Tensor:
    return _normal(count, d, generator) + 1e6


def _unix_seconds(count: int, d: int, generator: Generator) -> Tensor:
    rows = _normal(count, d, generator)
    seconds = torch.rand(count, generator=generator, dtype=torch.float64) * MONTH
    rows[:, 0] = (SPRING_2024 + seconds).round()
    return rows


def _duplicates(count: int, d: int, generator: Generator) -> Tensor:
    distinct = _normal(max(2, count // 4), d, generator)
    return distinct[torch.randint(len(distinct), (count,), generator=generator)]


def _clusters(count: int, d: int, generator: Generator) -> Tensor:
    state = torch.randint(4, (count,), generator=generator)
    return _normal(count, d, generator) + 20.0 * state[:, None]


def _mixed(count: int, d: int, generator: Generator) -> Tensor:
    """Four numbers, the last of few values, and two codes that depend on each other."""
    rows = _normal(count, d, generator)
    rows[:, 3] = rows[:, 3].round()
    rows[:, 4] = torch.randint(3, (count,), generator=generator).double()
    rows[:, 5] = (rows[:, 4] + torch.randint(2, (count,), generator=generator)) % 3
    return rows


SOURCES: dict[str, Source] = {
    "normal": _normal,
    "integers 0 to 3": _integers,
    "binary": _binary,
    "half of the columns constant": _half_constant,
    "constant": _constant,
    "normal, one row at 1e10": _one_far,
    "Cauchy": _cauchy,
    "lognormal": _lognormal,
    "scales 1e-6 to 1e6": _scales,
    "offset 1e6": _offset,
    "one column of Unix seconds": _unix_seconds,
    "each row about four times": _duplicates,
    "four clusters": _clusters,
    "four numbers and two codes": _mixed,
}


def _own_weights(x: Tensor, y: Tensor, generator: Generator) -> Sides:
    def drawn(side: Tensor) -> Tensor:
        return torch.randn(len(side), generator=generator, dtype=torch.float64).exp().to(side)

    return drawn(x), drawn(y)


def _row_weights(x: Tensor, y: Tensor, generator: Generator) -> Sides:
    del generator
    return x[:, 0].exp(), y[:, 0].exp()


def _some_zero(x: Tensor, y: Tensor, generator: Generator) -> Sides:
    def drawn(side: Tensor) -> Tensor:
        weights = torch.rand(len(side), generator=generator, dtype=torch.float64)
        return (weights - 0.3).clamp(min=0).to(side)

    return drawn(x), drawn(y)


def _one_sided(x: Tensor, y: Tensor, generator: Generator) -> Sides:
    return _own_weights(x, y, generator)[0], None


WEIGHTINGS: dict[str, Callable[[Tensor, Tensor, Generator], Sides]] = {
    "drawn": _own_weights,
    "of the row's values": _row_weights,
    "a third of them zero": _some_zero,
    "of one side only": _one_sided,
}


def _equal_groups(count: int, generator: Generator) -> Tensor:
    del generator
    return torch.arange(count).repeat_interleave(GROUP_ROWS)


def _unequal_groups(count: int, generator: Generator) -> Tensor:
    sizes = torch.randint(1, 2 * GROUP_ROWS, (count,), generator=generator)
    return torch.arange(count).repeat_interleave(sizes)


GROUPINGS: dict[str, Callable[[int, Generator], Tensor]] = {
    "of 5": _equal_groups,
    "of 1 to 9": _unequal_groups,
}
