"""The costs in NumPy, float64, with explicit differences; with what each entry contributes.

Each reference gives the logarithm of the cost and its derivatives by the logarithms of the
kernel's entries. These say how rounding of the entries changes the value, which is the tolerance,
and give the gradient by the chain rule.
"""

from dataclasses import dataclass, field

import numpy as np

from benchmarks.fuzz.case import Array
from benchmarks.fuzz.inputs import Kernel

__all__ = ["Entries", "Reference", "cost", "gradients", "log_kernel", "squared_distances"]


@dataclass
class Entries:
    """Logarithms of a kernel's entries, and minus their derivatives by half squared distances."""

    log: Array
    slope: Array


@dataclass
class Reference:
    """Logarithm of a cost (of minus it, for the log-determinant) and its sensitivities.

    `by` has the derivatives of the logarithm by those of the entries of `P`, `F` and `G`;
    `blur` how much an error of one unit in what a decomposition returns changes them, and
    `amplification` how many units there are.
    """

    log: float
    by: dict[str, Array] = field(default_factory=dict)
    blur: dict[str, Array] = field(default_factory=dict)
    amplification: float = 1.0
    entries: dict[str, Entries] = field(default_factory=dict)

    def rounding(self) -> float:
        """Relative change of the value when entries are wrong by one unit of rounding."""
        total = 1.0
        for name, g in self.by.items():
            size = np.where(g == 0, 0.0, np.abs(self.entries[name].log))
            total += float(np.sum(np.abs(g) * (1 + size)))
        return total

    def exponent(self) -> float:
        """The largest exponent among the entries that count."""
        used = [np.abs(self.entries[k].log[g != 0]).max(initial=0) for k, g in self.by.items()]
        return float(max(used, default=0.0))


def squared_distances(a: Array, b: Array) -> Array:
    """By differences, the only way that does not cancel."""
    if a.shape[-1] * len(a) * len(b) < 4_000_000:
        return np.square(a[:, None] - b[None]).sum(-1)
    return np.stack([np.square(row - b).sum(-1) for row in a])


def log_kernel(a: Array, b: Array, kernel: Kernel, which: str, unit_norm: bool = False) -> Entries:
    """The averaged kernel of `P` (cross), `F` (centres) or `G` (data)."""
    d = a.shape[-1]
    pairs = zip(kernel.v_p, kernel.v_q, strict=True)
    sums = np.array([{"P": p + q, "F": 2 * q, "G": 2 * p}[which] for p, q in pairs])
    constants = np.zeros(len(sums))
    if unit_norm and which == "P":
        v_p, v_q = np.array(kernel.v_p), np.array(kernel.v_q)
        constants = d / 2 * np.log(2 * np.sqrt(v_p / (v_p + v_q) * (v_q / (v_p + v_q))))
    rates = 1 / sums / (d if kernel.per_dimension else 1)
    m = squared_distances(a, b)
    logs = constants[:, None, None] - m * rates[:, None, None] / 2
    top = logs.max(0)
    shares = np.exp(logs - top)
    log = top + np.log(shares.mean(0))
    slope = (shares * rates[:, None, None]).sum(0) / shares.sum(0)
    return Entries(log, slope)


def cost(
    name: str,
    x: Array,
    y: Array,
    kernel: Kernel,
    a: Array | None = None,
    b: Array | None = None,
    normalized: bool = False,
    ridge: float = 0.0,
) -> Reference:
    """One of "scalar", "vector", "trace", "data_fixed", "logdet", "svd" for one pair of sets.

    Args:
        name: Which cost.
        x: Data, (N, d).
        y: Centres, (K, d).
        kernel: The variances.
        a: Weights of the data, None if none were given.
        b: Weights of the centres.
        normalized: Divided by its bound, with Gaussians of unit norm.
        ridge: Relative to the diagonal.
    """
    weighted = a is not None or b is not None
    p = np.full(len(x), 1 / len(x)) if a is None else a / a.max() / (a / a.max()).sum()
    q = np.full(len(y), 1 / len(y)) if b is None else b / b.max() / (b / b.max()).sum()
    entries = {"P": log_kernel(y, x, kernel, "P", _unit_norm(name, normalized))}
    if name != "svd":
        entries["F"] = log_kernel(y, y, kernel, "F")
    if name in ("trace", "logdet") or (normalized and name in ("scalar", "vector")):
        entries["G"] = log_kernel(x, x, kernel, "G")
    if name == "scalar":
        answer = _scalar(entries, p, q)
    elif name == "svd":
        answer = _svd(entries, p, q, normalized or weighted)
    elif name == "vector":
        answer = _vector(entries, p, q, ridge)
    else:
        answer = _matrix(name, entries, p, q, ridge)
        if normalized:
            answer.log -= np.log(len(x) if name == "data_fixed" else min(len(x), len(y)))
    answer.entries = entries
    if normalized and name in ("scalar", "vector"):
        log_norm, share = _log_mean(entries["G"].log, p, p)
        answer.log -= log_norm
        answer.by["G"] = -share
    return answer


def _unit_norm(name: str, normalized: bool) -> bool:
    # The bound of the SVD cost holds for any variances.
    return name == "logdet" or (normalized and name != "svd")


def _log_mean(log: Array, left: Array, right: Array) -> tuple[float, Array]:
    with np.errstate(divide="ignore"):
        terms = log + np.log(left)[:, None] + np.log(right)[None]
    top = terms.max()
    share = np.exp(terms - top)
    return float(top + np.log(share.sum())), share / share.sum()


def _scalar(entries: dict[str, Entries], p: Array, q: Array) -> Reference:
    cross, share = _log_mean(entries["P"].log, q, p)
    own, own_share = _log_mean(entries["F"].log, q, q)
    return Reference(2 * cross - own, {"P": 2 * share, "F": -own_share})


def _svd(entries: dict[str, Entries], p: Array, q: Array, weighted: bool) -> Reference:
    log = entries["P"].log
    if weighted:
        with np.errstate(divide="ignore"):
            log = log + np.log(q)[:, None] / 2 + np.log(p)[None] / 2
    top = log.max()
    matrix = np.exp(log - top)
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    alive = min((matrix > 0).any(0).sum(), (matrix > 0).any(1).sum())
    smallest = s[alive - 1]
    total = s.sum()
    return Reference(
        float(top + np.log(total)),
        {"P": (u @ vt) * matrix / total},
        {"P": matrix / total},
        float(s[0]) / max(float(smallest), 1e-290),
    )


def _gram(entry: Entries, weights: Array, ridge: float) -> tuple[Array, Array, float]:
    scale = np.sqrt(len(weights) * weights)
    plain = np.exp(entry.log) * scale[:, None] * scale[None]
    matrix = plain + ridge * np.trace(plain) / len(plain) * np.eye(len(plain))
    values = np.linalg.eigvalsh(matrix)
    return matrix, plain, float(values[-1] / max(values[0], 1e-300))


def _cross(entry: Entries, p: Array, q: Array) -> tuple[Array, float]:
    with np.errstate(divide="ignore"):
        log = entry.log + np.log(len(q) * q)[:, None] / 2 + np.log(len(p) * p)[None] / 2
    top = float(log.max())
    return np.exp(log - top), top


def _vector(entries: dict[str, Entries], p: Array, q: Array, ridge: float) -> Reference:
    f, plain, condition = _gram(entries["F"], q, ridge)
    with np.errstate(divide="ignore"):
        log = entries["P"].log + np.log(p)[None] + np.log(len(q) * q)[:, None] / 2
    top = log.max()
    terms = np.exp(log - top)
    first = terms.sum(1)
    w = np.linalg.solve(f, first)
    value = first @ w
    largest = np.abs(w).max()
    return Reference(
        float(2 * top + np.log(value)),
        {"P": 2 * w[:, None] * terms / value, "F": -np.outer(w, w) * plain / value},
        {"P": 2 * largest * terms / value, "F": 2 * largest**2 * plain / value},
        condition,
    )


def _matrix(name: str, entries: dict[str, Entries], p: Array, q: Array, ridge: float) -> Reference:
    cross, top = _cross(entries["P"], p, q)
    f, plain_f, condition = _gram(entries["F"], q, ridge)
    solved = np.linalg.solve(f, cross)  # F^-1 P
    if name == "data_fixed":
        value = float((cross * solved).sum())
        by = {"P": 2 * solved, "F": -solved @ solved.T}
        return _collected(2 * top + np.log(value), value, by, cross, plain_f, None, condition)
    g, plain_g, other = _gram(entries["G"], p, ridge)
    condition = max(condition, other)
    inner = np.linalg.solve(g, cross.T).T  # P G^-1
    if name == "trace":
        both = np.linalg.solve(f, inner)  # F^-1 P G^-1
        value = float((both * cross).sum())
        by = {"P": 2 * both, "F": -both @ solved.T, "G": -both.T @ inner}
        return _collected(2 * top + np.log(value), value, by, cross, plain_f, plain_g, condition)
    size = np.exp(2 * top)
    lf, lg = np.linalg.cholesky(f), np.linalg.cholesky(g)
    whitened = np.linalg.solve(lg, np.linalg.solve(lf, cross).T)
    s2 = np.minimum(
        np.linalg.svd(whitened, compute_uv=False) ** 2, (1 - 1e-16) / max(size, 1e-300)
    )
    value = float((-np.log1p(-size * s2) / size if size > 1e-200 else s2).sum())
    left = np.linalg.inv(f - size * cross @ inner.T)
    right = np.linalg.inv(g - size * cross.T @ solved)
    by = {
        "P": 2 * left @ inner,
        "F": -left @ inner @ solved.T,
        "G": -right @ solved.T @ inner,
    }
    condition /= max(1 - float(size * s2.max()), 1e-16)
    return _collected(2 * top + np.log(value), value, by, cross, plain_f, plain_g, condition)


def _collected(
    log: float,
    value: float,
    by: dict[str, Array],
    cross: Array,
    f: Array,
    g: Array | None,
    condition: float,
) -> Reference:
    matrices = {"P": cross, "F": f} | ({} if g is None else {"G": g})
    return Reference(
        float(log),
        {k: by[k] * m / value for k, m in matrices.items()},
        {k: np.abs(by[k]).max() * np.abs(m) / value for k, m in matrices.items()},
        condition,
    )


def gradients(
    reference: Reference, x: Array, y: Array
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    """Of the logarithm by `x` and by `y`: the gradient, its terms' sizes summed, its blur."""
    by_x, by_y = np.zeros((3, *x.shape)), np.zeros((3, *y.shape))
    sides = {"P": (by_y, y, by_x, x), "F": (by_y, y, by_y, y), "G": (by_x, x, by_x, x)}
    for name, g in reference.by.items():
        left, a, right, b = sides[name]
        slope = reference.entries[name].slope
        blur = reference.blur.get(name, np.zeros_like(g))
        difference = a[:, None] - b[None]
        # Pairs that are closer than the kernel is wide count as if they were that far apart:
        # an error that is small in units of the kernel's width does no harm.
        with np.errstate(divide="ignore"):
            size = np.maximum(np.abs(difference), (slope**-0.5)[..., None])
        for i, (weight, lengths) in enumerate(((g, difference), (np.abs(g), size), (blur, size))):
            terms = (weight * slope)[..., None] * lengths
            sign = -1 if i == 0 else 1
            left[i] += sign * terms.sum(1)
            right[i] += terms.sum(0)
    return tuple(by_x), tuple(by_y)
