"""Built-in data sets, with their exact densities and entropies where these are known.

The sets of FFJORD (Grathwohl et al., 2019) are drawn as there, except that points on circles and
half-moons have random angles: rows are then independent, so that the density is exact.

Rows of numbers, and what is known about them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kermix.errors import MissingExtraError, OptionError, SizeError
from kermix.mixtures.mixture import GaussianMixture

__all__ = ["TOYS", "Dataset", "Modes", "Toy", "column_names", "image_rows", "toy"]

Sampler = Callable[[int, torch.Generator], Tensor]
NODES = 2000  # of the rule by which a density along a curve is integrated


@dataclass(frozen=True)
class Modes:
    """Separate modes of equal weight: where they are, and their common standard deviation."""

    centres: Tensor  # (M, d)
    deviation: float


@dataclass(frozen=True)
class Toy:
    """A data set that can be drawn from.

    Attributes:
        name: What `kermix fit` calls it.
        about: One line that says what it is.
        sample: Takes a number of points and a generator; returns float32 points.
        log_prob: The exact log-density, or None where there is no closed form.
        entropy: In nats, to about 0.001; None where the density is not known.
        modes: The modes, if there are separate ones.
    """

    name: str
    about: str
    sample: Sampler
    log_prob: Callable[[Tensor], Tensor] | None = None
    entropy: float | None = None
    modes: Modes | None = None


def toy(name: str) -> Toy:
    """The built-in data set with this name.

    Example:
        >>> ring = toy("ring8")
        >>> ring.sample(5, torch.Generator().manual_seed(0)).shape, ring.entropy
        (torch.Size([5, 2]), -4.293)
    """
    if name not in TOYS:
        raise OptionError(f"{name!r} is not a built-in data set; choose from {', '.join(TOYS)}.")
    return TOYS[name]()


def _mixture_of_modes(
    name: str, about: str, centres: Tensor, deviation: float, entropy: float
) -> Toy:
    count = len(centres)
    density = GaussianMixture(
        torch.full((count,), 1 / count), centres, torch.full((count,), deviation**2)
    )

    def sample(n: int, generator: torch.Generator) -> Tensor:
        return density.sample((n,), generator=generator)

    return Toy(name, about, sample, density.log_prob, entropy, Modes(centres, deviation))


def _along_curves(
    name: str,
    about: str,
    position: Callable[[Tensor, Tensor], Tensor],
    curves: int,
    deviation: float,
    entropy: float,
) -> Toy:
    """A set drawn along curves: `position(curve, time in [0, 1))`, plus Gaussian noise.

    Its density is an integral over time, taken by the midpoint rule: nodes lie much closer to
    each other than the noise is wide, so what is left out is far below rounding.
    """
    times = (torch.arange(NODES, dtype=torch.float64) + 0.5) / NODES
    nodes = torch.cat([position(torch.full_like(times, c), times) for c in range(curves)])
    weights = torch.full((len(nodes),), 1 / len(nodes), dtype=torch.float64)
    density = GaussianMixture(weights, nodes, torch.full_like(weights, deviation**2))

    def sample(n: int, generator: torch.Generator) -> Tensor:
        curve = torch.randint(curves, (n,), generator=generator).float()
        points = position(curve, torch.rand(n, generator=generator))
        return points + deviation * torch.randn(n, 2, generator=generator)

    return Toy(name, about, sample, density.log_prob, entropy)


def _on_circle(angle: Tensor, radius: Tensor | float = 1.0) -> Tensor:
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1)


def _mixture10() -> Toy:
    # Ten means drawn at random in the unit square, as in the paper; of many draws, one in which
    # no two modes touch.
    centres = torch.tensor([
        [0.10, 0.23], [0.30, 0.62], [0.48, 0.11], [0.82, 0.32], [0.93, 0.68],
        [0.61, 0.44], [0.07, 0.90], [0.66, 0.88], [0.39, 0.36], [0.42, 0.85],
    ])  # fmt: skip
    return _mixture_of_modes(
        "mixture10",
        "the paper's mixture of ten Gaussians, means at random",
        centres,
        0.025,
        -2.238,
    )


def _ring8() -> Toy:
    centres = _on_circle(torch.arange(8) * (2 * math.pi / 8))
    return _mixture_of_modes("ring8", "eight narrow modes on a circle", centres, 0.01, -4.293)


def _grid25() -> Toy:
    side = torch.arange(-4.0, 5.0, 2.0)
    centres = torch.cartesian_prod(side, side)
    return _mixture_of_modes("grid25", "25 narrow modes on a grid", centres, 0.05, 0.065)


def _eight_gaussians() -> Toy:
    centres = _on_circle(torch.arange(8) * (2 * math.pi / 8), 4 / 1.414)
    return _mixture_of_modes(
        "8gaussians", "eight wide modes on a circle", centres, 0.5 / 1.414, 2.833
    )


def _moons() -> Toy:
    def position(curve: Tensor, time: Tensor) -> Tensor:
        upper = _on_circle(math.pi * time)
        lower = torch.stack([1 - upper[:, 0], 0.5 - upper[:, 1]], -1)
        points = torch.where(curve[:, None] == 0, upper, lower)
        return 2 * points + torch.tensor([-1.0, -0.2], dtype=points.dtype)

    return _along_curves("moons", "two interleaved half-moons", position, 2, 0.2, 2.393)


def _circles() -> Toy:
    def position(curve: Tensor, time: Tensor) -> Tensor:
        return _on_circle(2 * math.pi * time, 3 - 1.5 * curve)

    return _along_curves("circles", "a circle inside a circle", position, 2, 0.24, 3.272)


def _rings() -> Toy:
    def position(curve: Tensor, time: Tensor) -> Tensor:
        return _on_circle(2 * math.pi * time, 3 - 0.75 * curve)

    return _along_curves("rings", "four concentric rings", position, 4, 0.08, 2.628)


def _swissroll() -> Toy:
    def position(curve: Tensor, time: Tensor) -> Tensor:
        turn = 1.5 * math.pi * (1 + 2 * time)
        return _on_circle(turn, turn / 5)

    return _along_curves("swissroll", "a rolled-up sheet, from the side", position, 1, 0.2, 2.666)


def _checkerboard() -> Toy:
    def sample(n: int, generator: torch.Generator) -> Tensor:
        first = 4 * torch.rand(n, generator=generator) - 2
        below = torch.randint(2, (n,), generator=generator)
        second = torch.rand(n, generator=generator) - 2 * below + first.floor() % 2
        return 2 * torch.stack([first, second], 1)

    def log_prob(points: Tensor) -> Tensor:
        cells = (points / 2).floor()
        inside = (cells >= -2).all(-1) & (cells <= 1).all(-1) & ((cells.sum(-1) % 2) == 0)
        return torch.where(inside, -math.log(32), -math.inf).to(points.dtype)

    return Toy("checkerboard", "eight uniform squares", sample, log_prob, 3.466)


def _pinwheel() -> Toy:
    def sample(n: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(n, 2, generator=generator) * torch.tensor([0.3, 0.1])
        radius = noise[:, 0] + 1
        arm = torch.randint(5, (n,), generator=generator)
        angle = 2 * math.pi / 5 * arm + 0.25 * radius.exp()
        x = radius * angle.cos() + noise[:, 1] * angle.sin()
        y = -radius * angle.sin() + noise[:, 1] * angle.cos()
        return 2 * torch.stack([x, y], 1)

    return Toy("pinwheel", "five bent arms", sample)


def _two_spirals() -> Toy:
    def sample(n: int, generator: torch.Generator) -> Tensor:
        turn = 3 * math.pi * torch.rand(n, generator=generator).sqrt()
        box = 0.5 * torch.rand(n, 2, generator=generator)
        arm = torch.stack([-turn * turn.cos(), turn * turn.sin()], 1) + box
        side = 2.0 * torch.randint(2, (n, 1), generator=generator) - 1
        return side * arm / 3 + 0.1 * torch.randn(n, 2, generator=generator)

    return Toy("2spirals", "two spirals in each other", sample)


def _digits() -> Toy:
    def sample(n: int, generator: torch.Generator) -> Tensor:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise MissingExtraError(
                "The set 'digits' comes with scikit-learn: pip install 'kermix[fit]'."
            ) from None
        images = torch.from_numpy(load_digits().data).float() / 16
        rows = torch.randperm(len(images), generator=generator)
        return images[rows[:n]] if n <= len(rows) else images[rows]

    return Toy("digits", "1797 handwritten digits of 8 x 8 pixels (at most as many rows)", sample)


TOYS: dict[str, Callable[[], Toy]] = {
    "mixture10": _mixture10,
    "ring8": _ring8,
    "grid25": _grid25,
    "moons": _moons,
    "circles": _circles,
    "rings": _rings,
    "swissroll": _swissroll,
    "8gaussians": _eight_gaussians,
    "checkerboard": _checkerboard,
    "pinwheel": _pinwheel,
    "2spirals": _two_spirals,
    "digits": _digits,
}

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
