r"""Mixture networks: noise, or a context, to centres, weights and variances.

A point of such a model is *a centre plus noise of the learned variance*, so everything about the
mixture is exact: density, inner products, norms. Any cost between samples trains it through
`stratified_draw`, whose points and weights are differentiable in all parameters.
"""

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from kermix.checks import check_option
from kermix.errors import OptionError
from kermix.mixtures.mixture import GaussianMixture
from kermix.models.mixture.generators import mlp, reset_with
from kermix.models.mixture.priors import Prior

__all__ = [
    "ComponentNetwork",
    "ConditionalMixtureNetwork",
    "CovarianceType",
    "Draw",
    "MixtureNetwork",
    "MixtureTable",
    "stratified_draw",
]

CovarianceType: TypeAlias = Literal["isotropic", "diagonal"]

INITIAL_VARIANCE = 0.1
LOWEST_LOG_VARIANCE, HIGHEST_LOG_VARIANCE = math.log(1e-10), math.log(1e4)


class Draw(NamedTuple):
    """Points of a model, differentiable, and their weights (None: all equal)."""

    points: Tensor  # (*B, n, d)
    weights: Tensor | None  # (*B, n)


def stratified_draw(
    mixture: GaussianMixture, repeats: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:  # (*B, n, d), (*B, n)
    r"""So many points from *every* component, each weighted by its component.

    $y = m_k + \sqrt{v_k} \varepsilon$ has weight $w_k / \mathrm{repeats}$. The choice
    of a component, through which no gradient flows, is not made: all are taken.
    """
    means, variances = mixture.means, mixture.covariances
    if mixture.covariance_kind == "full":
        raise OptionError(
            "stratified_draw supports isotropic and diagonal covariances, not full ones."
        )
    scales = variances.sqrt()
    if mixture.covariance_kind == "isotropic":
        scales = scales.unsqueeze(-1)
    shape = (repeats, *means.shape)
    noise = torch.randn(shape, generator=generator, device=means.device, dtype=means.dtype)
    points = (means + scales * noise).movedim(0, -3).flatten(-3, -2)
    weights = mixture.weights.unsqueeze(-2).expand(*means.shape[:-2], repeats, -1)
    return points, weights.flatten(-2) / repeats


def _mixture(logits: Tensor, means: Tensor, log_variances: Tensor) -> GaussianMixture:
    bounded = log_variances.clamp(LOWEST_LOG_VARIANCE, HIGHEST_LOG_VARIANCE)
    return GaussianMixture(logits.softmax(-1), means, bounded.exp(), validate_args=False)


def _parameters_of_component(dimension: int, kind: CovarianceType) -> int:
    """How many numbers a centre, a weight and a variance are."""
    return dimension + 1 + (1 if kind == "isotropic" else dimension)


class ComponentNetwork(nn.Module):
    """A perceptron whose outputs are centres, weights and variances of components.

    Args:
        inputs: Length of an input.
        dimension: Dimension of the data.
        covariance_type: `"isotropic"`, one variance for each component, or `"diagonal"`, one for
            each of its coordinates.
        hidden: Width and number of the hidden layers.
        components: Of one input.
        batch_norm: Whether hidden layers are normalized.
        generator: Where initial weights come from.
    """

    def __init__(
        self,
        inputs: int,
        dimension: int,
        covariance_type: CovarianceType,
        hidden: tuple[int, int],
        components: int = 1,
        *,
        batch_norm: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        check_option("covariance_type", covariance_type, ("isotropic", "diagonal"))
        _check_components(components)
        self.dimension, self.covariance_type = dimension, covariance_type
        outputs = components * _parameters_of_component(dimension, covariance_type)
        width, depth = hidden
        self.layers = mlp([inputs, *[width] * depth, outputs], batch_norm=batch_norm)
        reset_with(self, generator)

    def mixture(self, outputs: Tensor) -> GaussianMixture:  # (*B, K, parameters of a component)
        """The mixture whose components were returned, one for each row."""
        sizes = [self.dimension, 1, outputs.shape[-1] - self.dimension - 1]
        means, logits, logs = outputs.split(sizes, -1)
        logs = logs + math.log(INITIAL_VARIANCE)
        logs = logs.squeeze(-1) if self.covariance_type == "isotropic" else logs
        return _mixture(logits.squeeze(-1), means, logs)


class MixtureTable(nn.Module):
    """K components whose parameters are learned directly: a network with one-hot noise.

    Args:
        dimension: Dimension of the data.
        components: Number K of components.
        covariance_type: `"isotropic"`, one variance for each component, or `"diagonal"`, one for
            each of its coordinates.
        batch_shape: Independent models side by side, trained at the price of one on a GPU.
        generator: Where initial centres come from.

    Example:
        >>> table = MixtureTable(2, 5, generator=torch.Generator().manual_seed(0))
        >>> table().log_prob(torch.zeros(3, 2)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        dimension: int,
        components: int = 128,
        covariance_type: CovarianceType = "isotropic",
        batch_shape: tuple[int, ...] = (),
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        check_option("covariance_type", covariance_type, ("isotropic", "diagonal"))
        _check_components(components)
        shape = (*batch_shape, components, dimension)
        device = generator.device
        self.means = nn.Parameter(torch.randn(shape, generator=generator, device=device))
        self.logits = nn.Parameter(torch.zeros(shape[:-1], device=device))
        log_shape = shape if covariance_type == "diagonal" else shape[:-1]
        initial = math.log(INITIAL_VARIANCE)
        self.log_variances = nn.Parameter(torch.full(log_shape, initial, device=device))

    def forward(self) -> GaussianMixture:
        """The mixture."""
        return _mixture(self.logits, self.means, self.log_variances)


class MixtureNetwork(ComponentNetwork):
    """K noise vectors, drawn once, to K components by a network.

    Args:
        dimension: Dimension of the data.
        prior: Where the noise comes from.
        components: Number K of components.
        covariance_type: `"isotropic"`, one variance for each component, or `"diagonal"`, one for
            each of its coordinates.
        width: Width of the hidden layers.
        depth: Number of hidden layers.
        generator: Where the noise and initial weights come from.
    """

    codes: Tensor  # (K, noise)

    def __init__(
        self,
        dimension: int,
        prior: Prior,
        components: int = 128,
        covariance_type: CovarianceType = "isotropic",
        width: int = 128,
        depth: int = 2,
        *,
        generator: torch.Generator,
    ) -> None:
        _check_components(components)
        super().__init__(
            prior.dimension, dimension, covariance_type, (width, depth), generator=generator
        )
        self.codes = nn.Parameter(prior.sample(components, generator))

    def forward(self) -> GaussianMixture:
        """The mixture."""
        return self.mixture(self.layers(self.codes))


class ConditionalMixtureNetwork(ComponentNetwork):
    """A mixture density network: a context in, a `torch.distributions.Distribution` out.

    Args:
        context: Length of the context vector.
        dimension: Dimension of what is predicted.
        components: Number of components.
        covariance_type: `"isotropic"`, one variance for each component, or `"diagonal"`, one for
            each of its coordinates.
        width: Width of the hidden layers.
        depth: Number of hidden layers.
        generator: Where initial weights come from.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> network = ConditionalMixtureNetwork(1, 1, 5, generator=generator)
        >>> mixture = network(torch.zeros(4, 1))
        >>> mixture.log_prob(torch.zeros(4, 1)).shape
        torch.Size([4])
    """

    def __init__(
        self,
        context: int,
        dimension: int,
        components: int = 16,
        covariance_type: CovarianceType = "isotropic",
        width: int = 128,
        depth: int = 2,
        *,
        generator: torch.Generator,
    ) -> None:
        hidden = width, depth
        super().__init__(
            context, dimension, covariance_type, hidden, components, generator=generator
        )
        self.components = components
        # Components begin spread over the scaled data, not all in one place.
        with torch.no_grad():
            last = self.layers[-1]
            assert isinstance(last, nn.Linear)
            bias = last.bias.view(components, -1)
            start = torch.randn((components, dimension), generator=generator, device=bias.device)
            bias[:, :dimension] = start

    def forward(self, context: Tensor) -> GaussianMixture:  # (*B, context)
        """The mixture of each context, of batch shape B."""
        return self.mixture(self.layers(context).unflatten(-1, (self.components, -1)))


def _check_components(components: int) -> None:
    if components < 1:
        raise OptionError(f"components={components}: a mixture needs at least one component.")
