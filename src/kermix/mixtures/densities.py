"""Inner products of two densities, and the scalar cost, which is made of them."""

from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = ["Densities", "InnerProducts", "at_most_one", "log_scalar_cost"]


class Densities(Protocol):
    """Inner products of the densities of data and centres, by their logarithms, (*B,)."""

    def log_cross(self) -> Tensor:
        r"""$\log \langle p, q\rangle$."""

    def log_norm_x(self) -> Tensor:
        r"""$\log \langle p, p\rangle$."""

    def log_norm_y(self) -> Tensor:
        r"""$\log \langle q, q\rangle$."""


class InnerProducts(NamedTuple):
    """Densities whose inner products are known; that of the data only where it is asked for."""

    cross: Tensor  # (*B,)
    norm_y: Tensor  # (*B,)
    norm_x: Tensor | None = None  # (*B,)

    def log_cross(self) -> Tensor:
        r"""$\log \langle p, q\rangle$."""
        return self.cross

    def log_norm_x(self) -> Tensor:
        r"""$\log \langle p, p\rangle$."""
        assert self.norm_x is not None, "asked for, and not known"
        return self.norm_x

    def log_norm_y(self) -> Tensor:
        r"""$\log \langle q, q\rangle$."""
        return self.norm_y


def log_scalar_cost(pair: Densities, normalized: bool) -> Tensor:  # (*B,)
    r"""Proposition 4: $\log(\langle p, q\rangle^2 / \langle q, q\rangle)$.

    Normalized, it is minus the Cauchy-Schwarz divergence.
    """
    log_cost = 2 * pair.log_cross() - pair.log_norm_y()
    return at_most_one(log_cost - pair.log_norm_x()) if normalized else log_cost


def at_most_one(log_cost: Tensor) -> Tensor:
    """Logarithms that rounding made positive, as zero; with the gradient that they had."""
    return log_cost - log_cost.detach().clamp(min=0)
