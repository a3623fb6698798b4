"""The aggregate test against one written apart from it: in NumPy, all labelings of few rows."""

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.polynomial.legendre import legval
from scipy.special import log_ndtr, logsumexp
from scipy.stats import rankdata

from internals import aggregate_rows, shares_of_parts

N, FIRST = 13, 4
KERNELS = 5


def rounded(table):
    """To nine digits of the largest number of a row: what is left of others is rounding."""
    unit = np.abs(table).max(-1, keepdims=True) * 1e-9
    return np.round(table / np.where(unit > 0, unit, 1)) * unit


def evidence(statistics):
    roots = np.cbrt(rounded(np.asarray(statistics)).clip(0))
    spread = roots.std(-1, keepdims=True)
    varies = spread > 1e-9 * roots.max(-1, keepdims=True)
    scores = np.where(
        varies, (roots - roots.mean(-1, keepdims=True)) / np.maximum(spread, 1e-99), 0
    )
    return -log_ndtr(-scores)


def together(table, weights=None):
    """Minus the logarithm of the harmonic mean of p-values, of rows that vary if any does."""
    table = np.asarray(table)
    weights = np.ones(len(table)) if weights is None else np.array(weights, float)
    varies = np.ptp(table, axis=1) > 0
    if varies.any():
        table, weights = table[varies], weights[varies]
    return logsumexp(table, axis=0, b=weights[:, None] / weights.sum())


def polynomials(column, order=8):
    places = 2 * (rankdata(column) - 0.5) / len(column) - 1
    return np.array([
        np.sqrt(2 * k + 1) * legval(places, np.eye(order + 1)[k]) for k in range(1, order + 1)
    ])  # fmt: skip


def of_ranks(column, signed, weights):
    squares = (signed @ polynomials(column).T).T ** 2
    return together(evidence([squares[:k].sum(0) for k in (1, 2, 4, 8)]), weights)


def of_pair(a, b, signed):
    products = np.array([p * q for p in polynomials(a, 2) for q in polynomials(b, 2)]).T
    known = np.vstack([np.ones(N), polynomials(a, 4), polynomials(b, 4)]).T
    left = products - known @ np.linalg.lstsq(known, products)[0]
    squares = ((signed @ left) ** 2 / left.var(0)).T
    return together(evidence([squares[0], squares.sum(0)]))


def of_kernels(rows, signed):
    """Statistics of the means, and of the second moments, of Gaussian kernels of one scaling."""
    squares = ((rows[:, None] - rows) ** 2).sum(-1)
    ordered = np.sort(squares, 1)
    coarse = np.quantile(squares[squares > 0], 0.5, method="lower")
    near = np.quantile(ordered[:, int(np.ceil(np.sqrt(N)))], 0.5, method="lower")
    fine, coarse = np.sqrt(min(near, coarse / 2)) / 2, np.sqrt(coarse)
    means, seconds = [], []
    for j, width in enumerate(np.geomspace(fine, coarse, KERNELS)):
        middle = np.eye(N) - 1 / N
        values, vectors = np.linalg.eigh(middle @ np.exp(-squares / width**2) @ middle / N)
        variances, vectors = values[:0:-1].clip(0), vectors[:, :0:-1]  # one is of the constant
        features = vectors * np.sqrt(N * variances)
        deltas = (signed @ features) ** 2
        for ridge in (0.1, 5 / N, 0.5 / N):
            means.append((deltas / (variances + ridge)).sum(1))
        for count in (FIRST, 2 * FIRST):
            means.append((deltas / variances)[:, :count].sum(1))
        if j in (2, 3):
            ones = np.hstack([np.ones((N, 1)), features / np.sqrt(variances + 1e-3)])
            size = np.concatenate([[1], variances / (variances + 1e-3)])
            apart = np.einsum("pn,ni,nk->pik", signed, ones, ones) ** 2
            # All of the thirty and sixty features that are looked at.
            seconds += [(apart / (size[:, None] + size)).sum((1, 2))] * 2
    return means, seconds


def depths(rows):
    """Nearest row, mean distance, mean kernels; norms, plain and whitened, and in the metric."""
    apart = np.sqrt(((rows[:, None] - rows) ** 2).sum(-1))
    others = ~np.eye(N, dtype=bool)
    found = [np.where(others, apart, np.inf).min(1), apart.sum(1)]
    spread = apart[others].std(ddof=1)
    found += [np.where(others, np.exp(-apart / (w * spread)), 0).sum(1) for w in (0.1, 0.3, 1, 3)]
    centered = rows - rows.mean(0)
    covariance = centered.T @ centered / N
    middle = np.linalg.eigvalsh(covariance)[(rows.shape[1] - 1) // 2]
    found += [(centered**2).sum(1), (np.where(others, centered @ centered.T, 0) ** 2).sum(1)]
    for ridge in (0.01, 0.1, 1.0):
        inverse = np.linalg.inv(covariance + ridge * middle * np.eye(rows.shape[1]))
        found.append(((centered @ inverse) * centered).sum(1))
    return found


def reference(rows, n):
    """P-values of each part and of all parts together, over all labelings."""
    sides = [list(side) for side in combinations(range(N), n)]
    signed = np.full((len(sides), N), -1 / (N - n))
    for k, side in enumerate(sides):
        signed[k, side] = 1 / n
    assert sides[0] == list(range(n))  # as given
    standard = (rows - rows.mean(0)) / rows.std(0)
    means, seconds = zip(of_kernels(rows, signed), of_kernels(standard, signed), strict=True)
    columns = [of_ranks(c, signed, (4, 2, 1, 1)) for c in rows.T]
    pairs = [
        of_pair(rows[:, i], rows[:, j], signed) for i, j in combinations(range(len(rows.T)), 2)
    ]
    parts = {
        "mean": together(evidence(np.concatenate(means))),
        "second moments": together(evidence(np.concatenate(seconds))),
        "columns": together(columns),
        "pairs": together(pairs),
        "depths": together([of_ranks(d, signed, (1, 1, 1, 1)) for d in depths(standard)]),
    }
    shares = shares_of_parts(rows.shape[1])
    weighed = {part: np.log(shares[part]) + found for part, found in parts.items()}
    kernels = logsumexp([weighed["mean"], weighed["second moments"]], axis=0)
    tests = {
        "single columns": parts["columns"], "pairs of columns": parts["pairs"],
        "depths of rows": parts["depths"], "kernels of all columns": kernels,
        "all": logsumexp([*weighed.values()], axis=0),
    }  # fmt: skip
    tests = {name: rounded(values) for name, values in tests.items()}
    return {name: float(np.mean(v >= v[0])) for name, v in tests.items()}


@pytest.mark.parametrize("shift", [0.0, 0.8, 2.0])
@pytest.mark.parametrize("n", [3, 4])
def test_pvalues_of_parts_and_of_their_combination(n, shift):
    rng = np.random.default_rng(n + int(10 * shift))
    rows = rng.normal(size=(N, 2)) * [1.0, 3.0]
    rows[:n] += shift * np.array([1.0, -2.0])
    wanted = reference(rows, n)
    found = aggregate_rows(torch.from_numpy(rows), n, permutations=800)
    names = {s.name: s.pvalue for s in found.statistics} | {"all": found.pvalue}
    assert {name: names[name] for name in wanted} == pytest.approx(wanted, abs=1e-9)
