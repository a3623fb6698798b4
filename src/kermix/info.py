"""Functions that return a value and can also tell how they found it."""

import functools
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, Protocol, cast

from torch import Tensor

__all__ = ["Info", "Informative", "informative"]

Arguments = ParamSpec("Arguments")


class Info(NamedTuple):
    """How a value was computed: what `function.with_info(...)` returns beside it."""

    method: str
    ridge: Tensor | None = None  # (*B,)
    error_bound: Tensor | None = None  # (*B,)
    rank: int | None = None


class Informative(Protocol[Arguments]):
    """A function of tensors: called, it gives its value; `with_info` takes the same arguments."""

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        """The value, of the batch shape of the arguments."""

    def with_info(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> tuple[Tensor, Info]:
        """The value, and how it was computed."""


def informative(compute: Callable[Arguments, tuple[Tensor, Info]]) -> Informative[Arguments]:
    """Make a function that returns value and info into one that returns the value."""

    @functools.wraps(compute)
    def value(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        return compute(*args, **kwargs)[0]

    value.__annotations__ = {**compute.__annotations__, "return": Tensor}
    value.with_info = compute  # type: ignore[attr-defined]
    return cast("Informative[Arguments]", value)
