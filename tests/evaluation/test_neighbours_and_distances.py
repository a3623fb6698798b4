"""Precision, recall, density, coverage, KID and Frechet distance: formulas of the papers."""

import functools
import math

import numpy as np
import pytest
import scipy.linalg
import torch

from internals import frechet_distance, kernel_distance, neighbor_scores, neighbor_values
from internals import neighbors_nearest as nearest
from internals import sample_distances_module as module
from kermix.errors import OptionError, ShapeError


def slow_scores(real, fake, k):
    """Point by point, as the papers define it."""

    def radius(points, i):
        return sorted(math.dist(points[i], p) for p in points)[k]  # the first is itself

    of_real = [radius(real, i) for i in range(len(real))]
    of_fake = [radius(fake, i) for i in range(len(fake))]
    inside = [[math.dist(r, f) < of_real[i] for f in fake] for i, r in enumerate(real)]
    precision = np.mean([any(row[j] for row in inside) for j in range(len(fake))])
    recall = np.mean([any(math.dist(r, f) < of_fake[j] for j, f in enumerate(fake)) for r in real])
    density = sum(sum(row) for row in inside) / (k * len(fake))
    coverage = np.mean([any(row) for row in inside])
    return precision, recall, density, coverage


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("pairs_at_once", [2**23, 64])
def test_scores_are_the_published_ones(k, pairs_at_once):
    rng = np.random.default_rng(k)
    real, fake = rng.normal(size=(40, 3)), rng.normal(size=(33, 3)) * 0.6 + 0.3
    pair = torch.from_numpy(real), torch.from_numpy(fake)
    found, _ = neighbor_values(*pair, k, pairs_at_once)
    assert neighbor_scores(*pair, k)[:4] == tuple(found.tolist())
    assert found.tolist() == pytest.approx(slow_scores(real.tolist(), fake.tolist(), k), abs=1e-12)


def test_equal_distributions_have_density_one_and_nearly_full_coverage():
    x = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0))
    found = neighbor_scores(x[:1500], x[1500:], 5)
    assert found.density == pytest.approx(1, abs=5 * found.errors[2])
    assert found.coverage == pytest.approx(1 - 2**-5, abs=5 * found.errors[3])


def test_a_dropped_mode_lowers_recall_and_coverage_and_an_outlier_precision():
    x = torch.randn(1200, 2, generator=torch.Generator().manual_seed(0))
    x[:300] += 20
    half = neighbor_scores(x[:600], x[600:], 5)
    assert half.coverage == pytest.approx(0.48, abs=0.05)
    assert half.precision > 0.95
    far = x[600:].clone()
    far[:60] += 100
    assert neighbor_scores(x[300:600], far, 5).precision < 0.91


def test_nearest_is_sorted_and_exact_far_from_zero():
    x = torch.arange(10, dtype=torch.float64)[:, None] + 1e8
    distances, places = nearest(x[:3] + 0.25, x, 2)
    assert distances.tolist() == [[0.25, 0.75]] * 3
    assert places.tolist() == [[0, 1], [1, 2], [2, 3]]


def kid_of(x, y):
    """Unbiased squared MMD with loops."""

    def k(a, b):
        return (a @ b / len(a) + 1) ** 3

    m = len(x)
    within = sum(k(s[i], s[j]) for s in (x, y) for i in range(m) for j in range(m) if i != j)
    return within / (m * (m - 1)) - 2 * sum(k(a, b) for a in x for b in y) / m**2


def test_kernel_distance_of_all_samples_is_the_formula():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(25, 4)), rng.normal(size=(25, 4)) + 0.4
    found = kernel_distance(torch.from_numpy(x), torch.from_numpy(y))
    assert found.value == pytest.approx(kid_of(x, y), rel=1e-10)


def test_kernel_distance_over_subsets_is_the_mean_of_the_same_subsets():
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(60, 3))), torch.from_numpy(rng.normal(size=(50, 3)))
    found = kernel_distance(x, y, subsets=7, subset_size=20, seed=5)
    generator = torch.Generator().manual_seed(5)
    values = []
    for _ in range(7):
        a = x[torch.randperm(60, generator=generator)[:20]]
        b = y[torch.randperm(50, generator=generator)[:20]]
        values.append(kid_of(a.numpy(), b.numpy()))
    assert found.value == pytest.approx(np.mean(values), rel=1e-9)
    assert found.spread == pytest.approx(np.std(values), rel=1e-9)


@pytest.mark.parametrize(("other", "shift"), [(100, 0.0), (100, 0.5), (130, 0.0)])
def test_the_standard_error_of_the_kernel_distance_is_about_its_scatter(other, shift):
    scatter, told = [], []
    for seed in range(100):
        x = torch.randn(100 + other, 3, generator=torch.Generator().manual_seed(seed))
        found = kernel_distance(x[:100], x[100:] + shift, subsets=20)
        scatter.append(found.value)
        told.append(found.error)
    assert 0.75 < np.mean(told) / np.std(scatter) < 1.33


def test_of_many_rows_some_tell_the_standard_error_of_the_kernel_distance(monkeypatch):
    x = torch.randn(1800, 3, generator=torch.Generator().manual_seed(0))
    exact = kernel_distance(x[:900], x[900:] + 0.5).error
    few = functools.partial(module._error_of_all, most_rows=300)
    monkeypatch.setattr(module, "_error_of_all", few)
    assert kernel_distance(x[:900], x[900:] + 0.5).error == pytest.approx(exact, rel=0.3)


@pytest.mark.parametrize("dimension", [2, 8])
@pytest.mark.parametrize("few", [1000, 80])  # rows that are split: all, or some
def test_standard_errors_are_the_scatter_over_new_rows_of_both_sets(monkeypatch, dimension, few):
    monkeypatch.setattr(module, "_errors", functools.partial(module._errors, few=few))
    found = []
    for seed in range(50):
        x = torch.randn(240, dimension, generator=torch.Generator().manual_seed(seed))
        found.append(neighbor_scores(x[:120], 0.9 * x[120:] + 0.3, 5))
    scatter = np.std([f[:4] for f in found], axis=0)
    told = np.mean([f.errors for f in found], axis=0)
    # Errors of independent rows are one half of it in two dimensions.
    assert np.all(told > 0.75 * scatter)
    assert np.all(told < 1.6 * scatter)


def test_few_rows_have_finite_standard_errors():
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
    for real, fake in ((x[:3], x[3:6]), (x[:7], x[7:]), (x[:12], x[:12]), (x[:12], x[12:] + 99)):
        errors = neighbor_scores(real, fake, 2).errors
        assert all(math.isfinite(e) and e >= 0 for e in errors)


def test_frechet_distance_is_the_formula_of_gaussians():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)), rng.normal(size=(60, 4)) + 1
    s, t = np.cov(x.T), np.cov(y.T)
    exact = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(
        s + t - 2 * scipy.linalg.sqrtm(s @ t).real
    )
    found = frechet_distance(torch.from_numpy(x), torch.from_numpy(y))
    assert found == pytest.approx(exact, rel=1e-9)
    assert frechet_distance(torch.from_numpy(x), torch.from_numpy(x)) == pytest.approx(0, abs=1e-6)


def test_fewer_samples_than_dimensions_are_fine():
    x = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    assert 0 < frechet_distance(x[:10], x[10:]) < 200


def test_bad_input_is_refused_by_name():
    x = torch.randn(5, 2)
    for call, error, text in (
        (lambda: neighbor_scores(x, x), OptionError, "more samples"),
        (lambda: neighbor_scores(x, x[:, :1]), ShapeError, "dimension"),
        (lambda: kernel_distance(x, x, subset_size=9), OptionError, "smaller set has 5"),
        (lambda: frechet_distance(x[:1], x), OptionError, "two samples"),
    ):
        with pytest.raises(error, match=text):
            call()
