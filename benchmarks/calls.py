"""Milliseconds of value and gradient of each cost, however it is called, beside FlashSinkhorn.

Uniform points in the unit cube of d dimensions. The kernel's variance is the square of Sinkhorn's
blur, .05 in the plane and .5 in 64 dimensions. Ways: `kept` is one loss that is called again and
again, `new` a loss made anew in each step, `function` a cost; FlashSinkhorn, where it can be
imported, in both forms. Median of repeated calls by the clock, waiting for the device each time.
"""

from collections.abc import Callable, Iterator
from typing import Any

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


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """One row for each number of points, dimension and cost, as they are measured."""
    rows: list[dict[str, Any]] = []
    on_gpu = device_name() == "cuda"
    for n in (100,) if quick else (1000, 4000, 8000) if on_gpu else (1000,):
        for d, blur in BLUR.items():
            generator = torch.Generator().manual_seed(0)
            x, y = torch.rand(2, n, d, generator=generator).to(device_name())
            many = 5 if quick or n > 4000 or not x.is_cuda else 20
            for cost in LOSSES:
                ways = _ways(cost, blur**2)
                row: dict[str, Any] = {"what": cost, "N": n, "d": d}
                for way, call in ways.items():
                    row[f"{way}_ms"] = _milliseconds(call, x, y, many)
                rows.append(row)
                yield {"calls": rows}
            for name, call in _peers(blur).items():
                row = {"what": name, "N": n, "d": d}
                rows.append(row | {"kept_ms": _milliseconds(call, x, y, many)})
            yield {"calls": rows}


def _ways(cost: str, v: float) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    loss, function = LOSSES[cost]
    return {
        "kept": loss(v),
        "new": lambda x, y: loss(v)(x, y),
        "function": lambda x, y: -function(x, y, v, normalized=True, log=True),
        "eager": lambda x, y: -function(x, y, v, normalized=True, log=True, return_info=True)[0],
    }


def _peers(blur: float) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    if device_name() != "cuda":
        return {}
    try:
        from flash_sinkhorn import SamplesLoss
    except ImportError:
        return {}
    return {
        "FlashSinkhorn, debiased": SamplesLoss("sinkhorn", blur=blur, debias=True),
        "FlashSinkhorn": SamplesLoss("sinkhorn", blur=blur),
    }


def _milliseconds(
    call: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, many: int
) -> float:
    y = y.clone().requires_grad_()

    def step() -> None:
        y.grad = None
        call(x, y).backward()

    return 1000 * measure(step, many, warmup=6 if x.is_cuda else 1).seconds
