"""The peer's statistic is that of its paper's formula, and it finds what it should."""

import pytest
import torch
from benchmarks.kernel_likelihood_ratio import OF_SECOND, likelihood_ratio_test, statistics
from torch.testing import assert_close


def rows(n, d, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, d, generator=generator, dtype=torch.float64)


def plain(kernel, n, ridge):
    """The statistic with features, moments and roots written out."""
    x, y = kernel[:, :n], kernel[:, n:]
    second = x @ x.mT / n, y @ y.mT / n
    pool = (1 - OF_SECOND) * second[0] + OF_SECOND * second[1]
    values, vectors = torch.linalg.eigh(pool)
    root = (vectors / (values + ridge).sqrt()) @ vectors.mT
    found = torch.linalg.eigvalsh(root @ (pool - second[1]) @ root)
    assert (found.min() < -1) == (ridge < 1e-2)
    return float(found.clamp(min=-1).square().sum())


@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
def test_the_statistic_is_that_of_the_formula(ridge):
    points = torch.cat([rows(12, 30, 0), rows(12, 30, 1, 1.2)])
    kernel = (-torch.cdist(points, points) / 5).exp()
    orders = torch.stack([
        torch.arange(24), torch.cat([torch.arange(12, 24), torch.arange(12)])
    ])  # fmt: skip
    for order, found in zip(orders, statistics(kernel, ridge, 12, orders), strict=True):
        assert_close(found, plain(kernel[order][:, order], 12, ridge), rtol=1e-6, atol=0)


def test_it_finds_a_larger_spread_and_no_difference_where_there_is_none():
    def rejected(scale, squared):
        sides = rows(30, 60, 2), rows(30, 60, 3, scale)
        generator = torch.Generator().manual_seed(0)
        return likelihood_ratio_test(*sides, generator, 60, squared)

    assert rejected(1.25, False)
    assert rejected(1.25, True)
    assert not rejected(1.0, False)
