"""The rows that each rank has, and that all ranks mean the same problem."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import normalized_weights, values_are_readable, working_dtype
from kermix.costs.components import is_mixture
from kermix.distributed.ranks import Ranks
from kermix.errors import OptionError, RankError, SampleError
from kermix.sketches.sketch import Sketch

__all__ = ["Side", "agree", "side_of"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass
class Side:
    """One set of samples: this rank's rows, and how many there are on each."""

    name: str
    points: Tensor
    counts: list[int]
    weights: Tensor | None

    def __len__(self) -> int:
        return sum(self.counts)

    def gathered(self, ranks: Ranks) -> tuple[Tensor, Tensor | None]:
        """Points and weights of all ranks."""
        points = ranks.gather(_wide(self.points), self.counts).to(self.points.dtype)
        return points, self.gathered_weights(ranks)

    def gathered_weights(self, ranks: Ranks) -> Tensor | None:
        """Weights of all ranks, as they were given."""
        if self.weights is None:
            return None
        return ranks.gather(_wide(self.weights), self.counts, dim=-1)

    def shares(self, ranks: Ranks) -> Tensor | None:
        """Weights of all ranks' points, divided by their sum."""
        weights = self.gathered_weights(ranks)
        if weights is None:
            return None
        like = self.points.new_empty(*self.points.shape[:-2], len(self), self.points.shape[-1])
        return normalized_weights(f"weights_{self.name}", weights, like)


def side_of(
    name: str, side: Tensor | Sketch, weights: Tensor | None, rows: Sequence[int] | None
) -> Side | Sketch:
    """What a caller gave for `x` or `y`, checked."""
    if isinstance(side, Sketch):
        if weights is not None:
            raise OptionError(f"weights_{name} is given for a sketch, which has its own weights.")
        return side
    if is_mixture(side):
        raise SampleError(
            f"{name} is a mixture, but ranks share rows of points; use the loss in one process."
        )
    if not isinstance(side, Tensor) or side.dtype not in DTYPES or side.ndim < 2:
        raise SampleError(f"{name} must be a floating-point tensor of shape (*batch, rows, d).")
    if weights is not None and weights.shape[-1:] != side.shape[-2:-1]:
        raise SampleError(
            f"weights_{name} has shape {tuple(weights.shape)} for {side.shape[-2]} rows."
        )
    return Side(name, side, [] if rows is None else list(rows), weights)


def agree(ranks: Ranks, sides: list[Side]) -> None:
    """Tell each other the sizes; what does not fit together is refused by all ranks alike."""
    told: list[int] = []
    for side in sides:
        x, w = side.points, side.weights
        finite = not values_are_readable(x) or bool(torch.isfinite(x).all())
        batch = 1
        for length in x.shape[:-2]:
            batch *= length
        told += [
            x.shape[-2], x.shape[-1], x.ndim, batch, DTYPES.index(x.dtype), int(finite),
            int(_has_gradient(x)), int(w is not None), int(w is not None and _has_gradient(w)),
        ]  # fmt: skip
    if not sides:
        return
    width = len(told) // len(sides)
    answers = ranks.collect(told, sides[0].points.device)
    for k, side in enumerate(sides):
        facts = list(zip(*[row[k * width : (k + 1) * width] for row in answers], strict=True))
        names = ("dimension", "number of axes", "batch size", "dtype")
        for name, values in zip(names, facts[1:5], strict=True):
            if len(set(values)) > 1:
                shown = [str(DTYPES[v]) for v in values] if name == "dtype" else list(values)
                raise RankError(
                    f"{side.name} does not have the same {name} on all ranks: {shown}, in order "
                    "of rank."
                )
        if len(set(facts[7])) > 1:
            raise RankError(
                f"weights_{side.name} is given on some ranks only: give it on all, or on none."
            )
        bad = [rank for rank, finite in enumerate(facts[5]) if not finite]
        if bad:
            raise SampleError(f"{side.name} has NaN or infinite values on ranks {bad}.")
        side.counts = list(facts[0])
        if not sum(side.counts):
            raise SampleError(f"{side.name} is empty on all ranks.")
        # Where one rank's rows have a gradient, all ranks take part in the backward.
        if any(facts[6]) and not _has_gradient(side.points):
            side.points = side.points.detach().requires_grad_()
        if any(facts[8]) and side.weights is not None and not _has_gradient(side.weights):
            side.weights = side.weights.detach().requires_grad_()


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _wide(tensor: Tensor) -> Tensor:
    """Half precision as float32, which every backend can send."""
    return tensor.to(working_dtype(tensor))
