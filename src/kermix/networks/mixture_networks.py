r"""Mixture networks: noise, or a context, to centers, weights and variances.

A point of such a model is *a center plus noise of the learned variance*, so everything about the
mixture is exact: density, inner products, norms. Any cost between samples trains it through
`stratified_draw`, whose points and weights are differentiable in all parameters.
`ProductMixture` is a sum of products of mixtures, for vectors that fall into parts. A
`ContinuousMixtureNetwork` draws its noise anew each time,

$$q(X) = \int q(c) \, w(c) \, N(X - m(c); v(c)) \, dc$$

and a finite draw of it is an ordinary mixture, whose inner products estimate those of q as
expectations (Property 3).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kermix.checks import check_option, check_sizes
from kermix.errors import OptionError, ShapeError
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import Prior, mlp, reset_with
from kermix.settings import CovarianceType

__all__ = [
    "ComponentNetwork",
    "ConditionalMixtureNetwork",
    "ContinuousMixtureNetwork",
    "MixtureNetwork",
    "MixtureTable",
    "ProductMixture",
    "WeightedPoints",
    "stratified_draw",
    "widened",
]

INITIAL_VARIANCE = 0.1  # a convention
LOWEST_LOG_VARIANCE, HIGHEST_LOG_VARIANCE = math.log(1e-10), math.log(1e4)


class WeightedPoints(NamedTuple):
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
    """How many numbers a center, a weight and a variance are."""
    return dimension + 1 + (1 if kind == "isotropic" else dimension)


class ComponentNetwork(nn.Module):
    """A perceptron whose outputs are centers, weights and variances of components.

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
        generator: Where initial centers come from.

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


class ProductMixture(nn.Module):
    r"""`q(z) = sum_l pi_l prod_c sum_k w_{c,l,k} N(z_c; m_{c,k}, diag s_{c,k})`.

    A vector z falls into parts z_c of equal length, such as the digits of a stacked image. Parts
    that go their own ways have as many combinations as there are products of their modes, and a
    mixture of whole vectors needs a component for each. Here every part has K centers of its own,
    and the groups l carry what the parts share. It is the paper's function of many variables, a
    sum of products, as a density.

    Args:
        parts: Number C of parts.
        dimension: Length of a part.
        components: Centers K of each part.
        groups: Number L of products.
        batch_shape: Independent models side by side, such as one for each class.
        generator: Where initial weights and centers come from.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> model = ProductMixture(3, 2, components=5, groups=4, generator=generator)
        >>> model.draw(7, generator).points.shape
        torch.Size([7, 6])
    """

    def __init__(
        self,
        parts: int,
        dimension: int,
        components: int = 128,
        groups: int = 10,
        batch_shape: tuple[int, ...] = (),
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        check_sizes(parts=parts, dimension=dimension, components=components, groups=groups)
        device = generator.device
        shape = (*batch_shape, parts, components, dimension)
        self.means = nn.Parameter(torch.randn(shape, generator=generator, device=device))
        self.log_variances = nn.Parameter(torch.full_like(self.means, math.log(INITIAL_VARIANCE)))
        self.logits = nn.Parameter(torch.zeros((*batch_shape, groups), device=device))
        # Groups that begin as equals would stay equals.
        choice = (*batch_shape, parts, groups, components)
        self.part_logits = nn.Parameter(torch.rand(choice, generator=generator, device=device))

    @property
    def variances(self) -> Tensor:  # (..., C, K, d)
        """Variances of the components."""
        return self.log_variances.clamp(LOWEST_LOG_VARIANCE, HIGHEST_LOG_VARIANCE).exp()

    def draw(self, n: int, generator: torch.Generator) -> WeightedPoints:
        """Points (..., n, C * d), differentiable by centers and variances; weights are none."""
        batch = self.means.shape[:-3]
        items = torch.arange(batch.numel(), device=self.means.device).repeat_interleave(n)
        points = self.points(items, generator)
        return WeightedPoints(points.view(*batch, n, points.shape[-1]), None)

    def points(self, items: Tensor, generator: torch.Generator) -> Tensor:  # (n,) -> (n, C * d)
        """A point of each of these batch items: a center plus noise in every part."""
        parts, components, dimension = self.means.shape[-3:]
        with torch.no_grad():
            groups = self.logits.softmax(-1).reshape(-1, self.logits.shape[-1])[items]
            group = torch.multinomial(groups, 1, generator=generator).squeeze(1)
            weights = self.part_logits.softmax(-1).reshape(-1, *self.part_logits.shape[-3:])
            chosen = [
                torch.multinomial(weights[items, c, group], 1, generator=generator)
                for c in range(parts)
            ]
            place = items.unsqueeze(1) * parts + torch.arange(parts, device=items.device)
            place = place * components + torch.cat(chosen, 1)  # (n, C), among all centers
        centers = self.means.reshape(-1, dimension)[place]
        deviations = self.variances.reshape(-1, dimension)[place].sqrt()
        noise = torch.randn(centers.shape, generator=generator, device=centers.device)
        return (centers + deviations * noise).flatten(1)

    def log_prob(self, z: Tensor) -> Tensor:  # (n, C * d) -> (..., n)
        """Log-density of points, under each batch item."""
        parts, _, dimension = self.means.shape[-3:]
        if z.ndim != 2 or z.shape[1] != parts * dimension:
            raise ShapeError(
                f"z has shape {tuple(z.shape)}; (points, {parts * dimension}) is expected: "
                f"{parts} parts of {dimension}."
            )
        weights = self.part_logits.log_softmax(-1)  # (..., C, L, K)
        logs = part_log_densities(z.unflatten(1, (parts, dimension)), self.means, self.variances)
        within = (logs.unsqueeze(-2) + weights.unsqueeze(-4)).logsumexp(-1)  # (..., n, C, L)
        return (within.sum(-2) + self.logits.log_softmax(-1).unsqueeze(-2)).logsumexp(-1)


def part_log_densities(
    z: Tensor,  # (n, C, d)
    means: Tensor,  # (..., C, K, d)
    variances: Tensor,  # (..., C, K, d)
) -> Tensor:  # (..., n, C, K)
    """Log-densities of each part of points under each component of that part."""
    precision = 1 / variances
    constant = -0.5 * (
        (means.square() * precision).sum(-1)
        + variances.log().sum(-1)
        + means.shape[-1] * math.log(2 * math.pi)
    )
    part = z.movedim(0, 1)  # (C, n, d)
    logs = part @ (means * precision).mT - 0.5 * part.square() @ precision.mT
    return (logs + constant.unsqueeze(-2)).movedim(-3, -2)


class ContinuousMixtureNetwork(ComponentNetwork):
    r"""Noise to components: a center m(c), a weight w(c) and a variance v(c) for each vector c.

    Weights are divided by their sum over a draw, so that q integrates to one.

    Args:
        dimension: Dimension of the data.
        prior: Where the noise comes from.
        covariance_type: `"isotropic"`, one variance for each component, or `"diagonal"`, one for
            each of its coordinates.
        width: Width of the hidden layers.
        depth: Number of hidden layers.
        generator: Where initial weights come from.

    Example:
        >>> from kermix.networks.generators import UniformPrior
        >>> prior, generator = UniformPrior(3), torch.Generator().manual_seed(0)
        >>> network = ContinuousMixtureNetwork(2, prior, generator=generator)
        >>> mixture = network.draw(50, generator)
        >>> mixture.means.shape, mixture.covariances.shape, mixture.weights.shape
        (torch.Size([50, 2]), torch.Size([50]), torch.Size([50]))
    """

    def __init__(
        self,
        dimension: int,
        prior: Prior,
        covariance_type: CovarianceType = "isotropic",
        width: int = 256,
        depth: int = 3,
        *,
        generator: torch.Generator,
    ) -> None:
        hidden = width, depth
        super().__init__(
            prior.dimension,
            dimension,
            covariance_type,
            hidden,
            batch_norm=True,
            generator=generator,
        )
        self.prior = prior

    def forward(self, noise: Tensor) -> GaussianMixture:  # (K, noise)
        """The mixture of the components of some noise vectors."""
        return self.mixture(self.layers(noise))

    def draw(self, components: int, generator: torch.Generator) -> GaussianMixture:
        """The mixture of so many components, of noise that is drawn anew."""
        return self(self.prior.sample(components, generator))


def widened(mixture: GaussianMixture, variance: float) -> GaussianMixture:
    """The mixture smoothed by a Gaussian: so much more variance in every coordinate.

    Example:
        >>> q = GaussianMixture(torch.ones(1), torch.zeros(1, 2), torch.ones(1))
        >>> widened(q, 0.5).covariances
        tensor([1.5000])
    """
    wider = mixture.covariances + variance
    return GaussianMixture(mixture.weights, mixture.means, wider, validate_args=False)
