"""What the SVD cost of a low rank is made of on a CPU: no way by a basis takes less than these."""

from typing import Any

import torch

import kermix as km
from benchmarks.timing import timed

__all__ = ["range_parts"]

V = 1e-3


def range_parts(n: int, rank: int) -> list[dict[str, Any]]:
    """CPU seconds of each part, once, and of all of them.

    Args:
        n: Points on each side, uniform in a square.
        rank: Of the basis.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(n, 2, generator=generator) for _ in range(2))
    y.requires_grad_()
    matrix = km.gram(y.detach(), x, V)
    columns = matrix @ torch.randn(n, rank, generator=generator)
    basis = torch.linalg.qr(columns)[0]
    rest = matrix @ basis  # (n, rank)
    wide = rest.double()
    square = wide.mT @ wide  # single precision would lose what is below a thousandth

    def kernel() -> None:
        y.grad = None
        km.gram(y, x, V).backward(matrix)

    parts = {
        "kernel and its gradient": kernel,
        "basis: QR of sums": lambda: torch.linalg.qr(columns),
        "product with the basis": lambda: matrix @ basis,
        "residual": lambda: torch.addmm(matrix, rest, basis.mT, alpha=-1),
        "squares in float64": lambda: wide.mT @ wide,
        "their eigenvectors": lambda: torch.linalg.eigh(square),
        "their root": lambda: square @ square,
        "factor: two products": lambda: (rest @ square.float()) @ basis.mT,
    }
    rows = [
        {"what": what, "N": n, "rank": rank, "s": timed(call, repeats=7, warmup=2).seconds}
        for what, call in parts.items()
    ]
    return [*rows, {"what": "all", "N": n, "rank": rank, "s": sum(row["s"] for row in rows)}]
