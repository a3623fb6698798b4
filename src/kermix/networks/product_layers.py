"""The layers of the Gaussian-product network (Eqs. 25-27 of the paper).

A sample is a series of positions, each with features: tensors of shape (B, T, F), positions
before features, which is what a channels-last image is in memory. `GaussianLayer` maps
every position alone; `GaussianOutput` is the only place where positions meet.

The paper writes `||A y - W(t)||_2^2` for what becomes a vector of features, so that norm can be
read in two ways: as the square of each element, with a number as anchor of each feature; or as a
distance of vectors, with a vector as anchor of each feature, as in a radial basis network. Both
are here; (24), which has a scalar function for each k, speaks for the first.
"""

import math

import torch
from torch import Tensor, nn

from kermix.checks import check_option, check_sizes, working_dtype
from kermix.errors import ShapeError
from kermix.networks.product_functions import (
    chosen_path,
    gaussian,
    gaussian_norm,
    gaussian_sums,
    mean_square,
)
from kermix.settings import ProductPath

__all__ = [
    "GaussianLayer",
    "GaussianOutput",
    "anchor_distances",
    "mean_anchor_distances",
    "normalized_gaussian",
    "track_statistics",
]

PATHS = ("auto", "plain", "lean", "fused")
LEAST_EXPONENT = -20.0


def normalized_gaussian(
    u: Tensor, anchors: Tensor, norm: nn.BatchNorm1d, path: ProductPath
) -> Tensor:
    r"""`BN(exp(-(u - w)^2))` of u (B, T, F), in one of three ways that agree.

    `"plain"` is written with torch's own operations, `"lean"` keeps only `u` for the backward
    and `"fused"` compiles that as well; `"auto"` takes fused on a GPU and lean elsewhere.
    """
    way = chosen_path(path, u.device)
    if way == "plain" or not norm.training:
        values = gaussian(u, anchors)
        return norm(values.flatten(0, 1)).view_as(values).to(u.dtype)
    result, mean, variance = gaussian_norm(
        u, anchors, norm.weight, norm.bias, norm.eps, fused=way == "fused"
    )
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
        path: ProductPath = "auto",
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
        """What follows A y, for those who compute that themselves, by a convolution say."""
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
        positions: Number of positions T.
        outputs: Numbers that come out, such as one score for each class.
        alpha: `"one"`: the exponent is as the paper has it, (27). The others put a factor into the
            exponent, which is ours: the paper's alpha is a factor of the sum (24), and part of
            A_F. `"each"`: a precision for each Gaussian is
            learned. `"norm"`: the mean square is batch-normalized before the exponential; with
            the running statistics this is a precision for each Gaussian too, and a factor that
            A_F could carry. A mean over many positions varies little from sample to sample, so
            without this the Gaussians differ little.
        sharing: Fixed weights (T, G) by which G anchors make up those of T positions; None gives
            each position its own. Positions that lie close can so share an anchor.
        inputs: Features of each position where each Gaussian has a vector of them as its anchor,
            `exp(-(1/T) sum_t |k_t - W_j(t)|^2)`; None compares each feature with a number, and
            there are as many Gaussians as features.
        bias: Whether a constant is added to the outputs, which the paper's formula has not.
        path: `"plain"`, `"lean"`, `"fused"` or `"auto"`.
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
        positions: int,
        outputs: int,
        *,
        alpha: str = "norm",
        sharing: Tensor | None = None,
        inputs: int | None = None,
        bias: bool = True,
        path: ProductPath = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_sizes(width=width, positions=positions, outputs=outputs, inputs=inputs)
        check_option("alpha", alpha, ("one", "each", "norm"))
        check_option("path", path, PATHS)
        if sharing is not None and (sharing.ndim != 2 or len(sharing) != positions):
            raise ShapeError(
                f"sharing has shape {tuple(sharing.shape)}; it needs a row for each of the "
                f"{positions} positions."
            )
        self.path: ProductPath = path
        self.register_buffer("sharing", sharing, persistent=False)
        groups = positions if sharing is None else sharing.shape[1]
        # One offset for all positions makes the mean of a feature count, not only its square.
        self.vectors = inputs is not None
        each = () if inputs is None else (inputs,)
        offset = torch.randn(width, *each, generator=generator)
        spread = torch.randn(groups, width, *each, generator=generator)
        self.anchors = nn.Parameter((offset + 0.5 * spread) / math.sqrt(inputs or 1))
        self.log_alpha = nn.Parameter(torch.zeros(width)) if alpha == "each" else None
        self.norm = nn.BatchNorm1d(width) if alpha == "norm" else None
        self.scores = nn.Linear(width, outputs, bias=bias)
        with torch.no_grad():
            bound = 1 / math.sqrt(width)
            nn.init.uniform_(self.scores.weight, -bound, bound, generator=generator)
            if bias:
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
            way = chosen_path(self.path, k.device)
            if self.vectors:
                mean = mean_anchor_distances(k, anchors)
            elif way == "plain":
                mean = (k.to(working_dtype(k)) - anchors).square().mean(1)
            else:
                mean = mean_square(k, anchors, fused=way == "fused")
            return self._precise(mean)

    def _precise(self, mean: Tensor) -> Tensor:  # (B, width)
        if self.norm is not None:
            # An image like no other must not make one of the factors infinite.
            return self.norm(mean).clamp(min=LEAST_EXPONENT)
        return mean if self.log_alpha is None else mean * self.log_alpha.exp()

    def follows(self, layer: GaussianLayer) -> bool:
        """Whether `after_affine` may be taken: in training, of numbers as anchors."""
        plain = chosen_path(self.path, self.anchors.device) == "plain"
        return self.training and not (plain or self.vectors or layer.vectors)

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
            fused = chosen_path(self.path, u.device) == "fused"
            sums, squares, products = gaussian_sums(u, own, anchors, fused=fused)
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
