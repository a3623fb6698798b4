"""Random calls of sketches, tests, comparisons and the estimator."""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kermix as km
from benchmarks.fuzz.case import RELATIVE, Case
from benchmarks.fuzz.costs import array, tolerance
from benchmarks.fuzz.inputs import draw_pair, draw_weights
from benchmarks.fuzz.references import cost, log_kernel, squared_distances

__all__ = [
    "compare",
    "kernel_mixture",
    "large_compare",
    "large_sketch",
    "sketch",
    "sketch_loss",
    "two_sample_test",
]

# Tests and comparisons compute in float32.
COARSE = RELATIVE[torch.float32]
MEASURED = {"svd": "svd", "matrix": "trace", "vector": "vector", "scalar": "scalar"}


def sketch(case: Case) -> None:
    """Sketches of small sets: merging, weights, the four costs and their certificates."""
    sizes = (int(case.rng.integers(2, 40)), int(case.rng.integers(2, 40)))
    pair = draw_pair(case, weighted=False, batches=False, unequal=False, sizes=sizes)
    both = torch.cat([pair.x.to(pair.dtype), pair.y.to(pair.dtype)])
    name = case.pick("scalar", "vector", "trace", "svd", "svd", "svd")
    function: Any = km.matrix_cost if name == "trace" else getattr(km, f"{name}_cost")
    case.function = f"Sketch, {function.__name__}"
    rank = int(case.rng.integers(1, len(both) + 1))
    fourier = case.chance(0.1) and len(pair.kernel.v_p) == 1
    if fourier:
        features: Any = km.fourier_features(both.shape[1], pair.kernel.argument, 2 * rank)
    else:
        source = both if case.chance(0.7) else pair.x
        features = km.nystrom_features(source, pair.kernel.argument, rank=rank)
    case.setting |= {
        "rank": rank,
        "fourier": fourier,
        "against": (side := case.pick("sketch", "points")),
    }
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
    if not fourier:
        left_out: Any = first.mean_residual
        residual = float(left_out)
        case.holds(residual >= 0, "wrong value", f"residual {residual}")
    other = km.Sketch(features).update(pair.y) if side == "sketch" else pair.y
    value, info = function(first, other, normalized=True, return_info=True)
    case.finite(value)
    if not fourier:
        case.unit(value)
    if fourier or name == "trace" or info.error_bound is None:
        return
    a = None if weights is None else array(weights)
    reference = cost(
        name, array(pair.x), array(pair.y), pair.kernel, a, normalized=True, ridge=1e-6
    )
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


def sketch_loss(case: Case) -> None:
    """A loss between a sketch and points: finite with its gradient, and it pulls together."""
    rng = case.rng
    d, n, k = int(rng.choice([1, 2, 3, 8, 9, 16])), *(int(v) for v in rng.integers(2, 30, 2))
    dtype = case.pick(torch.float64, torch.float32)
    x = torch.tensor(rng.standard_normal((n, d))).to(dtype)
    away = rng.standard_normal(d)
    distance = float(10 ** rng.uniform(-1, 4))
    shift = torch.tensor(distance * away / np.linalg.norm(away))
    y = (torch.tensor(0.1 * rng.standard_normal((k, d))) + shift).to(dtype).requires_grad_()
    v = float(10 ** rng.uniform(-2, 1))
    made: Any = case.pick(km.ScalarLoss, km.VectorLoss, km.MatrixLoss, km.SVDLoss)
    case.function = f"Sketch, {made.__name__}"
    case.setting |= {"x": (n, d), "y": (k, d), "distance": distance, "v": v, "dtype": dtype}
    features = km.nystrom_features(x, v, rank=int(rng.integers(1, n + 1)))
    loss = made()(km.Sketch(features).update(x), y)
    case.finite(loss, "loss")
    loss.backward()
    if y.grad is None or not case.finite(y.grad, "gradient") or distance < 20:
        return
    outwards = float((y.grad.double() * shift).sum())
    case.holds(outwards > 0, "wrong gradient", f"does not pull together: {outwards:.3g}")


def large_sketch(case: Case) -> None:
    """The SVD cost beyond the number of points at which sketches begin, and by its method."""
    case.function = "svd_cost, large"
    forced = case.chance(0.75)
    n = int(case.rng.integers(100, 400)) if forced else int(case.pick(4096, 4097))
    tame = not forced
    sizes = (n, n + int(case.rng.integers(0, 2)))
    pair = draw_pair(case, sizes=sizes, batches=False, weighted=forced, tame=tame)
    if tame and case.chance(0.7):  # wide enough for a sketch
        x, y = pair.x.double(), pair.y.double()
        v = float(torch.cat([x, y]).var(0).mean()) or 1.0
        pair.kernel.argument, pair.kernel.v_p, pair.kernel.v_q = v, [v], [v]
        pair.kernel.per_dimension = True
        case.setting |= {"v_p": v, "v_q": v}
    options: dict[str, Any] = {"method": "sketch"} if forced else {}
    if forced and not pair.kernel.symmetric:
        return
    if forced and case.chance(0.5):
        options["rank"] = int(case.rng.integers(1, 200))
    try:
        value, info = km.svd_cost(
            pair.x,
            pair.y,
            pair.kernel.argument,
            normalized=True,
            **options,
            **pair.weights(),
            return_info=True,
        )
    except km.errors.OptionError:
        return  # a sketch that does not reach the tolerance says so
    case.setting["method"] = info.method
    case.finite(value)
    case.unit(value)
    if not forced:
        return  # the reference would take a minute
    weights: list[Any] = [
        None if w is None else array(w) for w in (pair.weights_x, pair.weights_y)
    ]
    a, b = weights
    reference = cost("svd", array(pair.x), array(pair.y), pair.kernel, a, b, normalized=True)
    error = abs(float(value) - np.exp(reference.log))
    bound = 0.0 if info.error_bound is None else float(info.error_bound)
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
    b = min(b, math.comb(len(pair.x) + len(pair.y), len(pair.x)) - 1)  # few labelings: all others
    case.holds(all(1 / (b + 1) - 1e-12 <= v <= 1 for v in p), "wrong p-value", f"{p}")
    case.finite(torch.tensor(result.statistics, dtype=torch.float64), "statistics")
    case.finite(torch.tensor(result.statistic, dtype=torch.float64), "statistic")
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
    result: Any
    m: Any
    pair = draw_pair(case, most=25, weighted=False, batches=False, unequal=False, sizes=sizes)
    dtype = pair.dtype
    jackknife_groups, permutations = int(case.pick(0, 2)), int(case.pick(0, 5))
    v: Any = pair.kernel.v_p if case.chance(0.5) else "auto"
    case.setting |= {"v": v, "jackknife_groups": jackknife_groups, "permutations": permutations}
    result = km.compare(
        pair.x.to(dtype),
        pair.y.to(dtype),
        v,
        jackknife_groups=jackknife_groups,
        permutations=permutations,
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
    model = made(components, steps=4, refine_steps=4, device="cpu", random_state=0).fit(rows)
    case.finite(torch.tensor(model.score_samples(rows)), "score")
    case.finite(torch.tensor(model.variances_), "variances")
