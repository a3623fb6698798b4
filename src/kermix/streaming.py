"""Dual statistics in tiles: means of the kernel over samples, without the Gram matrix.

Neither the forward nor the backward holds more than one tile of `chunk x chunk` kernel values; the
backward computes them again.
"""

from typing import Any

import torch
from torch import Tensor

from .errors import OptionError
from .gram import aligned, kernels_at, largest_exponent, numbers_like, squared_distances
from .kernel import KernelTerms, Numbers

__all__ = ["log_kernel_means"]

DEFAULT_TILE = {"cpu": 1024, "cuda": 8192}


def log_kernel_means(
    points: Tensor,  # (*B, M, d)
    sources: Tensor,  # (*B, N, d)
    terms: KernelTerms,
    weights: Tensor | None,  # (*B, N)
    dtype: torch.dtype,
    chunk: int | None = None,
) -> Tensor:  # (*B, M)
    r"""Logarithm of the mean kernel :math:`\log \sum_j a_j K(x_i, s_j)` at each point.

    Args:
        points: Where the mean is evaluated.
        sources: The points that the mean is over.
        terms: The kernel.
        weights: Weights `a` of the sources, which sum to 1; uniform if None.
        dtype: What to compute in.
        chunk: Side of a tile, so at most `chunk ** 2` kernel values are held for each batch item.
    """
    if chunk is None:
        chunk = DEFAULT_TILE.get(points.device.type, 1024)
    elif not isinstance(chunk, int) or chunk < 1:
        raise OptionError(f"chunk={chunk}: the side of a tile is a whole number of points.")
    rows, columns = aligned(points, sources, dtype)
    n = columns.shape[-2]
    if weights is None:
        weights = columns.new_full((n,), 1 / n)
    batch = torch.broadcast_shapes(columns.shape[:-2], weights.shape[:-1])
    rows, columns = (t.expand(*batch, *t.shape[-2:]) for t in (rows, columns))
    weights = weights.to(dtype).expand(*batch, n)
    arguments = rows, columns, weights, *numbers_like(terms, rows), chunk
    # The compiler differentiates the plain formula by itself.
    evaluate = _LogMeans.forward if torch.compiler.is_compiling() else _LogMeans.apply
    ratio, _, log_scale = evaluate(*arguments)
    return log_scale + ratio


class _LogMeans(torch.autograd.Function):
    """The mean kernel relative to its largest term, `log mean - log_scale`, and that scale."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        points: Tensor,
        sources: Tensor,
        weights: Tensor,
        rates: Numbers,
        log_weights: Numbers,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ratios, nearests, scales = [], [], []
        for rows in points.split(chunk, -2):
            parts = [
                _row_sums(rows, columns, share, rates, log_weights)
                for columns, share in _tiles(sources, weights, chunk)
            ]
            nearest = torch.stack([n for n, _, _ in parts]).amin(0)
            log_scale = largest_exponent(nearest, rates, log_weights)
            total = torch.stack([(scale - log_scale).exp() * s for _, scale, s in parts]).sum(0)
            ratios.append(total.log())
            nearests.append(nearest)
            scales.append(log_scale)
        return torch.cat(ratios, -1), torch.cat(nearests, -1), torch.cat(scales, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        points, sources, weights, rates, log_weights, ctx.chunk = inputs
        ratio, nearest, log_scale = output
        ctx.mark_non_differentiable(nearest, log_scale)
        ctx.set_materialize_grads(False)
        ctx.numbers = None
        tensors = [points, sources, weights, ratio, nearest, log_scale]
        if isinstance(rates, Tensor):
            tensors += [rates, log_weights]
        else:
            ctx.numbers = rates, log_weights
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        points, sources, weights, ratio, nearest, log_scale, *learned = ctx.saved_tensors
        rates, log_weights = learned or ctx.numbers
        origin = sources.detach().mean(-2, keepdim=True)
        # Divided by the mean kernel, the terms of a row sum to 1.
        factors = grad * (-ratio).exp()
        by_row = [t.unsqueeze(-1).split(ctx.chunk, -2) for t in (factors, nearest, log_scale)]
        grad_points = []
        grad_sources = [torch.zeros_like(t) for t in sources.split(ctx.chunk, -2)]
        grad_weights = [torch.zeros_like(t) for t in weights.split(ctx.chunk, -1)]
        grad_numbers = [[grad.new_zeros(()), grad.new_zeros(())] for _ in range(len(rates))]
        for rows, factor, near, scale in zip(points.split(ctx.chunk, -2), *by_row, strict=True):
            grad_rows = torch.zeros_like(rows)
            for j, (columns, share) in enumerate(_tiles(sources, weights, ctx.chunk)):
                distances = squared_distances(rows, columns)
                kernels = kernels_at(distances, rates, log_weights, near, scale)
                shares = [kernel * factor for kernel in kernels]
                total = sum(shares[1:], start=shares[0])
                grad_weights[j] = grad_weights[j] + total.sum(-2)
                weighted = [s * share.unsqueeze(-2) for s in shares]
                pull = sum(
                    (rate * w for rate, w in zip(rates[1:], weighted[1:], strict=True)),
                    start=rates[0] * weighted[0],
                )
                p, q = rows - origin, columns - origin
                grad_rows = grad_rows + 2 * (pull @ q - pull.sum(-1, keepdim=True) * p)
                grad_sources[j] = grad_sources[j] + 2 * (
                    pull.mT @ p - pull.mT.sum(-1, keepdim=True) * q
                )
                if learned:
                    for slot, w in zip(grad_numbers, weighted, strict=True):
                        slot[0] = slot[0] - (w * distances).sum()
                        slot[1] = slot[1] + w.sum()
            grad_points.append(grad_rows)
        gradients = (
            torch.cat(grad_points, -2),
            torch.cat(grad_sources, -2),
            torch.cat(grad_weights, -1),
        )
        if not learned:
            return *gradients, None, None, None
        grad_rates, grad_log_weights = (torch.stack(g) for g in zip(*grad_numbers, strict=True))
        return *gradients, grad_rates, grad_log_weights, None


def _tiles(sources: Tensor, weights: Tensor, chunk: int) -> zip:
    return zip(sources.split(chunk, -2), weights.split(chunk, -1), strict=True)


def _row_sums(
    rows: Tensor, columns: Tensor, share: Tensor, rates: Numbers, log_weights: Numbers
) -> tuple[Tensor, Tensor, Tensor]:
    """Smallest distance, scale, and weighted sum of the scaled kernel, for each row of a tile."""
    distances = squared_distances(rows, columns)
    largest = torch.finfo(distances.dtype).max
    idle = (share <= 0).unsqueeze(-2)
    nearest = distances.detach().masked_fill(idle, largest).amin(-1, keepdim=True)
    log_scale = largest_exponent(nearest, rates, log_weights)
    kernels = kernels_at(distances, rates, log_weights, nearest, log_scale)
    total = sum(kernels[1:], start=kernels[0])
    sums = (total @ share.unsqueeze(-1)).squeeze(-1)
    return nearest.squeeze(-1), log_scale.squeeze(-1), sums
