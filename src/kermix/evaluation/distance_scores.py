"""Neighbours, kernel distance and Frechet distance of two sets, with error bars."""

import torch
from torch import Tensor

from kermix.evaluation.distances import frechet_of_moments, kernel_distance
from kermix.evaluation.neighbours import neighbour_scores
from kermix.evaluation.parts import PARTS, jackknife, needed_rows
from kermix.evaluation.reading import JudgedData
from kermix.evaluation.result import Score

__all__ = ["distance_scores", "neighbour_scores_of"]

NEIGHBOUR_ROWS = 5000
FEW_DIMENSIONS, MOST_DIMENSIONS = 256, 2048  # of the Frechet distance: for error bars, and at all
WANTED = 0.01

READINGS = {
    "precision": "share of fake rows that lie among real ones: quality; near 1 its error bar is "
    "rough",
    "recall": "share of real rows that lie among fake ones: variety; near 1 its error bar is "
    "rough",
    "density": "how densely real rows surround a fake one; 1 if equal, less if fake rows lie "
    "outside the data",
    "coverage": "share of real rows with a fake neighbour; low if modes are missing",
    "kid": "squared distance of means with the cubic kernel, 0 if equal; unbiased, so it may be "
    "negative",
    "frechet": "distance of the Gaussians of both sets, 0 if equal; grows as rows become fewer",
}


def neighbour_scores_of(data: JudgedData, neighbours: int, seed: int) -> list[Score]:
    """Precision, recall, density and coverage of as many rows of each set."""
    rows = min(data.n, len(data.fake), NEIGHBOUR_ROWS)
    if rows <= neighbours:
        return []
    real, fake = (_some(s, rows, seed) for s in (data.real, data.fake))
    found = neighbour_scores(real, fake, neighbours, seed)
    if_same = {"density": 1.0, "coverage": _coverage_if_same(rows, neighbours)}
    return [
        Score(name, name, "neighbours", value, error, None, if_same.get(name), None, rows,
              max(1000, needed_rows(rows, WANTED, error)), READINGS[name])
        for name, value, error in zip(found._fields[:4], found[:4], found.errors, strict=True)
    ]  # fmt: skip


def _coverage_if_same(rows: int, neighbours: int) -> float:
    """The probability that not all k nearest of 2 n - 1 other rows are real (Naeem et al.)."""
    none = 1.0
    for i in range(neighbours):
        none *= (rows - 1 - i) / (2 * rows - 1 - i)
    return 1 - none


def distance_scores(data: JudgedData, seed: int) -> list[Score]:
    """Kernel distance, and the Frechet distance where there are not too many dimensions."""
    rows = min(data.n, len(data.fake))
    kid = kernel_distance(data.real, data.fake, seed=seed)
    scale = max(abs(kid.value), kid.error, 1e-300)
    found = [
        Score("kid", "KID (cubic kernel)", "distances", kid.value, kid.error, None, 0.0, None,
              rows, needed_rows(rows, 0.1 * scale, kid.error), READINGS["kid"])
    ]  # fmt: skip
    if data.points.shape[1] <= MOST_DIMENSIONS and rows >= 2 * PARTS:
        found.append(_frechet(data, rows, seed))
    return found


def _frechet(data: JudgedData, rows: int, seed: int) -> Score:
    parts = PARTS if data.points.shape[1] <= FEW_DIMENSIONS else 2
    centre = data.real.mean(0)
    sums = [_sums(_some(s, rows, seed) - centre, parts) for s in (data.real, data.fake)]

    def value_of(left_out: int | None) -> float:
        sides = [_moments([p for k, p in enumerate(s) if k != left_out]) for s in sums]
        return frechet_of_moments(*sides[0], *sides[1])

    value = value_of(None)
    told = jackknife(value, [value_of(k) for k in range(parts)])
    return Score(
        "frechet", "Frechet distance", "distances", value, told.error, None,
        max(0.0, -told.bias), None, rows,
        needed_rows(rows, 0.1 * max(value, 1e-300), told.error, told.bias), READINGS["frechet"],
    )  # fmt: skip


def _sums(points: Tensor, parts: int) -> list[tuple[int, Tensor, Tensor]]:
    return [(len(p), p.sum(0), p.mT @ p) for p in points.tensor_split(parts)]


def _moments(sums: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    count = sum(n for n, *_ in sums)
    mean = torch.stack([first for _, first, _ in sums]).sum(0) / count
    second = torch.stack([second for *_, second in sums]).sum(0)
    return mean, (second - count * torch.outer(mean, mean)) / (count - 1)


def _some(points: Tensor, rows: int, seed: int) -> Tensor:
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    return points[order[:rows].to(points.device)]
