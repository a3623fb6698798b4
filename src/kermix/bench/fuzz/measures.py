"""Random calls of tests, comparisons, decompositions, sketches and what they are made of."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kermix as km

from .case import RELATIVE, Case, precision
from .costs import array, tolerance
from .inputs import draw_pair, draw_weights
from .references import cost, log_kernel, squared_distances

__all__ = [
    "bandwidth", "best_weights", "compare", "decompose", "gram", "kernel_mixture",
    "large_compare", "large_sketch", "nuclear_norm", "sketch", "two_sample_test",
]  # fmt: skip

# Tests and comparisons compute in float32.
COARSE = RELATIVE[torch.float32]
MEASURED = {"svd": "svd", "matrix": "trace", "vector": "vector", "scalar": "scalar"}


def gram(case: Case) -> None:
    """The Gram matrix entry by entry, and the ablations made of it."""
    pair = draw_pair(case, weighted=False, batches=False)
    x, y = array(pair.x), array(pair.y)
    name = case.pick("gram", "gram", "frobenius_cost", "distance_nuclear_cost")
    case.function = name
    unit = precision(pair.coarsest)
    if name == "distance_nuclear_cost":
        got = km.distance_nuclear_cost(pair.x, pair.y)
        m = squared_distances(y, x) / x.shape[1]
        want = np.linalg.svd(m, compute_uv=False).sum()
        if m.max() * len(x) * len(y) < torch.finfo(pair.dtype).max / 16:
            case.finite(got)
            case.close(got, want, (RELATIVE[pair.coarsest] + 64 * unit) * want)
        return
    entries = log_kernel(y, x, pair.kernel, "P")
    relative = RELATIVE[pair.coarsest] + 16 * unit * np.minimum(np.abs(entries.log), 1e4)
    if name == "frobenius_cost":
        got = km.frobenius_cost(pair.x, pair.y, pair.kernel.argument)
        want = np.exp(2 * entries.log)
        case.finite(got)
        case.close(got, want.sum(), (2 * relative * want).sum() + unit**2)
        return
    got = km.gram(pair.y, pair.x, pair.kernel.argument)
    case.finite(got)
    case.unit(got)
    tiny = torch.finfo(pair.dtype).tiny
    subnormal = (got != 0) & (got.abs() < tiny)
    case.holds(not subnormal.any(), "subnormal", f"{int(subnormal.sum())} entries")
    case.close(got, np.exp(entries.log), relative * np.exp(entries.log) + tiny)
    same = km.gram(pair.x, pair.x, pair.kernel.argument)
    case.holds((same.diagonal() == 1).all(), "wrong value", "the diagonal is not 1")


def bandwidth(case: Case) -> None:
    """Both rules, also for data without a scale."""
    case.function = "bandwidth"
    pair = draw_pair(case, weighted=False, batches=False)
    rule, per_dimension = case.pick("median", "silverman"), case.chance(0.5)
    case.setting |= {"rule": rule, "per_dimension": per_dimension}
    got = km.bandwidth(pair.x, rule, per_dimension)
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
    value, info = km.nuclear_norm.with_info(given, method=method)
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
    weights = {"weights_x": pair.weights_x} if pair.weights_x is not None else {}
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
    rank = int(case.rng.integers(1, 1 + min(len(pair.x), len(pair.y)))) if case.chance(0.3) else None
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
    case.unit(values, "singular values")
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


def sketch(case: Case) -> None:
    """Sketches of small sets: merging, weights, the four costs and their certificates."""
    sizes = (int(case.rng.integers(2, 40)), int(case.rng.integers(2, 40)))
    pair = draw_pair(case, weighted=False, batches=False, unequal=False, sizes=sizes)
    both = torch.cat([pair.x.to(pair.dtype), pair.y.to(pair.dtype)])
    name = case.pick("scalar", "vector", "trace", "svd", "svd", "svd")
    function = km.matrix_cost if name == "trace" else getattr(km, f"{name}_cost")
    case.function = f"Sketch, {function.__name__}"
    rank = int(case.rng.integers(1, len(both) + 1))
    fourier = case.chance(0.1) and len(pair.kernel.v_p) == 1
    if fourier:
        features: Any = km.fourier_features(both.shape[1], pair.kernel.argument, 2 * rank)
    else:
        source = both if case.chance(0.7) else pair.x
        features = km.nystrom_features(source, pair.kernel.argument, rank=rank)
    case.setting |= {"rank": rank, "fourier": fourier, "against": (side := case.pick("sketch", "points"))}
    cut = int(case.rng.integers(1, len(pair.x)))
    weights = draw_weights(case, (len(pair.x),), torch.float64) if case.chance(0.3) else None
    parts = [None, None] if weights is None else [weights[:cut], weights[cut:]]
    try:
        first = km.Sketch(features).update(pair.x[:cut], parts[0])
        first = first + km.Sketch(features).update(pair.x[cut:], parts[1])
    except km.errors.WeightError:
        return  # a half without any weight
    if case.chance(0.05):
        with tempfile.TemporaryDirectory() as folder:
            first = km.Sketch.load(first.save(Path(folder) / "a.safetensors"))
    case.holds(first.count == len(pair.x), "wrong value", f"count {first.count}")
    case.holds(first.mean_residual >= 0, "wrong value", f"residual {float(first.mean_residual)}")
    other = km.Sketch(features).update(pair.y) if side == "sketch" else pair.y
    value, info = function.with_info(first, other, normalized=True)
    case.finite(value)
    if not fourier:
        case.unit(value)
    if fourier or name == "trace" or info.error_bound is None:
        return
    a = None if weights is None else array(weights)
    reference = cost(name, array(pair.x), array(pair.y), pair.kernel, a, normalized=True, ridge=1e-6)
    exactly = np.exp(reference.log)
    error, bound = abs(float(value) - exactly), float(info.error_bound)
    slack = 4 * torch.finfo(value.dtype).eps * (1 + exactly)
    if name == "vector":
        slack += 16 * 2.3e-16 * reference.rounding() * exactly
    case.holds(
        error <= bound + slack, "certificate violated",
        f"error {error:.3g}, bound {bound:.3g}, value {float(value):.9g}",
    )  # fmt: skip
    case.finite(torch.as_tensor(info.error_bound), "error bound")


def large_sketch(case: Case) -> None:
    """The SVD cost beyond the number of points at which sketches begin, and by its method."""
    case.function = "svd_cost, large"
    forced = case.chance(0.6)
    n = int(case.rng.integers(100, 400)) if forced else int(case.pick(4096, 4097))
    tame = not forced
    sizes = (n, n + int(case.rng.integers(0, 2)))
    pair = draw_pair(case, sizes=sizes, batches=False, weighted=forced, tame=tame)
    if tame and case.chance(0.7):  # wide enough for a sketch
        x, y = pair.x.double(), pair.y.double()
        v = float(torch.cat([x, y]).var(0).mean())
        pair.kernel.argument, pair.kernel.v_p, pair.kernel.v_q = v, [v], [v]
        pair.kernel.per_dimension = True
        case.setting |= {"v_p": v, "v_q": v}
    method = "sketch" if forced else "auto"
    if forced and not pair.kernel.symmetric:
        return
    value, info = km.svd_cost.with_info(
        pair.x, pair.y, pair.kernel.argument, method=method, normalized=True, **pair.weights()
    )
    case.setting["method"] = info.method
    case.finite(value)
    case.unit(value)
    if not forced:
        return  # the reference would take a minute
    weights = [None if w is None else array(w) for w in (pair.weights_x, pair.weights_y)]
    reference = cost("svd", array(pair.x), array(pair.y), pair.kernel, *weights, normalized=True)
    error = abs(float(value) - np.exp(reference.log))
    bound = float(info.error_bound) if info.error_bound is not None else 0.0
    slack = tolerance(pair.coarsest, reference) * np.exp(reference.log)
    case.holds(error <= bound + slack, "certificate violated", f"{error:.3g} over {bound:.3g}")


def two_sample_test(case: Case) -> None:
    """A permutation test: p-values, statistics and null distribution."""
    statistic = case.pick("svd", "matrix", "vector", "scalar", "mmd", "energy")
    form, b = case.pick("local", "exact"), int(case.pick(1, 5, 19))
    pair = draw_pair(case, most=30, weighted=False, batches=False, unequal=False)
    case.function = f"two_sample_test {statistic}"
    variances: Any = pair.kernel.v_p if case.chance(0.6) else "auto"
    case.setting |= {"form": form, "permutations": b, "variances": variances}
    result = km.two_sample_test(pair.x, pair.y, statistic, variances, b, form=form)
    p = [result.pvalue, *result.pvalues]
    case.holds(all(1 / (b + 1) - 1e-12 <= v <= 1 for v in p), "wrong p-value", f"{p}")
    case.finite(torch.tensor(result.statistics), "statistics")
    case.finite(torch.tensor(result.statistic), "statistic")
    case.finite(result.null, "null")
    case.holds(len(result.null) == b, "wrong shape", f"null of {len(result.null)}")
    x, y = array(pair.x), array(pair.y)
    if statistic == "energy":
        d = [np.sqrt(squared_distances(*s)).mean() for s in ((x, y), (x, x), (y, y))]
        size = max(RELATIVE[pair.coarsest], COARSE) * sum(d)
        case.close(torch.tensor(result.statistic), 2 * d[0] - d[1] - d[2], size, "statistic")
    elif statistic == "mmd":
        for v, got in zip(result.variances, result.statistics, strict=True):
            kernel = type(pair.kernel)(v, [v], [v])
            k = [np.exp(log_kernel(*s, kernel, "P").log).mean() for s in ((x, y), (x, x), (y, y))]
            size = 4 * max(RELATIVE[pair.coarsest], COARSE)
            case.close(torch.tensor(got), k[1] + k[2] - 2 * k[0], size, "statistic")


def compare(case: Case) -> None:
    """Every measure of two data sets, finite and in [0, 1]; the costs against the references."""
    case.function = "compare"
    _compare(case)


def large_compare(case: Case) -> None:
    """A comparison on both sides of the number of rows at which features begin."""
    case.function = "compare, large"
    _compare(case, (int(case.pick(1000, 1001, 1500)), int(case.pick(300, 1000, 1001))))


def _compare(case: Case, sizes: tuple[int, int] | None = None) -> None:
    pair = draw_pair(case, most=25, weighted=False, batches=False, unequal=False, sizes=sizes)
    dtype = pair.dtype
    bootstrap, permutations = int(case.pick(0, 2)), int(case.pick(0, 5))
    v: Any = pair.kernel.v_p if case.chance(0.5) else "auto"
    case.setting |= {"v": v, "bootstrap": bootstrap, "permutations": permutations}
    result = km.compare(
        pair.x.to(dtype), pair.y.to(dtype), v, bootstrap=bootstrap, permutations=permutations
    )
    for m in result.measures:
        for name in ("value", "normalized", "error", "if_same", "pvalue"):
            number = getattr(m, name)
            if number is not None:
                case.holds(np.isfinite(number), "not finite", f"{m.name}.{name} is {number}")
        if m.normalized is not None:
            case.unit(torch.tensor(m.normalized, dtype=torch.float32), f"{m.name}.normalized")
        if m.pvalue is not None:
            case.holds(0 < m.pvalue <= 1, "wrong p-value", f"{m.name}: {m.pvalue}")
        if m.name in MEASURED and sizes is None and m.normalized is not None:
            x, y = array(result.x), array(result.y)
            kernel = type(pair.kernel)(m.variance, [m.variance], [m.variance])
            ridge = 1e-6 if result.x.dtype == torch.float64 else 1e-4
            name = MEASURED[m.name]
            reference = cost(name, x, y, kernel, normalized=True, ridge=ridge)
            error = 2 * tolerance(torch.float32, reference)
            case.close(torch.tensor(m.normalized).double(), np.exp(reference.log), error, m.name)
    str(result)
    result.to_dict()


def kernel_mixture(case: Case) -> None:
    """A few steps of the estimator on a small table."""
    case.function = "KernelMixture"
    n, d = int(case.rng.integers(5, 60)), int(case.rng.integers(1, 4))
    rows = case.rng.standard_normal((n, d)) * 10 ** case.rng.uniform(-6, 6)
    if case.chance(0.3):
        rows[0] = 10 ** case.rng.uniform(3, 9)
    if case.chance(0.2):
        rows[:, 0] = 1.0
    components = int(case.rng.integers(1, 6))
    case.setting |= {"rows": rows.shape, "components": components}
    made: Any = km.KernelMixture
    model = made(components, steps=4, polish=4, random_state=0).fit(rows)
    case.finite(torch.tensor(model.score_samples(rows)), "score")
    case.finite(torch.tensor(model.variances_), "variances")

