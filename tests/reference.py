"""The costs in NumPy, slow and obvious, sharing nothing with the library but the formulas.

Sums are taken in `longdouble` (80 bits on x86, never less than float64): with a small ridge the
matrices to be solved are so ill conditioned that a float64 reference would itself be wrong at the
tolerance of the tests. Only singular values are left to `numpy.linalg`, in float64.

Every cost but the log-determinant is a power of the cross Gram matrix P. So P is divided by its
largest entry, and the logarithm of that entry is added to the logarithm of the cost: the
logarithm is right however far apart the samples are.
"""

from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np

Real = np.longdouble
DEGREE = {"scalar": 2, "vector": 2, "trace": 2, "data_fixed": 2, "logdet": 2, "svd": 1}


@lru_cache(maxsize=16)
def sums_of_squares(a_bytes, b_bytes, d):
    """Remembered because one case asks for several outputs and costs of the same points."""
    a = np.frombuffer(a_bytes).reshape(-1, d).astype(Real)
    b = np.frombuffer(b_bytes).reshape(-1, d).astype(Real)
    return np.stack([((point - b) ** 2).sum(-1) for point in a])


def squared_distances(a, b, per_dimension=True):
    d = a.shape[1]
    total = sums_of_squares(a.tobytes(), b.tobytes(), d)
    return total / d if per_dimension else total


def log_gram(a, b, variances, factors=1.0, per_dimension=True):
    """Log of the average over k of factor_k * exp(-M / (2 variance_k))."""
    m = squared_distances(a, b, per_dimension)
    variances = np.atleast_1d(np.asarray(variances, Real))
    factors = np.broadcast_to(np.asarray(factors, Real), variances.shape)
    total = np.full(m.shape, -np.inf, Real)
    for s, c in zip(variances, factors, strict=True):
        total = np.logaddexp(total, np.log(c) - m / (2 * s))
    return total - np.log(Real(len(variances)))


def gram(a, b, v, per_dimension=True):
    return np.exp(log_gram(a, b, 2 * np.asarray(v, Real), per_dimension=per_dimension))


def cholesky(a):
    lower = np.zeros_like(a)
    for j in range(len(a)):
        lower[j, j] = np.sqrt(a[j, j] - lower[j, :j] @ lower[j, :j])
        lower[j + 1 :, j] = (a[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j]) / lower[j, j]
    return lower


def solve_lower(lower, b):
    x = np.zeros_like(b)
    for i in range(len(b)):
        x[i] = (b[i] - lower[i, :i] @ x[:i]) / lower[i, i]
    return x


def solve_both(lower, b):
    """Solve with a matrix that is given by its Cholesky factor."""
    return solve_lower(lower.T[::-1, ::-1], solve_lower(lower, b)[::-1])[::-1]


def solve(a, b):
    return solve_both(cholesky(a), b)


def log_det(lower):
    """Of a matrix that is given by its Cholesky factor."""
    return 2 * np.log(np.diag(lower)).sum()


def singular_values(a):
    return np.linalg.svd(np.asarray(a, np.float64), compute_uv=False).astype(Real)


def shares(weights, count):
    """Weights that sum to one."""
    w = np.ones(count, Real) if weights is None else np.asarray(weights, Real)
    return w / w.sum()


def cost(
    name,
    x,
    y,
    v,
    v_q=None,
    *,
    weights_x=None,
    weights_y=None,
    ridge=0.0,
    per_dimension=True,
    normalized=False,
    log=False,
):
    """One cost of one pair of samples; `name` is a key of DEGREE."""
    v_p = tuple(np.atleast_1d(np.asarray(v, Real)))
    v_q = v_p if v_q is None else tuple(np.atleast_1d(np.asarray(v_q, Real)))
    samples = tuple(None if t is None else (np.asarray(t, np.float64).tobytes(), t.shape)
                    for t in (x, y, weights_x, weights_y))  # fmt: skip
    # Of equal variances the factor is one.
    scaled = v_q != v_p and (name == "logdet" or (normalized and name != "svd"))
    value, log_value, log_bound = numbers(name, samples, v_p, v_q, ridge, per_dimension, scaled)
    if normalized:
        value, log_value = np.exp(log_value - log_bound), log_value - log_bound
    return float(log_value if log else value)


class Matrices:
    """What the costs of one pair of samples are made of."""

    def __init__(self, samples, v_p, v_q, ridge, per_dimension, scaled):
        x, y, weights_x, weights_y = (
            None if t is None else np.frombuffer(t[0]).reshape(t[1]) for t in samples
        )
        (n, d), k = x.shape, len(y)
        v_p, v_q = np.array(v_p), np.array(v_q)
        a, b = shares(weights_x, n), shares(weights_y, k)

        c = (2 * np.sqrt(v_p * v_q) / (v_p + v_q)) ** (Real(d) / 2) if scaled else Real(1)
        log_p = log_gram(y, x, v_p + v_q, c, per_dimension)
        counted = np.outer(b > 0, a > 0)
        self.shift = log_p[counted].max()
        p = np.zeros_like(log_p)
        p[counted] = np.exp(log_p[counted] - self.shift)
        r_f, r_g = gram(y, y, v_q, per_dimension), gram(x, x, v_p, per_dimension)

        d_f, d_g = np.sqrt(k * b), np.sqrt(n * a)
        self.k_f = d_f[:, None] * r_f * d_f + Real(ridge) * np.eye(k)
        self.k_g = d_g[:, None] * r_g * d_g + Real(ridge) * np.eye(n)
        self.p_w = d_f[:, None] * p * d_g
        self.norm_p = a @ r_g @ a
        self.a, self.b, self.d_f, self.p, self.r_f = a, b, d_f, p, r_f
        self.weighted = weights_x is not None or weights_y is not None

    @cached_property
    def lower_f(self):
        return cholesky(self.k_f)

    @cached_property
    def lower_g(self):
        return cholesky(self.k_g)

    @cached_property
    def whitened(self):
        """Cholesky factors of both blocks divided out of P: the trace cost is its squared norm."""
        return solve_lower(self.lower_g, solve_lower(self.lower_f, self.p_w).T)


@lru_cache(maxsize=2)
def matrices(*case):
    """Remembered because one case asks for several costs of the same points."""
    return Matrices(*case)


@lru_cache(maxsize=2)
def numbers(name, *case):
    """A cost, its logarithm, and that of its bound: one case asks for several outputs of them."""
    m = matrices(*case)
    k, n = m.p.shape
    if name == "scalar":
        value, bound = (m.b @ m.p @ m.a) ** 2 / (m.b @ m.r_f @ m.b), m.norm_p
    elif name == "vector":
        p_1 = m.d_f * (m.p @ m.a)
        value, bound = p_1 @ solve_both(m.lower_f, p_1), m.norm_p
    elif name == "trace":
        value, bound = (m.whitened**2).sum(), min(n, k)
    elif name == "data_fixed":
        value, bound = (m.p_w * solve_both(m.lower_f, m.p_w)).sum(), n
    elif name == "svd" and not m.weighted:
        value, bound = singular_values(m.p).sum(), np.sqrt(Real(n) * k)
    elif name == "svd":
        value, bound = singular_values(np.sqrt(m.b)[:, None] * m.p * np.sqrt(m.a)).sum(), 1
    else:
        return *log_det_cost(m), Real(0)
    log_value = DEGREE[name] * m.shift + np.log(value)
    return np.exp(log_value), log_value, np.log(Real(bound))


def log_det_cost(m):
    """Log-determinant of the joint matrix minus those of its blocks, times exp(shift) in P.

    And the logarithm of its size.
    """
    s2 = singular_values(m.whitened) ** 2
    if s2.max() * np.exp(2 * m.shift) > 1e-3:
        p_w = m.p_w * np.exp(m.shift)
        joint = np.block([[m.k_f, p_w], [p_w.T, m.k_g]])
        value = log_det(cholesky(joint)) - log_det(m.lower_f) - log_det(m.lower_g)
        return value, np.log(-value)
    # The determinants of the joint matrix and of its blocks cancel: log(1 - s^2) is small.
    if s2.max() * np.exp(2 * m.shift) > 1e-25:
        log_minus = np.log(-np.log1p(-s2 * np.exp(2 * m.shift)).sum())
    else:
        log_minus = 2 * m.shift + np.log(s2.sum())
    return -np.exp(log_minus), log_minus


def frobenius_cost(x, y, v):
    p = gram(y, x, v)
    return float(np.trace(p @ p.T))


def distance_nuclear_cost(x, y):
    return float(singular_values(squared_distances(y, x)).sum())


def vector_weights(x, y, v, *, weights_x=None, ridge=0.0):
    p_1 = gram(y, x, v) @ shares(weights_x, len(x))
    return solve(gram(y, y, v) + Real(ridge) * np.eye(len(y)), p_1).astype(float)


def nonnegative_weights(x, y, v, *, weights_x=None, ridge=0.0):
    """The best of all choices of which weights are positive; for a few centres only."""
    p_1 = gram(y, x, v) @ shares(weights_x, len(x))
    r_f = gram(y, y, v) + Real(ridge) * np.eye(len(y))
    best, lowest = np.zeros(len(y), Real), Real(0)
    for size in range(1, len(y) + 1):
        for chosen in map(list, combinations(range(len(y)), size)):
            w = np.zeros(len(y), Real)
            w[chosen] = solve(r_f[np.ix_(chosen, chosen)], p_1[chosen])
            objective = w @ r_f @ w - 2 * w @ p_1
            if (w >= 0).all() and objective < lowest:
                best, lowest = w, objective
    return (best / best.sum()).astype(float)


def median_bandwidth(x, per_dimension=True):
    m = squared_distances(x, x, per_dimension)
    pairs = m[np.triu_indices(len(x), 1)].astype(float)
    return float(np.median(pairs[pairs > 0]) / 2)


def silverman_bandwidth(x, per_dimension=True, ddof=0):
    n, d = x.shape
    h2 = (4 / (n * (d + 2))) ** (2 / (d + 4)) * x.var(axis=0, ddof=ddof).mean()
    return float(h2 / d if per_dimension else h2)
