"""The costs and mixtures once more, in 50 digits, for small cases: plain formulas, no tricks."""

from collections.abc import Sequence
from typing import Any

import mpmath
from mpmath import mp, mpf

from benchmarks.fuzz.case import Array
from benchmarks.fuzz.inputs import Kernel

__all__ = ["DIGITS", "log_cost", "log_density", "log_inner"]

DIGITS = 50


def log_cost(
    name: str,
    x: Array,
    y: Array,
    kernel: Kernel,
    a: Array | None = None,
    b: Array | None = None,
    normalized: bool = False,
    ridge: float = 0.0,
) -> float:
    """As `benchmarks.fuzz.references.cost`, the logarithm alone."""
    with mp.workdps(DIGITS):
        weighted = a is not None or b is not None
        p, q = _shares(a, len(x)), _shares(b, len(y))
        cross = _kernel(y, x, kernel, "P", name == "logdet" or (normalized and name != "svd"))
        own_f, own_g = _kernel(y, y, kernel, "F"), _kernel(x, x, kernel, "G")
        if name == "scalar":
            value = _mean(cross, q, p) ** 2 / _mean(own_f, q, q)
        elif name == "svd":
            on = weighted or normalized
            left = [mpmath.sqrt(w) if on else mpf(1) for w in q]
            right = [mpmath.sqrt(w) if on else mpf(1) for w in p]
            value = _nuclear(_scaled(cross, left, right))
        else:
            value = _whitened(name, cross, own_f, own_g, p, q, mpf(ridge))
        if normalized and name in ("scalar", "vector"):
            value /= _mean(own_g, p, p)
        elif normalized and name != "svd":
            value /= len(x) if name == "data_fixed" else min(len(x), len(y))
        return float(mpmath.log(value))


def _whitened(name: str, cross: Any, own_f: Any, own_g: Any, p: Any, q: Any, ridge: Any) -> Any:
    scale_x = [mpmath.sqrt(len(p) * w) for w in p]
    scale_y = [mpmath.sqrt(len(q) * w) for w in q]
    f = _ridged(_scaled(own_f, scale_y, scale_y), ridge)
    if name == "vector":
        first = _scaled(cross, scale_y, p) * mpmath.ones(len(p), 1)
        return (first.T * mpmath.lu_solve(f, first))[0]
    both = _scaled(cross, scale_y, scale_x)
    if name == "data_fixed":
        return sum(both[:, j].T * mpmath.lu_solve(f, both[:, j]) for j in range(both.cols))[0]
    g = _ridged(_scaled(own_g, scale_x, scale_x), ridge)
    inner = mpmath.inverse(f) * both * mpmath.inverse(g) * both.T
    if name == "trace":
        return sum(inner[i, i] for i in range(inner.rows))
    # log det(1 - M), by its series where M is so small that 50 digits do not hold 1 - M
    trace = sum(inner[i, i] for i in range(inner.rows))
    if trace < mpf(10) ** (-DIGITS // 2):
        return trace
    return -mpmath.log(mpmath.det(mpmath.eye(inner.rows) - inner))


def log_density(weights: Array, means: Array, covariances: Array, points: Array) -> list[float]:
    """Logarithm of a mixture of Gaussians, covariances (K, d, d), at points (M, d)."""
    with mp.workdps(DIGITS):
        shares = _shares(weights, len(weights))
        components = list(zip(shares, means, covariances, strict=True))
        return [
            float(
                mpmath.log(
                    sum(w * _gaussian(_difference(x, m), _matrix(s)) for w, m, s in components)
                )
            )
            for x in points
        ]


def log_inner(first: Sequence[Array], second: Sequence[Array]) -> float:
    """Logarithm of the inner product of two mixtures, each weights, means and covariances."""
    with mp.workdps(DIGITS):
        total = mpf(0)
        for w, m, s in zip(_shares(first[0], len(first[0])), *first[1:], strict=True):
            for v, n, t in zip(_shares(second[0], len(second[0])), *second[1:], strict=True):
                total += w * v * _gaussian(_difference(m, n), _matrix(s) + _matrix(t))
        return float(mpmath.log(total))


def _gaussian(difference: Any, covariance: Any) -> Any:
    d = covariance.rows
    exponent = (difference.T * mpmath.lu_solve(covariance, difference))[0]
    return mpmath.exp(-exponent / 2) / mpmath.sqrt((2 * mp.pi) ** d * mpmath.det(covariance))


def _difference(a: Array, b: Array) -> Any:
    return mpmath.matrix([mpf(float(s)) - mpf(float(t)) for s, t in zip(a, b, strict=True)])


def _matrix(values: Array) -> Any:
    return mpmath.matrix([[mpf(float(v)) for v in row] for row in values])


def _shares(weights: Array | None, n: int) -> list[Any]:
    if weights is None:
        return [mpf(1) / n] * n
    given = [mpf(float(w)) for w in weights]
    return [w / sum(given) for w in given]


def _kernel(a: Array, b: Array, kernel: Kernel, which: str, unit_norm: bool = False) -> Any:
    d = a.shape[1]
    divisor = d if kernel.per_dimension else 1
    terms = []
    for v_p, v_q in zip(map(mpf, kernel.v_p), map(mpf, kernel.v_q), strict=True):
        total = {"P": v_p + v_q, "F": 2 * v_q, "G": 2 * v_p}[which]
        constant = mpf(1)
        if unit_norm and which == "P":
            constant = (2 * mpmath.sqrt(v_p * v_q) / (v_p + v_q)) ** (mpf(d) / 2)
        terms.append((constant, 2 * divisor * total))
    matrix = mpmath.zeros(len(a), len(b))
    for i, row in enumerate(a):
        for j, column in enumerate(b):
            m = sum((mpf(float(s)) - mpf(float(t))) ** 2 for s, t in zip(row, column, strict=True))
            matrix[i, j] = sum(c * mpmath.exp(-m / s) for c, s in terms) / len(terms)
    return matrix


def _scaled(matrix: Any, left: Any, right: Any) -> Any:
    out = matrix.copy()
    for i in range(out.rows):
        for j in range(out.cols):
            out[i, j] *= left[i] * right[j]
    return out


def _ridged(matrix: Any, ridge: Any) -> Any:
    out = matrix.copy()
    shift = ridge * sum(matrix[i, i] for i in range(matrix.rows)) / matrix.rows
    for i in range(out.rows):
        out[i, i] += shift
    return out


def _mean(matrix: Any, left: Any, right: Any) -> Any:
    return sum(_scaled(matrix, left, right))


def _nuclear(matrix: Any) -> Any:
    top = max(abs(v) for v in matrix)
    small = matrix / top
    if small.rows > small.cols:
        small = small.T
    return top * sum(mpmath.svd_r(small, compute_uv=False))
