"""Random Gaussian mixtures: densities, inner products, norms and moments."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kermix as km
from benchmarks.fuzz import exact
from benchmarks.fuzz.case import RELATIVE, Array, Case, precision
from benchmarks.fuzz.inputs import LARGEST, dtype_of, points

__all__ = ["mixture_density", "mixture_inner", "mixture_moments", "mixture_norm"]

MOST_EXACT = 4


@dataclass
class Drawn:
    """A mixture and its parameters: weights (K,), means (K, d), covariances (K, d, d)."""

    mixture: Any
    parameters: tuple[Array, Array, Array]
    given: tuple[Tensor, Tensor, Tensor]
    dtype: torch.dtype
    condition: float
    scale: float


def mixture_density(case: Case) -> None:
    """`log_prob`, near and far, and its gradient by the points."""
    case.function = "GaussianMixture.log_prob"
    drawn = _draw(case)
    means = drawn.parameters[1]
    m = int(case.rng.integers(1, 8))
    near = means[case.rng.integers(0, len(means), m)]
    spread = np.sqrt(drawn.parameters[2].diagonal(axis1=1, axis2=2).mean())
    at = near + spread * 10 ** case.rng.uniform(-2, 2) * case.rng.standard_normal(near.shape)
    if case.chance(0.15):
        at[0] = 10 ** case.rng.uniform(3, 15)
    bound = LARGEST[drawn.dtype]
    where = torch.tensor(np.clip(at, -bound, bound)).to(drawn.dtype).requires_grad_()
    got = drawn.mixture.log_prob(where)
    rounded = where.detach().double().numpy()
    logs, exponents, pull = _log_density(*drawn.parameters, rounded)
    if len(means) <= MOST_EXACT and rounded.shape[1] <= MOST_EXACT and case.chance(0.2):
        case.checks["mpmath"] += 1
        logs = np.array(exact.log_density(*drawn.parameters, rounded))
    error = _error(drawn, logs, exponents)
    inside = np.abs(logs) < torch.finfo(drawn.dtype).max / 4
    case.finite(got, where=inside)
    case.close(got, logs, error)
    got[torch.as_tensor(inside)].sum().backward()
    largest = np.abs(pull).max(-1, keepdims=True)
    if (
        where.grad is None
        or not np.isfinite(largest).all()
        or largest.max() > torch.finfo(drawn.dtype).max / 16
    ):
        return
    case.finite(where.grad, "gradient")
    relative = 10 * RELATIVE[drawn.dtype] + 64 * precision(drawn.dtype) * (
        drawn.condition + exponents.max()
    )
    if relative < 0.05:
        case.close(where.grad, pull, relative * largest, "gradient", "wrong gradient")


def mixture_inner(case: Case) -> None:
    """`log_inner`, `inner` and the Cauchy-Schwarz divergence of two mixtures."""
    p = _draw(case)
    q = _draw(case, p.dtype, p.parameters[1].shape[1], like=p)
    case.function = f"GaussianMixture.{case.pick('log_inner', 'inner', 'cauchy_schwarz')}"
    log, exponent = _log_inner(p.parameters, q.parameters)
    small = max(*p.parameters[1].shape, *q.parameters[1].shape) <= MOST_EXACT
    if small and case.chance(0.2):
        case.checks["mpmath"] += 1
        log = exact.log_inner(p.parameters, q.parameters)
    worst = p if p.condition > q.condition else q
    if case.function.endswith("cauchy_schwarz"):
        norms = [_log_inner(m.parameters, m.parameters) for m in (p, q)]
        want = norms[0][0] + norms[1][0] - 2 * log
        sizes = 2 * abs(log) + sum(abs(n) for n, _ in norms)
        error = _error(worst, np.array(sizes), np.array(exponent + sum(e for _, e in norms)))
        got = p.mixture.cauchy_schwarz(q.mixture)
        case.finite(got, where=np.array(abs(want) < torch.finfo(p.dtype).max / 4))
        case.holds(torch.isnan(got) | (got >= 0), "outside [0, 1]", f"divergence is {float(got)}")
        case.close(got, max(want, 0.0), error, "divergence")
        return
    error = _error(worst, np.array(log), np.array(exponent))
    got = getattr(p.mixture, case.function.split(".")[1])(q.mixture)
    _compare(case, got, log, error, case.function.endswith("log_inner"))


def mixture_norm(case: Case) -> None:
    """`norm2`, `lp_norm` and the unbiased norm of sampled mixtures."""
    drawn = _draw(case, most=5)
    weights, means, covariances = drawn.parameters
    what = case.pick("log_norm2", "norm2", "log_lp_norm", "lp_norm", "unbiased")
    if what == "unbiased":
        case.function = "SampledMixture.norm2"
        _sampled_norm(case, drawn)
        return
    case.function = f"GaussianMixture.{what}"
    n = int(case.rng.integers(1, 5)) if "lp" in what else 2
    if "lp" in what:
        log, exponent = _log_lp(weights / weights.sum(), means, covariances, n)
    else:
        log, exponent = _log_inner(drawn.parameters, drawn.parameters)
    got = getattr(drawn.mixture, what)(*((n,) if "lp" in what else ()))
    case.setting["n"] = n
    error = _error(drawn, np.array(log * n), np.array(exponent))
    _compare(case, got, log, error, what.startswith("log"))


def mixture_moments(case: Case) -> None:
    """Mean, variance and covariance, whatever the offset."""
    drawn = _draw(case)
    weights, means, covariances = drawn.parameters
    w = weights / weights.sum()
    what = case.pick("mean", "variance", "variance", "covariance_matrix")
    case.function = f"GaussianMixture.{what}"
    got = getattr(drawn.mixture, what)
    relative = RELATIVE[drawn.dtype]
    # Relative to the first mean: a large offset does not count.
    far = means - means[0]
    offset = (w[:, None] * far).sum(0)
    if what == "mean":
        case.finite(got, what)
        case.close(got, means[0] + offset, relative * (w[:, None] * np.abs(means)).sum(0))
        return
    away = far - offset
    covariance = np.einsum("k,kij->ij", w, covariances + away[:, :, None] * away[:, None, :])
    deviations = np.sqrt(np.diagonal(covariance))
    error = relative * np.outer(deviations, deviations)
    if what == "variance":
        covariance, error = np.diagonal(covariance), np.diagonal(error)
    case.finite(got, what, np.abs(covariance) < torch.finfo(drawn.dtype).max / 2)
    case.close(got, covariance, error, what)


def _compare(case: Case, got: Tensor, log: float, error: Any, is_log: bool) -> None:
    limits = torch.finfo(got.dtype)
    if is_log:
        case.finite(got, where=np.array(abs(log) < limits.max / 4))
        case.close(got, log, error, "logarithm")
    elif log < np.log(limits.max) - 1:
        case.finite(got)
        case.close(got, np.exp(log), np.exp(log) * error)


def _sampled_norm(case: Case, drawn: Drawn) -> None:
    weights, means, covariances = drawn.parameters
    s = len(weights)
    if s < 2:
        return
    sampled = km.SampledMixture(*drawn.given)
    got = sampled.norm2(unbiased=True)
    logs, exponents = _pair_logs(means, covariances, means, covariances)
    terms = np.outer(weights, weights) * np.exp(np.minimum(logs, 600)) * (1 - np.eye(s))
    want = terms.sum() / (s * (s - 1))
    if logs.max() > np.log(torch.finfo(drawn.dtype).max) - 2:
        return
    case.finite(got)
    case.close(
        got,
        want,
        want * _error(drawn, np.array(0.0), np.array(exponents.max(where=terms > 0, initial=0))),
    )


def _error(drawn: Drawn, logs: Array, exponents: Array) -> Array:
    unit = precision(drawn.dtype)
    d = drawn.parameters[1].shape[1]
    slack = 16 * unit * (exponents * (1 + drawn.condition) + d * (1 + drawn.condition))
    return RELATIVE[drawn.dtype] * (1 + np.abs(logs)) + slack


def _draw(
    case: Case, dtype: torch.dtype | None = None, d: int | None = None, most: int = 8,
    like: Drawn | None = None,
) -> Drawn:  # fmt: skip
    rng = case.rng
    dtype = dtype or dtype_of(case)
    k = int(rng.integers(1, most + 1))
    d = d or int(rng.choice([1, 1, 2, 2, 3, 4, 8, 9, 12]))
    half = dtype in (torch.float16, torch.bfloat16)
    scale = 10 ** rng.uniform(-1, 1) if half or case.chance(0.6) else 10 ** rng.uniform(-6, 6)
    if like is not None:
        scale = like.scale if case.chance(0.8) else scale
    means = scale * points(case, case.pick("normal", "integers", "duplicates", "clusters"), (k, d))
    if case.chance(0.2) and not half:
        means = means + scale * 10 ** rng.uniform(0, 7)
    if case.chance(0.1):
        means[0] = 10 ** rng.uniform(3, 4 if half else 12)
    weights = rng.random(k) + 0.01
    if case.chance(0.3):
        weights = weights * (rng.random(k) < 0.6)
        weights[0] = 0.5
    variances = scale**2 * 10 ** rng.uniform(-3, 1, (k, d))
    kind = case.pick("isotropic", "diagonal", "full")
    condition = 1.0
    given: Array
    if kind == "isotropic":
        given = variances[:, 0]
    elif kind == "diagonal":
        given = variances
    else:
        roots = rng.standard_normal((k, d, d)) * scale
        # Less would not be positive definite after rounding to half precision.
        floor = 10 ** rng.uniform(-1 if half else -3, 0)
        given = roots @ roots.transpose(0, 2, 1) / d + floor * scale**2 * np.eye(d)
    tensors = [_rounded(v, dtype) for v in (weights, means, given)]
    weights, means, given = (t.double().numpy() for t in tensors)
    if kind == "full":
        given = (given + given.transpose(0, 2, 1)) / 2
        tensors[2] = torch.tensor(given).to(dtype)
        full = given
        condition = float(np.linalg.cond(full).max())
    else:
        diagonals = given if kind == "diagonal" else np.repeat(given[:, None], d, 1)
        full = diagonals[:, :, None] * np.eye(d)
    case.setting |= {
        "K": k, "d": d, "kind": kind, "dtype": str(dtype).removeprefix("torch."),
        "scale": f"{scale:.2g}", "largest": f"{np.abs(means).max():.2g}",
    }  # fmt: skip
    first, second, third = tensors
    mixture = km.GaussianMixture(first, second, third)
    parameters = (weights, means, full)
    return Drawn(mixture, parameters, (first, second, third), dtype, condition, scale)


def _rounded(values: Array, dtype: torch.dtype) -> Tensor:
    bound = LARGEST[dtype]
    return torch.tensor(np.clip(values, -bound, bound)).to(dtype)


def _log_gaussians(differences: Array, covariances: Array) -> tuple[Any, Any, Any]:
    """Logarithms, exponents and solved differences; shapes (..., d) and (..., d, d)."""
    d = differences.shape[-1]
    solved = np.linalg.solve(covariances, differences[..., None])[..., 0]
    exponents = np.maximum((differences * solved).sum(-1) / 2, 0.0)
    log_det = np.linalg.slogdet(covariances)[1]
    return -exponents - log_det / 2 - d / 2 * np.log(2 * np.pi), exponents, solved


def _log_sum(logs: Array, axis: int) -> Array:
    top = logs.max(axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(logs - top).sum(axis))


def _log_density(w: Array, m: Array, s: Array, at: Array) -> tuple[Array, Array, Array]:
    logs, exponents, solved = _log_gaussians(at[:, None] - m[None], s[None])
    with np.errstate(divide="ignore"):
        terms = logs + np.log(w / w.sum())
    best = np.take_along_axis(exponents, terms.argmax(1)[:, None], 1)[:, 0]
    shares = np.exp(terms - terms.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return _log_sum(terms, 1), best, -(shares[..., None] * solved).sum(1)


def _pair_logs(m: Array, s: Array, n: Array, t: Array) -> tuple[Array, Array]:
    logs, exponents, _ = _log_gaussians(m[:, None] - n[None], s[:, None] + t[None])
    return logs, exponents


def _log_inner(p: tuple[Array, ...], q: tuple[Array, ...]) -> tuple[float, float]:
    logs, exponents = _pair_logs(p[1], p[2], q[1], q[2])
    with np.errstate(divide="ignore"):
        terms = logs + np.log(p[0] / p[0].sum())[:, None] + np.log(q[0] / q[0].sum())[None]
    best = float(exponents.flat[int(terms.argmax())])
    return float(_log_sum(terms.reshape(-1), 0)), best


def _log_lp(w: Array, m: Array, s: Array, n: int) -> tuple[float, float]:
    """Over all K^n tuples: the integral of a product of Gaussians, relative to the first."""
    inverse = np.linalg.inv(s)
    log_det, d = np.linalg.slogdet(s)[1], m.shape[1]
    logs, exponents = [], []
    for tuple_ in itertools.product(range(len(w)), repeat=n):
        index = list(tuple_)
        if (w[index] == 0).any():
            continue
        precision_sum = inverse[index].sum(0)
        away = m[index] - m[index[0]]
        pulled = np.einsum("kij,kj->i", inverse[index], away)
        squares = np.einsum("ki,kij,kj->", away, inverse[index], away)
        exponent = (squares - pulled @ np.linalg.solve(precision_sum, pulled)) / 2
        constant = -(n - 1) * d / 2 * np.log(2 * np.pi) - log_det[index].sum() / 2
        constant -= np.linalg.slogdet(precision_sum)[1] / 2
        logs.append(constant - max(exponent, 0.0) + np.log(w[index]).sum())
        exponents.append(squares)
    best = int(np.argmax(logs))
    return float(_log_sum(np.array(logs), 0)) / n, float(exponents[best])
