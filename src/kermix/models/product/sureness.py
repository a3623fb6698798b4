"""How sure a classifier's answers may be: scores drawn towards those of the base rate.

With a sureness of 1 the scores of a network are as they are; with 0 its answer is the share of
each class among all rows, whatever the row. In between, it is the logarithms that are in between.
A network that has learned rows by heart is too sure of others; how much too sure is found on rows
that it has not seen.
"""

import torch
from torch import Tensor

__all__ = ["draw_in", "likeliest_sureness"]

HALVINGS = 12  # of the interval from 0 to 1


def draw_in(scores: Tensor, sureness: Tensor | float, rates: Tensor) -> Tensor:
    """Scores between those of the base rates and their own.

    Args:
        scores: Logarithms of probabilities, up to a constant, (..., classes).
        sureness: From 0 to 1.
        rates: The share of each class, (classes,).

    Example:
        >>> even = torch.tensor([0.5, 0.5])
        >>> draw_in(torch.tensor([0.0, 4.0]), 0.25, even).softmax(0)
        tensor([0.2689, 0.7311])
    """
    base = rates.log()
    return base + (scores - base) * sureness


def likeliest_sureness(
    scores: Tensor, labels: Tensor, weights: Tensor | None, rates: Tensor
) -> Tensor:
    """The sureness with which labels are most likely, (): their loss is convex in it.

    Args:
        scores: Of rows that were not seen, (..., classes).
        labels: Their classes, (...).
        weights: Of these rows, (...).
        rates: The share of each class.

    Example:
        >>> scores = torch.tensor([[0.0, 8.0]] * 4)
        >>> labels = torch.tensor([1, 1, 1, 0])  # wrong once in four
        >>> found = likeliest_sureness(scores, labels, None, torch.full((2,), 0.5))
        >>> round(float(draw_in(scores[0], found, torch.full((2,), 0.5)).softmax(0)[1]), 3)
        0.75
    """
    base = rates.log()
    away = scores - base
    right = away.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    low, high = away.new_zeros(()), away.new_ones(())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        chances = (base + away * middle).softmax(-1)
        slope = torch.linalg.vecdot(chances, away) - right
        falls = (slope if weights is None else slope * weights).sum() < 0
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    # A loss that falls, or rises, all the way has its least at an end.
    return torch.where(high == 1, high, low)
