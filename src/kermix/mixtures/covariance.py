"""Weighted Gaussians: the kinds of their covariances, checks, precision and factors."""

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor
from torch.types import _size

from kermix.checks import broadcast_shape, is_concrete, working_dtype
from kermix.errors import DeviceError, ShapeError, VarianceError

__all__ = [
    "KINDS",
    "Components",
    "CovarianceKind",
    "check_covariance_values",
    "checked_kind",
    "cholesky_or_nan",
    "log_determinant",
]

CovarianceKind = Literal["isotropic", "diagonal", "full"]
KINDS: tuple[CovarianceKind, ...] = ("isotropic", "diagonal", "full")  # from simple to general


def checked_kind(means: Tensor, covariances: Tensor) -> CovarianceKind:
    """Tell the kind by the number of axes; refuse what does not fit the means."""
    if not isinstance(covariances, Tensor) or not covariances.dtype.is_floating_point:
        is_tensor = isinstance(covariances, Tensor)
        found = covariances.dtype if is_tensor else type(covariances).__name__
        raise VarianceError(
            f"covariances must be a floating-point tensor, not {found}; "
            "use covariances.float() or torch.as_tensor(covariances, dtype=means.dtype)."
        )
    count, dim = means.shape[-2:]
    tails = {"isotropic": (count,), "diagonal": (count, dim), "full": (count, dim, dim)}
    position = covariances.ndim - means.ndim + 1
    kind = KINDS[position] if 0 <= position < 3 else None
    if kind is None or covariances.shape[-len(tails[kind]) :] != tails[kind]:
        offered = ", ".join(f"{name} (*batch, {str(tail)[1:]}" for name, tail in tails.items())
        raise ShapeError(
            f"covariances has shape {tuple(covariances.shape)} with means of shape "
            f"{tuple(means.shape)}. Give as many batch axes as the means have (size 1 where "
            f"shared); the number of axes tells the kind: {offered}."
        )
    if covariances.device != means.device:
        raise DeviceError(
            f"covariances is on {covariances.device} and means on {means.device}; "
            "move one of them with .to(device)."
        )
    return kind


def check_covariance_values(covariances: Tensor, kind: CovarianceKind) -> None:
    """Refuse values that are not those of positive definite matrices."""
    values = covariances.detach()
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise VarianceError(
            f"covariances has {bad} NaN or infinite values; find out where they come from "
            "(a learning rate that is too high, or an exponential that overflows, are common)."
        )
    if kind != "full":
        if bool((values <= 0).any()):
            raise VarianceError(
                f"covariances has {int((values <= 0).sum())} values that are not positive "
                f"(smallest {float(values.min()):g}); pass variances through exp or softplus, "
                "or add a floor."
            )
        return
    asymmetry = float((values - values.mT).abs().max())
    if asymmetry > math.sqrt(torch.finfo(values.dtype).eps) * float(values.abs().max()):
        raise VarianceError(
            f"covariances has matrices that are not symmetric (largest difference {asymmetry:g}); "
            "give S = A @ A.mT, or (S + S.mT) / 2."
        )
    values = values.to(working_dtype(values))
    if bool(torch.linalg.cholesky_ex(values).info.any()):
        raise VarianceError(
            "covariances has matrices that are not positive definite (smallest eigenvalue "
            f"{float(torch.linalg.eigvalsh(values).min()):g}); "
            "give S = A @ A.mT + floor * torch.eye(d)."
        )


def cholesky_or_nan(matrices: Tensor) -> Tensor:  # (*B, d, d) -> (*B, d, d)
    """The lower factor, with no ridge added: a covariance is taken as it is."""
    # A failure shows as NaN: asking whether there was one would make the host wait for the device.
    factor, info = torch.linalg.cholesky_ex(matrices)
    return torch.where(info[..., None, None] > 0, torch.nan, factor)


def log_determinant(factor: Tensor) -> Tensor:  # (*B, d, d) -> (*B)
    """The log-determinant of the matrix that has this Cholesky factor."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


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
        if check_values and is_concrete(covariances):
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
        """The kind of covariances, by their number of axes."""
        return KINDS[self.covariances.ndim - self.means.ndim + 1]

    @property
    def batch_shape(self) -> torch.Size:
        """The axes before the components."""
        return self.means.shape[:-2]

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
