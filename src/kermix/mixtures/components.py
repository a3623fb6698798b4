"""Weighted Gaussians, checked and in the precision that is computed in."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.types import _size

from kermix.checks import broadcast_shape, values_are_readable, working_dtype
from kermix.errors import ShapeError
from kermix.mixtures.covariance import KINDS, CovarianceKind, check_covariance_values, checked_kind

__all__ = ["Components"]


@dataclass(frozen=True)
class Components:
    """Weighted Gaussians in the precision that is computed in, expanded to one batch shape."""

    weights: Tensor  # (*B, K)
    means: Tensor  # (*B, K, d)
    covariances: Tensor  # (*B, K), (*B, K, d) or (*B, K, d, d)

    @classmethod
    def checked(
        cls, weights: Tensor, means: Tensor, covariances: Tensor, check_values: bool = True
    ) -> Self:
        """Check covariances against checked weights and means; broadcast and convert all."""
        kind = checked_kind(means, covariances)
        if check_values and values_are_readable(covariances):
            check_covariance_values(covariances, kind)
        tail = KINDS.index(kind) + 1
        try:
            batch = broadcast_shape(
                weights.shape[:-1], means.shape[:-2], covariances.shape[:-tail]
            )
        except RuntimeError:
            raise ShapeError(
                f"weights, means and covariances have batch shapes {tuple(weights.shape[:-1])}, "
                f"{tuple(means.shape[:-2])} and {tuple(covariances.shape[:-tail])}, which cannot "
                "be broadcast to one another; make them equal, or 1 where values are shared."
            ) from None
        dtype = working_dtype(weights, means, covariances)
        return cls(weights.to(dtype), means.to(dtype), covariances.to(dtype)).expand(batch)

    @property
    def kind(self) -> CovarianceKind:
        """What the covariances are, told by their number of axes."""
        return KINDS[self.covariances.ndim - self.means.ndim + 1]

    @property
    def batch_shape(self) -> torch.Size:
        """The axes before the components."""
        return self.means.shape[:-2]

    def full_precision(self) -> AbstractContextManager[Any]:
        """A context in which autocast does not touch what is computed."""
        device = self.means.device.type
        if torch.amp.is_autocast_available(device):
            return torch.autocast(device, enabled=False)
        return nullcontext()

    def expand(self, batch: _size) -> Self:
        """Repeat the components, without copying, to a larger batch shape."""
        tail = KINDS.index(self.kind) + 1
        old = self.covariances
        missing = (1,) * (len(batch) + tail - old.ndim)
        return type(self)(
            self.weights.expand(*batch, -1),
            self.means.expand(*batch, -1, -1),
            old.reshape(missing + old.shape).expand(*batch, *old.shape[-tail:]),
        )

    def to(self, dtype: torch.dtype) -> Self:
        """Convert all numbers."""
        if self.means.dtype == dtype:
            return self
        return type(self)(self.weights.to(dtype), self.means.to(dtype), self.covariances.to(dtype))

    def covariances_as(self, kind: CovarianceKind) -> Tensor:
        """The covariances written as a kind that is at least as general as their own."""
        if self.kind == kind:
            return self.covariances
        diagonal = self.covariances
        if self.kind == "isotropic":
            diagonal = diagonal.unsqueeze(-1).expand(self.means.shape)
        return torch.diag_embed(diagonal) if kind == "full" else diagonal
