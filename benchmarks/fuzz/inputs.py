"""Random samples, weights, variances and kernels: ordinary ones and cruel ones."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kermix as km
from benchmarks.fuzz.case import Array, Case

__all__ = ["Kernel", "Pair", "draw_kernel", "draw_pair", "draw_weights", "dtype_of", "points"]

LARGEST = {torch.float16: 6e4, torch.bfloat16: 1e15, torch.float32: 1e15, torch.float64: 1e15}
# Boundaries at which another way of computing may begin.
DIMENSIONS = (1, 1, 1, 2, 2, 2, 3, 4, 5, 8, 8, 9, 9, 10, 16, 33, 100)
LAYOUTS = (
    "normal", "normal", "normal", "uniform", "integers", "duplicates", "constant columns",
    "collinear", "one point", "clusters", "heavy tails",
)  # fmt: skip
RELATIONS = (
    "independent", "independent", "independent", "shifted", "far", "same", "permuted", "near",
)  # fmt: skip


@dataclass
class Kernel:
    """What is passed as `v`, and the numbers that it stands for."""

    argument: Any
    v_p: list[float]
    v_q: list[float]
    per_dimension: bool = True

    @property
    def symmetric(self) -> bool:
        """Whether both sides have the same variances."""
        return self.v_p == self.v_q


@dataclass
class Pair:
    """Two sample sets with weights and a kernel, as tensors."""

    x: Tensor
    y: Tensor
    kernel: Kernel
    weights_x: Tensor | None = None
    weights_y: Tensor | None = None
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """The type of results."""
        return torch.promote_types(self.x.dtype, self.y.dtype)

    @property
    def coarsest(self) -> torch.dtype:
        """The type that decides how precise results are: each side is computed in its own."""
        return max((self.x.dtype, self.y.dtype), key=lambda t: torch.finfo(t).eps)

    def weights(self) -> dict[str, Any]:
        """The weights that are given, by the names of their arguments."""
        named = {"weights_x": self.weights_x, "weights_y": self.weights_y}
        return {name: w for name, w in named.items() if w is not None}


def draw_pair(
    case: Case,
    most: int = 60,
    weighted: bool = True,
    batches: bool = True,
    unequal: bool = True,
    dtype: torch.dtype | None = None,
    sizes: tuple[int, int] | None = None,
    tame: bool = False,
) -> Pair:
    """Two sample sets, weights for some, and a kernel whose width fits, mostly."""
    rng = case.rng
    types = (dtype, dtype) if dtype is not None else _two_types(case)
    n, k = sizes or (_size(case, most), _size(case, most))
    d = int(rng.choice(DIMENSIONS))
    batch = case.pick((2,), (3,), (1,), (2, 2)) if batches and case.chance(0.12) else ()
    layout, relation = str(rng.choice(LAYOUTS)), str(rng.choice(RELATIONS))
    half = torch.float16 in types
    scale = (
        10 ** rng.uniform(-2, 1)
        if half or tame or case.chance(0.6)
        else 10 ** rng.uniform(-12, 12)
    )
    x = points(case, layout, (*batch, n, d))
    y = _related(case, relation, layout, x, k) * scale
    k = y.shape[-2]
    x = x * scale
    offset = 0.0
    if case.chance(0.25) and not tame:
        offset = float(min(scale * 10 ** rng.uniform(0, 8), 1e12) * rng.choice([-1, 1]))
    outlier = None
    if case.chance(0.15) and not tame:
        outlier = float(10 ** rng.uniform(3, 15))
        for side in (x, y) if case.chance(0.3) else ((x,) if case.chance(0.5) else (y,)):
            row = int(rng.integers(side.shape[-2]))
            side[..., row, int(rng.integers(d)) if case.chance(0.5) else slice(None)] = outlier
    pair = Pair(
        _tensor(case, x + offset, types[0]),
        _tensor(case, y + offset, types[1]),
        draw_kernel(case, scale, unequal, tame),
    )
    if relation == "same" and x.shape == y.shape and types[0] == types[1] and case.chance(0.5):
        pair.y = pair.x
    if weighted and case.chance(0.4):
        if case.chance(0.8):
            pair.weights_x = draw_weights(case, (*batch, n), types[0])
        if case.chance(0.8):
            pair.weights_y = draw_weights(case, (*batch, k), types[1])
    pair.setting = {
        "x": tuple(pair.x.shape), "y": tuple(pair.y.shape), "dtypes": _names(types),
        "layout": layout, "relation": relation, "scale": f"{scale:.2g}",
        "offset": f"{offset:.2g}", "outlier": outlier and f"{outlier:.2g}",
        "v_p": _short(pair.kernel.v_p), "v_q": _short(pair.kernel.v_q),
        "per_dimension": pair.kernel.per_dimension, "weights": list(pair.weights()),
    }  # fmt: skip
    case.setting.update(pair.setting)
    return pair


def points(case: Case, layout: str, shape: tuple[int, ...]) -> Array:
    """Points of a layout, of scale one."""
    rng = case.rng
    x = rng.standard_normal(shape)
    if layout == "uniform":
        x = rng.random(shape)
    elif layout == "integers":
        x = rng.integers(-2, 3, shape).astype(np.float64)
    elif layout == "duplicates":
        x = x[..., rng.integers(0, max(1, shape[-2] // 2), shape[-2]), :]
    elif layout == "constant columns":
        x[..., rng.random(shape[-1]) < 0.6] = 1.0
    elif layout == "collinear":
        x = x[..., :1] * rng.standard_normal(shape[-1])
    elif layout == "one point":
        x = np.broadcast_to(x[..., :1, :], shape).copy()
    elif layout == "clusters":
        x = 0.01 * x + 10 ** rng.uniform(0, 3) * rng.integers(0, 3, (*shape[:-1], 1))
    elif layout == "heavy tails":
        x = rng.standard_cauchy(shape)
    return x


def draw_weights(case: Case, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Weights: even, with zeros, of very different size, or all on one point."""
    rng = case.rng
    style = case.pick("random", "random", "zeros", "zeros", "ratios", "one", "scaled")
    w = rng.random(shape) + 0.01
    if style == "zeros":
        w = w * (rng.random(shape) < 0.5)
        w[..., int(rng.integers(shape[-1]))] = 1.0
    elif style == "ratios":
        reach = 3 if dtype == torch.float16 else 12
        w = 10 ** rng.uniform(-reach, reach, shape)
    elif style == "one":
        w = np.zeros(shape)
        w[..., int(rng.integers(shape[-1]))] = 1.0
    elif style == "scaled" and dtype != torch.float16:
        w = w * 10 ** rng.uniform(-10, 10)
    case.setting["weight style"] = style
    return torch.tensor(w).to(dtype)


def draw_kernel(
    case: Case, scale: float = 1.0, unequal: bool = True, tame: bool = False
) -> Kernel:
    """A number, a list or a kernel, with variances that fit the scale, mostly."""
    rng = case.rng

    def variance() -> float:
        if case.chance(0.85) or tame:
            return float(scale**2 * 10 ** rng.uniform(-2.5, 2))
        return float(10 ** rng.uniform(-12, 12))

    form = case.pick("number", "number", "number", "list", "kernel", "kernel")
    if form == "number":
        v = [variance()]
        return Kernel(v[0], v, v)
    v = [variance() for _ in range(int(rng.integers(1, 4)))]
    if form == "list":
        return Kernel(v, v, v)
    v_q = [s * 10 ** rng.uniform(-1.5, 1.5) for s in v] if unequal and case.chance(0.6) else v
    per_dimension = case.chance(0.5)
    given: list[Any] = [v[0], v_q[0]] if len(v) == 1 else [v, v_q]
    if v_q is v:
        kernel = km.GaussianKernel(given[0], per_dimension=per_dimension)
    else:
        kernel = km.GaussianKernel(given[0], given[1], per_dimension)
    return Kernel(kernel, v, v_q, per_dimension)


def dtype_of(case: Case) -> torch.dtype:
    """A floating type; half types are rarer."""
    return case.pick(*([torch.float64] * 5), *([torch.float32] * 4), torch.float16, torch.bfloat16)


def _two_types(case: Case) -> tuple[torch.dtype, torch.dtype]:
    first = dtype_of(case)
    return (first, dtype_of(case)) if case.chance(0.06) else (first, first)


def _size(case: Case, most: int) -> int:
    kind = case.rng.random()
    if kind < 0.15:
        return int(case.rng.integers(1, 4))
    return int(case.rng.integers(2, 13 if kind < 0.7 else most + 1))


def _related(case: Case, relation: str, layout: str, x: Array, k: int) -> Array:
    rng = case.rng
    if relation in ("same", "permuted", "near"):
        y = x[..., rng.permutation(x.shape[-2]), :] if relation == "permuted" else x.copy()
        return (
            y
            if relation != "near"
            else y + 10 ** rng.uniform(-9, -1) * rng.standard_normal(y.shape)
        )
    y = points(case, layout, (*x.shape[:-2], k, x.shape[-1]))
    if relation == "shifted":
        y = y + rng.standard_normal(x.shape[-1])
    elif relation == "far":
        y = y + 10 ** rng.uniform(0.5, 4) * rng.standard_normal(x.shape[-1])
    return y


def _tensor(case: Case, values: Array, dtype: torch.dtype) -> Tensor:
    bound = LARGEST[dtype]
    tensor = torch.tensor(np.clip(values, -bound, bound)).to(dtype)
    style = case.rng.random()
    if style < 0.08:  # the same numbers in another order of memory
        return tensor.mT.contiguous().mT
    if style < 0.14:
        return torch.stack([tensor, torch.full_like(tensor, math.nan)], -1)[..., 0]
    return tensor


def _names(types: tuple[torch.dtype, torch.dtype]) -> str:
    return "/".join(dict.fromkeys(str(t).removeprefix("torch.") for t in types))


def _short(values: list[float]) -> str:
    return ",".join(f"{v:.3g}" for v in values)
