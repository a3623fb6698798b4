"""A subset that depends on the points alone: neither their order nor their place counts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from internals import symmetric_subset


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (50, 3), (1500, 20), (2**20 // 700, 701)])
@pytest.mark.parametrize("count", [1, 17, 5000])
def test_the_order_of_points_does_not_count(dtype, n, d, count):
    generator = torch.Generator().manual_seed(n)
    points = torch.randn(n, d, generator=generator).to(dtype)
    shuffled = points[torch.randperm(n, generator=generator)]
    chosen, again = (p[symmetric_subset(p, count)] for p in (points, shuffled))
    assert len(chosen) == min(n, count)
    assert torch.equal(chosen, again)


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=40), st.integers(0, 40), st.randoms())
def test_copies_are_harmless(values, count, random):
    shuffled = values.copy()
    random.shuffle(shuffled)
    first, second = (torch.tensor(v, dtype=torch.float64)[:, None] for v in (values, shuffled))
    indices = symmetric_subset(first, count)
    assert len(set(indices.tolist())) == min(count, len(values))
    assert torch.equal(first[indices], second[symmetric_subset(second, count)])


def test_copies_are_chosen_one_by_one():
    """Were all copies chosen together, categorical data would give subsets of one value."""
    points = torch.arange(4.0).repeat(1000)[:, None]
    shares = points[symmetric_subset(points, 1000)].flatten().long().bincount(minlength=4)
    assert shares.sum() == 1000
    assert (shares - 250).abs().max() < 60


def test_the_zeros_of_both_signs_and_dtypes_are_one():
    zeros = torch.tensor([[0.0, 1.0], [2.0, -0.0], [3.0, 0.5]])
    expected = symmetric_subset(zeros, 3)
    assert torch.equal(symmetric_subset(-(-zeros + 0.0), 3), expected)
    assert torch.equal(symmetric_subset(zeros.abs(), 3), expected)
    assert torch.equal(symmetric_subset(zeros.double(), 3), expected)


def test_choices_look_random():
    """A sorted grid, neighbours in the last bit alone: chosen evenly, and anew for each seed."""
    points = torch.linspace(0, 1, 10_000, dtype=torch.float64)[:, None]
    chosen = [points[symmetric_subset(points, 1000, seed)].flatten() for seed in range(20)]
    means = torch.stack([c.mean() for c in chosen])
    assert (means - 0.5).abs().max() < 4 * 0.29 / 1000**0.5
    assert means.std() > 0.003
    deciles = torch.cat(chosen).mul(10).long().clamp(max=9).bincount(minlength=10)
    assert (deciles - 2000).abs().max() < 5 * 1800**0.5
    order = chosen[0].argsort().double()
    assert torch.corrcoef(torch.stack([order[1:], order[:-1]]))[0, 1].abs() < 0.15


def test_columns_are_told_apart():
    points = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    seeds = range(64)
    assert 10 < sum(int(symmetric_subset(points, 1, s)) for s in seeds) < 54
