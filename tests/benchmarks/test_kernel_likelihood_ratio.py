"""The peer's statistics are those of its paper's formulas, and it finds what it should."""

import pytest
import torch
from benchmarks.kernel_likelihood_ratio import (
    KLR,
    OF_SECOND,
    PermutedKernel,
    likelihood_ratio_tests,
)
from torch.testing import assert_close


def rows(n, d, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, d, generator=generator, dtype=torch.float64)


def plain(kernel, n, ridge):
    """Both statistics with features, moments and roots written out."""
    x, y = kernel[:, :n], kernel[:, n:]
    second = x @ x.mT / n, y @ y.mT / n
    pool = (1 - OF_SECOND) * second[0] + OF_SECOND * second[1]
    values, vectors = torch.linalg.eigh(pool)
    root = (vectors / (values + ridge).sqrt()) @ vectors.mT
    apart = root @ (pool - second[1]) @ root
    mean = root @ ((1 - OF_SECOND) * (x.mean(1) - y.mean(1)))
    first = apart.square().sum()
    return torch.stack([first, first + mean.square().sum() / 2])


@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
def test_statistics_are_those_of_the_formulas(ridge):
    points = torch.cat([rows(12, 30, 0), rows(12, 30, 1, 1.2)])
    kernel = (-torch.cdist(points, points) / 5).exp()
    swapped = torch.cat([torch.arange(12, 24), torch.arange(12)])
    found = PermutedKernel.of(kernel, 12, ridge)(torch.stack([torch.arange(24), swapped]))
    for order, statistics in zip((torch.arange(24), swapped), found, strict=True):
        assert_close(statistics, plain(kernel[order][:, order], 12, ridge), rtol=1e-6, atol=0)


def test_it_finds_a_larger_spread_and_no_difference_where_there_is_none():
    def rejected(scale, squared):
        sides = rows(30, 60, 2), rows(30, 60, 3, scale)
        generator = torch.Generator().manual_seed(0)
        return likelihood_ratio_tests(*sides, generator, 60, squared)

    for squared in (False, True):
        assert rejected(1.25, squared) == dict.fromkeys(KLR, True)
    assert rejected(1.0, False) == dict.fromkeys(KLR, False)
