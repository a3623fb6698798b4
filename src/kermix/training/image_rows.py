"""Images and classes on a device, from which batches of each class are drawn."""

import numpy as np
import torch
from torch import Tensor

from kermix.errors import SampleError, ShapeError
from kermix.models.evaluating import evaluating
from kermix.models.images.autoencoder import Autoencoder

__all__ = ["ImageRows", "encode_all"]

ON_DEVICE = 8 * 2**30  # bytes; more images than this stay in the host's memory


class ImageRows:
    """Images and classes, from which batches of each class are drawn.

    Args:
        images: Bytes, (N, c, h, w).
        labels: (N,), or None.
        classes: Number of classes; 1 without labels.
        device: Where batches go.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        classes: int,
        device: torch.device,
    ) -> None:
        self.labels = torch.zeros(len(images), dtype=torch.long)
        if labels is not None and classes > 1:
            if len(labels) != len(images):
                raise ShapeError(
                    f"{len(labels)} labels for {len(images)} images; the numbers must match."
                )
            self.labels = torch.from_numpy(np.array(labels)).long()
        self.classes, self.device = classes, device
        counts = torch.bincount(self.labels, minlength=classes)
        if bool((counts == 0).any()):
            empty = (counts == 0).nonzero().flatten().tolist()
            raise SampleError(f"There are no images of the classes {empty}: leave them out.")
        self._order = self.labels.argsort(stable=True).to(device)
        self.counts = counts.to(device)
        self._first = (counts.cumsum(0) - counts).to(device)
        self._host, self._there = images, None
        if images.nbytes <= ON_DEVICE:  # copied, as a memory-mapped file may be read-only
            self._there = torch.from_numpy(np.array(images)).to(device)
        self.shape = (images.shape[1], images.shape[2], images.shape[3])

    def __len__(self) -> int:
        return len(self._host)

    def images(self, rows: Tensor) -> Tensor:  # (n,) -> (n, c, h, w)
        """Some images, with values in [0, 1], on the device."""
        if self._there is not None:
            return self._there[rows].float() / 255
        some = np.ascontiguousarray(self._host[rows.cpu().numpy()])
        return torch.from_numpy(some).to(self.device).float() / 255

    def each_class(self, per_class: int, generator: torch.Generator) -> Tensor:  # (classes, n)
        """Rows of so many images of each class, drawn with replacement."""
        shape = (self.classes, per_class)
        place = torch.rand(shape, generator=generator, device=self.device)
        inside = (place * self.counts[:, None]).long().clamp(max=self.counts[:, None] - 1)
        return self._order[self._first[:, None] + inside]

    def some(self, label: int, n: int, generator: torch.Generator) -> Tensor:  # (n,)
        """Different rows of a class, as many as there are up to `n`."""
        first, count = int(self._first[label]), int(self.counts[label])
        order = torch.randperm(count, generator=generator, device=self.device)
        return self._order[first + order[:n]]

    def any(self, n: int, generator: torch.Generator) -> Tensor:  # (n,)
        """Rows drawn at random from all."""
        return torch.randint(len(self), (n,), generator=generator, device=self.device)


@torch.no_grad()
def encode_all(autoencoder: Autoencoder, rows: ImageRows, chunk: int = 4096) -> Tensor:  # (N, d)
    """Codes of all images."""
    every = torch.arange(len(rows), device=rows.device)
    with evaluating(autoencoder):
        parts = [autoencoder.encode(rows.images(part)) for part in every.split(chunk)]
    return torch.cat(parts)
