"""Dual statistics: Gram matrices of samples, held whole."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kermix.checks import (
    LARGEST_EXPONENT,
    broadcast_shape,
    check_pair,
    full_precision,
    has_triton,
    is_traced,
    working_dtype,
)
from kermix.kernels.distances import DIRECT_PULLS_UP_TO, Layout, attraction, squared_distances
from kermix.kernels.gaussian import (
    GaussianKernel,
    KernelTerms,
    Numbers,
    Variance,
    VarianceRule,
    as_kernel,
)

__all__ = [
    "ScaledGram",
    "aligned",
    "gram",
    "gram_matrix",
    "kernels_at",
    "largest_exponent",
    "numbers_like",
    "save_with_terms",
    "scaled_gram",
]


@dataclass(frozen=True)
class ScaledGram:
    """A Gram matrix `exp(log_scale) * matrix` whose largest entry does not underflow.

    The largest entry of `matrix` is 1 (more than 1 only at points of weight zero), however far
    apart the two sets are. `log_scale` is a constant for differentiation: any constant would do.
    """

    matrix: Tensor  # (*B, M, N)
    log_scale: Tensor  # (*B,)


def gram(
    a: Tensor,  # (*B, M, d)
    b: Tensor,  # (*B, N, d)
    v: GaussianKernel | Variance | VarianceRule,
) -> Tensor:  # (*B, M, N)
    r"""Gaussian Gram matrix $\exp(-\|a_i - b_j\|^2 / (2 d (v_p + v_q)))$, Eq. (14).

    The diagonal is exactly 1 if both arguments are the same tensor. Entries that would be
    subnormal are 0.

    Example:
        >>> points = torch.tensor([[0.0], [1.0]])
        >>> gram(points, points, 0.5)
        tensor([[1.0000, 0.6065],
                [0.6065, 1.0000]])
    """
    check_pair(a, b, ("a", "b"))
    with full_precision(a.device):
        terms = as_kernel(v, b).cross_terms(a.shape[-1])
        matrix = gram_matrix(a, b, terms, working_dtype(a, b))
    found = matrix.to(torch.promote_types(a.dtype, b.dtype))
    return found if found is matrix else found.where(found >= torch.finfo(found.dtype).tiny, 0.0)


def gram_matrix(a: Tensor, b: Tensor, terms: KernelTerms, dtype: torch.dtype) -> Tensor:
    """The Gram matrix itself, computed and returned in `dtype`."""
    rows, columns = aligned(a, b, dtype)
    return _evaluate(rows, columns, numbers_like(terms, rows), terms.layout, b is a)[0]


def scaled_gram(
    a: Tensor,  # (*B, M, d)
    b: Tensor,  # (*B, N, d)
    terms: KernelTerms,
    dtype: torch.dtype,
    weights_a: Tensor | None = None,  # (*B, M)
    weights_b: Tensor | None = None,  # (*B, N)
) -> ScaledGram:
    """The Gram matrix with the scale of its largest entry taken out.

    Points of weight zero do not count in the search for the largest entry: what they hold is
    multiplied by zero later, and must not push the others below the smallest number.
    """
    rows, columns = aligned(a, b, dtype)
    idle = None
    for weights, axis in ((weights_a, -1), (weights_b, -2)):
        if weights is not None:
            zeros = (weights <= 0).unsqueeze(axis)
            idle = zeros if idle is None else idle | zeros
    numbers, same = numbers_like(terms, rows), b is a
    matrix, log_scale = _evaluate(rows, columns, numbers, terms.layout, same, True, idle)
    return ScaledGram(matrix, log_scale[..., 0, 0])


def _diagonal(matrix: Tensor) -> Tensor:  # (*B, N, N) -> (N, N)
    return torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)


@torch.no_grad()
def largest_exponent(
    nearest: Tensor,
    rates: Numbers,
    log_weights: Numbers,
) -> Tensor:  # of the shape of `nearest`
    """The largest exponent `log_weight - rate * distance` at the smallest distance, finite."""
    bound = torch.finfo(nearest.dtype).max / 4
    exponents = [
        log_weight - (rate * nearest).clamp(max=bound)
        for rate, log_weight in zip(rates, log_weights, strict=True)
    ]
    return torch.stack(exponents).amax(0)


def kernels_at(
    distances: Tensor,  # (*B, M, N)
    rates: Numbers,
    log_weights: Numbers,
    nearest: Tensor,  # (*B, M or 1, 1)
    log_scale: Tensor,  # (*B, M or 1, 1)
) -> list[Tensor]:
    """One matrix for each kernel of the average, divided by `exp(log_scale)`.

    `nearest` is a distance close to those that matter: exponents are formed from differences to
    it, which keeps their digits when all distances are large.
    """
    finfo = torch.finfo(distances.dtype)
    beyond = distances - nearest
    kernels = []
    for rate, log_weight in zip(rates, log_weights, strict=True):
        offset = log_weight - (rate * nearest).clamp(max=finfo.max / 4) - log_scale
        # Points of weight zero may lie nearer than the nearest of the others.
        exponent = (beyond * -rate).add_(offset).clamp_max_(LARGEST_EXPONENT)
        exponent = torch.nn.functional.threshold(exponent, math.log(finfo.tiny), -math.inf)
        kernels.append(exponent.exp_())
    return kernels


class _Gram(torch.autograd.Function):
    """`sum_l exp(log_weight_l - rate_l * distance - log_scale)`, with subnormal numbers as 0.

    One matrix is kept for the backward: the kernel, if there is one of points in a plane, or the
    squared distances. Both gradients are matrix products. The scale is a constant for
    differentiation.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: Tensor,
        b: Tensor,
        rates: Numbers,
        log_weights: Numbers,
        idle: Tensor | None,
        scaled: bool,
        same: bool,
        layout: Layout | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        distances = squared_distances(a, b, same, layout)
        if scaled:
            largest = torch.finfo(distances.dtype).max
            seen = distances if idle is None else distances.masked_fill(idle, largest)
            nearest = seen.detach().amin((-2, -1), keepdim=True)
            log_scale = largest_exponent(nearest, rates, log_weights)
        else:
            nearest = log_scale = distances.new_zeros(*distances.shape[:-2], 1, 1)
        kernels = kernels_at(distances, rates, log_weights, nearest, log_scale)
        total = sum(kernels[1:], start=kernels[0])
        if same and not scaled:
            # An average of ones is one, whatever the rounding of its weights.
            total = total.masked_fill(_diagonal(total), 1)
        return total, distances, nearest, log_scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, rates, log_weights, _, _, ctx.same, ctx.layout = inputs
        total, distances, nearest, log_scale = output
        ctx.mark_non_differentiable(distances, nearest, log_scale)
        ctx.set_materialize_grads(False)
        ctx.keeps_kernel = (
            not any(ctx.needs_input_grad[2:4])  # nobody learns the terms
            and len(rates) == 1
            and ctx.layout is None
            and a.shape[-1] <= DIRECT_PULLS_UP_TO
        )
        kept = total if ctx.keeps_kernel else distances
        save_with_terms(ctx, (a, b, nearest, log_scale, kept), rates, log_weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        a, b, nearest, log_scale, kept, *learned = ctx.saved_tensors
        rates, log_weights = learned or ctx.numbers
        distances: Tensor | None = None
        seen, kernels = None, [kept]
        again = torch.is_grad_enabled()  # distances must depend on the points again
        if again or not ctx.keeps_kernel:
            distances = squared_distances(a, b, ctx.same, ctx.layout) if again else kept
            seen = distances.detach()
            kernels = kernels_at(distances, rates, log_weights, nearest, log_scale)
        parts = [grad * kernel for kernel in kernels]
        pulls = [rate * part for rate, part in zip(rates, parts, strict=True)]
        toward_b, toward_a = attraction(
            sum(pulls[1:], start=pulls[0]),
            a,
            b,
            seen,
            ctx.same,
            ctx.needs_input_grad[1],
            ctx.layout,
        )
        of_terms: tuple[Tensor | None, Tensor | None] = None, None
        if any(ctx.needs_input_grad[2:4]):
            of_terms = _gradients_of_terms(parts, distances)
        return 2 * toward_b, None if toward_a is None else 2 * toward_a, *of_terms, *[None] * 4


def _in_one_pass(points: Tensor, rates: Numbers) -> bool:
    """Whether kernels of our own evaluate this matrix."""
    return (
        points.is_cuda
        and points.shape[-1] <= DIRECT_PULLS_UP_TO
        and points.dtype in (torch.float32, torch.float64)
        and len(rates) == 1
        and points.numel() > 0
        and has_triton()
        and not is_traced(points)
    )


class _FusedGram(torch.autograd.Function):
    """The same by kernels of our own, which hold no distances; other derivatives are `_Gram`'s."""

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, rates: Numbers, log_weights: Numbers, scaled: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        from kermix.kernels import gram_triton, means_triton

        nearest = a.new_zeros(*a.shape[:-2], 1, 1)
        log_scale, (p, q) = nearest, _flattened(a, b)
        if scaled:
            rows = means_triton.nearest_distances(p, q, q.new_ones(q.shape[:-1]))
            nearest = rows.amin(-1).reshape(nearest.shape)
            log_scale = largest_exponent(nearest, rates, log_weights)
        # What the exponents are made of, beside the distances.
        bound = torch.finfo(a.dtype).max / 4
        offset = log_weights[0] - (rates[0] * nearest).clamp(max=bound) - log_scale
        rate = torch.zeros_like(nearest) + rates[0]
        terms = torch.stack([nearest, rate, offset], -1).reshape(-1, 3)
        matrix = gram_triton.gram(p, q, terms)
        return matrix.reshape(*a.shape[:-1], b.shape[-2]), log_scale, terms

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, rates, log_weights, ctx.scaled = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        save_with_terms(ctx, (a, b, output[2]), rates, log_weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        a, b, terms, *learned = ctx.saved_tensors
        needed = ctx.needs_input_grad[:4]
        if any(needed[2:]) or torch.is_grad_enabled():
            given = a, b, *(learned or ctx.numbers)
            with torch.enable_grad():
                matrix = _Gram.apply(*given, None, ctx.scaled, False, None)[0]
            wanted = [t for t, wants in zip(given, needed, strict=True) if wants]
            again = torch.is_grad_enabled()
            found = iter(torch.autograd.grad(matrix, wanted, grad, create_graph=again))
            return *(next(found) if wants else None for wants in needed), None
        from kermix.kernels import gram_triton

        found_grad, p, q = _flattened(grad, a, b)
        of_a, of_b = gram_triton.pulls(found_grad, p, q, terms, needed[1])
        return of_a.reshape(a.shape), None if of_b is None else of_b.reshape(b.shape), *[None] * 3


def _flattened(*matrices: Tensor) -> list[Tensor]:  # (*B, M, N) -> (B, M, N)
    return [t.reshape(-1, *t.shape[-2:]) for t in matrices]


def _evaluate(
    a: Tensor,
    b: Tensor,
    numbers: tuple[Numbers, Numbers],
    layout: Layout | None,
    same: bool,
    scaled: bool = False,
    idle: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The matrix and the logarithm of its scale."""
    if idle is None and layout is None and _in_one_pass(a, numbers[0]):
        matrix, log_scale, _ = _FusedGram.apply(a, b, *numbers, scaled)
        return matrix, log_scale
    # The compiler fuses and differentiates the plain formula by itself.
    by = _Gram.forward if torch.compiler.is_compiling() else _Gram.apply
    matrix, _, _, log_scale = by(a, b, *numbers, idle, scaled, same, layout)
    return matrix, log_scale


def aligned(a: Tensor, b: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both sets in one dtype and expanded to their common batch shape."""
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    return (
        a.to(dtype).expand(*batch, *a.shape[-2:]),
        b.to(dtype).expand(*batch, *b.shape[-2:]),
    )


def numbers_like(terms: KernelTerms, like: Tensor) -> tuple[Numbers, Numbers]:
    """The kernel's numbers: as they are, or in the dtype and device of `like` if learned."""
    rates, log_weights = terms.rates, terms.log_weights
    if not isinstance(rates, Tensor):
        return rates, log_weights
    if not isinstance(log_weights, Tensor):
        # Filled in where they are needed: a copy to a GPU would make the host wait.
        log_weights = torch.stack([like.new_full((), w) for w in log_weights])
    return rates.to(like), log_weights.to(like)


def save_with_terms(
    ctx: Any, tensors: tuple[Tensor, ...], rates: Numbers, log_weights: Numbers
) -> None:
    """Keep tensors for a backward pass, and a kernel's terms among them if they are learned.

    Otherwise the terms are in `ctx.numbers`.
    """
    learned = isinstance(rates, Tensor)
    ctx.numbers = None if learned else (rates, log_weights)
    ctx.save_for_backward(*tensors, *((rates, log_weights) if learned else ()))


def _gradients_of_terms(parts: list[Tensor], distances: Tensor | None) -> tuple[Tensor, Tensor]:
    """With respect to the rates and the logarithms of the weights of the kernels."""
    assert distances is not None
    rates = torch.stack([-(part * distances).sum() for part in parts])
    return rates, torch.stack([part.sum() for part in parts])
