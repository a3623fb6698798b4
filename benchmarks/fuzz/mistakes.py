"""Bad arguments: each must raise an error that kermix has named, and no other."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import kermix as km
from benchmarks.fuzz.case import Case
from kermix.errors import KermixError

__all__ = ["mistake"]


def mistake(case: Case) -> None:
    """A call with exactly one bad argument."""
    group = case.pick(
        _samples, _samples, _weights, _variances, _variances, _options, _mixtures, _others
    )
    name, call = group(case)
    case.function = name
    try:
        call()
    except KermixError:
        case.checks["named error"] += 1
    else:
        case.found("no error", f"accepted: {case.setting}")


def _costs(case: Case) -> tuple[str, Callable[..., Any]]:
    name = case.pick("scalar_cost", "vector_cost", "matrix_cost", "svd_cost")
    return name, getattr(km, name)


def _normal(case: Case, n: int, d: int) -> Tensor:
    return torch.tensor(case.rng.standard_normal((n, d))).to(
        case.pick(torch.float32, torch.float64)
    )


def _samples(case: Case) -> tuple[str, Callable[[], Any]]:
    n, d = int(case.rng.integers(2, 12)), int(case.rng.integers(1, 11))
    good, other = _normal(case, n, d), _normal(case, n + 1, d)
    broken = good.clone()
    broken[0, 0] = case.pick(math.nan, math.inf, -math.inf)
    bad = case.pick(
        broken, good[:0], good[:, :0], good[0], good[0, 0], good.to(torch.complex64), good.long(),
        good > 0, good.numpy(), good.tolist(), None, "points", good[:, :1].expand(n, d + 1),
    )  # fmt: skip
    calls: list[tuple[str, Callable[[Any, Any], Any]]] = [
        ("scalar_cost", lambda x, y: km.scalar_cost(x, y, 0.1)),
        ("vector_cost", lambda x, y: km.vector_cost(x, y, 0.1)),
        ("matrix_cost", lambda x, y: km.matrix_cost(x, y, 0.1)),
        ("svd_cost", lambda x, y: km.svd_cost(x, y, 0.1)),
        ("SVDLoss", lambda x, y: km.SVDLoss(0.1)(x, y)),
        ("gram", lambda x, y: km.gram(x, y, 0.1)),
        ("vector_weights", lambda x, y: km.vector_weights(x, y, 0.1)),
        ("two_sample_test", lambda x, y: km.two_sample_test(x, y, permutations=3)),
    ]
    name, call = calls[int(case.rng.integers(len(calls)))]
    case.setting |= {"bad": _described(bad)}
    return name, (lambda: call(bad, other)) if case.chance(0.5) else (lambda: call(other, bad))


def _weights(case: Case) -> tuple[str, Callable[[], Any]]:
    name, function = _costs(case)
    n = int(case.rng.integers(2, 12))
    x = _normal(case, n, 2)
    ones = torch.ones(n, dtype=x.dtype)
    negative, broken = ones.clone(), ones.clone()
    negative[0], broken[-1] = -0.5, case.pick(math.nan, math.inf)
    bad = case.pick(
        negative, broken, 0 * ones, ones[1:], torch.ones(n, n + 1), -ones, ones[:0], "even"
    )
    side = case.pick("weights_x", "weights_y")
    case.setting |= {side: _described(bad)}
    return name, lambda: function(x, x + 1, 0.1, **{side: bad})


def _variances(case: Case) -> tuple[str, Callable[[], Any]]:
    name, function = _costs(case)
    n = int(case.rng.integers(2, 12))
    x = _normal(case, n, 2)
    bad = case.pick(
        0.0, -1.0, math.nan, math.inf, [], [0.1, -0.1], [0.1, math.nan], "mean", None, x, {}, "",
        torch.tensor(-1.0), torch.tensor(math.nan), torch.rand(n) + 0.1, torch.rand(2, 2), 1j,
        lambda: km.GaussianKernel(0.1, -0.1), lambda: km.GaussianKernel([0.1, 1.0], [0.1]),
    )  # fmt: skip
    case.setting |= {"v": _described(bad), "points": n}
    if callable(bad):
        return "GaussianKernel", bad
    return name, lambda: function(x, x + 1, bad)


def _options(case: Case) -> tuple[str, Callable[[], Any]]:
    x = _normal(case, 6, 2)
    name, bad = case.pick(
        ("scalar_cost", {"chunk": 0}), ("scalar_cost", {"chunk": -3}),
        ("scalar_cost", {"chunk": 2.5}), ("vector_cost", {"ridge": -1.0}),
        ("vector_cost", {"ridge": math.nan}), ("matrix_cost", {"ridge": math.inf}),
        ("vector_cost", {"ridge": "small"}), ("matrix_cost", {"form": "sum"}),
        ("matrix_cost", {"form": "logdet", "normalized": True}), ("svd_cost", {"method": "qr"}),
        ("svd_cost", {"tolerance": -1.0}), ("svd_cost", {"tolerance": math.nan}),
        ("svd_cost", {"method": "sketch", "rank": 0}), ("matrix_cost", {"form": None}),
        ("svd_cost", {"method": "sketch", "rank": -2}), ("vector_cost", {"chunk": "all"}),
    )  # fmt: skip
    case.setting |= bad
    return name, lambda: getattr(km, name)(x, x + 1, 0.1, **bad)


def _mixtures(case: Case) -> tuple[str, Callable[[], Any]]:
    k, d = int(case.rng.integers(1, 5)), int(case.rng.integers(2, 4))
    w, m, v = torch.ones(k), torch.randn(k, d, generator=_generator(case)), torch.ones(k, d)
    full = torch.eye(d).expand(k, d, d)
    broken = m.clone()
    broken[0, 0] = math.nan
    bad = case.pick(
        (-w, m, v), (0 * w, m, v), (w, broken, v), (w, m, -v), (w, m, 0 * v), (w, m, v * math.nan),
        (w, m, -full), (w, m, full + 5 * torch.ones(d, d).triu(1)), (torch.ones(k + 1), m, v),
        (w, m, torch.ones(k, d + 1)), (w, m[0], v), (w[:0], m[:0], v[:0]), (w * math.inf, m, v),
        (w, m, full * math.inf), (w, m.long(), v), (None, m, v),
    )  # fmt: skip
    use = case.pick("make", "make", "log_prob", "lp_norm", "inner")
    case.setting |= {"use": use}
    good = km.GaussianMixture(w, m, v)
    if use == "log_prob":
        point = case.pick(torch.randn(4, d + 1), torch.full((4, d), math.nan), "point")
        return "GaussianMixture.log_prob", lambda: good.log_prob(point)
    if use == "lp_norm":
        n = case.pick(0, -1, 1.5, "two", None)
        case.setting |= {"n": n}
        return "GaussianMixture.lp_norm", lambda: good.lp_norm(n)
    if use == "inner":
        other = km.GaussianMixture(w, torch.randn(k, d + 1), torch.ones(k, d + 1))
        return "GaussianMixture.inner", lambda: good.inner(case.pick(other, None, w))
    case.setting |= {"bad": [_described(b) for b in bad]}
    return "GaussianMixture", lambda: km.GaussianMixture(*bad)


def _others(case: Case) -> tuple[str, Callable[[], Any]]:
    x = _normal(case, 8, 2)
    nan = torch.full_like(x, math.nan)
    features = km.nystrom_features(x, 0.1, rank=3)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("choose_variance", lambda: km.choose_variance(x, "mean")),  # type: ignore[arg-type]
        ("choose_variance", lambda: km.choose_variance(nan)),
        ("choose_variance", lambda: km.choose_variance(x[:0])),
        ("decompose", lambda: km.decompose(x, nan, 0.1)),
        ("decompose", lambda: km.decompose(x, x, 0.1, rank=0)),
        ("decompose", lambda: km.decompose(x, x, 0.1, method="fast")),  # type: ignore[arg-type]
        ("nystrom_features", lambda: km.nystrom_features(x, 0.1, rank=0)),
        ("nystrom_features", lambda: km.nystrom_features(nan, 0.1, rank=3)),
        ("fourier_features", lambda: km.fourier_features(2, 0.1, rank=3)),
        ("fourier_features", lambda: km.fourier_features(0, 0.1, rank=4)),
        ("Sketch", lambda: km.Sketch(features).update(nan)),
        ("Sketch", lambda: km.Sketch(features).update(x[:, :1])),
        ("Sketch", lambda: km.Sketch(features).update(x, -torch.ones(8))),
        ("Sketch", lambda: km.svd_cost(km.Sketch(features), x)),
        ("Sketch", lambda: km.Sketch(features) + km.Sketch(km.nystrom_features(x, 0.2, rank=3))),
        ("Sketch", lambda: km.svd_cost(km.Sketch(features).update(x), x, 0.3)),
        ("nuclear_norm", lambda: km.nuclear_norm(nan)),
        ("nuclear_norm", lambda: km.nuclear_norm(x[0])),
        ("nuclear_norm", lambda: km.nuclear_norm(x, method="qr")),  # type: ignore[arg-type]
        ("two_sample_test", lambda: km.two_sample_test(x, x, "t")),  # type: ignore[arg-type]
        ("two_sample_test", lambda: km.two_sample_test(x, x, permutations=0)),
        ("two_sample_test", lambda: km.two_sample_test(x, x, variances=[-1.0])),
        ("compare", lambda: km.compare(x, x[:, :1])),
        ("compare", lambda: km.compare(x, nan)),
        ("compare", lambda: km.compare(x, x, -1.0)),
        ("compare", lambda: km.compare(x, x, permutations=-1)),
        ("compare", lambda: km.compare(x, "no such file.csv")),
        ("DebiasedLoss", lambda: km.DebiasedLoss(km.SVDLoss(0.1))(x, x[:5])),
        ("DebiasedLoss", lambda: km.DebiasedLoss(km.SVDLoss(0.1))(x[:1], x[:1])),
    ]
    index = int(case.rng.integers(len(calls)))
    case.setting |= {"call": index}
    return calls[index]


def _generator(case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(int(case.rng.integers(2**31)))


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        shown = f"{tuple(value.shape)} {value.dtype}".replace("torch.", "")
        return shown + (f" {value.flatten()[:3].tolist()}" if value.numel() else "")
    return f"{type(value).__name__} {value!r:.40}"
