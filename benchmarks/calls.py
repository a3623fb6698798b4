"""Milliseconds of value and gradient of each cost, however it is called, beside FlashSinkhorn.

Uniform points in the unit cube of d dimensions. The kernel's variance is the square of Sinkhorn's
blur, .05 in the plane and .5 in 64 dimensions. Ways: `kept` is one loss that is called again and
again, `new` a loss made anew in each step, `function` a cost; FlashSinkhorn, where it can be
imported, in both forms. Median of repeated calls by the clock, waiting for the device each time.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

import kermix as km
from benchmarks.timing import device_name, measure

__all__ = ["run"]

LOSSES = {
    "scalar": (km.ScalarLoss, km.scalar_cost),
    "vector": (km.VectorLoss, km.vector_cost),
    "matrix": (km.MatrixLoss, km.matrix_cost),
    "svd": (km.SVDLoss, km.svd_cost),
}
BLUR = {2: 0.05, 64: 0.5}
Call: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """One row for each number of points, dimension and cost, as they are measured."""
    rows: list[dict[str, Any]] = []
    sizes = [100] if quick else [1000, 4000, 8000] if device_name() == "cuda" else [1000]
    for make in (_costs, _peers):
        for n in sizes:
            for d, blur in BLUR.items():
                x, y = torch.rand(2, n, d, generator=torch.Generator().manual_seed(0))
                x, y = x.to(device_name()), y.to(device_name())
                for what, ways in make(blur):
                    row: dict[str, Any] = {"what": what, "N": n, "d": d}
                    for way, call in ways.items():
                        row[f"{way}_ms"] = _milliseconds(call, x, y, quick)
                    rows.append(row)
                    yield {"calls": rows}


def _costs(blur: float) -> Iterator[tuple[str, dict[str, Call]]]:
    for cost in LOSSES:
        yield cost, _ways(cost, blur**2)


def _ways(cost: str, v: float) -> dict[str, Call]:
    loss, function = LOSSES[cost]
    return {
        "kept": loss(v),
        "new": lambda x, y: loss(v)(x, y),
        "function": lambda x, y: -function(x, y, v, normalized=True, log=True),
        "eager": lambda x, y: -function(x, y, v, normalized=True, log=True, return_info=True)[0],
    }


def _peers(blur: float) -> Iterator[tuple[str, dict[str, Call]]]:
    """Of the blocks that it has without a search, which takes minutes for each shape."""
    if device_name() != "cuda":
        return
    try:
        from flash_sinkhorn import SamplesLoss
    except ImportError:
        return
    for name, debias in (("FlashSinkhorn, debiased", True), ("FlashSinkhorn", False)):
        loss = SamplesLoss("sinkhorn", blur=blur, debias=debias, autotune=False)
        yield name, {"kept": loss}


def _milliseconds(call: Call, x: Tensor, y: Tensor, quick: bool) -> float:
    y, large = y.clone().requires_grad_(), len(x) > 4608 or not x.is_cuda

    def step() -> None:
        y.grad = None
        call(x, y).backward()

    repeats, warmup = (5, 2) if large or quick else (20, 6)
    return 1000 * measure(step, repeats, warmup).seconds
