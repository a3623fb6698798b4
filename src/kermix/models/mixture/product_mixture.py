"""A sum of products of Gaussian mixtures: a density of vectors that fall into parts."""

import math

import torch
from torch import Tensor, nn

from kermix.checks import check_sizes
from kermix.errors import ShapeError
from kermix.models.mixture.networks import (
    HIGHEST_LOG_VARIANCE,
    INITIAL_VARIANCE,
    LOWEST_LOG_VARIANCE,
    Draw,
)

__all__ = ["ProductMixture"]


class ProductMixture(nn.Module):
    r"""`q(z) = sum_l pi_l prod_c sum_k w_{c,l,k} N(z_c; m_{c,k}, diag s_{c,k})`.

    A vector z falls into parts z_c of equal length, such as the digits of a stacked image. Parts
    that go their own ways have as many combinations as there are products of their modes, and a
    mixture of whole vectors needs a component for each. Here every part has K centres of its own,
    and the groups l carry what the parts share. It is the paper's function of many variables, a
    sum of products, as a density.

    Args:
        parts: Number C of parts.
        dimension: Length of a part.
        components: Centres K of each part.
        groups: Number L of products.
        batch_shape: Independent models side by side, such as one for each class.
        generator: Where initial weights and centres come from.

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

    def draw(self, n: int, generator: torch.Generator) -> Draw:
        """Points (..., n, C * d), differentiable by centres and variances; weights are none."""
        batch = self.means.shape[:-3]
        items = torch.arange(batch.numel(), device=self.means.device).repeat_interleave(n)
        points = self.points(items, generator)
        return Draw(points.view(*batch, n, points.shape[-1]), None)

    def points(self, items: Tensor, generator: torch.Generator) -> Tensor:  # (n,) -> (n, C * d)
        """A point of each of these batch items: a centre plus noise in every part."""
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
            place = place * components + torch.cat(chosen, 1)  # (n, C), among all centres
        centres = self.means.reshape(-1, dimension)[place]
        deviations = self.variances.reshape(-1, dimension)[place].sqrt()
        noise = torch.randn(centres.shape, generator=generator, device=centres.device)
        return (centres + deviations * noise).flatten(1)

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
