r"""Mixtures with a continuous prior: noise, drawn anew each time, to components.

$$q(X) = \int q(c) \, w(c) \, N(X - m(c); v(c)) \, dc$$

A network maps each noise vector c to a centre, a weight and a variance. A finite draw of it is an
ordinary mixture, whose inner products estimate those of q as expectations (Property 3).
"""

import torch
from torch import Tensor

from kermix.mixtures.mixture import GaussianMixture
from kermix.models.mixture.networks import ComponentNetwork, CovarianceType
from kermix.models.mixture.priors import Prior

__all__ = ["ContinuousMixtureNetwork", "widened"]


class ContinuousMixtureNetwork(ComponentNetwork):
    r"""Noise to components: a centre m(c), a weight w(c) and a variance v(c) for each vector c.

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
        >>> from kermix.models import UniformPrior
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
