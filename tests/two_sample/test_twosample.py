"""Two-sample tests: exact level, uniform p-values, power where others have none, statistics."""

import math
import warnings

import pytest
import torch
from benchmarks.permutation import four_gaussians
from scipy import stats
from torch.testing import assert_close

import kermix as km
from cases import normal
from internals import (
    NystromFeatures,
    PrincipalFeatures,
    bures_form,
    cauchy_combination,
    energy_distance,
    principal_features,
    pvalues,
    random_labelings,
    variance_grid,
)
from internals import cost_test_COSTS as COSTS
from kermix import GaussianKernel
from kermix.errors import OptionError, SampleError, ShapeError

MOMENT_COSTS = ("svd", "matrix", "vector")


@pytest.mark.parametrize("cost", COSTS)
def test_pvalues_are_uniform_under_the_null(cost):
    found = []
    for seed in range(100):
        x, y = normal(2, 10, 2, seed=seed, dtype=torch.float32)
        found.append(km.two_sample_test(x, y, cost, permutations=99, seed=seed).pvalue)
    # p-values are multiples of 1/100: they cannot be closer to uniform than that. A right test
    # fails for one choice of seeds in twenty; test_twosample_laws counts all labelings.
    assert stats.kstest(found, "uniform").statistic < 1.36 / math.sqrt(100) + 0.01
    level = sum(p <= 0.05 for p in found) / 100
    assert level <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)


@pytest.mark.parametrize("cost", MOMENT_COSTS)
def test_exact_forms_and_one_variance_keep_the_level(cost):
    found = []
    for seed in range(200):
        x, y = normal(2, 10, 1, seed=seed)
        result = km.two_sample_test(
            x, y, cost, 0.3, permutations=39, seed=seed, form="exact", ridge=None
        )
        found.append(result.pvalue)
    assert stats.kstest(found, "uniform").statistic < 1.36 / math.sqrt(200) + 0.025


def test_level_holds_with_groups_of_dependent_points():
    found = []
    for seed in range(300):
        groups = torch.arange(8).repeat_interleave(4)
        x, y = (normal(8, 1, seed=2 * seed + k)[groups] + 0.1 * normal(32, 1, seed=k + 999)
                for k in range(2))  # fmt: skip
        result = km.two_sample_test(
            x, y, "mmd", permutations=39, seed=seed, groups=(groups, groups + 8)
        )
        found.append(result.pvalue)
    assert sum(p <= 0.05 for p in found) / 300 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)


def test_power_where_the_median_heuristic_has_none():
    svd = median = 0
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x, y = four_gaussians(300, 1.0, generator), four_gaussians(300, 0.5, generator)
        svd += km.two_sample_test(x, y, "svd", permutations=39).pvalue <= 0.05
        v = float(km.choose_variance(torch.cat([x, y])))
        median += km.two_sample_test(x, y, "mmd", v, permutations=39).pvalue <= 0.05
    assert svd >= 3
    assert median <= 1


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("form", ["local", "exact"])
def test_every_cost_sees_a_shift_and_repeats_itself(cost, form):
    x, y = normal(40, 2, seed=0), normal(30, 2, seed=1) + 1.5
    first = km.two_sample_test(x, y, cost, permutations=99, seed=3, form=form)
    assert first.pvalue == 0.01
    assert first == km.two_sample_test(x, y, cost, permutations=99, seed=3, form=form)
    assert len(first.null) == 99


def test_scalar_mmd_and_energy_statistics_are_their_definitions():
    x, y = normal(20, 2, seed=0), normal(15, 2, seed=1)
    scalar = km.two_sample_test(x, y, "scalar", 0.5, permutations=9).statistic
    assert scalar == pytest.approx(km.ScalarLoss(0.5)(x, y).item(), rel=1e-9)
    mmd = km.two_sample_test(x, y, "mmd", 0.5, permutations=9).statistic
    k = [km.gram(a, b, 0.5).mean().item() for a, b in ((x, x), (y, y), (x, y))]
    assert mmd == pytest.approx(k[0] + k[1] - 2 * k[2], rel=1e-9)
    energy = km.two_sample_test(x, y, "energy", permutations=9).statistic
    d = [torch.cdist(a, b).mean().item() for a, b in ((x, x), (y, y), (x, y))]
    assert energy == pytest.approx(2 * d[2] - d[0] - d[1], rel=1e-6)


def test_the_exact_svd_statistic_is_one_minus_the_fidelity():
    x, y = normal(20, 2, seed=0), normal(15, 2, seed=1)
    found = km.two_sample_test(x, y, "svd", 0.5, permutations=3, form="exact", ridge=None)
    assert found.statistic == pytest.approx(
        1 - km.svd_cost(x, y, 0.5, normalized=True).item(), abs=1e-3
    )


@pytest.mark.parametrize("sizes", [(25, 25), (40, 20), (15, 60)])
def test_the_exact_matrix_statistic_is_minus_the_normalized_trace(sizes):
    x, y = normal(sizes[0], 2, seed=0), 1.3 * normal(sizes[1], 2, seed=100) + 0.3
    found = km.two_sample_test(x, y, "matrix", 0.3, permutations=3, form="exact", ridge=None)
    truth = km.matrix_cost(x, y, 0.3, normalized=True, ridge=1e-4).item()
    # Features of small moments are left out, and unequal sides have one ridge of their moments.
    assert -found.statistic == pytest.approx(truth, abs=0.02)


# Seen before statistics were divided by the number of points, instead of features: only ranks
# count.
PVALUES_OF_UNEQUAL = {
    ("svd", 40, 20): 68, ("matrix", 40, 20): 32, ("vector", 40, 20): 77,
    ("svd", 15, 60): 48, ("matrix", 15, 60): 160, ("vector", 15, 60): 171,
}  # fmt: skip


@pytest.mark.parametrize(("cost", "n", "m"), PVALUES_OF_UNEQUAL)
def test_exact_pvalues_of_unequal_sizes(cost, n, m):
    x, y = normal(n, 2, seed=0), 1.3 * normal(m, 2, seed=100) + 0.3
    found = km.two_sample_test(x, y, cost, 0.3, 200, form="exact", ridge=None)
    assert found.pvalue == pytest.approx(PVALUES_OF_UNEQUAL[cost, n, m] / 201)


def test_the_local_form_is_the_second_order_of_the_fidelity():
    base = normal(60, 1, seed=0)
    gaps = []
    for step in (0.2, 0.1, 0.05):
        x, y = base + step / 2, base - step / 2
        local, exact = (
            km.two_sample_test(x, y, "svd", 0.5, permutations=1, form=form, ridge=None).statistic
            for form in ("local", "exact")
        )
        # Differences of the moments are 2 D, and 1 - F = sum D^2 / (l_i + l_j).
        gaps.append(abs(local / 4 / exact - 1))
    assert gaps[2] < 0.05
    assert gaps[2] <= gaps[0]


@pytest.mark.parametrize(
    "kernel", [GaussianKernel(0.3), GaussianKernel(0.2, 0.4), km.LaplaceKernel(0.5)], ids=str
)
def test_features_of_many_points_are_those_of_sketches(kernel):
    points = normal(1600, 2)
    pooled, method = principal_features(points, kernel, None, torch.Generator().manual_seed(0))
    assert method.endswith("Nystrom features of 500 landmarks")
    assert_close(pooled.at(points), pooled.features, rtol=0, atol=1e-8)
    if isinstance(kernel, GaussianKernel):
        whole = NystromFeatures(pooled.landmarks, GaussianKernel(0.3))(points)
        leading = torch.linalg.eigvalsh(whole.T @ whole / len(points))[-len(pooled.moments) :]
        assert_close(pooled.moments, leading, rtol=1e-6, atol=1e-10)


def test_the_bures_form_is_its_sum_over_pairs_of_features():
    points = normal(40, 1)
    pooled, _ = principal_features(points, GaussianKernel(0.3), None, torch.Generator())
    phi, moments = pooled.features, pooled.moments
    pairs = phi[:, :, None] * phi[:, None, :]
    weights = 1 / (moments[:, None] + moments)
    truth = torch.einsum("kij,ij,lij->kl", pairs, weights, pairs)
    found = bures_form(phi, phi, moments)
    assert_close(found, truth, rtol=0.02, atol=0.02 * truth.max().item())
    assert isinstance(pooled.whitened(0.1), PrincipalFeatures)


def test_nystrom_features_take_over_for_many_points():
    x, y = normal(1000, 2, seed=0), normal(1000, 2, seed=1)
    result = km.two_sample_test(x, y, variances=0.2, permutations=19)
    assert "Nystrom" in result.method
    shifted = km.two_sample_test(x, y + 0.3, variances=0.2, permutations=19)
    assert shifted.pvalue == 0.05


def test_weights_stand_for_repeated_points():
    x, y = normal(10, 1, seed=0), normal(10, 1, seed=1)
    counts = torch.tensor([1.0, 2, 3, 1, 1, 1, 1, 1, 1, 1], dtype=torch.float64)
    both = {"weights_x": counts, "weights_y": torch.ones_like(counts)}
    weighted = km.two_sample_test(x, y, "mmd", 0.5, permutations=3, **both)
    repeated = km.two_sample_test(
        x.repeat_interleave(counts.long(), 0), y, "mmd", 0.5, permutations=3
    )
    assert weighted.statistic == pytest.approx(repeated.statistic, rel=1e-9)
    for cost in MOMENT_COSTS:
        assert 0 < km.two_sample_test(x, y, cost, permutations=19, **both).pvalue <= 1


def test_labelings_begin_with_the_given_one_and_keep_the_sizes():
    labels = random_labelings(5, 3, 20, torch.Generator().manual_seed(0))
    assert labels[0].tolist() == [True] * 5 + [False] * 3
    assert (labels.sum(1) == 5).all()
    groups = (torch.tensor([0, 0, 1, 1, 1]), torch.tensor([2, 2, 3]))
    labels = random_labelings(5, 3, 50, torch.Generator().manual_seed(0), groups)
    assert labels[0].tolist() == [True] * 5 + [False] * 3
    assert (labels[:, 0] == labels[:, 1]).all()


def test_ties_count_against_the_data():
    assert pvalues(torch.tensor([1.0, 1.0, 0.0, 2.0])).tolist() == [0.75, 0.75, 1.0, 0.25]
    table = torch.tensor([[1.0, 2.0, 3.0], [9.0, 8.0, 7.0]])
    assert_close(cauchy_combination(table[:1]), table[0])
    assert pvalues(cauchy_combination(table))[1] == 1.0


def test_degenerate_data_are_never_different():
    same = torch.ones(10, 2)
    for cost in COSTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", km.errors.DegenerateDataWarning)
            assert km.two_sample_test(same, same, cost, permutations=19).pvalue == 1


def test_variance_grid_spans_fine_and_coarse_structure():
    grid = variance_grid(four_gaussians(500, 1.0, torch.Generator().manual_seed(0)))
    assert len(grid) == 6
    assert grid[0] < 1 < 50 < grid[-1]


def test_bad_requests_say_what_to_do():
    x = normal(10, 2)
    with pytest.raises(OptionError, match="choose one of svd"):
        km.two_sample_test(x, x, "fisher")
    with pytest.raises(OptionError, match="at least 1"):
        km.two_sample_test(x, x, permutations=0)
    with pytest.raises(ShapeError, match="two sets of points"):
        km.two_sample_test(x[None], x[None])
    with pytest.raises(SampleError, match="NaN"):
        km.two_sample_test(x * math.nan, x)
    with pytest.raises(OptionError, match="group 0 has points in x and in y"):
        km.two_sample_test(x, x, groups=(torch.arange(10), torch.arange(10)))
    with pytest.raises(ShapeError, match="3 group labels"):
        km.two_sample_test(x, x, groups=(torch.arange(3), torch.arange(10)))


@pytest.mark.parametrize("cost", COSTS)
def test_autocast_changes_nothing(cost):
    x, y = normal(2, 60, 3, seed=0, dtype=torch.float32)
    expected = km.two_sample_test(x, y + 0.2, cost, permutations=50)
    with torch.autocast("cpu", torch.bfloat16):
        found = km.two_sample_test(x, y + 0.2, cost, permutations=50)
        distance = energy_distance(x, y + 0.2)
    assert (found.statistic, found.pvalue) == (expected.statistic, expected.pvalue)
    assert_close(distance, energy_distance(x, y + 0.2), rtol=0, atol=0)


@pytest.mark.parametrize("cost", COSTS)
def test_weights_of_single_precision(cost):
    x, y = normal(2, 40, 2, seed=0, dtype=torch.float32)
    weights = torch.linspace(1, 2, 40)
    points = x, y + 0.5
    single = km.two_sample_test(*points, cost, 0.5, 50, weights_x=weights, weights_y=weights)
    points, weights = [p.double() for p in points], weights.double()
    double = km.two_sample_test(*points, cost, 0.5, 50, weights_x=weights, weights_y=weights)
    assert single.statistic == pytest.approx(double.statistic, rel=1e-9)
    assert single.pvalue == double.pvalue


def test_arrays_and_whole_numbers_are_taken_as_they_are():
    x, y = (10 * normal(2, 30, 2, seed=3)).round()
    for cost in (None, "mmd"):
        wanted = km.two_sample_test(x, y, cost, permutations=19).pvalue
        for form in (torch.Tensor.numpy, torch.Tensor.long, lambda t: t.numpy().astype(int)):
            assert km.two_sample_test(form(x), form(y), cost, permutations=19).pvalue == wanted
