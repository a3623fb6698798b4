"""The layers of the Gaussian-product network (Eqs. 25-27 of the paper).

A sample is a series of positions, each with features: tensors of shape (B, T, F), positions
before features, which is what a channels-last image is in memory. `GaussianLayer` maps
every position alone; `GaussianOutput` is the only place where positions meet.

The paper writes `||A y - W(t)||_2^2` for what becomes a vector of features, so that norm can be
read in two ways: as the square of each element, with a number as anchor of each feature; or as a
distance of vectors, with a vector as anchor of each feature, as in a radial basis network. Both
are here; (24), which has a scalar function for each k, speaks for the first.

Autograd through plain operations keeps five arrays of the size of `A y`. The fast path has
backwards of its own that keep only this one, in its own precision, and take the exponential again;
their pieces are plain functions, which `torch.compile` turns into a few passes over the memory.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from kermix.checks import check_option, check_sizes, has_compiler, has_triton, working_dtype
from kermix.errors import ShapeError
from kermix.settings import ProductPath

__all__ = [
    "PATHS",
    "GaussianLayer",
    "GaussianOutput",
    "anchor_distances",
    "compiles",
    "gaussian",
    "gaussian_norm",
    "gaussian_sums",
    "mean_anchor_distances",
    "mean_square",
    "normalized_gaussian",
    "track_statistics",
]

PATHS = get_args(ProductPath)


def gaussian(u: Tensor, anchors: Tensor) -> Tensor:
    """`exp(-(u - w)^2)`, in float32 at least.

    Example:
        >>> gaussian(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]))
        tensor([1.0000, 0.3679])
    """
    return torch.exp(-(u.to(working_dtype(u)) - anchors).square())


def compiles(device: torch.device) -> bool:
    """Whether the pieces are compiled: on a GPU that Triton and a compiler are there for."""
    return device.type == "cuda" and has_triton() and has_compiler()


def gaussian_norm(
    u: Tensor,  # (B, T, F)
    anchors: Tensor,  # (F,) or (T, F)
    weight: Tensor,  # (F,)
    bias: Tensor,  # (F,)
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """`exp(-(u - w)^2)` normalized over the first two axes, with its mean and variance.

    The result has the precision of `u`; everything else is in float32 at least.
    """
    result: tuple[Tensor, Tensor, Tensor] = _GaussianNorm.apply(u, anchors, weight, bias, eps)
    return result


def mean_square(k: Tensor, anchors: Tensor) -> Tensor:  # (B, F)
    """`(1/T) sum_t (k_t - w_t)^2` of k (B, T, F) and anchors (F,) or (T, F)."""
    result: Tensor = _MeanSquare.apply(k, anchors)
    return result


def gaussian_sums(
    u: Tensor,  # (B, T, F)
    anchors: Tensor,  # (F,) or (T, F)
    places: Tensor,  # (T, F)
) -> tuple[Tensor, Tensor, Tensor]:  # (B, F) each
    r"""Sums over positions of $e$, $e^2$ and $e\,w_t$, with `e = exp(-(u - a)^2)`.

    All that a mean square of normalized Gaussians needs to know, in one pass over `u`.

    Example:
        >>> u, zero = torch.zeros(1, 2, 1), torch.zeros(1)
        >>> [float(part) for part in gaussian_sums(u, zero, torch.tensor([[3.0], [4.0]]))]
        [2.0, 2.0, 7.0]
    """
    result: tuple[Tensor, Tensor, Tensor] = _GaussianSums.apply(u, anchors, places)
    return result


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Sizes are fixed, for aligned loads; past the compiler's limit of sizes it runs uncompiled.
    return torch.compile(function, dynamic=False)


def _piece(function: Callable[..., Any], u: Tensor) -> Callable[..., Any]:
    return _compiled(function) if compiles(u.device) else function


class _GaussianNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        anchors: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Detached: the compiler would ask for the gradient of what is not a leaf, and be warned.
        given = (t.detach() for t in (u, anchors, weight, bias))
        result, mean, variance, scale = _piece(_norm_forward, u)(*given, eps)
        ctx.save_for_backward(u, anchors, weight, mean, scale)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return result, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        given = (t.detach() for t in (grad, *ctx.saved_tensors))
        found = _piece(_norm_backward, grad)(*given)
        return (*found, None)


class _MeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, anchors: Tensor) -> Tensor:
        ctx.save_for_backward(k, anchors)
        found: Tensor = _piece(_square_forward, k)(k.detach(), anchors.detach())
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given = (t.detach() for t in (grad, *ctx.saved_tensors))
        found: tuple[Tensor, Tensor] = _piece(_square_backward, grad)(*given)
        return found


class _GaussianSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, anchors: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(u, anchors, places)
        given = (t.detach() for t in (u, anchors, places))
        found: tuple[Tensor, Tensor, Tensor] = _piece(_sums_forward, u)(*given)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, anchors, places = (t.detach() for t in ctx.saved_tensors)
        # Apart: sums over other axes in the same pass would make it a slow one.
        to_u = _piece(_sums_backward, u)(*grads, u, anchors, places)
        total = _piece(_summed, u)(to_u, anchors.ndim == 2)
        return to_u, -total, _piece(_to_places, u)(grads[2], u, anchors)


def _norm_forward(
    u: Tensor, anchors: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values = gaussian(u, anchors)
    mean = values.mean((0, 1))
    # Values lie between 0 and 1, so this loses nothing, and it is one pass over them.
    variance = (values.square().mean((0, 1)) - mean.square()).clamp(min=0)
    scale = torch.rsqrt(variance + eps)
    return ((values - mean) * (scale * weight) + bias).to(u.dtype), mean, variance, scale


def _norm_backward(
    grad: Tensor, u: Tensor, anchors: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad = grad.to(working_dtype(grad))
    away = u.to(working_dtype(u)) - anchors
    values = torch.exp(-away.square())
    unit = (values - mean) * scale
    to_bias, to_weight = grad.sum((0, 1)), (grad * unit).sum((0, 1))
    count = u.shape[0] * u.shape[1]
    inner = (scale * weight) * (grad - to_bias / count - unit * (to_weight / count))
    to_u = -2 * away * values * inner
    to_anchors = -to_u.sum(0 if anchors.ndim == 2 else (0, 1))
    return to_u.to(u.dtype), to_anchors, to_weight, to_bias


def _square_forward(k: Tensor, anchors: Tensor) -> Tensor:
    return (k.to(working_dtype(k)) - anchors).square().mean(1)


def _square_backward(grad: Tensor, k: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    away = k.to(working_dtype(k)) - anchors
    to_k = away * (grad * (2 / k.shape[1])).unsqueeze(1)
    return to_k.to(k.dtype), -to_k.sum(0 if anchors.ndim == 2 else (0, 1))


def _sums_forward(u: Tensor, anchors: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values = gaussian(u, anchors)
    return values.sum(1), values.square().sum(1), (values * places).sum(1)


def _sums_backward(
    of_sum: Tensor,
    of_square: Tensor,
    of_product: Tensor,
    u: Tensor,
    anchors: Tensor,
    places: Tensor,
) -> Tensor:
    away = u.to(working_dtype(u)) - anchors
    values = torch.exp(-away.square())
    of_sum, of_square, of_product = (g.unsqueeze(1) for g in (of_sum, of_square, of_product))
    of_values = of_sum + 2 * values * of_square + places * of_product
    return (-2 * away * values * of_values).to(u.dtype)


def _summed(to_u: Tensor, of_positions: bool) -> Tensor:
    return to_u.to(working_dtype(to_u)).sum(0 if of_positions else (0, 1))


def _to_places(of_product: Tensor, u: Tensor, anchors: Tensor) -> Tensor:  # (T, F)
    return (gaussian(u, anchors) * of_product.unsqueeze(1)).sum(0)


def normalized_gaussian(
    u: Tensor, anchors: Tensor, norm: nn.BatchNorm1d, path: ProductPath
) -> Tensor:
    r"""`BN(exp(-(u - w)^2))` of u (B, T, F), in one of two ways that agree.

    `"plain"` is written with torch's own operations; `"fast"` keeps only `u` for the backward, and
    is compiled on a GPU.
    """
    if path == "plain" or not norm.training:
        values = gaussian(u, anchors)
        return norm(values.flatten(0, 1)).view_as(values).to(u.dtype)
    result, mean, variance = gaussian_norm(u, anchors, norm.weight, norm.bias, norm.eps)
    track_statistics(norm, mean, variance, u.shape[0] * u.shape[1])
    return result


@torch.no_grad()
def track_statistics(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics as torch's own batch normalization does."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    share = norm.num_batches_tracked.to(mean.dtype).reciprocal() if momentum is None else momentum
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * (count / max(1, count - 1)), share)


class GaussianLayer(nn.Module):
    r"""`y -> BN(exp(-(A y - W(t))^2))` element by element, at each position alone (Eq. 26).

    The features of A y are each compared with an anchor of their own: one for all positions, or
    one for each. A needs no constant, which the anchors are. Exponentials and statistics are in
    float32 at least, also under autocast.

    Args:
        inputs: Features that come in.
        width: Features that go out.
        positions: Number of positions if each has anchors of its own; None shares them.
        inner: Length of A y where each feature has a vector as its anchor, `exp(-|A y - W_j|^2)`;
            None compares each element of A y with a number.
        path: How it is computed, see `normalized_gaussian`.
        generator: Where initial weights come from.

    Example:
        >>> layer = GaussianLayer(3, 8, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.randn(5, 16, 3)).shape  # 5 samples of 16 positions with 3 features
        torch.Size([5, 16, 8])
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        positions: int | None = None,
        *,
        inner: int | None = None,
        path: ProductPath = "fast",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_sizes(inputs=inputs, width=width, positions=positions, inner=inner)
        check_option("path", path, PATHS)
        self.path: ProductPath = path
        # Squared norms of about 1, of numbers and of vectors.
        rows, each = (width, ()) if inner is None else (inner, (inner,))
        scale = 1 / math.sqrt(inputs * (inner or 1))
        self.weight = nn.Parameter(torch.randn(rows, inputs, generator=generator) * scale)
        anchors = torch.randn(width, *each, generator=generator) / math.sqrt(inner or 1)
        self.vectors = inner is not None
        self.anchors = nn.Parameter(
            anchors if positions is None else anchors.expand(positions, width, *each).clone()
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(self, y: Tensor, at: Tensor | None = None) -> Tensor:
        """Map the features (B, T, inputs) of every position, or of those in `at`, to width."""
        return self.after_affine(nn.functional.linear(y, self.weight), at)

    def after_affine(self, u: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, width)
        """Map A y, for those who compute that themselves, by a convolution say."""
        of_positions = self.anchors.ndim == 2 + self.vectors
        anchors = self.anchors if at is None or not of_positions else self.anchors[at]
        _check_positions("u", u, anchors, of_positions)
        if not self.vectors:
            return normalized_gaussian(u, anchors, self.norm, self.path)
        with torch.autocast(u.device.type, enabled=False):
            values = torch.exp(-anchor_distances(u, anchors))
            return self.norm(values.flatten(0, 1)).view_as(values).to(u.dtype)


class GaussianOutput(nn.Module):
    r"""`A_F exp(-alpha (1/T) sum_t (k_t - W_F(t))^2)`: where positions meet (Eq. 27).

    Args:
        width: Features of each position: the number of Gaussians.
        positions: Number of positions T, each with an anchor of its own; or fixed weights (T, G)
            by which G anchors make up those of T positions: those that lie close can so share.
        outputs: Numbers that come out, such as one score for each class.
        alpha: `"one"`: the exponent is as the paper has it, (27). The others put a factor into the
            exponent, which is ours: the paper's alpha is a factor of the sum (24), and part of
            A_F. `"each"`: a precision for each Gaussian is
            learned. `"norm"`: the mean square is batch-normalized before the exponential; with
            the running statistics this is a precision for each Gaussian too, and a factor that
            A_F could carry. A mean over many positions varies little from sample to sample, so
            without this the Gaussians differ little.
        inputs: Features of each position where each Gaussian has a vector of them as its anchor,
            `exp(-(1/T) sum_t |k_t - W_j(t)|^2)`; None compares each feature with a number, and
            there are as many Gaussians as features.
        bias: Whether a constant is added to the outputs, which the paper's formula has not.
        path: How it is computed, see `normalized_gaussian`.
        generator: Where initial weights come from.

    Example:
        >>> output = GaussianOutput(8, 16, 10, generator=torch.Generator().manual_seed(0))
        >>> output(torch.randn(5, 16, 8)).shape
        torch.Size([5, 10])
    """

    sharing: Tensor | None

    def __init__(
        self,
        width: int,
        positions: int | Tensor,
        outputs: int,
        *,
        alpha: str = "norm",
        inputs: int | None = None,
        bias: bool = True,
        path: ProductPath = "fast",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sharing, groups = _groups(positions)
        check_sizes(width=width, positions=groups, outputs=outputs, inputs=inputs)
        check_option("alpha", alpha, ("one", "each", "norm"))
        check_option("path", path, PATHS)
        self.path: ProductPath = path
        self.register_buffer("sharing", sharing, persistent=False)
        # One offset for all positions makes the mean of a feature count, not only its square.
        self.vectors = inputs is not None
        each = () if inputs is None else (inputs,)
        offset = torch.randn(width, *each, generator=generator)
        spread = torch.randn(groups, width, *each, generator=generator)
        self.anchors = nn.Parameter((offset + 0.5 * spread) / math.sqrt(inputs or 1))
        self.log_alpha = nn.Parameter(torch.zeros(width)) if alpha == "each" else None
        self.norm = nn.BatchNorm1d(width) if alpha == "norm" else None
        self.scores = nn.Linear(width, outputs, bias=bias)
        self._initialize(1 / math.sqrt(width), generator)

    @torch.no_grad()
    def _initialize(self, bound: float, generator: torch.Generator | None) -> None:
        nn.init.uniform_(self.scores.weight, -bound, bound, generator=generator)
        if self.scores.bias is not None:
            nn.init.zeros_(self.scores.bias)
        if self.norm is not None:
            self.norm.weight.fill_(0.5)

    def position_anchors(self) -> Tensor:  # (T, width), or (T, width, inputs) of vectors
        """The anchors W_F(t) of every position."""
        if self.sharing is None:
            return self.anchors
        return torch.tensordot(self.sharing, self.anchors, 1)

    def exponent(self, k: Tensor, at: Tensor | None = None) -> Tensor:
        """`alpha (1/T) sum_t (k_t - W_F(t))^2` (B, width), in float32 at least.

        With `at`, k holds only these of the positions, and the mean is over them.
        """
        with torch.autocast(k.device.type, enabled=False):
            anchors = self.position_anchors()
            anchors = anchors if at is None else anchors[at]
            _check_positions("k", k, anchors, of_positions=True)
            if self.vectors:
                mean = mean_anchor_distances(k, anchors)
            elif self.path == "plain":
                mean = (k.to(working_dtype(k)) - anchors).square().mean(1)
            else:
                mean = mean_square(k, anchors)
            return self._precise(mean)

    def _precise(self, mean: Tensor, least: float = -20.0) -> Tensor:  # (B, width)
        if self.norm is not None:
            # An image like no other must not make one of the factors infinite.
            return self.norm(mean).clamp(min=least)
        return mean if self.log_alpha is None else mean * self.log_alpha.exp()

    def follows(self, layer: GaussianLayer) -> bool:
        """Whether `after_affine` may be taken: in training, of numbers as anchors."""
        return self.training and self.path == "fast" and not (self.vectors or layer.vectors)

    def after_affine(self, u: Tensor, layer: GaussianLayer, at: Tensor | None = None) -> Tensor:
        r"""The outputs from what the affine map of the last layer returns, (B, T, width).

        The same as `forward` of what the layer makes of it, in one pass over u where these are
        several: with $k = \gamma e + \delta$ by the batch statistics of the Gaussians e,

        $$\sum_t (k_t - w_t)^2 = \gamma^2 \sum_t e_t^2 + 2 \gamma \delta \sum_t e_t
            - 2 \gamma \sum_t e_t w_t + \sum_t (\delta - w_t)^2.$$
        """
        with torch.autocast(u.device.type, enabled=False):
            anchors = self.position_anchors()
            own: Tensor = layer.anchors
            anchors = anchors if at is None else anchors[at]
            own = own if at is None or own.ndim == 1 else own[at]
            _check_positions("u", u, anchors, of_positions=True)
            sums, squares, products = gaussian_sums(u, own, anchors)
            count, norm = u.shape[0] * u.shape[1], layer.norm
            mean = sums.sum(0) / count
            variance = (squares.sum(0) / count - mean.square()).clamp(min=0)
            track_statistics(norm, mean, variance, count)
            factor = norm.weight * torch.rsqrt(variance + norm.eps)
            offset = norm.bias - factor * mean
            whole = factor * (factor * squares + 2 * (offset * sums - products))
            mean_square = whole / u.shape[1] + (offset - anchors).square().mean(0)
            return self.scores(torch.exp(-self._precise(mean_square)))

    def gaussians(self, k: Tensor, at: Tensor | None = None) -> Tensor:
        """The values (B, width) of the Gaussians, before A_F."""
        return torch.exp(-self.exponent(k, at))

    def forward(self, k: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, width)
        """Let the positions meet, or those in `at`, which k then holds: outputs (B, outputs)."""
        with torch.autocast(k.device.type, enabled=False):
            return self.scores(self.gaussians(k, at))


def _groups(positions: int | Tensor) -> tuple[Tensor | None, int]:
    """The weights of shared anchors, if there are any, and the number of anchors."""
    if not isinstance(positions, Tensor):
        return None, positions
    if positions.ndim != 2:
        raise ShapeError(
            f"positions has shape {tuple(positions.shape)}; as weights of shared anchors it needs "
            "a row for each position."
        )
    return positions, positions.shape[1]


def anchor_distances(u: Tensor, anchors: Tensor) -> Tensor:
    """Squared distances (B, T, F) of vectors u (B, T, h) to anchors (F, h) or (T, F, h).

    Example:
        >>> anchor_distances(torch.zeros(1, 1, 2), torch.tensor([[3.0, 4.0]]))
        tensor([[[25.]]])
    """
    u = u.to(working_dtype(u))
    products = torch.einsum("bth,fh->btf" if anchors.ndim == 2 else "bth,tfh->btf", u, anchors)
    lengths = u.square().sum(-1, keepdim=True) + anchors.square().sum(-1)
    return (lengths - 2 * products).clamp(min=0)


def mean_anchor_distances(k: Tensor, anchors: Tensor) -> Tensor:  # (B, F)
    """`(1/T) sum_t |k_t - W_j(t)|^2` of k (B, T, h) and anchors (T, F, h), as one product.

    Example:
        >>> mean_anchor_distances(torch.zeros(1, 2, 1), torch.tensor([[[1.0]], [[3.0]]]))
        tensor([[5.]])
    """
    k = k.to(working_dtype(k))
    count = k.shape[1]
    products = k.flatten(1) @ anchors.transpose(0, 1).flatten(1).T
    own = k.square().sum((1, 2)).unsqueeze(-1)
    return (own + anchors.square().sum((0, 2)) - 2 * products).clamp(min=0) / count


def _check_positions(name: str, values: Tensor, anchors: Tensor, of_positions: bool) -> None:
    features = anchors.shape[-1]
    if values.ndim != 3 or values.shape[2] != features:
        raise ShapeError(
            f"{name} has shape {tuple(values.shape)}; (samples, positions, {features}) is "
            "expected."
        )
    if of_positions and len(anchors) != values.shape[1]:
        raise ShapeError(
            f"{name} has {values.shape[1]} positions, but there are anchors for {len(anchors)}."
        )
