"""Rows of numbers, and what is known about them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kermix.data.toys import Modes
from kermix.errors import SizeError

__all__ = ["Dataset", "column_names", "image_rows"]

LARGEST = 2**34  # bytes of floating-point numbers


@dataclass(frozen=True)
class Dataset:
    """Rows of numbers and what is known about them.

    Attributes:
        name: For titles.
        stored: The rows, (N, d): numbers, or images as bytes, which may be mapped from a file.
        columns: Their names.
        image: Channels, height and width if rows are images.
        modes: The separate modes, if known.
        entropy: In nats, if known.
        notes: What was left out when it was read.
        labels: The class of each row, int64, (N,), if known.
        classes: The names of the classes.
        numbers: Of the rows where they were read, (N,): lines of a text file.
    """

    name: str
    stored: Tensor
    columns: list[str]
    image: tuple[int, int, int] | None = None
    modes: Modes | None = None
    entropy: float | None = None
    notes: tuple[str, ...] = ()
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    numbers: Tensor | None = None

    @cached_property
    def values(self) -> Tensor:  # (N, d)
        """The rows as floating-point numbers, bytes divided by 255; all of them in memory.

        Work on many large images takes bytes from `stored`, some rows at a time.
        """
        if self.stored.dtype != torch.uint8:
            return self.stored
        size = 4 * self.stored.numel()
        if size > LARGEST:
            raise SizeError(
                f"{self.name}: {len(self.stored)} images take {size / 2**30:.0f} GiB as "
                f"floating-point numbers, more than {LARGEST >> 30} GiB; use fewer rows or a "
                "smaller size."
            )
        return self.stored.to(torch.float32).div_(255)


def column_names(width: int) -> list[str]:
    """Names for columns that have none."""
    return [f"x{i}" for i in range(width)]


def image_rows(name: str, images: np.ndarray, notes: tuple[str, ...] = ()) -> Dataset:
    """Images (N, C, H, W) as rows; bytes stay bytes where they are."""
    count, channels, height, width = images.shape
    rows = torch.from_numpy(images).reshape(count, -1)
    return Dataset(name, rows, column_names(rows.shape[1]), (channels, height, width), notes=notes)
