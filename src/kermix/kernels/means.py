"""Dual statistics in tiles: means of the kernel over samples, without the Gram matrix.

Neither the forward nor the backward holds more than one tile of `chunk x chunk` kernel values; the
backward computes them again. Points in few dimensions take one fused loop over all pairs instead:
always on a GPU, and on a CPU where there are so many pairs that compiling it pays.
"""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.checks import (
    LARGEST_EXPONENT,
    ROOM_FOR_SUMS,
    broadcast_shape,
    check_sizes,
    has_compiler,
    has_triton,
    is_traced,
)
from kermix.kernels.distances import (
    DIRECT_DIFFERENCES_UP_TO,
    Layout,
    attraction,
    squared_distances,
)
from kermix.kernels.gaussian import KernelTerms, Numbers
from kermix.kernels.gram import (
    aligned,
    kernels_at,
    largest_exponent,
    numbers_like,
    save_with_terms,
)

__all__ = [
    "KernelMoments",
    "compiled_kernel_moments",
    "compiled_nearest_distances",
    "log_kernel_means",
]

DEFAULT_TILE = {"cpu": 1024, "cuda": 8192}


def log_kernel_means(
    points: Tensor,  # (*B, M, d)
    sources: Tensor,  # (*B, N, d)
    terms: KernelTerms,
    weights: Tensor | None,  # (*B, N)
    dtype: torch.dtype,
    chunk: int | None = None,
) -> Tensor:  # (*B, M)
    r"""Logarithm of the mean kernel $\log \sum_j a_j K(x_i, s_j)$ at each point.

    Args:
        points: Where the mean is evaluated.
        sources: The points that the mean is over.
        terms: The kernel.
        weights: Weights `a` of the sources, which sum to 1; uniform if None.
        dtype: What to compute in.
        chunk: Side of a tile, so at most `chunk ** 2` kernel values are held for each batch item.
    """
    check_sizes(chunk=chunk)
    if chunk is None:
        chunk = DEFAULT_TILE.get(points.device.type, 1024)
    rows, columns = aligned(points, sources, dtype)
    n = columns.shape[-2]
    if weights is None:
        weights = columns.new_full((n,), 1 / n)
    batch = broadcast_shape(columns.shape[:-2], weights.shape[:-1])
    rows, columns = (t.expand(*batch, *t.shape[-2:]) for t in (rows, columns))
    weights = weights.to(dtype).expand(*batch, n)
    numbers, same = numbers_like(terms, rows), points is sources
    arguments = rows, columns, weights, *numbers, chunk, same, terms.layout
    # The compiler differentiates the plain formula by itself.
    evaluate = _LogMeans.forward if torch.compiler.is_compiling() else _LogMeans.apply
    ratio, _, log_scale = evaluate(*arguments)
    return log_scale + ratio


class KernelMoments(NamedTuple):
    """Sums over the others of `w k`, `w k (other - target)` and `w k distance`."""

    mass: Tensor  # (B, M)
    pull: Tensor | None  # (B, M, d)
    spread: Tensor | None  # (B, M)


class _PairLoop(NamedTuple):
    """What evaluates all pairs in one loop: nearest distances, and sums of the kernel."""

    nearest_distances: Callable[..., Tensor]
    kernel_moments: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]

    def moments(self, *arguments: Tensor, **options: Any) -> KernelMoments:
        """The sums, by their names."""
        return KernelMoments(*self.kernel_moments(*arguments, **options))


class _Gradients(NamedTuple):
    points: Tensor
    sources: Tensor | None
    weights: Tensor | None
    rates: Tensor | None
    log_weights: Tensor | None


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
        same: bool,
        layout: Layout | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        backend = _one_loop(points, sources) if layout is None else None
        if backend is not None:
            nearest, masses = _fused_masses(backend, points, sources, weights, rates)
            log_scale = largest_exponent(nearest, rates, log_weights)
            shares = _shares(rates, log_weights, nearest, log_scale)
            ratio = _total([s * m for s, m in zip(shares, masses, strict=True)]).log()
            return ratio, nearest, log_scale
        rows = [
            _row_block(
                block, sources, weights, rates, log_weights, chunk, i if same else None, layout
            )
            for i, block in enumerate(points.split(chunk, -2))
        ]
        ratio, nearest, log_scale = (torch.cat(part, -1) for part in zip(*rows, strict=True))
        return ratio, nearest, log_scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        points, sources, weights, rates, log_weights, ctx.chunk, ctx.same, ctx.layout = inputs
        ratio, nearest, log_scale = output
        ctx.mark_non_differentiable(nearest, log_scale)
        ctx.set_materialize_grads(False)
        tensors = points, sources, weights, ratio, nearest, log_scale
        save_with_terms(ctx, tensors, rates, log_weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        points, sources, weights, ratio, nearest, log_scale, *learned = ctx.saved_tensors
        rates, log_weights = learned or ctx.numbers
        # Divided by the mean kernel, the terms of a row sum to 1.
        factors = grad * (-ratio).exp()
        tiled = torch.is_grad_enabled() or ctx.layout is not None
        backend = None if tiled else _one_loop(points, sources)
        given = _Given(points, sources, weights, rates, log_weights, factors, nearest, log_scale)
        sources_too = any(ctx.needs_input_grad[1:3])
        if backend is None:
            gradients = _tiled_gradients(given, ctx.chunk, ctx.same, sources_too, ctx.layout)
        else:
            gradients = _fused_gradients(backend, given, sources_too)
        return (
            *gradients[:3],
            gradients.rates if learned else None,
            gradients.log_weights if learned else None,
            None,
            None,
            None,
        )


def _row_block(
    rows: Tensor,
    sources: Tensor,
    weights: Tensor,
    rates: Numbers,
    log_weights: Numbers,
    chunk: int,
    own: int | None,
    layout: Layout | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Ratio, nearest distance and scale for a block of points, one tile after the other.

    `own` is the tile that holds the same points as the block.
    """
    largest = torch.finfo(rows.dtype).max
    nearest = torch.full_like(rows[..., :1], largest)
    log_scale = largest_exponent(nearest, rates, log_weights)
    total = torch.zeros_like(nearest)
    for j, (columns, share) in enumerate(_tiles(sources, weights, chunk)):
        distances = squared_distances(rows, columns, j == own, layout)
        idle = (share <= 0).unsqueeze(-2)
        near = distances.detach().masked_fill(idle, largest).amin(-1, keepdim=True)
        nearest, before = torch.minimum(nearest, near), log_scale
        log_scale = largest_exponent(nearest, rates, log_weights)
        kernel = _total(kernels_at(distances, rates, log_weights, nearest, log_scale))
        total = total * (before - log_scale).exp() + kernel @ share.unsqueeze(-1)
    return total.log().squeeze(-1), nearest.squeeze(-1), log_scale.squeeze(-1)


class _Given(NamedTuple):
    """All that gradients are computed from."""

    points: Tensor
    sources: Tensor
    weights: Tensor
    rates: Numbers
    log_weights: Numbers
    factors: Tensor
    nearest: Tensor
    log_scale: Tensor


def _tiled_gradients(
    given: _Given, chunk: int, same: bool, sources_too: bool, layout: Layout | None
) -> _Gradients:
    points, sources, weights, rates, log_weights, factors, nearest, log_scale = given
    row_parts = [t.unsqueeze(-1).split(chunk, -2) for t in (factors, nearest, log_scale)]
    grad_points = []
    grad_sources = [torch.zeros_like(t) for t in sources.split(chunk, -2)]
    grad_weights = [torch.zeros_like(t) for t in weights.split(chunk, -1)]
    zero = factors.new_zeros(())
    grad_rates, grad_logs = [zero] * len(rates), [zero] * len(rates)
    by_row = zip(points.split(chunk, -2), *row_parts, strict=True)
    for i, (rows, factor, near, scale) in enumerate(by_row):
        grad_rows = torch.zeros_like(rows)
        for j, (columns, share) in enumerate(_tiles(sources, weights, chunk)):
            own = same and i == j
            distances = squared_distances(rows, columns, own, layout)
            kernels = kernels_at(distances, rates, log_weights, near, scale)
            parts = [kernel * factor for kernel in kernels]
            weighted = [part * share.unsqueeze(-2) for part in parts]
            pull = _total([rate * w for rate, w in zip(rates, weighted, strict=True)])
            toward, back = attraction(
                pull, rows, columns, distances.detach(), own, sources_too, layout
            )
            grad_rows = grad_rows + 2 * toward
            if back is not None:
                grad_weights[j] = grad_weights[j] + _total(parts).sum(-2)
                grad_sources[j] = grad_sources[j] + 2 * back
            if isinstance(rates, Tensor):
                grad_rates = [
                    g - (w * distances).sum() for g, w in zip(grad_rates, weighted, strict=True)
                ]
                grad_logs = [g + w.sum() for g, w in zip(grad_logs, weighted, strict=True)]
        grad_points.append(grad_rows)
    return _Gradients(
        torch.cat(grad_points, -2),
        torch.cat(grad_sources, -2),
        torch.cat(grad_weights, -1),
        torch.stack(grad_rates),
        torch.stack(grad_logs),
    )


def _fused_masses(
    backend: _PairLoop, points: Tensor, sources: Tensor, weights: Tensor, rates: Numbers
) -> tuple[Tensor, list[Tensor]]:
    """Nearest distances, and for each kernel its sum relative to the value at the nearest."""
    p, s, w = _flat(points, 2), _flat(sources, 2), _flat(weights, 1)
    nearest = backend.nearest_distances(p, s, w)
    masses = [backend.moments(p, s, w, _on_device(r, p), near_targets=nearest).mass for r in rates]
    shape = points.shape[:-1]
    return nearest.reshape(shape), [mass.reshape(shape) for mass in masses]


def _fused_gradients(backend: _PairLoop, given: _Given, sources_too: bool) -> _Gradients:
    points, sources, weights, rates, log_weights, factors, nearest, log_scale = given
    p, s, w = _flat(points, 2), _flat(sources, 2), _flat(weights, 1)
    near, factor = _flat(nearest, 1), _flat(factors, 1)
    shares = _shares(rates, log_weights, near, _flat(log_scale, 1))
    grad_points = torch.zeros_like(p)
    grad_sources, grad_weights = torch.zeros_like(s), torch.zeros_like(w)
    grad_rates, grad_logs = [], []
    for rate, share in zip(rates, shares, strict=True):
        beta, f = _on_device(rate, p), factor * share
        at_points = backend.moments(p, s, w, beta, near_targets=near, gradient=True)
        assert at_points.pull is not None
        assert at_points.spread is not None
        grad_points += 2 * beta * f.unsqueeze(-1) * at_points.pull
        grad_rates.append(-(f * at_points.spread).sum())
        grad_logs.append((f * at_points.mass).sum())
        if sources_too:
            at_sources = backend.moments(s, p, f, beta, near_others=near, gradient=True)
            assert at_sources.pull is not None
            grad_sources += 2 * beta * w.unsqueeze(-1) * at_sources.pull
            grad_weights += at_sources.mass
    return _Gradients(
        grad_points.reshape(points.shape),
        grad_sources.reshape(sources.shape),
        grad_weights.reshape(weights.shape),
        torch.stack(grad_rates),
        torch.stack(grad_logs),
    )


def _one_loop(
    points: Tensor, sources: Tensor, compiled_from: int = 2_000_000_000
) -> _PairLoop | None:
    """What evaluates all pairs in one loop, where there is one and it pays."""
    if points.shape[-1] > DIRECT_DIFFERENCES_UP_TO or is_traced(points):
        return None
    if points.is_cuda and points.dtype in (torch.float32, torch.float64) and has_triton():
        from kermix.kernels import means_triton as fused

        return _PairLoop(fused.nearest_distances, fused.kernel_moments)
    pairs = points.numel() // points.shape[-1] * sources.shape[-2]
    if points.device.type == "cpu" and pairs >= compiled_from and has_compiler():
        return _PairLoop(compiled_nearest_distances, compiled_kernel_moments)
    return None


def _shares(
    rates: Numbers, log_weights: Numbers, nearest: Tensor, log_scale: Tensor
) -> list[Tensor]:
    """Value of each kernel of the average at the nearest distance, divided by the scale."""
    bound = torch.finfo(nearest.dtype).max / 4
    return [
        (log_weight - (rate * nearest).clamp(max=bound) - log_scale).exp()
        for rate, log_weight in zip(rates, log_weights, strict=True)
    ]


def _tiles(sources: Tensor, weights: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(sources.split(chunk, -2), weights.split(chunk, -1), strict=True)


def _flat(tensor: Tensor, kept: int) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-kept:])


def _on_device(rate: float | Tensor, like: Tensor) -> Tensor:
    return rate.detach() if isinstance(rate, Tensor) else like.new_full((), rate)


def _total(matrices: list[Tensor]) -> Tensor:
    return sum(matrices[1:], start=matrices[0])


def compiled_nearest_distances(
    points: Tensor, sources: Tensor, weights: Tensor
) -> Tensor:  # (B, M)
    """Squared distance from each point to the nearest source of positive weight, on a CPU.

    This and `compiled_kernel_moments` are what `kermix.kernels.means_triton` writes for a GPU: the
    compiler turns each into one loop over pairs. Compiling takes some seconds, so this is for sums
    that would take longer.
    """
    largest = torch.finfo(points.dtype).max
    penalties = torch.zeros_like(weights).masked_fill(weights <= 0, largest / 4)
    find = _compiled(_nearest, *_kind(points))
    triples = zip(points, sources, penalties, strict=True)
    return torch.stack([find(p, s, penalty) for p, s, penalty in triples])


def compiled_kernel_moments(
    targets: Tensor,  # (B, M, d)
    others: Tensor,  # (B, N, d)
    weights: Tensor,  # (B, N)
    rate: Tensor,  # ()
    near_targets: Tensor | None = None,  # (B, M)
    near_others: Tensor | None = None,  # (B, N)
    gradient: bool = False,
) -> KernelMoments:
    """Sums of the kernel `exp(-rate * (distance - near))` on a CPU, with those of its gradient."""
    near_t = targets.new_zeros(targets.shape[:-1]) if near_targets is None else near_targets
    near_o = others.new_zeros(others.shape[:-1]) if near_others is None else near_others
    sums = _compiled(_sums_with_gradient if gradient else _sums, *_kind(targets))
    items = zip(targets, others, weights, near_t, near_o, strict=True)
    found = [sums(*item, rate) for item in items]
    if not gradient:
        return KernelMoments(torch.stack([f[0] for f in found]), None, None)
    mass, spread, *pulls = (torch.stack(part) for part in zip(*found, strict=True))
    return KernelMoments(mass, torch.stack(pulls, -1), spread)


def _kind(points: Tensor) -> tuple[torch.dtype, int]:
    return points.dtype, points.shape[-1]


@functools.cache
def _compiled(
    function: types.FunctionType, dtype: torch.dtype, dimension: int
) -> Callable[..., Any]:
    # The compiler counts versions by code object, and gives up at the ninth: a dtype and dimension
    # has one of its own.
    code = function.__code__.replace(co_name=f"{function.__name__}_{dimension}")
    own = types.FunctionType(code, function.__globals__, closure=function.__closure__)
    return torch.compile(own, dynamic=True, fullgraph=True)


def _distances(targets: Tensor, others: Tensor) -> Tensor:
    differences = _differences(targets, others)
    total = sum((d * d for d in differences[1:]), start=differences[0] * differences[0])
    return total.clamp(max=torch.finfo(targets.dtype).max * ROOM_FOR_SUMS)


def _differences(targets: Tensor, others: Tensor) -> list[Tensor]:
    return [
        o.unsqueeze(0) - t.unsqueeze(1)
        for t, o in zip(targets.unbind(-1), others.unbind(-1), strict=True)
    ]


def _nearest(points: Tensor, sources: Tensor, penalties: Tensor) -> Tensor:
    return (_distances(points, sources) + penalties).amin(1)


def _kernel(
    targets: Tensor, others: Tensor, weights: Tensor, near_t: Tensor, near_o: Tensor, rate: Tensor
) -> Tensor:
    beyond = _distances(targets, others) - near_t.unsqueeze(1) - near_o.unsqueeze(0)
    return weights.unsqueeze(0) * (-rate * beyond).clamp(max=LARGEST_EXPONENT).exp()


def _sums(*arguments: Tensor) -> tuple[Tensor]:
    return (_kernel(*arguments).sum(1),)


def _sums_with_gradient(*arguments: Tensor) -> tuple[Tensor, ...]:
    targets, others = arguments[:2]
    values = _kernel(*arguments)
    pulls = [(values * d).sum(1) for d in _differences(targets, others)]
    return values.sum(1), (values * _distances(targets, others)).sum(1), *pulls
