"""Peak memory of a cost with its gradient, against the number of points.

`python -m benchmarks memory`: the paper's way, our dense SVD cost, the scalar cost in tiles, and
the SVD cost from a sketch of the data, in the plane. On a CPU each is a process of its own;
what it held before the call is taken off.
"""

from typing import Any

import torch

from benchmarks.timing import device_name, peak_memory_of

__all__ = ["run"]

SIZES = (1000, 2000, 5000, 20_000, 100_000)
# Code with x and y at hand, and the most points that it is run with.
CALLS = {
    "paper's way": ("papers_way(x, y).backward()", 5000),
    "dense SVD cost": ("km.svd_cost(x, y, V).backward()", 5000),
    "SVD cost by sketch": ("km.svd_cost(x, y, 1e-2, method='sketch', rank=200).backward()", 10**5),
    "scalar cost in tiles": ("km.scalar_cost(x, y, V).backward()", 10**5),
}
PREPARATION = """
import kermix as km
from benchmarks.memory import memory_in_use
from benchmarks.svd import V, _data, papers_way
x, y = _data(50, 2); y.requires_grad_()
{call}
x, y = _data({n}, 2); y.requires_grad_()
"""


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The table of the benchmark; the quick version has two sizes."""
    sizes = (200, 400) if quick else SIZES
    rows = []
    for method, (call, most) in CALLS.items():
        for n in sizes:
            # Seconds on a GPU, minutes on a CPU: an SVD of 5000 points.
            if n <= most and (device_name() == "cuda" or n < 5000 or most > 5000):
                rows.append({"method": method, "N": n, "d": 2, "peak_mb": _peak(call, n)})
    return {"peak_memory": rows}


def _peak(call: str, n: int) -> float:
    code = PREPARATION.format(call=call, n=n)
    if device_name() == "cuda":
        code += f"before = memory_in_use()\n{call}\nprint(memory_in_use(peak=True) - before)"
    else:
        code += f"before = peak()\n{call}\nprint(peak() - before)"
    return peak_memory_of(code)


def memory_in_use(peak: bool = False) -> float:
    """Memory of the GPU that tensors hold, in MB: now, or at most since the last question."""
    torch.cuda.synchronize()
    if peak:
        return torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20
