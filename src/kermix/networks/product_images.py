"""The Gaussian-product network for images: patches meet only in the final exponential."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kermix.checks import check_option, rows_at_once
from kermix.errors import OptionError, SampleError
from kermix.networks.image_networks import ImageClassifier, ImageShape, as_numbers
from kermix.networks.product_layers import GaussianLayer, GaussianOutput
from kermix.settings import ProductPath

__all__ = ["GaussianProductClassifier", "image_patches", "whitening_map"]

PATCHES_FOR_STATISTICS = 100_000
IMAGES_FOR_ANCHORS = 256
ON_A_DEVICE = 2**28
ANCHOR_SPREAD = 0.75  # of what the first layer compares with its anchors, in deviations


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


class GaussianProductClassifier(ImageClassifier):
    r"""Scores `A_F exp(-(1/T) sum_t (k_t - W_F(t))^2)` of images, k_t from the patch at t alone.

    A chain of layers `BN(exp(-(A y - W)^2))` maps each patch; the first reads the whitened patch,
    and no layer mixes positions until the output does (Eqs. 25-27).

    Args:
        shape: Channels, height and width of the images.
        classes: Number of classes.
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
        generator: Where initial weights come from.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> network = GaussianProductClassifier((1, 8, 8), 10, width=16, generator=generator)
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
        patch: int = 3,
        *,
        stride: int = 1,
        width: int = 256,
        depth: int = 4,
        output_width: int | None = None,
        anchors_at: Sequence[int] = (),
        anchor_grid: int | None = None,
        alpha: str = "norm",
        whitening: float | None = 1e-3,
        data_anchors: bool = True,
        image_anchors: bool = False,
        residual: bool = False,
        raw_pixels: bool = False,
        reading: str = "element",
        score_bias: bool = True,
        path: ProductPath = "fast",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(shape, classes)
        _check_reading(reading, raw_pixels, whitening, data_anchors or image_anchors)
        channels, height, across = shape
        _check(shape, patch, stride, depth, anchors_at)
        self.patch, self.stride = patch, stride
        self.whitening, self.data_anchors, self.residual = whitening, data_anchors, residual
        self.image_anchors, self.raw_pixels = image_anchors, raw_pixels
        vectors = reading == "vector"
        self.grid = ((height - patch) // stride + 1, (across - patch) // stride + 1)
        positions, inputs = self.positions, channels * patch**2
        self.register_buffer("patch_mean", torch.zeros(inputs))
        self.register_buffer("patch_map", torch.eye(inputs))
        gaussians = width if output_width is None else output_width
        # Of vectors, features and Gaussians of the output need not be equally many.
        sizes = [inputs, *[width] * (depth - 1), width if vectors else gaussians]
        self.widest = max(sizes[1:])
        self.layers = nn.ModuleList(
            GaussianLayer(
                sizes[i],
                sizes[i + 1],
                positions if i in anchors_at else None,
                inner=width if vectors else None,
                path=path,
                generator=generator,
            )
            for i in range(depth)
        )
        self.output = GaussianOutput(
            gaussians,
            positions,
            classes,
            alpha=alpha,
            sharing=None if anchor_grid is None else _interpolation(anchor_grid, self.grid),
            inputs=width if vectors else None,
            bias=score_bias,
            path=path,
            generator=generator,
        )

        if vectors:  # lengths of about 1 for the output to compare with its anchors
            last = self.layers[-1]
            assert isinstance(last, GaussianLayer)
            nn.init.constant_(last.norm.weight, width**-0.5)

    @torch.no_grad()
    def prepare(self, images: Tensor, generator: torch.Generator) -> None:
        """Whiten by the patches of these images, and let the first layer start from them."""
        device = self.patch_mean.device
        each = min(self.positions, -(-PATCHES_FOR_STATISTICS // len(images)))
        chosen = torch.randperm(len(images), generator=generator)[:PATCHES_FOR_STATISTICS]
        rows = []
        patch_numbers = self.positions * self.stride**2 * self.patch_mean.numel()
        together = rows_at_once(patch_numbers, ON_A_DEVICE, most=1000)
        for part in chosen.split(together):
            patches = image_patches(as_numbers(images[part.to(images.device)]), self.patch)
            picks = torch.randint(patches.shape[1], (len(part), each), generator=generator)
            index = picks.to(patches.device).unsqueeze(-1).expand(-1, -1, patches.shape[2])
            rows.append(patches.gather(1, index).flatten(0, 1).to(device))
        sample = torch.cat(rows)
        if not self.raw_pixels:
            mean, whitener = whitening_map(sample, self.whitening)
            self.patch_mean.copy_(mean)
            self.patch_map.copy_(whitener)
        if self.data_anchors:
            self._start_from((sample - self.patch_mean) @ self.patch_map, generator)
        if self.image_anchors:
            count = rows_at_once(self.numbers_per_image, ON_A_DEVICE, most=IMAGES_FOR_ANCHORS)
            count = max(2, count)
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

    def _start_from(self, white: Tensor, generator: torch.Generator) -> None:
        """Directions are patches, anchors the values that other patches have along them."""
        first = self.layers[0]
        assert isinstance(first, GaussianLayer)
        count = len(first.weight)
        directions = white[torch.randint(len(white), (count,), generator=generator)]
        values = white[: 10 * count] @ directions.T
        # A patch of no contrast is no direction.
        scale = ANCHOR_SPREAD / values.std(0).clamp(min=1e-3 * float(values.std()) + 1e-12)
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
        rows = image_patches(self.checked(images), self.patch, self.stride)
        rows = rows if at is None else rows[:, at]
        with torch.autocast(rows.device.type, enabled=False):
            return (rows - self.patch_mean) @ self.patch_map

    def patch_features(self, patches: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, K)
        """The features k_t of whitened patches, each from its own patch alone."""
        y = patches
        for layer in self.layers:
            k = layer(y, at)
            y = y + k if self.residual and k.shape == y.shape else k
        return y

    def features(self, images: Tensor, at: Tensor | None = None) -> Tensor:  # (B, T, K)
        """The features k_t of every position, or of those in `at`, before positions meet."""
        return self.patch_features(self.patches(images, at), at)

    def scores(self, pixels: Tensor, at: Tensor | None = None) -> Tensor:  # (B, classes)
        """Class scores of pixels, from all positions or from those in `at`."""
        last = self.layers[-1]
        assert isinstance(last, GaussianLayer)
        if self.residual or not self.output.follows(last):
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
        return kernels.unflatten(1, (self.shape[0], self.patch, self.patch))

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


def _check_reading(
    reading: str, raw_pixels: bool, whitening: float | None, anchors_from_data: bool
) -> None:
    check_option("reading", reading, ("element", "vector"))
    if whitening is not None and not whitening > 0:
        raise OptionError(f"whitening={whitening} must be positive, or None for no whitening.")
    if raw_pixels and whitening is not None:
        raise OptionError(f"raw_pixels with whitening={whitening}: set whitening to None.")
    if reading == "vector" and anchors_from_data:
        raise OptionError(
            "reading='vector' uses vectors as anchors, initialized at random: set "
            "data_anchors and image_anchors to False."
        )


def _check(
    shape: ImageShape,
    patch: int,
    stride: int,
    depth: int,
    anchors_at: Sequence[int],
) -> None:
    if patch < 1 or patch % 2 == 0:
        raise OptionError(f"patch={patch} must be odd and at least 1.")
    if patch > min(shape[1:]):
        raise OptionError(f"patch={patch} is larger than the images, {shape[1]} x {shape[2]}.")
    if stride < 1 or depth < 1:
        raise OptionError(f"stride={stride} and depth={depth} must be at least 1.")
    if any(not isinstance(i, int) or not 0 <= i < depth for i in anchors_at):
        raise OptionError(
            f"anchors_at={tuple(anchors_at)}: layers are counted from 0 to {depth - 1}."
        )
