"""Error bounds of the polar factor by the short products of a GPU, against known singular values.

Random spectra between random orthonormal bases, whose rounding averages out, and matrices whose
entries repeat, whose rounding does not; each also as a CUDA graph, whose chain of steps cannot be
read.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kermix.linalg.polar import Polar, polar_factor

__all__ = ["bounds"]

SIDES = (768, 769, 800, 1000, 1024, 1100)
MORE_COLUMNS = (0, 1, 200)
SIDES_OF_PATTERNS = (300, 900, 1024, 1537, 3100)
TOLERANCES = (1e-4, 1e-2)
FEW = 5


def bounds(quick: bool = False, count: int = 500) -> list[dict[str, Any]]:
    """Rows that say how often a bound was violated, and how close errors came to it."""
    found: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for kind, matrix, exact in _cases(FEW if quick else count, quick):
        for tolerance in TOLERANCES:
            ways = [polar_factor, _captured] if matrix.is_cuda else [polar_factor]
            for way in ways:
                polar = way(matrix, tolerance)
                error = float((polar.value.double() / exact - 1).abs().max())
                bound = float((polar.error_bound.double() / exact).max())
                found.setdefault((kind, tolerance), []).append((error, bound))
    return [
        {
            "what": f"{kind}, tolerance {tolerance:g}",
            "matrices": len(pairs),
            "violations": sum(error > bound for error, bound in pairs),
            "largest_error_over_bound": max(error / bound for error, bound in pairs),
            "largest_error": max(error for error, _ in pairs),
            "largest_bound": max(bound for _, bound in pairs),
        }
        for (kind, tolerance), pairs in found.items()
    ]


def _captured(matrix: Tensor, tolerance: float) -> Polar:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        polar = polar_factor(matrix, tolerance)
    graph.replay()
    return Polar(polar.factor, polar.value.clone(), polar.error_bound.clone())


def _cases(count: int, quick: bool) -> Iterator[tuple[str, Tensor, float]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator, draws = torch.Generator(device).manual_seed(1), random.Random(1)
    for _ in range(count):
        side = 100 if quick else draws.choice(SIDES)
        columns = side + draws.choice(MORE_COLUMNS)
        values = _spectrum(side, draws).to(device) * 10 ** draws.uniform(-12, 12)
        left, right = (
            torch.linalg.qr(
                torch.randn(n, side, device=device, dtype=torch.float64, generator=generator)
            )[0]
            for n in (side, columns)
        )
        matrix = ((left * values) @ right.mT).float()
        yield "random spectra", matrix.mT if draws.random() < 0.3 else matrix, float(values.sum())
    for side in (60,) if quick else SIDES_OF_PATTERNS:
        for matrix in _patterns(side):
            wide = matrix.to(device).double()
            # Of large ones an SVD takes minutes.
            large = side > 2000
            exact = float(polar_factor(wide, 1e-8).value if large else _svd(wide))
            yield "repeated entries", wide.float(), exact


def _svd(matrix: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrix.cpu()).sum()


def _spectrum(count: int, draws: random.Random) -> Tensor:
    k = torch.arange(count, dtype=torch.float64)
    power, rate = draws.uniform(0.5, 3), draws.uniform(0.001, 0.2)
    shapes: list[Callable[[], Tensor]] = [
        lambda: (k + 1) ** -power,
        lambda: torch.exp(-rate * k),
        lambda: torch.exp(-rate * k) + 1e-7,
        lambda: torch.exp(-power * (k // 50)),
        lambda: torch.ones_like(k),
        lambda: torch.where(k < count * rate, 1.0, 10 ** (-2 * power)),
        lambda: torch.where(k < 1, 1.0, 1e-6 * power),
        lambda: torch.where(k < 10, 1.0, 1e-4 * power),
    ]
    return draws.choice(shapes)()


def _patterns(side: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(side)
    k = torch.arange(side)
    uniform = torch.rand(side, 2, generator=generator)
    few = uniform[:20]
    yield torch.eye(side)
    yield 1.3 * torch.eye(side)[torch.randperm(side, generator=generator)]
    yield torch.diag(uniform[:, 0])
    yield torch.diag(torch.exp(-0.1 * k))
    yield torch.diag((k < side // 8).float())
    yield torch.ones(side, side)
    yield torch.ones(side, side).triu()
    yield torch.cos(torch.pi * (k[:, None] + 0.5) * k / side)
    yield uniform[:, :1] * uniform[:, 1]
    for kinds in (2, 3):  # rank one, with few different entries
        rows, columns = 0.05 + torch.rand(2, kinds, generator=generator)
        yield rows[k % kinds][:, None] * columns[(k // 7) % kinds]
    for clusters in (7, 100):
        of = torch.randint(clusters, (side,), generator=generator)
        same = (of[:, None] == of).float()
        yield same
        yield same * uniform[:, :1]
    for points in (uniform, few[k % 20]):
        yield torch.exp(-20 * torch.cdist(points, points).square())
