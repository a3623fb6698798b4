"""The Gaussian-product network for images: patches meet only in the final exponential."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kermix.checks import check_option, rows_at_once
from kermix.errors import OptionError, SampleError
from kermix.networks.image_networks import ImageClassifier, ImageShape, as_numbers
from kermix.networks.product_layers import GaussianLayer, GaussianOutput
from kermix.settings import ProductPath

__all__ = ["GaussianProductClassifier", "ProductDesign", "image_patches", "whitening_map"]


def image_patches(pixels: Tensor, patch: int, stride: int = 1) -> Tensor:  # (B, T, C * p * p)
    """All p x p patches of images (B, C, H, W) that lie inside, as rows.

    Example:
        >>> image_patches(torch.arange(9.0).view(1, 1, 3, 3), 2)[0, 0]
        tensor([0., 1., 3., 4.])
    """
    windows = pixels.unfold(2, patch, stride).unfold(3, patch, stride)  # (B, C, h, w, p, p)
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def whitening_map(patches: Tensor, regularization: float | None) -> tuple[Tensor, Tensor]:
    """Mean (d,) and ZCA map (d, d) of patches (N, d), so that `(x - mean) @ map` is white.

    The map is `V (L + r l)^(-1/2) V'` for a covariance `V L V'` with mean eigenvalue l: directions
    of little variance, which are noise, are not blown up. Without regularization (None) only one
    scale for all is divided out.
    """
    patches = patches.double()
    mean = patches.mean(0)
    covariance = (patches - mean).T @ (patches - mean) / max(1, len(patches) - 1)
    level = covariance.diagonal().mean()
    if not bool(level > 0):
        raise SampleError("All training patches are equal: there is nothing to learn.")
    if regularization is None:
        return mean, torch.eye(len(mean), dtype=mean.dtype, device=mean.device) * level.rsqrt()
    values, vectors = torch.linalg.eigh(covariance)
    scale = (values.clamp(min=0) + regularization * level).rsqrt()
    return mean, (vectors * scale) @ vectors.T


@dataclass(frozen=True)
class ProductDesign:
    """How a `GaussianProductClassifier` is built.

    Attributes:
        patch: Side of a patch, odd. With 1 each pixel goes its own way.
        stride: Pixels from one patch to the next.
        width: Features in the layers.
        depth: Number of layers before the output.
        output_width: Number of Gaussians K; None takes `width`.
        anchors_at: Layers, counted from 0, with anchors for each position. In all layers they
            overfit.
        anchor_grid: The output's anchors are interpolated between those of a grid of this many
            rows and columns; None gives every position its own.
        alpha: See `GaussianOutput`.
        whitening: Regularization of the ZCA of patches; None only centers and scales them.
        data_anchors: Whether the first layer starts from patches of the training images.
        image_anchors: Whether the anchors of each Gaussian of the output start as the features of
            a training image, so that it measures the distance to that image.
        residual: Whether layers of equal width add to their input.
        raw_pixels: Whether patches are read as they are, neither whitened nor centerd nor scaled.
        reading: How the norms of (26) and (27) are read: `"element"`, the square of each element,
            or `"vector"`, the distance to a vector for each Gaussian; see
            `kermix.networks.product_layers`.
        score_bias: Whether a constant is added to the scores.
        path: `"plain"` or `"fast"`: see `GaussianLayer`.
    """

    patch: int = 3
    stride: int = 1
    width: int = 256
    depth: int = 4
    output_width: int | None = None
    anchors_at: tuple[int, ...] = ()
    anchor_grid: int | None = None
    alpha: str = "norm"
    whitening: float | None = 1e-3
    data_anchors: bool = True
    image_anchors: bool = False
    residual: bool = False
    raw_pixels: bool = False
    reading: str = "element"
    score_bias: bool = True
    path: ProductPath = "fast"

    def __post_init__(self) -> None:
        self._check_reading()
        if self.patch < 1 or self.patch % 2 == 0:
            raise OptionError(f"patch={self.patch} must be odd and at least 1.")
        if self.stride < 1 or self.depth < 1:
            raise OptionError(f"stride={self.stride} and depth={self.depth} must be at least 1.")
        if any(not isinstance(i, int) or not 0 <= i < self.depth for i in self.anchors_at):
            raise OptionError(
                f"anchors_at={tuple(self.anchors_at)}: layers are counted from 0 to "
                f"{self.depth - 1}."
            )

    def _check_reading(self) -> None:
        check_option("reading", self.reading, ("element", "vector"))
        if self.whitening is not None and not self.whitening > 0:
            raise OptionError(
                f"whitening={self.whitening} must be positive, or None for no whitening."
            )
        if self.raw_pixels and self.whitening is not None:
            raise OptionError(
                f"raw_pixels with whitening={self.whitening}: set whitening to None."
            )
        if self.vectors and (self.data_anchors or self.image_anchors):
            raise OptionError(
                "reading='vector' uses vectors as anchors, initialized at random: set "
                "data_anchors and image_anchors to False."
            )

    @property
    def vectors(self) -> bool:
        """Whether each Gaussian has a vector as its anchor."""
        return self.reading == "vector"

    @property
    def gaussians(self) -> int:
        """Number of Gaussians K of the output."""
        return self.width if self.output_width is None else self.output_width

    def sizes(self, inputs: int) -> list[int]:
        """Features before the first layer and after each.

        Of vectors, features and Gaussians of the output need not be equally many.
        """
        last = self.width if self.vectors else self.gaussians
        return [inputs, *[self.width] * (self.depth - 1), last]

    def grid(self, height: int, across: int) -> tuple[int, int]:
        """Rows and columns of patches in an image of this size."""
        if self.patch > min(height, across):
            raise OptionError(
                f"patch={self.patch} is larger than the images, {height} x {across}."
            )
        rows, columns = ((side - self.patch) // self.stride + 1 for side in (height, across))
        return rows, columns


class GaussianProductClassifier(ImageClassifier):
    r"""Scores `A_F exp(-(1/T) sum_t (k_t - W_F(t))^2)` of images, k_t from the patch at t alone.

    A chain of layers `BN(exp(-(A y - W)^2))` maps each patch; the first reads the whitened patch,
    and no layer mixes positions until the output does (Eqs. 25-27).

    Args:
        shape: Channels, height and width of the images.
        classes: Number of classes.
        design: How it is built.
        generator: Where initial weights come from.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> design = ProductDesign(width=16)
        >>> network = GaussianProductClassifier((1, 8, 8), 10, design, generator=generator)
        >>> images = torch.randint(256, (32, 1, 8, 8), dtype=torch.uint8)
        >>> network.prepare(images, generator)
        >>> network(images).shape, network.features(images).shape
        (torch.Size([32, 10]), torch.Size([32, 36, 16]))
    """

    patch_mean: Tensor
    patch_map: Tensor

    def __init__(
        self,
        shape: ImageShape,
        classes: int,
        design: ProductDesign | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(shape, classes)
        self.design = design = design or ProductDesign()
        channels, height, across = shape
        self.grid = design.grid(height, across)
        positions, sizes = self.positions, design.sizes(channels * design.patch**2)
        self.register_buffer("patch_mean", torch.zeros(sizes[0]))
        self.register_buffer("patch_map", torch.eye(sizes[0]))
        self.widest = max(sizes[1:])
        inner = design.width if design.vectors else None
        self.layers = nn.ModuleList(
            GaussianLayer(
                inputs,
                outputs,
                positions if i in design.anchors_at else None,
                inner=inner,
                path=design.path,
                generator=generator,
            )
            for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
        )
        grid = design.anchor_grid
        self.output = GaussianOutput(
            design.gaussians,
            positions if grid is None else _interpolation(grid, self.grid),
            classes,
            alpha=design.alpha,
            inputs=inner,
            bias=design.score_bias,
            path=design.path,
            generator=generator,
        )
        if design.vectors:  # lengths of about 1 for the output to compare with its anchors
            last = self.layers[-1]
            assert isinstance(last, GaussianLayer)
            nn.init.constant_(last.norm.weight, design.width**-0.5)

    @torch.no_grad()
    def prepare(
        self,
        images: Tensor,
        generator: torch.Generator,
        most_patches: int = 100_000,
        at_once: int = 2**28,
    ) -> None:
        """Whiten by the patches of these images, and let the first layer start from them.

        Args:
            images: What it will be trained with.
            generator: Of the choice among them.
            most_patches: Patches that are looked at.
            at_once: Numbers that are held at once, more than on a CPU.
        """
        device, design = self.patch_mean.device, self.design
        each = min(self.positions, -(-most_patches // len(images)))
        chosen = torch.randperm(len(images), generator=generator)[:most_patches]
        rows = []
        patch_numbers = self.positions * design.stride**2 * self.patch_mean.numel()
        together = rows_at_once(patch_numbers, at_once, most=1000)
        for part in chosen.split(together):
            patches = image_patches(as_numbers(images[part.to(images.device)]), design.patch)
            picks = torch.randint(patches.shape[1], (len(part), each), generator=generator)
            index = picks.to(patches.device).unsqueeze(-1).expand(-1, -1, patches.shape[2])
            rows.append(patches.gather(1, index).flatten(0, 1).to(device))
        sample = torch.cat(rows)
        if not design.raw_pixels:
            mean, whitener = whitening_map(sample, design.whitening)
            self.patch_mean.copy_(mean)
            self.patch_map.copy_(whitener)
        if design.data_anchors:
            self._start_from((sample - self.patch_mean) @ self.patch_map, generator)
        if design.image_anchors:
            count = max(2, rows_at_once(self.numbers_per_image, at_once, most=256))
            self._output_from(images[chosen[:count].to(images.device)], generator)

    def _output_from(self, images: Tensor, generator: torch.Generator) -> None:
        """Let each Gaussian be centerd at an image, with statistics of these images."""
        training = self.training
        features = self.train().features(images.to(self.patch_mean.device))
        self.train(training)
        count, _, width = features.shape
        picks = torch.randint(count, (width,), generator=generator).to(features.device)
        centers = features[picks, :, torch.arange(width, device=features.device)].T  # (T, K)
        sharing = self.output.sharing
        if sharing is not None:
            # In double precision: in single, the rounding differs from run to run.
            centers = torch.linalg.lstsq(sharing.cpu().double(), centers.cpu().double()).solution
        self.output.anchors.copy_(centers)

    def _start_from(self, white: Tensor, generator: torch.Generator, spread: float = 0.75) -> None:
        """Directions are patches, anchors the values that other patches have along them.

        These values have the deviation `spread`.
        """
        first = self.layers[0]
        assert isinstance(first, GaussianLayer)
        count = len(first.weight)
        directions = white[torch.randint(len(white), (count,), generator=generator)]
        values = white[: 10 * count] @ directions.T
        # A patch of no contrast is no direction.
        scale = spread / values.std(0).clamp(min=1e-3 * float(values.std()) + 1e-12)
        first.weight.copy_(directions * scale.unsqueeze(1))
        others = white[torch.randint(len(white), (count,), generator=generator)]
        first.anchors.copy_((others * first.weight).sum(1).clamp(-2, 2))

    def forward(self, images: Tensor, at: Tensor | None = None) -> Tensor:  # (B, classes)
        """Scores of each class; with `at`, from these positions only, as if there were no other.

        The mean over a random part of the positions is close to that over all, at a part of the
        cost, and a network that is trained so cannot lean on single positions.
        """
        return self.scores(images, at)

    @property
    def numbers_per_image(self) -> int:
        """Size of the largest array that one image becomes on its way."""
        return self.positions * self.widest

    @property
    def positions(self) -> int:
        """Number of patches in an image."""
        return self.grid[0] * self.grid[1]

    def patches(self, images: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, C * p * p)
        """The whitened patches, in float32 at least."""
        rows = image_patches(self.checked(images), self.design.patch, self.design.stride)
        rows = rows if at is None else rows[:, at]
        with torch.autocast(rows.device.type, enabled=False):
            return (rows - self.patch_mean) @ self.patch_map

    def patch_features(self, patches: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, K)
        """The features k_t of whitened patches, each from its own patch alone."""
        y = patches
        for layer in self.layers:
            k = layer(y, at)
            y = y + k if self.design.residual and k.shape == y.shape else k
        return y

    def features(self, images: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, K)
        """The features k_t of every position, or of those in `at`, before positions meet."""
        return self.patch_features(self.patches(images, at), at)

    def scores(self, pixels: Tensor, at: Tensor | None = None) -> Tensor:  # (B, classes)
        """Class scores of pixels, from all positions or from those in `at`."""
        last = self.layers[-1]
        assert isinstance(last, GaussianLayer)
        if self.design.residual or not self.output.follows(last):
            return self.output(self.features(pixels, at), at)
        y = self.patches(pixels, at)
        for layer in self.layers[:-1]:
            y = layer(y, at)
        return self.output.after_affine(nn.functional.linear(y, last.weight), last, at)

    @torch.no_grad()
    def filters(self) -> Tensor:  # (width, C, p, p)
        """The factors of pixels in the first layer: its directions, through the whitening."""
        first = self.layers[0]
        assert isinstance(first, GaussianLayer)
        kernels = first.weight @ self.patch_map.T
        return kernels.unflatten(1, (self.shape[0], self.design.patch, self.design.patch))

    @torch.no_grad()
    def anchor_maps(self) -> Tensor:  # (K, rows, columns)
        """The anchors W_F of each Gaussian as a picture, one number for each position.

        Of vectors, their lengths.
        """
        anchors = self.output.position_anchors()
        anchors = anchors.norm(dim=-1) if anchors.ndim == 3 else anchors
        return anchors.T.unflatten(1, self.grid)


def _interpolation(side: int, grid: tuple[int, int]) -> Tensor:  # (T, side * side)
    """Weights by which anchors on a square grid make up those of all positions."""
    if not isinstance(side, int) or side < 1:
        raise OptionError(f"anchor_grid={side} must be a whole number, at least 1, or None.")
    unit = torch.eye(side * side).view(1, side * side, side, side)
    return nn.functional.interpolate(unit, size=grid, mode="bilinear")[0].flatten(1).T.contiguous()
