"""Laws of permutation tests: what is chosen does not know the labels, ties are true ties."""

import itertools
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kermix as km
from cases import normal
from internals import EXACT_UP_TO, TILE, distinct_rows, tied, variance_grid
from internals import cost_test_COSTS as COSTS
from kermix.errors import WeightError

FORMS = [(cost, "local") for cost in COSTS] + [(c, "exact") for c in ("svd", "matrix", "vector")]


def shuffled(points, seed):
    return points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))]


def count_at_least(test):
    return round(test.pvalue * (test.permutations + 1))


@pytest.mark.parametrize("n", [1000, 1001, 1700])
def test_scales_do_not_depend_on_the_order_of_points(n):
    points = normal(n, 2)
    again = shuffled(points, 1)
    assert torch.equal(km.choose_variance(points), km.choose_variance(again))
    assert variance_grid(points) == variance_grid(again)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("cost", "form"), FORMS)
def test_the_order_of_rows_changes_nothing(cost, form, weighted):
    x, y = normal(4, 2, seed=0), normal(4, 2, seed=1) + 0.5
    weights = 1 + normal(8, seed=3).abs()
    results = []
    for seed in range(2):
        order_x, order_y = (shuffled(torch.arange(4), seed + k) for k in range(2))
        given = {"weights_x": weights[:4][order_x], "weights_y": weights[4:][order_y]}
        points = x[order_x], y[order_y]
        results.append(km.two_sample_test(*points, cost, form=form, **(given if weighted else {})))
    assert results[0].variances == results[1].variances
    assert results[0].pvalue == results[1].pvalue
    assert results[0].statistics == pytest.approx(results[1].statistics, rel=1e-12)


@pytest.mark.parametrize("cost", ["svd", "vector"])
def test_the_order_of_many_rows_changes_nothing(cost):
    n = EXACT_UP_TO // 2 + 1
    x, y = normal(n, 2, seed=0), normal(n, 2, seed=1)
    first, second = (
        km.two_sample_test(a, b, cost, 0.3, 9)
        for a, b in ((x, y), (shuffled(x, 1), shuffled(y, 2)))
    )
    assert "Nystrom" in first.method
    assert first.method == second.method
    assert first.statistics == pytest.approx(second.statistics, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=4),
    st.lists(st.integers(0, 2), min_size=2, max_size=4),
    st.sampled_from(FORMS),
    st.randoms(use_true_random=False),
)
def test_copies_may_change_places(first, second, cost_and_form, random):
    """Of equal rows on both sides it does not matter which is called x."""
    cost, form = cost_and_form
    x, y = ([[v / 3, v * v / 7] for v in side] for side in (first, second))
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", km.errors.DegenerateDataWarning)
        for _ in range(2):
            random.shuffle(x)
            random.shuffle(y)
            points = (torch.tensor(p, dtype=torch.float64) for p in (x, y))
            values.append(km.two_sample_test(*points, cost, form=form).pvalue)
    assert values[0] == values[1]


@pytest.mark.parametrize(("cost", "form"), FORMS)
def test_pvalues_over_all_labelings_are_exactly_uniform(cost, form):
    """Each labeling of six points is the given one once: the k-th p-value is at least k / 20."""
    points = normal(6, 2)
    counts = []
    for chosen in itertools.combinations(range(6), 3):
        rest = [k for k in range(6) if k not in chosen]
        test = km.two_sample_test(points[list(chosen)], points[rest], cost, form=form)
        counts.append(count_at_least(test))
    assert all(count >= k for k, count in enumerate(sorted(counts), start=1))
    assert max(counts) == 20
    if cost in ("scalar", "mmd", "energy") or form == "local":  # symmetric in x and y
        assert sorted(set(counts)) == list(range(2, 21, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cost", COSTS)
def test_far_more_dimensions_than_points(cost, dtype):
    """Whitened statistics differ in the seventh digit; that is enough to rank them."""
    x, y = normal(20, 2000, seed=0).to(dtype), normal(20, 2000, seed=1).to(dtype)
    assert km.two_sample_test(x, y + 0.2, cost, permutations=199).pvalue <= 0.01
    assert len(set(km.two_sample_test(x, y, cost, permutations=199).null.tolist())) > 190


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("n", [750, EXACT_UP_TO // 2 + 50])
@pytest.mark.parametrize("cost", COSTS)
def test_many_equal_rows_are_never_different(cost, n, offset):
    same = torch.ones(n, 3) + offset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", km.errors.DegenerateDataWarning)
        assert km.two_sample_test(same, same[:-1], cost, permutations=19).pvalue == 1


@pytest.mark.parametrize(("cost", "form"), FORMS)
def test_equal_sets_are_never_different(cost, form):
    x = normal(15, 3) + 100
    assert km.two_sample_test(x, shuffled(x, 1), cost, permutations=19, form=form).pvalue == 1


def test_points_without_any_neighbour_are_all_alike():
    """The Gram matrix is the identity; no 300 of its eigenvectors are better than others."""
    points = normal(400, 2)
    found = [
        km.two_sample_test(points[:250], points[250:], "vector", 1e-9, 39, seed=s).pvalue
        for s in range(3)
    ]
    assert max(found) > 0.05


def exact_energy(x, y):
    def mean(a, b):
        return sum(abs(p - q) for p in a for q in b) / (len(a) * len(b))

    return 2 * mean(x, y) - mean(x, x) - mean(y, y)


@pytest.mark.parametrize("far", [1e10, 1e13, 1e16, 1e100])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 5), (2, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_energy_with_a_far_point_is_ranked_exactly(far, sizes, seed):
    points = normal(8, 1, seed=seed)
    points[seed] = far
    exact = [Fraction(float(p)) for p in points[:, 0]]
    n = sizes[0]
    truth = [
        exact_energy([exact[k] for k in chosen], [exact[k] for k in range(8) if k not in chosen])
        for chosen in itertools.combinations(range(8), n)
    ]
    test = km.two_sample_test(points[:n], points[n:], "energy")
    assert count_at_least(test) == sum(t >= truth[0] for t in truth)
    assert test.statistic == pytest.approx(float(truth[0]), rel=1e-12)


@pytest.mark.parametrize("d", [2, 3, 12])
def test_energy_with_far_points_in_the_plane(d):
    points = normal(8, d, seed=d)
    points[1] *= 1e11
    points[6] = points[1] + 1
    with mpmath.workdps(60):
        exact = [mpmath.matrix([mpmath.mpf(float(v)) for v in p]) for p in points]

        def mean(a, b):
            distances = [mpmath.norm(exact[i] - exact[j]) for i in a for j in b]
            return mpmath.fsum(distances) / (len(a) * len(b))

        truth = []
        for chosen in itertools.combinations(range(8), 4):
            rest = [k for k in range(8) if k not in chosen]
            truth.append(2 * mean(chosen, rest) - mean(chosen, chosen) - mean(rest, rest))
        expected = sum(t >= truth[0] - mpmath.mpf(10) ** -40 for t in truth)
    test = km.two_sample_test(points[:4], points[4:], "energy")
    assert count_at_least(test) == expected


@pytest.mark.parametrize("n", [TILE - 1, TILE, TILE + 1])
def test_energy_statistics_are_their_definition_in_every_tile(n):
    points = normal(n, 2)
    z = torch.full((n,), -1 / (n - n // 3), dtype=torch.float64)
    z[: n // 3] = 1 / (n // 3)
    truth = -(z @ torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") @ z)
    found = km.two_sample_test(points[: n // 3], points[n // 3 :], "energy", permutations=1)
    assert found.statistic == pytest.approx(truth.item(), rel=1e-10)


@pytest.mark.parametrize("cost", ["mmd", "scalar", "energy"])
def test_statistics_of_categories_tie_as_they_should(cost):
    """Against a plain computation whose numbers are far from each other or equal."""
    values = np.array([0.0, 0, 0, 1, 1, 3, 3, 3])
    apart = np.abs(values[:, None] - values)
    matrix = -apart if cost == "energy" else np.exp(-(apart**2) / 2)
    statistics = []
    for chosen in itertools.combinations(range(8), 4):
        x = np.isin(np.arange(8), chosen)
        pp, pq, qq = (matrix[np.ix_(s, t)].mean() for s, t in ((x, x), (x, ~x), (~x, ~x)))
        statistics.append(np.log(pp * qq / pq**2) if cost == "scalar" else pp + qq - 2 * pq)
    statistics = np.round(statistics, 9)
    points = torch.tensor(values)[:, None]
    for k, chosen in enumerate(itertools.combinations(range(8), 4)):
        rest = [j for j in range(8) if j not in chosen]
        test = km.two_sample_test(points[list(chosen)], points[rest], cost, 0.5)
        assert count_at_least(test) == (statistics >= statistics[k]).sum()


def test_ties_are_chains_of_neighbours_within_the_noise():
    values = torch.tensor([5.0, 1.0, 1.0 + 1e-9, 1.0 + 2e-9, 4.0, 1.0 + 4e-9], dtype=torch.float64)
    assert tied(values, 1.5e-9).tolist() == [5.0, 1.0, 1.0, 1.0, 4.0, 1.0 + 4e-9]
    assert torch.equal(tied(values, 0.0), values)
    assert torch.equal(tied(values.flip(0), 1.5e-9), tied(values, 1.5e-9).flip(0))


def test_distinct_rows_come_in_one_order():
    points = torch.tensor([[1.0, 0.0], [2.0, -0.0], [1.0, -0.0], [3.0, 1.0], [2.0, 0.0]])
    kept, place = distinct_rows(points)
    assert len(kept) == 3
    assert torch.equal(points[kept][place], points)
    again = shuffled(points, 0)
    assert torch.equal(again[distinct_rows(again)[0]], points[kept])


def test_weights_of_one_side_are_refused():
    x, y = normal(10, 2, seed=0), normal(10, 2, seed=1)
    with pytest.raises(WeightError, match="no weights of y"):
        km.two_sample_test(x, y, weights_x=x[:, 0].abs())
    with pytest.raises(WeightError, match="no weights of x"):
        km.two_sample_test(x, y, weights_y=x[:, 0].abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_were_divided_are_refused(dtype):
    """With weights that depend on the rows, 10 on each side, energy rejected in 15 % of cases."""
    x, y = normal(12, 2, seed=0), normal(30, 2, seed=1)
    raw = [(1 + normal(k, seed=k).abs()).to(dtype) for k in (12, 30)]
    for size, name in (("sum", "weights_x and weights_y"), ("mean", "weights_x and weights_y")):
        divided = [w / getattr(w, size)() for w in raw]
        with pytest.raises(WeightError, match=f"The {size} of {name} is 1"):
            km.two_sample_test(x, y, weights_x=divided[0], weights_y=divided[1])
    with pytest.raises(WeightError, match="The sum of weights_x is 1"):
        km.two_sample_test(x, y, weights_x=raw[0] / raw[0].sum(), weights_y=raw[1])


def test_equal_weights_are_none_whatever_their_scale():
    x, y = normal(12, 2, seed=0), normal(30, 2, seed=1)
    plain = km.two_sample_test(x, y, "mmd", permutations=99)
    weights = {"weights_x": torch.full((12,), 1 / 12), "weights_y": torch.full((30,), 1 / 30)}
    assert km.two_sample_test(x, y, "mmd", permutations=99, **weights) == plain


def test_the_common_scale_of_weights_does_not_count():
    x, y = normal(12, 2, seed=0), normal(30, 2, seed=1)
    raw = [1 + normal(k, seed=k).abs() for k in (12, 30)]
    first, second = (
        km.two_sample_test(x, y, "mmd", weights_x=w * raw[0], weights_y=w * raw[1])
        for w in (1.0, 2.0**20)
    )
    assert first == second


def test_weights_travel_with_their_rows():
    """Against a loop over all labelings."""
    points, weights = normal(7, 1), 0.5 + normal(7, seed=1).abs()
    matrix = km.gram(points, points, 0.5)
    statistics = []
    for chosen in itertools.combinations(range(7), 3):
        z = weights.clone()
        rest = [k for k in range(7) if k not in chosen]
        z[list(chosen)] /= weights[list(chosen)].sum()
        z[rest] /= -weights[rest].sum()
        statistics.append((z @ matrix @ z).item())
    test = km.two_sample_test(
        points[:3], points[3:], "mmd", 0.5, weights_x=weights[:3], weights_y=weights[3:]
    )
    assert count_at_least(test) == sum(s >= statistics[0] - 1e-12 for s in statistics)
    assert test.statistic == pytest.approx(statistics[0], rel=1e-9)


@pytest.mark.parametrize("cost", COSTS)
def test_labelings_that_leave_a_side_without_weight(cost):
    x, y = normal(4, 1, seed=0), normal(4, 1, seed=1)
    few = torch.tensor([2.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for form in ("local", "exact"):
        test = km.two_sample_test(
            x, y, cost, permutations=39, weights_x=few, weights_y=few, form=form
        )
        assert 0 < test.pvalue <= 1
        assert test.null.isfinite().all()


def exact_divergence(x, y, v):
    def mean(a, b):
        return mpmath.fsum(
            mpmath.exp(-mpmath.mpf(float((p - q).square().sum())) / (4 * a.shape[1] * v))
            for p in a for q in b
        ) / (len(a) * len(b))  # fmt: skip

    return float(mpmath.log(mean(x, x)) + mpmath.log(mean(y, y)) - 2 * mpmath.log(mean(x, y)))


@pytest.mark.parametrize("distance", [1.0, 30.0, 1e3, 1e9])
@pytest.mark.parametrize("v", [1.0, 1e-6])
def test_the_divergence_without_overlap_is_that_of_the_formula(v, distance):
    x, y = normal(3, 2, seed=0), normal(2, 2, seed=1) + distance
    found = km.two_sample_test(x, y, "scalar", v)
    expected = exact_divergence(x, y, v)
    assert found.statistic == pytest.approx(expected, rel=1e-12)
    largest = max(
        exact_divergence(both[list(one)], both[[k for k in range(5) if k not in one]], v)
        for both in [torch.cat([x, y])]
        for one in itertools.combinations(range(5), 3)
    )
    assert max(found.statistic, *found.null.tolist()) == pytest.approx(largest, rel=1e-12)


def test_a_comparison_of_points_without_overlap_is_finite():
    x, y = normal(7, 2, seed=0), normal(5, 2, seed=1) + 50
    for v in (1e-9, 1e-3, 1.0):
        result = km.compare(x, y, v, jackknife_groups=2, permutations=9)
        for m in result.measures:
            numbers = (m.value, m.normalized, m.error, m.if_same)
            assert all(n is None or np.isfinite(n) for n in numbers), m
    # Were both sets one, every point would still be far from every other.
    alike = (
        km.compare(x, y, 1e-9, jackknife_groups=2, permutations=0)
        .measure("cauchy_schwarz")
        .if_same
    )
    assert alike > 1e4
