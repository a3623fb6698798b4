"""Dependence of two sets of columns: against SciPy, NumPy and hyppo, and in level and power."""

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

import kermix as km
from kermix.errors import OptionError, ShapeError


def rows(seed, count=60, x_columns=2, y_columns=1):
    """Columns of x, and y that depends on the first of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, x_columns))
    return x, np.sin(2 * x[:, :1]) + 0.3 * rng.normal(size=(count, y_columns))


def centred(points, v):
    """Centred Gram matrix, by loops."""
    count, dim = points.shape
    matrix = np.array([
        [np.exp(-((a - b) ** 2).sum() / (4 * dim * v)) for b in points] for a in points
    ])  # fmt: skip
    middle = np.eye(count) - 1 / count
    return middle @ matrix @ middle


def test_measures_are_their_formulas():
    x, y = rows(0, 40)
    v, ridge = (0.4, 0.2), 0.02
    k, m = centred(x, v[0]), centred(y, v[1])
    found = {form: km.dependence(x, y, form=form, v=v, ridge=ridge, permutations=9).statistic
             for form in ("trace", "logdet", "hsic")}  # fmt: skip
    assert found["hsic"] == pytest.approx(np.trace(k @ m) / 40**2, rel=1e-9)
    shrunk = [g @ np.linalg.inv(g + 40 * ridge * np.eye(40)) for g in (k, m)]
    product = shrunk[0] @ shrunk[1]
    assert found["trace"] == pytest.approx(np.trace(product), rel=1e-7)
    assert found["logdet"] == pytest.approx(-np.linalg.slogdet(np.eye(40) - product)[1], rel=1e-7)


def test_correlations_are_those_of_a_generalized_eigenproblem():
    """Kernel canonical correlations, by SciPy, as kernel ICA has them."""
    x, y = rows(1, 30)
    v, ridge = (0.5, 0.3), 0.05
    k, m = centred(x, v[0]), centred(y, v[1])

    # In coordinates of the features: covariances plus the ridge, and between them.
    def features(matrix):
        values, vectors = np.linalg.eigh(matrix)
        kept = values > 1e-10 * values[-1]
        return vectors[:, kept] * values[kept] ** 0.5

    f, g = features(k), features(m)
    c = f.T @ g
    a = f.T @ f + 30 * ridge * np.eye(f.shape[1])
    b = g.T @ g + 30 * ridge * np.eye(g.shape[1])
    left = np.block([[np.zeros((len(a), len(a))), c], [c.T, np.zeros((len(b), len(b)))]])
    right = scipy.linalg.block_diag(a, b)
    correlations = scipy.linalg.eigh(left, right, eigvals_only=True)
    squares = correlations[correlations > 1e-9] ** 2
    trace = km.dependence(x, y, v=v, ridge=ridge, permutations=9).statistic
    logdet = km.dependence(x, y, form="logdet", v=v, ridge=ridge, permutations=9).statistic
    assert trace == pytest.approx(squares.sum(), rel=1e-6)
    assert logdet == pytest.approx(-np.log1p(-squares).sum(), rel=1e-6)


@pytest.mark.parametrize("form", ["trace", "logdet", "hsic"])
def test_independent_gaussians_are_rejected_as_often_as_promised(form):
    """P-values of 200 pairs are uniform: by SciPy's test of Kolmogorov and Smirnov."""
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
        found.append(km.dependence(x, y, form=form, permutations=39, seed=seed).pvalue)
    assert scipy.stats.kstest(found, "uniform").statistic < 0.13
    assert 0.01 <= np.mean(np.array(found) <= 0.05) <= 0.1


@pytest.mark.parametrize("form", ["trace", "logdet", "hsic"])
def test_rotated_mixtures_are_dependent_though_uncorrelated(form):
    """The benchmark of kernel independence: two bimodal sources, turned by 45 degrees."""
    rng = np.random.default_rng(3)
    sources = rng.choice([-1.0, 1.0], size=(150, 2)) + 0.2 * rng.normal(size=(150, 2))
    turn = np.array([[1, -1], [1, 1]]) / 2**0.5
    turned = sources @ turn
    assert scipy.stats.pearsonr(turned[:, 0], turned[:, 1]).pvalue > 0.05
    assert scipy.stats.spearmanr(turned[:, 0], turned[:, 1]).pvalue > 0.05
    assert km.dependence(turned[:, :1], turned[:, 1:], form=form).pvalue <= 0.01
    assert km.dependence(sources[:, :1], sources[:, 1:], form=form).pvalue > 0.05


def test_correlated_gaussians_as_pearson_sees_them():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 1))
    y = 0.6 * x + 0.8 * rng.normal(size=(80, 1))
    assert scipy.stats.pearsonr(x[:, 0], y[:, 0]).pvalue < 0.001
    assert km.dependence(x, y).pvalue <= 0.004


def test_neither_order_nor_scale_matter():
    x, y = rows(4)
    order = np.random.default_rng(0).permutation(len(x))
    first = km.dependence(x, y, permutations=99)
    for other in (km.dependence(x[order], y[order], permutations=99),
                  km.dependence(1000 * x + 7, y / 50, permutations=99)):  # fmt: skip
        assert other.statistic == pytest.approx(first.statistic, rel=1e-6)
    swapped = km.dependence(y, x, permutations=99)
    assert swapped.statistic == pytest.approx(first.statistic, rel=1e-9)
    again = km.dependence(torch.from_numpy(x), torch.from_numpy(y), permutations=99)
    assert again == first


def test_constant_columns_depend_on_nothing():
    x, _ = rows(5)
    with pytest.warns(km.errors.DegenerateDataWarning):
        found = km.dependence(x, np.ones((len(x), 1)), permutations=19)
    assert found.statistic == 0
    assert found.pvalue == 1


def test_what_cannot_be_is_refused():
    x, y = rows(6)
    with pytest.raises(ShapeError, match="equally many rows"):
        km.dependence(x, y[:-1])
    with pytest.raises(OptionError, match="form"):
        km.dependence(x, y, form="other")
    with pytest.raises(OptionError, match="two positive"):
        km.dependence(x, y, v=(0.1, 0.0))
    with pytest.raises(OptionError, match="ridge"):
        km.dependence(x, y, ridge=0)
    with pytest.raises(OptionError, match="3 to 5000"):
        km.dependence(x[:2], y[:2])


def test_hsic_finds_what_that_of_hyppo_finds():
    independence = pytest.importorskip("hyppo.independence")
    for seed in range(3):
        x, y = rows(seed)
        noise = np.random.default_rng(seed + 50).normal(size=y.shape)
        for other in (y, noise):
            theirs = independence.Hsic().test(x, other, reps=199, random_state=0)[1]
            ours = km.dependence(x, other, form="hsic", permutations=199).pvalue
            assert (theirs <= 0.02) == (ours <= 0.02)
