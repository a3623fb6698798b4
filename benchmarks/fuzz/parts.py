"""Random calls of what costs are made of: kernels, bandwidths, norms, weights, decompositions."""

from typing import Any

import numpy as np
import torch

import kermix as km
from benchmarks.fuzz.case import RELATIVE, Case, precision
from benchmarks.fuzz.costs import array
from benchmarks.fuzz.inputs import draw_pair
from benchmarks.fuzz.references import log_kernel, squared_distances
from kermix.paper import generation as ablations

__all__ = ["best_weights", "choose_variance", "decompose", "gram", "nuclear_norm"]


def gram(case: Case) -> None:
    """The Gram matrix entry by entry, and the ablations made of it."""
    pair = draw_pair(case, weighted=False, batches=False)
    x, y = array(pair.x), array(pair.y)
    name = case.pick("gram", "gram", "frobenius_cost", "distance_nuclear_cost")
    case.function = name
    unit = precision(pair.coarsest)
    if name == "distance_nuclear_cost":
        got = ablations.distance_nuclear_cost(pair.x, pair.y)
        m = squared_distances(y, x) / x.shape[1]
        want = np.linalg.svd(m, compute_uv=False).sum()
        if m.max() * len(x) * len(y) < torch.finfo(pair.dtype).max / 16:
            case.finite(got)
            case.close(got, want, (RELATIVE[pair.coarsest] + 64 * unit) * want)
        return
    entries = log_kernel(y, x, pair.kernel, "P")
    relative = RELATIVE[pair.coarsest] + 16 * unit * np.minimum(np.abs(entries.log), 1e4)
    if name == "frobenius_cost":
        got = ablations.frobenius_cost(pair.x, pair.y, pair.kernel.argument)
        want = np.exp(2 * entries.log)
        case.finite(got)
        case.close(got, want.sum(), (2 * relative * want).sum() + unit**2)
        return
    got = km.gram(pair.y, pair.x, pair.kernel.argument)
    case.finite(got)
    case.unit(got, dtype=pair.coarsest)
    tiny = torch.finfo(pair.dtype).tiny
    subnormal = (got != 0) & (got.abs() < tiny)
    case.holds(not subnormal.any(), "subnormal", f"{int(subnormal.sum())} entries")
    case.close(got, np.exp(entries.log), relative * np.exp(entries.log) + tiny)
    same = km.gram(pair.x, pair.x, pair.kernel.argument)
    case.holds((same.diagonal() == 1).all(), "wrong value", "the diagonal is not 1")


def choose_variance(case: Case) -> None:
    """Both rules, also for data without a scale."""
    case.function = "choose_variance"
    pair = draw_pair(case, weighted=False, batches=False)
    rule, per_dimension = case.pick("median", "silverman"), case.chance(0.5)
    case.setting |= {"rule": rule, "per_dimension": per_dimension}
    got = km.choose_variance(pair.x, rule, per_dimension)
    x = array(pair.x)
    n, d = x.shape
    divisor = d if per_dimension else 1
    case.finite(got)
    case.holds(got > 0, "wrong value", f"variance {float(got)}")
    limits = torch.finfo(pair.x.dtype)
    relative = 2 * RELATIVE[pair.x.dtype]
    if rule == "median":
        m = squared_distances(x, x)[np.triu_indices(n, 1)]
        m = np.sort(m[m > 0]) / divisor / 2
        if len(m) == 0 or m[0] < limits.tiny * 1e3 or m[-1] > limits.max / 1e3:
            return
        low, high = m[(len(m) - 1) // 2], m[len(m) // 2]
        inside = low * (1 - relative) <= float(got) <= high * (1 + relative)
        case.holds(inside, "wrong value", f"{float(got):.9g}, expected {low:.9g} to {high:.9g}")
        return
    variance = (x - x[0]).var(0).mean()
    want = (4 / (n * (d + 2))) ** (2 / (d + 4)) * variance / divisor
    if limits.tiny * 1e3 < want < limits.max / 1e3:
        case.close(got, want, relative * want)


def nuclear_norm(case: Case) -> None:
    """The nuclear norm of any matrix; its bounds by polar iteration."""
    case.function = "nuclear_norm"
    rng = case.rng
    dtype, method = case.pick(torch.float64, torch.float32), case.pick("auto", "svd", "polar")
    n, k = (int(v) for v in rng.integers(1, 25, 2))
    matrix = rng.standard_normal((n, k))
    style = case.pick("normal", "low rank", "zero", "diagonal", "repeated", "wide range")
    if style == "low rank":
        matrix = np.outer(rng.standard_normal(n), rng.standard_normal(k))
    elif style == "zero":
        matrix = np.zeros((n, k))
    elif style == "diagonal":
        matrix = np.eye(n, k) * rng.standard_normal()
    elif style == "repeated":
        matrix = np.linalg.qr(matrix)[0]
    elif style == "wide range":
        matrix = matrix * 10 ** rng.uniform(-12, 0, (n, 1))
    given = torch.tensor(matrix * 10 ** rng.uniform(-12, 12)).to(dtype).requires_grad_()
    case.setting |= {"shape": matrix.shape, "style": style, "method": method, "dtype": str(dtype)}
    value, info = km.nuclear_norm(given, method=method, return_info=True)
    want = np.linalg.svd(given.detach().double().numpy(), compute_uv=False).sum()
    relative = RELATIVE[dtype] + (1e-4 if info.method == "polar" else 0)
    case.finite(value)
    case.close(value, want, relative * want)
    if info.method == "polar" and info.error_bound is not None:
        gap, bound = want - float(value.detach()), float(info.error_bound)
        case.holds(
            -relative * 1e-1 * want <= gap <= bound + 32 * precision(dtype) * n * want,
            "certificate violated",
            f"norm exceeds value by {gap:.3g}, bound {bound:.3g}",
        )
    value.backward()
    if given.grad is not None and case.finite(given.grad, "gradient"):
        largest = float(torch.linalg.matrix_norm(given.grad.double(), 2))
        case.holds(largest < 1 + 1e-3, "wrong gradient", f"spectral norm {largest}")


def best_weights(case: Case) -> None:
    """The weights of the vector cost minimise the squared error of the two densities."""
    case.function = "vector_weights"
    pair = draw_pair(case, most=15, batches=False)
    ridge, nonnegative = float(10 ** case.rng.uniform(-5, -1)), case.chance(0.25)
    case.setting |= {"ridge": ridge, "nonnegative": nonnegative}
    weights: dict[str, Any] = {"weights_x": pair.weights_x} if pair.weights_x is not None else {}
    got = km.vector_weights(
        pair.x, pair.y, pair.kernel.argument, ridge=ridge, nonnegative=nonnegative, **weights
    )
    case.finite(got)
    if nonnegative:
        total = float(got.double().sum())
        case.holds((got >= 0).all(), "wrong value", "negative")
        case.holds(abs(total - 1) < 16 * RELATIVE[pair.coarsest], "wrong value", f"sum {total}")
        return
    if not pair.kernel.symmetric and len(pair.kernel.v_p) > 1:
        return  # no one constant relates the kernels of different variances
    x, y = array(pair.x), array(pair.y)
    a = np.full(len(x), 1 / len(x))
    if pair.weights_x is not None:
        a = array(pair.weights_x) / array(pair.weights_x).sum()
    f = np.exp(log_kernel(y, y, pair.kernel, "F").log)
    cross = log_kernel(y, x, pair.kernel, "P")
    # Densities have their constants: N(0; v_p + v_q) / N(0; 2 v_q).
    v_p, v_q = pair.kernel.v_p[0], pair.kernel.v_q[0]
    constant = (2 * v_q / (v_p + v_q)) ** (x.shape[1] / 2)
    first = constant * (np.exp(cross.log) * a).sum(1)
    ridged = f + ridge * np.eye(len(f))
    want = np.linalg.solve(ridged, first)
    inverse = np.abs(np.linalg.inv(ridged))
    unit = precision(pair.coarsest)
    exponents = 1 + np.minimum(np.abs(log_kernel(y, y, pair.kernel, "F").log), 50)
    entrywise = inverse @ ((f * exponents) @ np.abs(want) + 50 * first)
    error = RELATIVE[pair.coarsest] * np.abs(want).max() + 16 * unit * entrywise
    case.close(got, want, error)


def decompose(case: Case) -> None:
    """Singular values, and functions at the samples and elsewhere."""
    case.function = "decompose"
    pair = draw_pair(case, most=40, batches=False)
    rank = (
        int(case.rng.integers(1, 1 + min(len(pair.x), len(pair.y)))) if case.chance(0.3) else None
    )
    result = km.decompose(pair.x, pair.y, pair.kernel.argument, rank=rank, **pair.weights())
    case.setting["rank"] = rank
    values = result.singular_values
    case.finite(values)
    x, y = array(pair.x), array(pair.y)
    a = np.full(len(x), 1 / len(x)) if pair.weights_x is None else array(pair.weights_x)
    b = np.full(len(y), 1 / len(y)) if pair.weights_y is None else array(pair.weights_y)
    a, b = a / a.max() / (a / a.max()).sum(), b / b.max() / (b / b.max()).sum()
    entries = log_kernel(x, y, pair.kernel, "P")
    k = np.exp(entries.log) * np.sqrt(a)[:, None] * np.sqrt(b)[None]
    want = np.linalg.svd(k, compute_uv=False)[:rank]
    unit = precision(pair.coarsest)
    rounding = 16 * unit * np.linalg.norm(k * (1 + np.minimum(np.abs(entries.log), 100)))
    tiny = torch.finfo(pair.dtype).tiny * len(x) * len(y)
    error = RELATIVE[pair.coarsest] * want.max() + rounding + tiny
    case.close(values, want, error, "singular values")
    case.unit(values, "singular values", pair.coarsest)
    points = pair.y if case.chance(0.5) else pair.x + float(case.rng.standard_normal())
    for found in (result.left(), result.right(), result.left(points), result.right(points)):
        case.finite(found, "functions")
    if pair.coarsest not in (torch.float64, torch.float32):
        return
    left = array(result.left())
    clear = want > max(error / RELATIVE[pair.coarsest] ** 0.5, 1e-3 * want[0])
    product = (left * a[:, None]).T @ left
    off = np.abs(product - np.eye(len(product)))[np.ix_(clear, clear)].max(initial=0)
    case.holds(off < 1e3 * RELATIVE[pair.coarsest], "wrong value", f"not orthonormal: {off:.3g}")
