"""Depths of rows: their numbers one by one, what they see that kernels and columns do not."""

import math

import pytest
import torch

from cases import normal
from internals import (
    DepthStatistics,
    ExchangeableUnits,
    Layout,
    MiddleRanks,
    aggregate_rows,
    evidence,
    legendre,
    mean_evidence,
    nested_sums,
    places_of_names,
)


def units_of(pooled, n, permutations=200):
    return ExchangeableUnits.of(pooled, n, permutations, torch.Generator().manual_seed(0))


def depths(pooled, n, layout=None, scaling="as given"):
    found = DepthStatistics(scaling, layout).values(units_of(pooled, n))
    return {one.name: one.values for one in found}


def evidence_of(depth, units):
    """The evidence of one number of each row, by scores of its ranks."""
    ranks = MiddleRanks.of(depth[:, None], units.reference_shares)(depth[:, None])[:, 0]
    squares = (units.signed @ legendre(2 * ranks - 1, 8)).square().mT
    return mean_evidence(evidence(nested_sums(squares)))


def test_depths_are_the_numbers_that_they_are_called():
    pooled = normal(30, 4, seed=1) * torch.tensor([1.0, 2.0, 0.5, 1.0]).double()
    found, units = depths(pooled, 12), units_of(pooled, 12)
    rows = units.rows
    apart = (rows[:, None] - rows).norm(dim=2)
    centered = rows - rows.mean(0)
    covariance = centered.mT @ centered / 30
    others = ~torch.eye(30, dtype=torch.bool)
    products = (centered @ centered.mT).square() * others
    width = 0.3 * apart[others].std()
    middle = torch.linalg.eigvalsh(covariance).sort().values[1]  # the lower one of two
    inverse = torch.linalg.inv(covariance + 0.1 * middle * torch.eye(4).double())
    wanted = {
        "nearest row": (apart + 1e9 * ~others).amin(1),
        "mean distance": apart.sum(1),
        "Laplace kernel of 0.3 deviations of distances": ((-apart / width).exp() * others).sum(1),
        "norm": centered.square().sum(1),
        "mean squared product": products.sum(1),
        "norm whitened with a ridge of 0.1": ((centered @ inverse) * centered).sum(1),
    }
    assert set(wanted) < set(found)
    for name, depth in wanted.items():
        torch.testing.assert_close(found[name], evidence_of(depth, units), msg=name)


@pytest.mark.parametrize("layout", [None, Layout(1, 2.0, 3)])
def test_depths_do_not_know_the_order_of_rows_nor_see_copies_of_a_row(layout):
    pooled = normal(7, 3, seed=2)
    pooled[:, 2] = (pooled[:, 2] > 0).double()
    pooled = torch.cat([pooled, pooled[:2]])
    order = torch.tensor([2, 0, 3, 1, 8, 5, 7, 4, 6])
    # Of so few rows all labelings are looked at.
    one, other = depths(pooled, 4, layout), depths(pooled[order], 4, layout)
    for name in one:
        torch.testing.assert_close(one[name][0], other[name][0], msg=name)
    assert all(bool(values.isfinite().all()) for values in one.values())


def test_rows_that_are_all_equal_have_one_depth():
    for values in depths(torch.full((20, 2), 5.3).double(), 9).values():
        assert values.eq(values[0]).all()


def test_a_far_row_leaves_the_others_their_depths():
    pooled = normal(60, 40, seed=3)
    pooled[30:] *= 1.3
    pooled[0] = 1e10
    found = aggregate_rows(pooled, 30, permutations=99)
    assert found.different
    assert found.statistics[0].pvalue == 0.01


def autoregressive(correlation, n, d, seed):
    rows = normal(n, d, seed=seed)
    for k in range(1, d):
        rows[:, k] = correlation * rows[:, k - 1] + math.sqrt(1 - correlation**2) * rows[:, k]
    return rows


def test_correlations_of_more_columns_than_rows_are_seen():
    """Every column has the same distribution on both sides, and no pair differs by much."""
    pooled = torch.cat([autoregressive(r, 50, 150, seed) for r, seed in ((0.3, 0), (0.55, 1))])
    found = aggregate_rows(pooled, 50, permutations=99)
    assert found.pvalue == 0.01
    parts = {s.name: s.pvalue for s in found.statistics}
    assert parts["depths of rows"] == 0.01
    assert parts["single columns"] > 0.05


def test_a_thinner_cloud_around_a_common_factor_is_seen():
    generator = torch.Generator().manual_seed(4)
    sides = []
    for share in (0.5, 0.56):
        factor, own = (torch.randn(60, d, generator=generator).double() for d in (1, 200))
        sides.append(math.sqrt(share) * factor + math.sqrt(1 - share) * own)
    assert aggregate_rows(torch.cat(sides), 60, permutations=99).pvalue == 0.01


def test_a_new_category_among_many_columns_is_seen():
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(2, (240, 1), generator=generator).double()
    codes[120:132] = 2.0  # none of 120, and 12 of 120: Fisher's exact test has p = 0.0004
    pooled = torch.cat([normal(240, 12, seed=6), codes], 1)
    names = [f"x{k}" for k in range(12)]
    found = aggregate_rows(
        pooled, 120, places=places_of_names([*names, "code"], 1), layout=Layout(1, 2.7, 13),
        permutations=199,
    )  # fmt: skip
    assert found.different
    assert found.columns[0].column == "code"
