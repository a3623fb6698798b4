"""Random changes of images that keep their class, for a whole batch at once on its device."""

import math
from typing import Any

import torch
from torch import Tensor

from kermix.training.product_settings import NO_AUGMENTATION, ProductSettings

__all__ = ["Augmentation", "augmentation"]


def augmentation(**changes: Any) -> "Augmentation":
    """What changes images as these settings say, by name, and in no other way.

    Example:
        >>> images = torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4)
        >>> generator = torch.Generator().manual_seed(3)
        >>> augmentation(shift=1)(images, generator).flatten().tolist()
        [1, 2, 3, 2]
    """
    return Augmentation(ProductSettings(**{**NO_AUGMENTATION, **changes}))


class Augmentation:
    """What may happen to a training image, done to batches of them, as settings say."""

    def __init__(self, settings: ProductSettings) -> None:
        self.settings = settings

    def __str__(self) -> str:
        said, parts = self.settings, []
        parts += ["flip"] if said.flip else []
        for name in ("shift", "rotation", "zoom", "colour", "cutout", "mix"):
            size = getattr(said, name)
            parts += [f"{name} {size:g}"] if size else []
        return ", ".join(parts) or "none"

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:  # (B, C, H, W)
        """Change a batch of images; bytes stay bytes."""
        if self.settings.flip or self.settings.shift:
            images = self._moved(images, generator)
        if self.settings.rotation or self.settings.zoom:
            images = self._turned(images, generator)
        if self.settings.colour:
            images = self._coloured(images, generator)
        return self._cut(images, generator) if self.settings.cutout else images

    @torch.no_grad()
    def mixed(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Put rectangles of other images into images (CutMix); also the share that is their own.

        The other image is the one before it in the batch, for the first one the last; its label
        counts with the rest of the share. The area of a rectangle is uniform, before the edge of
        the image cuts it.
        """
        count, _, height, width = images.shape
        device = images.device
        chance = torch.rand(4, count, generator=generator, device=device)
        side = torch.where(chance[0] < self.settings.mix, chance[1].sqrt(), 0.0)

        def inside(length: int, centre: Tensor) -> Tensor:  # (B, length)
            place = (torch.arange(length, device=device) + 0.5) / length
            return (place - centre.unsqueeze(1)).abs() < side.unsqueeze(1) / 2

        foreign = inside(height, chance[2])[:, :, None] & inside(width, chance[3])[:, None, :]
        own = 1 - foreign.flatten(1).float().mean(1)
        return torch.where(foreign.unsqueeze(1), images.roll(1, 0), images), own

    def _coloured(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, device = len(images), images.device
        chance = 2 * torch.rand(2, count, 1, 1, 1, generator=generator, device=device) - 1
        contrast, brightness = 1 + self.settings.colour * chance
        pixels = images.float()
        mean = pixels.mean((1, 2, 3), keepdim=True)
        pixels = (pixels - mean) * contrast + mean * brightness
        if images.dtype == torch.uint8:
            return pixels.clamp(0, 255).round().to(images.dtype)
        return pixels.clamp(0, 1).to(images.dtype)

    def _moved(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = images.shape
        device = images.device

        def source(length: int, mirrored: bool) -> Tensor:  # (B, length)
            index = torch.arange(length, device=device).expand(count, length)
            if mirrored:
                flipped = torch.rand(count, 1, generator=generator, device=device) < 0.5
                index = torch.where(flipped, length - 1 - index, index)
            if most := self.settings.shift:
                shape = (count, 1)
                by = torch.randint(-most, most + 1, shape, generator=generator, device=device)
                index = index + by
            return _reflected(index, length)

        rows, columns = source(height, False), source(width, self.settings.flip)
        of_image = torch.arange(count, device=device).view(-1, 1, 1, 1)
        of_channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
        return images[of_image, of_channel, rows[:, None, :, None], columns[:, None, None, :]]

    def _turned(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, device = len(images), images.device
        chance = 2 * torch.rand(4, count, generator=generator, device=device) - 1
        angle = chance[0] * math.radians(self.settings.rotation)
        across, down = 1 + self.settings.zoom * chance[1], 1 + self.settings.zoom * chance[2]
        zero = torch.zeros_like(angle)
        rows = [angle.cos() * across, -angle.sin() * down, zero]
        columns = [angle.sin() * across, angle.cos() * down, zero]
        affine = torch.stack([torch.stack(rows, -1), torch.stack(columns, -1)], 1)
        shape = list(images.shape)
        grid = torch.nn.functional.affine_grid(affine, shape, align_corners=False)
        turned = torch.nn.functional.grid_sample(
            images.float(), grid, padding_mode="border", align_corners=False
        )
        if images.dtype == torch.uint8:
            turned = turned.round().to(images.dtype)
        return torch.where(chance[3].view(-1, 1, 1, 1) > 0, turned, images)

    def _cut(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        device = images.device

        def inside(length: int) -> Tensor:  # (B, length)
            centre = torch.randint(length, (count, 1), generator=generator, device=device)
            start = centre - self.settings.cutout // 2
            index = torch.arange(length, device=device)
            return (index >= start) & (index < start + self.settings.cutout)

        hidden = inside(height)[:, None, :, None] & inside(width)[:, None, None, :]
        colour = images.float().mean((2, 3), keepdim=True).to(images.dtype)
        return torch.where(hidden, colour, images)


def _reflected(index: Tensor, length: int) -> Tensor:
    """Indices outside 0 .. length - 1 mirrored at the edges, however far outside."""
    if length == 1:
        return torch.zeros_like(index)
    period = 2 * (length - 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index)
