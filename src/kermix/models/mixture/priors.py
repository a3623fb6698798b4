"""Priors: where the noise that goes into a network comes from."""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option
from kermix.errors import OptionError

__all__ = ["GaussianPrior", "HybridPrior", "Prior", "PriorName", "UniformPrior", "make_prior"]

PriorName: TypeAlias = Literal["uniform", "gaussian", "hybrid"]
STATES = 32  # of a hybrid prior


class Prior(Protocol):
    """A distribution of noise vectors."""

    @property
    def dimension(self) -> int:
        """Length of one noise vector."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:  # (n, dimension)
        """Draw noise on the device of the generator."""


@dataclass(frozen=True)
class UniformPrior:
    """Uniform noise in [-1, 1], in every coordinate.

    Example:
        >>> UniformPrior(3).sample(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """

    dimension: int = 10

    def __post_init__(self) -> None:
        _check_positive("dimension", self.dimension)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:  # (n, dimension)
        """Draw noise on the device of the generator."""
        shape = (n, self.dimension)
        return 2 * torch.rand(shape, generator=generator, device=generator.device) - 1


@dataclass(frozen=True)
class GaussianPrior:
    """Standard normal noise."""

    dimension: int = 10

    def __post_init__(self) -> None:
        _check_positive("dimension", self.dimension)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:  # (n, dimension)
        """Draw noise on the device of the generator."""
        shape = (n, self.dimension)
        return torch.randn(shape, generator=generator, device=generator.device)


@dataclass(frozen=True)
class HybridPrior:
    """Normal noise beside a choice among `states`, given as a one-hot vector.

    The paper names a hybrid prior without saying what it is; this is what it is here. The choice
    lets a continuous network jump between separate modes without a bridge of samples between them.

    Example:
        >>> noise = HybridPrior(2, states=3).sample(4, torch.Generator().manual_seed(0))
        >>> noise.shape, noise[:, 2:].sum(1)
        (torch.Size([4, 5]), tensor([1., 1., 1., 1.]))
    """

    continuous: int = 10
    states: int = STATES

    def __post_init__(self) -> None:
        _check_positive("continuous", self.continuous)
        _check_positive("states", self.states)

    @property
    def dimension(self) -> int:
        """Length of one noise vector."""
        return self.continuous + self.states

    def sample(self, n: int, generator: torch.Generator) -> Tensor:  # (n, dimension)
        """Draw noise on the device of the generator."""
        device = generator.device
        noise = torch.randn((n, self.continuous), generator=generator, device=device)
        state = torch.randint(self.states, (n,), generator=generator, device=device)
        return torch.cat([noise, torch.nn.functional.one_hot(state, self.states).float()], 1)


def make_prior(name: PriorName, dimension: int = 10, states: int = 0) -> Prior:
    """The prior of that name, with so many continuous coordinates.

    Args:
        name: Which one.
        dimension: Continuous coordinates.
        states: Of a hybrid prior; 0 takes 32. With states, `"gaussian"` is `"hybrid"`.
    """
    check_option("prior", name, ("uniform", "gaussian", "hybrid"))
    if name == "uniform":
        return UniformPrior(dimension)
    if name == "gaussian" and not states:
        return GaussianPrior(dimension)
    return HybridPrior(dimension, states or STATES)


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise OptionError(f"{name}={value}: noise needs at least one coordinate.")
