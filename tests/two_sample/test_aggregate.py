"""The aggregate test: exact level, symmetry, ties, what it finds, and its numbers one by one."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import kermix as km
from cases import normal
from internals import (
    ColumnPlace,
    ColumnScores,
    ColumnsScores,
    ColumnStatistics,
    ExchangeableUnits,
    KernelFamilyStatistics,
    Kernels,
    Layout,
    MiddleRanks,
    PairScores,
    _in_own_margins,
    aggregate_rows,
    corrected_pvalues,
    evidence,
    legendre,
    mean_evidence,
    pairs_to_look_at,
    places_of_names,
    ranked_rows,
    round_to_significant,
    smallest_pvalue,
)
from kermix.errors import OptionError, SampleError


def sides_of(pooled, chosen):
    others = [k for k in range(len(pooled)) if k not in chosen]
    return pooled[[*chosen, *others]]


@pytest.mark.parametrize("kind", ["numbers", "ties", "mixed"])
def test_the_level_is_exact_over_all_labelings(kind):
    pooled = normal(6, 2, seed=3)
    layout = None
    if kind == "ties":
        pooled = pooled.round()
    if kind == "mixed":
        pooled, layout = pooled.round(), Layout(1, 2.0, 2)
    found = [
        aggregate_rows(sides_of(pooled, chosen), 2, layout=layout, permutations=40).pvalue
        for chosen in combinations(range(6), 2)
    ]
    assert len(found) == 15
    for level in np.arange(1, 16) / 15:
        assert np.mean(np.array(found) <= level + 1e-9) <= level + 1e-9
    if kind == "numbers":
        # Without ties every p-value comes once: the test wastes nothing.
        assert len(set(found)) == 15


def test_sides_and_order_do_not_matter():
    pooled = normal(8, 3, seed=5)
    found = aggregate_rows(pooled, 4, permutations=100)
    swapped = aggregate_rows(torch.cat([pooled[4:], pooled[:4]]), 4, permutations=100)
    mixed_up = aggregate_rows(pooled[[2, 0, 3, 1, 7, 6, 4, 5]], 4, permutations=100)
    assert found.permutations == math.comb(8, 4) - 1
    for other in (swapped, mixed_up):
        assert other.pvalue == found.pvalue
        assert other.statistic == pytest.approx(found.statistic, rel=1e-8)
        assert {c.column: c.corrected for c in other.columns} == {
            c.column: c.corrected for c in found.columns
        }


def test_equal_rows_are_never_different():
    assert aggregate_rows(torch.ones(40, 3), 20, permutations=50).pvalue == 1
    assert aggregate_rows(torch.full((40, 1), 5.3), 15, permutations=50).pvalue == 1
    one = aggregate_rows(normal(2, 2), 1)
    assert one.pvalue == 1
    assert one.too_few_rows


def test_what_the_given_rows_cannot_tell():
    few = aggregate_rows(normal(6, 1) + torch.tensor([[0.0]] * 3 + [[50.0]] * 3), 3)
    assert few.pvalue == few.smallest_pvalue == 0.1
    assert few.too_few_rows
    assert not few.different
    assert smallest_pvalue(3, 4, 1000) == smallest_pvalue(3, 4, None) == 1 / 35
    assert smallest_pvalue(500, 500, None) == 0
    limited = aggregate_rows(normal(40, 1), 20, permutations=5)
    assert limited.too_few_permutations
    assert not limited.too_few_rows
    assert smallest_pvalue(500, 500, 99) == 0.01


@pytest.mark.parametrize(("n", "m", "d"), [(5, 5, 1), (10, 10, 2)])
def test_the_shift_that_would_have_been_found_is_found(n, m, d):
    found, repetitions = 0, 30
    told = aggregate_rows(normal(n + m, d), n, permutations=19).detectable_shift
    for seed in range(repetitions):
        pooled = normal(n + m, d, seed=seed)
        pooled[n:, 0] += told
        found += aggregate_rows(pooled, n, permutations=99).different
    # Of 0.8 or more, three standard errors below; it was 0.3 to 0.5 of them.
    assert found >= 0.6 * repetitions


def test_a_shift_is_found_in_its_column():
    pooled = normal(160, 6, seed=1)
    pooled[80:, 4] += 0.9
    found = aggregate_rows(pooled, 80, permutations=99)
    assert found.different
    assert found.pvalue == 0.01
    assert found.columns[0].column == "x4"
    assert found.columns[0].corrected == 0.01
    assert found.columns[1].corrected > 0.05
    assert found.rows_used == (80, 80)
    assert not found.too_few_rows


def test_a_pair_is_found_that_no_column_shows():
    pooled = normal(300, 4, seed=2)
    pooled[150:, 1] = 0.8 * pooled[150:, 3] + 0.6 * pooled[150:, 1]
    found = aggregate_rows(pooled, 150, permutations=99)
    assert found.different
    assert found.pairs[0].columns == ("x1", "x3")
    assert found.pairs[0].corrected == 0.01
    assert found.pairs[1].corrected > 0.05
    assert all(c.corrected > 0.05 for c in found.columns)


def test_a_shifted_column_makes_no_pair_different():
    pooled = normal(300, 3, seed=4)
    pooled[:, 1] += 0.7 * pooled[:, 0]
    pooled[150:, 0] += 0.8
    found = aggregate_rows(pooled, 150, permutations=99)
    assert found.columns[0].column == "x0"
    shown = {p.columns: p.corrected for p in found.pairs}
    assert shown["x0", "x2"] > 0.05
    assert shown["x1", "x2"] > 0.05


def test_columns_depend_on_ranks_alone():
    pooled = normal(90, 2, seed=6)
    pooled[40:, 0] += 0.4
    bent = torch.stack([pooled[:, 0].exp(), -(pooled[:, 1] ** 3)], 1)
    found, other = (aggregate_rows(p, 40, permutations=60) for p in (pooled, bent))
    for one, two in zip(found.columns, other.columns, strict=True):
        assert (one.column, one.pvalue, one.corrected) == (two.column, two.pvalue, two.corrected)


def test_names_of_codes_do_not_matter():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(4, (120, 3), generator=generator).double()
    codes[60:, 0] = torch.where(torch.rand(60, generator=generator) < 0.3, 1.0, codes[60:, 0])
    renamed = torch.tensor([7.0, 2.0, 9.0, 0.0])[codes.long()].double()
    layout = Layout(3, 2.5, 3)
    found, other = (
        aggregate_rows(c, 60, layout=layout, permutations=80) for c in (codes, renamed)
    )
    assert {c.column: c.pvalue for c in found.columns} == {
        c.column: c.pvalue for c in other.columns
    }


def test_tables_with_gaps_and_categories():
    rng = np.random.default_rng(0)

    def frame(n, missing, rare):
        table = pd.DataFrame({
            "height": rng.normal(size=n),
            "colour": rng.choice(["red", "green", "blue"], n, p=[0.5, 0.5 - rare, rare]),
            "weight": rng.normal(size=n),
        })  # fmt: skip
        table.loc[rng.random(n) < missing, "weight"] = np.nan
        return table

    def verdict(*frames):
        return km.compare(*frames, permutations=99).verdict

    gone = verdict(frame(150, 0.1, 0.2), frame(150, 0.4, 0.2))
    assert gone.pvalue == 0.01
    assert gone.columns[0].column == "weight"
    assert gone.columns[0].pvalue == 0.01
    coloured = verdict(frame(150, 0.1, 0.1), frame(150, 0.1, 0.35))
    assert coloured.columns[0].column == "colour"
    assert {c.column for c in coloured.columns} == {"height", "colour", "weight"}


def test_blocks_of_many_rows():
    pooled = normal(4001, 1, seed=8)
    equal = aggregate_rows(pooled, 2000, permutations=39)
    pooled[2000:] *= 1.2
    found = aggregate_rows(pooled, 2000, permutations=39)
    assert "blocks" in found.method
    assert found.rows_used == (2000, 2000)
    assert found.pvalue == 1 / 40
    assert equal.pvalue > 0.05


def test_without_a_cost_it_is_the_test():
    x, y = normal(30, 2, seed=0), normal(25, 2, seed=1) + 0.8
    found = km.two_sample_test(x, y, permutations=99)
    assert found.cost == "aggregate"
    assert found.aggregate.pvalue == found.pvalue
    assert found.aggregate.columns[0].corrected <= 0.05
    assert len(found.null) == 99
    assert km.two_sample_test(x, y, "svd", permutations=99).aggregate is None
    assert km.two_sample_test(x, y, variances=0.5, permutations=9).cost == "svd"


def test_groups_change_sides_as_a_whole():
    groups = torch.arange(8).repeat_interleave(5)
    rows = normal(8, 1, seed=3)[groups] + 0.01 * normal(40, 1, seed=4)
    found = aggregate_rows(rows, 20, groups=(groups[:20], groups[20:]), permutations=99)
    assert found.pvalue >= found.smallest_pvalue == 2 / 70


def test_weights_of_rows_count():
    x, y = normal(60, 1, seed=1), normal(60, 1, seed=2)
    pooled = torch.cat([x, y])
    same = aggregate_rows(pooled, 60, permutations=99).pvalue
    weights = torch.cat([(2 * x[:, 0]).exp(), (-2 * y[:, 0]).exp()])
    assert same > 0.05
    assert aggregate_rows(pooled, 60, weights=weights, permutations=99).pvalue <= 0.02


def test_what_is_refused():
    x = normal(10, 2)
    with pytest.raises(OptionError, match="level"):
        aggregate_rows(x, 5, level=1.5)
    with pytest.raises(OptionError, match="permutations"):
        aggregate_rows(x, 5, permutations=0)
    with pytest.raises(OptionError, match="weights"):
        aggregate_rows(normal(20_001, 1), 5, weights=torch.ones(20_001))
    with pytest.raises(SampleError):
        km.two_sample_test(x * math.nan, x)


def test_legendre_polynomials_are_orthonormal():
    nodes, weights = np.polynomial.legendre.leggauss(20)
    found = legendre(torch.from_numpy(nodes), 8).numpy()
    assert_close(torch.from_numpy((found.T * weights / 2) @ found), torch.eye(8).double())
    by_numpy = np.polynomial.legendre.legval(nodes, [0, 0, 0, 1]) * math.sqrt(7)
    assert np.allclose(found[:, 2], by_numpy)


def test_scores_of_ranks_and_of_categories():
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 9.0, 9.0, 9.0, 4.0, 5.0, 6.0, 7.0, 8.0]).double()
    rows, shares = values[:, None], torch.full((12,), 1 / 12).double()
    scores = ColumnScores.of(ColumnPlace("a", 0, None), rows, shares)
    middle = (stats.rankdata(values.numpy()) - 0.5) / 12
    assert np.allclose(scores(rows)[:, 0].numpy(), math.sqrt(3) * (2 * middle - 1))
    outside = scores(torch.tensor([[0.0], [10.0], [3.5]]).double())[:, 0] / math.sqrt(3)
    assert outside[:2].tolist() == [-1, 1]
    assert -0.5 < outside[2] < 0
    codes = torch.tensor([0, 0, 1, 2, 2, 2, 0, 1, 0, 0]).double()[:, None]
    scores = ColumnScores.of(ColumnPlace("c", None, 0), codes, torch.full((10,), 0.1).double())
    signed = torch.tensor([0.2] * 5 + [-0.2] * 5).double()
    statistic = float((signed @ scores(codes)).square().sum())
    table = [[2, 1, 2], [3, 1, 1]]
    # Pearson's, divided by n m / (n + m).
    pearson = stats.chi2_contingency(table, correction=False).statistic
    assert statistic == pytest.approx(pearson / 2.5)


@pytest.mark.parametrize("tied", [False, True])
def test_ranks_of_many_columns(tied):
    reference, others = normal(40, 3, seed=1), normal(25, 3, seed=2)
    if tied:
        reference, others = (2 * reference).round(), (2 * others).round()
    shares = torch.rand(40, generator=torch.Generator().manual_seed(3)).double()
    shares /= shares.sum()
    found = MiddleRanks.of(reference, shares)(torch.cat([others, reference]))
    for k in range(3):
        for row, rank in zip(torch.cat([others, reference])[:, k], found[:, k], strict=True):
            column = reference[:, k]
            wanted = shares[column < row].sum() + shares[column == row].sum() / 2
            assert float(rank) == pytest.approx(float(wanted), abs=1e-12)


def test_scores_of_many_columns_are_those_of_each():
    # More columns than are taken at once, some of few values, some categories.
    rows = normal(60, 70, seed=4)
    rows[:, 5] = (rows[:, 5] > 0).double()
    rows[:, 66] = 2.0
    rows[:, 68:] = rows[:, 68:].abs().round()
    places = places_of_names([f"x{k}" for k in range(70)], codes=2)
    units = ExchangeableUnits.of(rows, 25, 30, torch.Generator().manual_seed(0))
    scores = ColumnsScores(places, units.reference, units.reference_shares)
    found = [*ColumnStatistics(scores).values(units)]
    single = torch.stack([v.values for v in found if v.part == "columns"])
    counted = {v.name: v.values for v in found if v.part == "values"}
    assert sorted(counted) == ["x5", "x68", "x69"]
    assert sorted(scores.alone) == [5, 66, 68, 69]
    assert scores[7] is scores[7]
    for k, place in enumerate(places):
        column = ColumnScores.of(place, units.reference, units.reference_shares)
        assert_close(scores[k](rows), column(rows))
        squares = (units.signed @ column(units.rows)).square().mT
        table = evidence(column.statistics(squares))
        wanted = mean_evidence(table, column.weights(len(table)))
        assert_close(single[k], wanted, atol=1e-9, rtol=1e-9)
        if place.name in counted:
            wanted = mean_evidence(evidence(column.counts(squares)))
            assert_close(counted[place.name], wanted, atol=1e-9, rtol=1e-9)
    pairs = pairs_to_look_at(units, scores)
    assert len(pairs) == 300
    assert all(66 not in pair for pair in pairs)


def test_products_beyond_single_columns():
    rows = normal(200, 2, seed=7)
    shares = torch.full((200,), 1 / 200).double()
    columns = ColumnsScores(places_of_names(["a", "b"]), rows, shares)
    pair = PairScores(columns, [(0, 1)])
    left = pair.beyond(pair(rows), pair(rows), shares)[:, 0]
    main = torch.cat([columns[k](rows)[:, :4] for k in range(2)], 1)
    assert (left.mT @ (main - main.mean(0))).abs().max() / 200 < 1e-6
    assert_close(left.square().mean(0), torch.ones(4).double(), atol=1e-6, rtol=0)


def test_kernel_statistics_by_dense_algebra():
    rows, n, ridge = normal(30, 2, seed=9), 12, 0.02
    units = ExchangeableUnits.of(rows, n, 20, torch.Generator().manual_seed(0))
    plug_in = KernelFamilyStatistics((), [ridge], leading=[5])
    members = list(plug_in.raw_values(units, Kernels("Gaussian", "as given", 3)))
    points = units.rows.numpy()
    assert [m.part for m in members] == ["mean"] * 4 + ["second moments"] * 2 + ["mean"] * 2
    squares = ((points[:, None] - points) ** 2).sum(-1)
    coarse = np.quantile(squares[squares > 0], 0.5, method="lower")
    fine = np.quantile(np.sort(squares, 1)[:, 6], 0.5, method="lower")  # root of 30
    fine, coarse = np.sqrt(fine) / 2, np.sqrt(coarse)
    for bandwidth in (fine, np.sqrt(fine * coarse), coarse):
        gram = np.exp(-squares / bandwidth**2)
        values, vectors = np.linalg.eigh(gram)
        keep = values > 1e-10 * values[-1]
        features = vectors[:, keep] * np.sqrt(values[keep])
        centred = features - features.mean(0)
        covariance = centred.T @ centred / 30
        mean, leading_means, *seconds = (m for m in members if f" {bandwidth:.3g}," in m.name)
        spectrum, axes = np.linalg.eigh(covariance)
        leading = axes[:, ::-1][:, :59]
        variances = spectrum[::-1][:59].clip(0)
        whitened = (centred @ leading) / np.sqrt(variances + 1e-3)
        with_one = np.hstack([np.ones((30, 1)), whitened])[:, :30]
        moments = np.concatenate([[1.0], variances / (variances + 1e-3)])[:30]
        for k in (0, 7):
            signed = units.signed[k].numpy()
            delta = signed @ centred
            inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
            assert float(mean.values[k]) == pytest.approx(delta @ inverse @ delta, rel=1e-6)
            smooth = ((delta @ leading[:, :5]) ** 2 / variances[:5]).sum()
            assert float(leading_means.values[k]) == pytest.approx(smooth, rel=1e-6)
            apart = with_one.T @ (with_one * signed[:, None])
            bures = (apart**2 / (moments[:, None] + moments)).sum()
            for second in seconds[:1]:
                assert float(second.values[k]) == pytest.approx(bures, rel=1e-4)


def test_which_kernels_are_looked_at():
    rows = normal(200, 2, seed=3)

    def scalings(columns):
        found = aggregate_rows(columns, 100, permutations=19).statistics
        names = [s.name for s in found if "columns " in s.name and "kernel" in s.name]
        return {name.split("columns ")[1].split(":")[0] for name in names}

    assert scalings(rows) == {"standardized"}
    assert scalings(rows * torch.tensor([1.0, 3.0])) == {"standardized", "as given"}
    heavy = torch.stack([rows[:, 0], rows[:, 1] ** 5], 1)
    heavy = (heavy - heavy.mean(0)) / heavy.std(0)
    assert scalings(heavy) == {"standardized", "normal scores"}
    far = rows.clone()
    far[0, 0] = 1e200  # whose fourth power is infinite
    assert scalings(far) == {"standardized", "as given", "normal scores"}


def test_corrected_pvalues_by_a_loop():
    table = normal(5, 40, seed=11)
    found = corrected_pvalues(table)
    largest = table.amax(0)
    for k in range(5):
        assert float(found[k]) == pytest.approx(float((largest >= table[k, 0]).double().mean()))
    order = [row[0] for row in ranked_rows(table)]
    assert order == table[:, 0].argsort(descending=True).tolist()


def test_constants_take_nothing_from_the_evidence_of_others():
    generator = torch.Generator().manual_seed(1)
    found = evidence(torch.rand(3, 50, generator=generator, dtype=torch.float64))
    constant = evidence(torch.ones(7, 50).double())
    assert_close(mean_evidence(torch.cat([found, constant])), mean_evidence(found))
    assert_close(mean_evidence(constant), constant[0])
    harmonic = len(found) / found.exp().sum(0)
    assert_close(mean_evidence(found), -harmonic.log())


def test_a_column_that_moved_is_found_among_constant_ones():
    pooled = torch.zeros(60, 40, dtype=torch.float64)
    pooled[:, 3] = normal(60, 1, seed=3)[:, 0]
    alone, among = pooled[:, [3]].clone(), pooled.clone()
    for rows in (alone, among):
        rows[30:, -1 if rows.shape[1] == 1 else 3] += 0.6
    columns = [
        next(s for s in aggregate_rows(rows, 30, permutations=199).statistics
             if s.name == "single columns").pvalue
        for rows in (alone, among)
    ]  # fmt: skip
    assert columns[0] == columns[1]


def test_evidence_is_on_one_scale():
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(40, 4000, generator=generator, dtype=torch.float64).square()
    statistics = torch.stack([wide[0], wide.sum(0), 1e6 * wide[1]])
    found = evidence(statistics)
    scores = -torch.special.ndtri((-found).exp())
    assert_close(scores.mean(1), torch.zeros(3).double(), atol=1e-9, rtol=0)
    # The upper hundredth of one square and of a sum of forty are about as far out.
    far = scores.quantile(0.99, 1)
    assert ((far - stats.norm.ppf(0.99)).abs() < 0.25).all()
    assert_close(evidence(torch.ones(1, 9)), torch.full((1, 9), math.log(2)))
    assert (
        round_to_significant(torch.tensor([1.0, 1.0 + 1e-13, 2.0]).double()).unique().numel() == 2
    )


def test_a_pair_is_not_named_where_each_column_has_only_moved():
    named = 0
    for seed in range(6):
        pooled = normal(100, 2, seed=seed)
        pooled[50:] += 2.5
        found = aggregate_rows(pooled, 50, permutations=59)
        assert all(c.corrected <= 0.05 for c in found.columns)
        named += found.pairs[0].corrected <= 0.05
    assert named <= 2  # it was six


def test_a_pair_is_named_whose_columns_have_moved_and_depend_differently():
    pooled = normal(160, 3, seed=5)
    pooled[80:, 1] = 0.9 * pooled[80:, 0] + 0.3 * pooled[80:, 1]
    pooled[80:] += 2
    found = aggregate_rows(pooled, 80, permutations=99)
    assert found.pairs[0].columns == ("x0", "x1")
    assert found.pairs[0].corrected <= 0.05
    assert found.pairs[1].corrected > 0.05


def test_correlations_of_a_pair_are_those_of_ranks_within_each_side():
    places = places_of_names(["a", "b"])
    rows = [normal(40, 2, seed=0), normal(30, 2, seed=1).exp()]
    shares = [torch.full((len(r),), 1 / len(r), dtype=torch.float64) for r in rows]
    first, second = (_in_own_margins(p, rows, shares) for p in places)
    for k, side in enumerate((slice(0, 40), slice(40, None))):
        between = first[side].mT @ second[side] / len(rows[k])
        assert between[0, 0].item() == pytest.approx(stats.spearmanr(*rows[k].mT.numpy())[0])
        within = first[side].mT @ first[side] / len(rows[k])
        assert_close(within, torch.eye(2).double())


def test_a_single_value_of_a_category_counts_by_itself():
    codes = torch.tensor([[0.0], [1.0], [2.0], [3.0]]).repeat_interleave(
        torch.tensor([200, 120, 72, 8]), 0
    )
    shares = torch.full((400,), 1 / 400, dtype=torch.float64)
    column = ColumnScores.of(ColumnPlace("x", None, 0), codes.double(), shares)
    scores = column(codes.double())
    second = torch.zeros(400, dtype=torch.bool)
    second[:96] = second[200:260] = second[320:356] = second[392:] = True  # all of the last
    squares = (scores[second].mean(0) - scores[~second].mean(0)).square()[:, None]
    p, q = torch.tensor([8 / 400, 8 / 200])
    assert len(column.statistics(squares)) == 3
    assert column.statistics(squares)[-1].item() == pytest.approx((q**2 / (p * (1 - p))).item())
