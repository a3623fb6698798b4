"""Columns on a common scale, each by its own spread, and mixtures back in the columns' units."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.errors import SampleError
from kermix.mixtures.mixture import GaussianMixture

__all__ = ["ColumnScale"]

LARGEST, SMALLEST = 1e150, 1e-150  # beyond, variances are no numbers
FAR = 5.0  # a deviation this many times the bulk's is that of a few far rows
BULKS = ((0.25, 1.349), (0.05, 3.290), (0.01, 4.653))  # tails left out; width of a normal's rest
CONSTANT = 1e-3  # of a constant's size
REACH = 1e12  # in scales: how far a row may be from the middle


@dataclass(frozen=True)
class ColumnScale:
    """The median and the spread of each column.

    The spread is the standard deviation, or the width of the bulk where a few far rows make up
    most of the deviation. A constant `c` has the scale `1e-3 |c|` (`1e-3` if it is 0).

    Example:
        >>> rows = torch.tensor([[1e6 + 1e-3], [1e6], [1e6 - 1e-3]], dtype=torch.float64)
        >>> ColumnScale.of(rows)(rows).flatten().round(decimals=3)
        tensor([ 1.2250,  0.0000, -1.2250], dtype=torch.float64)
    """

    middle: Tensor  # (d,)
    scale: Tensor  # (d,)

    @classmethod
    def of(cls, rows: Tensor, first: int = 0) -> "ColumnScale":  # (N, d)
        """The scale of these rows, each of them centred before anything is squared.

        Args:
            rows: The rows; missing cells (NaN) do not count.
            first: The number of the first column, in messages.
        """
        if bool(rows.isnan().any()):
            columns = enumerate(rows.T)
            each = [cls.of(c[~c.isnan()].unsqueeze(1), first + k) for k, c in columns]
            return cls(*(torch.cat([getattr(e, n) for e in each]) for n in ("middle", "scale")))
        ordered = rows.sort(0).values
        middle = ordered[len(rows) // 2]
        widest = torch.maximum(ordered[-1] - middle, middle - ordered[0])
        constant = widest == 0
        unit = torch.where(constant, 1.0, widest)
        centred = (ordered - middle) / unit
        deviation = (centred - centred.mean(0)).square().mean(0).sqrt()
        scale = torch.where(constant, 1.0, deviation)
        found = torch.zeros_like(constant)
        for tail, width in BULKS:
            low, high = (round(share * (len(rows) - 1)) for share in (tail, 1 - tail))
            bulk = (centred[high] - centred[low]) / width
            new = ~found & (bulk > 0)
            scale = torch.where(new & (deviation > FAR * bulk), bulk, scale)
            found |= new
        size = torch.where(middle == 0, 1.0, middle.abs().clamp(min=SMALLEST / CONSTANT))
        scale = torch.where(constant, CONSTANT * size, unit * scale.clamp(min=1 / REACH))
        for column in ((widest > LARGEST) | (scale > LARGEST) | (scale < SMALLEST)).nonzero():
            k = int(column)
            raise SampleError(
                f"Column {first + k} (from 0) has numbers from {float(ordered[0, k]):.4g} to "
                f"{float(ordered[-1, k]):.4g}: the squares of their differences overflow or "
                "underflow in float64. Rescale the column so that its values are near 1."
            )
        return cls(middle, scale)

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows on this scale."""
        return (rows - self.middle) / self.scale

    @property
    def log_volume(self) -> float:
        """What log-densities on this scale have more than those in the columns' units."""
        return float(self.scale.log().sum())

    def back(self, mixture: GaussianMixture) -> GaussianMixture:
        """A mixture on this scale, in the columns' units."""
        covariances = mixture.covariances
        if covariances.ndim == 1:
            covariances = covariances.unsqueeze(1)
        if covariances.ndim == 2:
            covariances = covariances * self.scale.square()
        else:
            covariances = covariances * self.scale.unsqueeze(1) * self.scale
        means = mixture.means * self.scale + self.middle
        return GaussianMixture(mixture.weights, means, covariances)
