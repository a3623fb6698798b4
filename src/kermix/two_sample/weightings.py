"""Statistics of the costs for many weightings of one pooled sample at once.

Permutations of labels are such weightings, and so are draws of a bootstrap.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.costs.formulas import Correlations, Scaled
from kermix.info import Info
from kermix.linalg.cholesky import shrunk

__all__ = ["WeightedInnerProducts", "WeightedMoments"]


class WeightedInnerProducts(NamedTuple):
    """Inner products of the densities `p` and `q` of each weighting, by their logarithms."""

    log_pp: Tensor  # (P,)
    log_pq: Tensor  # (P,)
    log_qq: Tensor  # (P,)

    def log_cross(self) -> Tensor:
        """That of both densities."""
        return self.log_pq

    def log_norm_x(self) -> Tensor:
        """That of the first side's density with itself."""
        return self.log_pp

    def log_norm_y(self) -> Tensor:
        """That of the second side's density with itself."""
        return self.log_qq


class WeightedMoments:
    """Statistics from first and second moments of features under each weighting.

    Args:
        features: Features of the pooled sample, (N, r).
        a: Weights of the first side, (P, N), which sum to 1.
        b: Weights of the second side.
        sizes: Numbers of points of both sides, of which the Gram matrices would be.
        ridges: Ridges of these matrices.
    """

    weighted = True

    def __init__(
        self,
        features: Tensor,
        a: Tensor,
        b: Tensor,
        sizes: tuple[float, float],
        ridges: tuple[float, float],
    ) -> None:
        self.features, self.a, self.b = features, a, b
        self.sizes, self.ridges = sizes, ridges

    @property
    def log_traces(self) -> tuple[Tensor, Tensor]:
        """Of the second moments: features that are left out make it less than zero."""
        x, y = (2 * torch.linalg.matrix_norm(root).log() for root in self._roots)
        return x, y

    def log_cross(self) -> Tensor:  # (P,)
        """Logarithm of the inner product of the means."""
        return (self._means[0] * self._means[1]).sum(-1).log()

    def log_norm_x(self) -> Tensor:  # (P,)
        """That of the first side's mean with itself."""
        return self._means[0].square().sum(-1).log()

    def log_norm_y(self) -> Tensor:  # (P,)
        """That of the second side's mean with itself."""
        return self._means[1].square().sum(-1).log()

    def predicted(self) -> Scaled:
        """How much of the first side's mean the second side's features predict."""
        mean = self._means[0]
        predicted = (self._shrunk(1) @ mean.unsqueeze(-1))[..., 0]
        return self._scaled((mean * predicted).sum(-1))

    def total_correlation(self, data_fixed: bool) -> Scaled:
        """The trace of the product of both sides' shrunk moments."""
        left = self.sizes[0] * self._moments[0] if data_fixed else self._shrunk(0)
        return self._scaled((left * self._shrunk(1).mT).sum((-2, -1)))

    def correlations(self) -> Correlations:
        """That product itself."""
        left, right = self._shrunk(0), self._shrunk(1)
        return Correlations(left @ right, *self._scaled(left[..., 0, 0])[1:], symmetric=False)

    def nuclear(self) -> Scaled:
        """From roots of the moments that no squaring has robbed of digits."""
        left, right = self._roots
        return self._scaled(torch.linalg.svdvals(left @ right.mT).sum(-1))

    @cached_property
    def _means(self) -> tuple[Tensor, Tensor]:  # (P, r) each
        return self.a @ self.features, self.b @ self.features

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:  # (P, r, r) each
        x, y = ((self.features * w.unsqueeze(-1)).mT @ self.features for w in (self.a, self.b))
        return x, y

    @cached_property
    def _roots(self) -> tuple[Tensor, Tensor]:  # (P, r, r) each
        weighted = (self.features * w.sqrt().unsqueeze(-1) for w in (self.a, self.b))
        x, y = (torch.linalg.qr(f, mode="r").R for f in weighted)
        return x, y

    def _shrunk(self, side: int) -> Tensor:
        r"""$C (C + \epsilon)^{-1}$ of the points of a side."""
        return shrunk(self._moments[side], self.ridges[side] / self.sizes[side])

    def _scaled(self, value: Tensor) -> Scaled:
        return Scaled(value, value.new_zeros(()), Info("features"))
