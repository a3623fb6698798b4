"""Functions that return a value and can also tell how they found it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, cast, overload

from torch import Tensor

__all__ = ["Info", "Informative", "informative"]

Arguments = ParamSpec("Arguments")


class Info(NamedTuple):
    """How a value was computed: what a function returns beside it with `return_info=True`."""

    method: str
    ridge: Tensor | None = None  # (*B,)
    error_bound: Tensor | None = None  # (*B,)
    rank: int | None = None


class Informative(Protocol[Arguments]):
    """A function of tensors that takes `return_info` beside its own arguments."""

    @overload
    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor: ...

    @overload
    def __call__(
        self, *args: Any, return_info: Literal[True], **kwargs: Any
    ) -> tuple[Tensor, Info]: ...


def informative(
    compute: Callable[Arguments, tuple[Tensor, Info]],
    shorter: Callable[..., Tensor | None] = lambda *_: None,
) -> Informative[Arguments]:
    """Let a function that finds value and info return the value, or both with `return_info`.

    Args:
        compute: The function.
        shorter: What finds the value alone in less time, of the function, its arguments and its
            keywords; or None, where it does not.
    """

    @functools.wraps(compute)
    def value(*args: Any, return_info: bool = False, **kwargs: Any) -> Any:
        if not return_info:
            found = shorter(compute, args, kwargs)
            return compute(*args, **kwargs)[0] if found is None else found
        return compute(*args, **kwargs)

    signature = inspect.signature(compute)
    asked = inspect.Parameter(
        "return_info", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
    )
    value.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), asked],
        return_annotation=Tensor | tuple[Tensor, Info],
    )
    value.__annotations__ = {
        **compute.__annotations__, "return_info": bool, "return": Tensor | tuple[Tensor, Info]
    }  # fmt: skip
    return cast("Informative[Arguments]", value)
