"""Landmarks by blocks of proposals are those of randomly pivoted Cholesky, one at a time."""

import pytest
import torch

import kermix as km
from cases import normal
from internals import random_pivots

V = 0.05


def pivots(points, rank, seed=0, tolerance=None):

    def gram(a, b):
        return torch.exp(-torch.cdist(a.double(), b.double()).square() / (4 * V * a.shape[1]))

    return random_pivots(points, gram, rank, tolerance, torch.Generator().manual_seed(seed))


def left_over(points, chosen):
    """The residual diagonal by a dense factorization of the kernel between the pivots."""
    between = km.gram(points[chosen], points[chosen], V)
    toward = km.gram(points[chosen], points, V)
    return 1 - (toward * torch.linalg.solve(between, toward)).sum(0)


def one_at_a_time(points, rank, seed):
    """The algorithm as it is defined, with the whole Gram matrix."""
    generator = torch.Generator().manual_seed(seed)
    residual, chosen = km.gram(points, points, V), []
    for _ in range(rank):
        shares = residual.diagonal().clamp(min=0)
        at = int(torch.multinomial(shares, 1, generator=generator))
        residual = residual - torch.outer(residual[:, at], residual[at]) / residual[at, at]
        chosen.append(at)
    return torch.tensor(chosen)


@pytest.mark.parametrize("rank", [1, 20, 127, 128, 129, 200])
def test_pivots_are_distinct_and_leave_no_negative_residual(rank):
    points = normal(600, 4, seed=1)
    chosen = pivots(points, rank)
    assert len(chosen.unique()) == len(chosen) == rank
    residual = left_over(points, chosen)
    assert residual.min() > -1e-9
    assert residual[chosen].abs().max() < 1e-9
    assert pivots(points, rank).equal(chosen)
    assert not pivots(points, rank, seed=1).equal(chosen)


def test_as_little_is_left_as_by_one_pivot_at_a_time():
    points = normal(400, 2, seed=2)
    ours, theirs = (
        torch.stack([left_over(points, way(points, 60, seed=s)).mean() for s in range(12)])
        for way in (pivots, one_at_a_time)
    )
    error = (ours.var() / 12 + theirs.var() / 12).sqrt()
    assert (ours.mean() - theirs.mean()).abs() < 4 * error
    assert error < 0.1 * theirs.mean()


def test_pairs_of_pivots_are_as_frequent_as_they_should_be():
    points = torch.tensor([[0.0], [0.15], [0.5]], dtype=torch.float64)
    matrix, count = km.gram(points, points, V), 600
    expected, found = torch.zeros(3, 3), torch.zeros(3, 3)
    for first in range(3):
        residual = 1 - matrix[first].square()
        expected[first] = residual / residual.sum() / 3
    for seed in range(count):
        first, second = pivots(points, 2, seed=seed).tolist()
        found[first, second] += 1 / count
    allowed = 4 * (expected * (1 - expected) / count).sqrt()
    assert ((found - expected).abs() <= allowed + 1e-12).all()


def test_repeated_points_are_chosen_once():
    points = normal(25, 3, seed=3).repeat(20, 1)
    chosen = pivots(points, 100)
    assert len(points[chosen].unique(dim=0)) == len(chosen) == 25
    assert left_over(points, chosen).abs().max() < 1e-9


def test_a_set_without_full_rank_has_fewer_pivots_than_asked_for():
    points = torch.linspace(0, 0.5, 800, dtype=torch.float64).unsqueeze(-1)
    chosen = pivots(points, 300)
    assert len(chosen) < 30
    assert left_over(points, chosen).abs().max() < 1e-6


@pytest.mark.parametrize("tolerance", [0.1, 0.01])
def test_it_stops_at_a_tolerance(tolerance):
    points = normal(1000, 2, seed=4)
    chosen = pivots(points, 1000, tolerance=tolerance)
    assert left_over(points, chosen).mean() <= tolerance
    assert len(chosen) < 400
