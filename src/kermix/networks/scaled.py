"""A network together with the scale of its data: what a fit returns.

`evaluating` puts every part of a network in evaluation mode for a while, and back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kermix.errors import OptionError, SampleError
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import Prior
from kermix.networks.mixture_networks import (
    ContinuousMixtureNetwork,
    MixtureNetwork,
    MixtureTable,
    WeightedPoints,
    stratified_draw,
)

__all__ = ["ScaledModel", "Scaler", "column_moments", "evaluating", "without_outliers"]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode.

    `network.train(before)` would not do afterwards: it sets all parts alike, and a part that is
    trained already, such as an encoder, is to stay as it is.

    Example:
        >>> from torch import nn
        >>> pair = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(pair):
        ...     pair[0].training
        False
        >>> pair[0].training, pair[1].training
        (True, False)
    """
    before = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


CENTERS_OF_A_DENSITY = 2000  # of a model without a fixed number of components: a convention


def column_moments(data: Tensor, common: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, (*B, 1, d); 0 exactly where it is constant.

    Constant is what varies by no more than the rounding of its type.

    Args:
        data: Rows, shape (*B, N, d).
        common: Whether all columns share one deviation.

    Example:
        >>> seconds = 1.7e9 + torch.arange(3).double()[:, None]
        >>> [round(float(moment), 4) for moment in column_moments(seconds)]
        [1700000001.0, 0.8165]
    """
    low, high = data.amin(-2, keepdim=True).double(), data.amax(-2, keepdim=True).double()
    if bool((high - low).isinf().any()):
        column = int((high - low).isinf().reshape(-1, data.shape[-1]).any(0).nonzero()[0])
        raise SampleError(
            f"Column {column} goes from {float(low[..., column].min()):g} to "
            f"{float(high[..., column].max()):g}: the difference overflows in float64. Divide "
            "the column by a constant."
        )
    # From the middle of each column and in units of half its range, squares neither overflow nor
    # vanish, and what is far from zero loses no digits.
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    units = (data.double() - middle).div_(torch.where(half > 0, half, 1.0))
    mean = units.mean(-2, keepdim=True)
    scale = half * (units - mean).square_().mean(-2, keepdim=True).sqrt()
    # What rounding leaves of a constant column, a few units in the last place, is no spread.
    dtype = data.dtype if data.dtype.is_floating_point else torch.float64
    level = 8 * torch.finfo(dtype).eps * torch.maximum(low.abs(), high.abs())
    scale = torch.where(half > level, scale, 0.0)
    if common:
        largest = scale.amax(-1, keepdim=True)
        parts = scale / torch.where(largest > 0, largest, 1.0)
        scale = (largest * parts.square().mean(-1, keepdim=True).sqrt()).expand_as(scale).clone()
    return middle + half * mean, scale


def without_outliers(
    data: Tensor,  # (*B, N, d)
    central: float = 0.95,
    reach: float = 5.0,
    looked_at: int = 5000,
) -> Tensor:
    """The data with far values drawn in, so that a few of them do not set the scale of the rest.

    Far is what lies five times the central 95 % range beyond it; most data have nothing there and
    are returned as they are. A column that is constant but for less than 5 % is left alone too.

    Args:
        data: Rows.
        central: The share of rows in the middle.
        reach: How many times their range is not far.
        looked_at: Rows, evenly among all, that the range is taken of.

    Example:
        >>> column = torch.arange(100.0)[:, None]
        >>> without_outliers(column) is column
        True
        >>> column[7] = 1e9
        >>> float(without_outliers(column).max())
        578.0
    """
    rows = data[..., :: -(-data.shape[-2] // looked_at), :].sort(-2).values
    outside = int(rows.shape[-2] * (1 - central) / 2)
    # With a few rows, the lowest and the highest but one: a single far value is not among them.
    outside = max(outside, 1 if rows.shape[-2] >= 10 else 0)
    low, high = (rows[..., i, :].unsqueeze(-2).double() for i in (outside, -1 - outside))
    room = high - low
    room = torch.where((room > 0) & (outside > 0), reach * room, torch.inf)
    if not bool(((data < low - room) | (data > high + room)).any()):
        return data
    return torch.minimum(torch.maximum(data.double(), low - room), high + room).to(data.dtype)


class Scaler(nn.Module):
    """Shift and scale of each column: networks see data of mean 0 and deviation 1.

    A constant column keeps its own scale, so that it is merely shifted. Columns with scales of
    their own take them from what is not far outside: see `without_outliers`.

    Args:
        data: What is to be scaled, shape (*B, N, d).
        common: Whether all columns share one scale, as the pixels of an image do.
    """

    location: Tensor  # (*B, 1, d)
    scale: Tensor  # (*B, 1, d)

    def __init__(self, data: Tensor, common: bool = False) -> None:
        super().__init__()
        location, scale = column_moments(data if common else without_outliers(data), common)
        self.register_buffer("location", location)
        self.register_buffer("scale", torch.where(scale > 0, scale, 1.0))

    def scaled(self, data: Tensor) -> Tensor:
        """From the data's units to those of the network, in float32."""
        return ((data.double() - self.location) / self.scale).float()

    def restored(self, points: Tensor) -> Tensor:
        """From the network's units to those of the data, in float64."""
        return points.double() * self.scale + self.location

    def restored_mixture(self, mixture: GaussianMixture) -> GaussianMixture:
        """A mixture of one or several variances a component, in the data's units and float64."""
        variances = mixture.covariances
        if mixture.covariance_kind == "isotropic":
            variances = variances.unsqueeze(-1)
        return GaussianMixture(
            mixture.weights.double(),
            self.restored(mixture.means),
            variances.double() * self.scale.square(),
        )


class ScaledModel(nn.Module):
    """A network, its prior and the scale of its data.

    Args:
        network: A mixture network, one of a continuous prior, or a generator of centers (which
            needs a prior).
        scaler: The scale of the data.
        prior: Where the noise of a generator comes from.
        kernel_variance: Variance, in units of the scaled data, of the kernel that a generator's
            density is made with; it is that of the last step of training.
    """

    def __init__(
        self,
        network: nn.Module,
        scaler: Scaler,
        prior: Prior | None = None,
        kernel_variance: float = 1.0,
    ) -> None:
        super().__init__()
        self.network, self.scaler = network, scaler
        self.prior, self.kernel_variance = prior, kernel_variance
        if not self.is_mixture and prior is None:
            raise OptionError("A generator needs a prior for its noise.")
        variances = scaler.scale.square()
        if bool((variances.isinf() | (variances == 0)).any()):
            raise SampleError(
                f"The data's columns have deviations of {float(scaler.scale.min()):g} to "
                f"{float(scaler.scale.max()):g}, whose squares overflow or underflow in float64: "
                "multiply or divide them by a constant."
            )

    @property
    def is_mixture(self) -> bool:
        """Whether there is a fixed table of components: samples are then centers plus noise."""
        return isinstance(self.network, MixtureTable | MixtureNetwork)

    @property
    def is_continuous(self) -> bool:
        """Whether components come from noise that is drawn anew each time."""
        return isinstance(self.network, ContinuousMixtureNetwork)

    def components(self, count: int, generator: torch.Generator) -> GaussianMixture:
        """Components of a continuous prior, drawn anew, in scaled units; differentiable."""
        assert isinstance(self.network, ContinuousMixtureNetwork)
        return self.network.draw(count, generator)

    def draw(
        self,
        count: int,
        generator: torch.Generator,
        part: Callable[[int], slice] = slice,
    ) -> WeightedPoints:
        """Differentiable points in scaled units, `count` or a little more.

        Args:
            count: How many.
            generator: All random numbers are drawn, whatever part of the points is wanted.
            part: Of a number of points, which ones are wanted: a rank's share of them.
        """
        if self.is_continuous:
            points, weights = stratified_draw(self.components(count, generator), 1, generator)
            return WeightedPoints(points[part(count)], weights[part(count)])
        if self.prior is not None and not self.is_mixture:
            return WeightedPoints(
                self.network(self.prior.sample(count, generator)[part(count)]), None
            )
        mixture = self.network()
        repeats = -(-count // mixture.means.shape[-2])
        points, weights = stratified_draw(mixture, repeats, generator)
        wanted = part(points.shape[-2])
        return WeightedPoints(points[..., wanted, :], weights[..., wanted])

    @torch.no_grad()
    def mixture(self, generator: torch.Generator | None = None) -> GaussianMixture:
        """The density, in the data's units and float64.

        A generator's density is that of 2000 of its centers, each with the kernel's Gaussian; that
        of a continuous prior is estimated by 2000 of its components.
        """
        if self.is_mixture or self.is_continuous:
            return self.scaler.restored_mixture(self._fitted(CENTERS_OF_A_DENSITY, generator))
        scale = self.scaler.scale
        centers = self.sample(CENTERS_OF_A_DENSITY, _seeded(generator, scale.device))
        variance = self.kernel_variance * centers.shape[-1]
        weights = torch.full_like(centers[:, 0], 1 / len(centers))
        return GaussianMixture(weights, centers, (variance * scale.square()).expand_as(centers))

    def _fitted(self, count: int, generator: torch.Generator | None) -> GaussianMixture:
        if not self.is_continuous:
            mixture: GaussianMixture = self.network()
            return mixture
        with evaluating(self.network):
            return self.components(count, _seeded(generator, self.scaler.scale.device))

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Tensor:  # (n, d)
        """Points in the data's units: of a generator the centers, of a mixture plus its noise."""
        if self.is_mixture:
            return self.mixture().sample((n,), generator=generator)
        if self.is_continuous:  # other components for every part
            sizes = [min(CENTERS_OF_A_DENSITY, n - i) for i in range(0, n, CENTERS_OF_A_DENSITY)]
            drawn = [
                self.mixture(generator).sample((size,), generator=generator) for size in sizes
            ]
            return torch.cat(drawn)
        assert self.prior is not None
        training = self.network.training
        self.network.eval()
        parts = [self.network(self.prior.sample(min(4096, n - i), generator))
                 for i in range(0, n, 4096)]  # fmt: skip
        self.network.train(training)
        return self.scaler.restored(torch.cat(parts))

    def log_prob(self, points: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Log-density at points in the data's units."""
        return self.mixture().log_prob(points.double())


def _seeded(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    return generator or torch.Generator(device).manual_seed(0)
