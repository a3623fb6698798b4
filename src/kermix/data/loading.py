"""One door to all data: a built-in set's name, or a path."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kermix.errors import TableError

from .idx import is_idx
from .images import Images, read_idx, read_image_folder
from .tables import read_table
from .toys import TOYS, Modes, toy

__all__ = ["Dataset", "load"]

TOY_ROWS = 20_000


@dataclass(frozen=True)
class Dataset:
    """Rows of numbers and what is known about them.

    Attributes:
        name: For titles.
        values: The rows, (N, d).
        columns: Their names.
        image: Channels, height and width if rows are images.
        modes: The separate modes, if known.
        entropy: In nats, if known.
        notes: What was left out when it was read.
    """

    name: str
    values: Tensor
    columns: list[str]
    image: tuple[int, int, int] | None = None
    modes: Modes | None = None
    entropy: float | None = None
    notes: tuple[str, ...] = ()


def load(source: str, seed: int = 0, rows: int = TOY_ROWS) -> Dataset:
    """Read a built-in set, a table, an IDX file or a folder of images.

    Args:
        source: Name of a built-in set, or a path.
        seed: For drawing a built-in set.
        rows: How many to draw.

    Example:
        >>> load("moons", rows=100).values.shape
        torch.Size([100, 2])
    """
    if source in TOYS:
        chosen = toy(source)
        values = chosen.sample(rows, torch.Generator().manual_seed(seed))
        image = (1, 8, 8) if source == "digits" else None
        names = _names(values)
        return Dataset(source, values, names, image, chosen.modes, chosen.entropy)
    path = Path(source)
    if path.is_dir():
        return _from_images(read_image_folder(path))
    if is_idx(path):
        return _from_images(read_idx(path))
    if not path.exists() and not path.suffix:
        raise TableError(
            f"{source}: neither a file, nor a folder, nor a built-in set; built in are "
            f"{', '.join(TOYS)}."
        )
    table = read_table(path)
    return Dataset(path.stem, table.values, table.columns, notes=tuple(table.notes()))


def _from_images(images: Images) -> Dataset:
    return Dataset(
        images.name, images.values, _names(images.values), images.shape, notes=images.notes
    )


def _names(values: Tensor) -> list[str]:
    return [f"x{i}" for i in range(values.shape[1])]
