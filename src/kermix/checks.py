"""Checks of arguments, shared by everything that takes samples, weights or variances.

Shapes, types and devices are always checked. Values (NaN, infinite, negative) are checked where
reading them costs nothing: on the CPU, outside `torch.compile` and `torch.func` transforms. On an
accelerator a look at the values would make the host wait for the device at every training step.
"""

import functools
import importlib.util
import inspect
import numbers
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from kermix.errors import DeviceError, OptionError, SampleError, ShapeError, WeightError

__all__ = [
    "LARGEST_EXPONENT",
    "ROOM_FOR_SUMS",
    "broadcast_shape",
    "check_count",
    "check_level",
    "check_number",
    "check_option",
    "check_pair",
    "check_samples",
    "check_seed",
    "check_sizes",
    "check_weights",
    "finite_in",
    "full_precision",
    "generator_from",
    "has_compiler",
    "has_triton",
    "is_concrete",
    "is_traced",
    "normalized_pair",
    "normalized_weights",
    "row_weights",
    "rows_at_once",
    "seed_from",
    "solve_dtype",
    "with_options",
    "working_dtype",
]

Function = TypeVar("Function", bound=Callable[..., Any])

NUMBERS_AT_ONCE = 2**23  # in 64 MB; a convention
LARGEST_EXPONENT = 60.0  # exp(60) is far from overflow in float32, and so are sums of it
ROOM_FOR_SUMS = 2.0**-20  # of the largest number: squared distances are clamped there


def is_traced(*tensors: Tensor) -> bool:
    """Whether `torch.compile` or a `torch.func` transform stands between us and the values."""
    return torch.compiler.is_compiling() or any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors
    )


@cache
def has_triton() -> bool:
    """Whether kernels can be written for a GPU."""
    return importlib.util.find_spec("triton") is not None


@cache
def has_compiler() -> bool:
    """Whether a C++ compiler is on the path, which `torch.compile` needs for a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def is_concrete(*tensors: Tensor) -> bool:
    """Whether values can be looked at without a device sync or a break in a traced graph."""
    return not is_traced(*tensors) and all(t.device.type == "cpu" for t in tensors)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any tensor has it, else float32: half precision is never computed in."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which autocast does not touch what is computed."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def solve_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which systems are solved: a nearly singular Gram matrix needs every digit."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_level(level: float) -> None:
    """Refuse what is no level of significance."""
    if not 0 < level < 1:
        raise OptionError(f"level={level!r} must be between 0 and 1, such as 0.05.")


def check_option(name: str, value: str, offered: tuple[str, ...]) -> None:
    """Refuse a named option that does not exist, listing those that do."""
    if value not in offered:
        raise OptionError(
            f"{name}={value!r} is not supported; choose one of {', '.join(offered)}."
        )


def with_options(options: type, **defaults: Any) -> Callable[[Function], Function]:
    """Let a function take the keys of a TypedDict as keywords, `**options: Unpack[...]`.

    The function finds each of them in its `options`, by default as here. Type checkers read the
    TypedDict; `help` and `inspect.signature` show the keywords with their defaults; and one that
    there is not raises an error with those most like it.

    Example:
        >>> from typing import TypedDict, Unpack
        >>> class Shown(TypedDict, total=False):
        ...     digits: int
        >>> @with_options(Shown, digits=2)
        ... def show(number, **options: Unpack[Shown]):
        ...     return round(number, options["digits"])
        >>> show(0.123), show(0.123, digits=1), inspect.signature(show)
        (0.12, 0.1, <Signature (number, *, digits: int = 2)>)
    """

    def take(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                              annotation=options.__annotations__[name])
            for name, default in defaults.items()
        ]  # fmt: skip
        names = [p.name for p in (*own, *added)]

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in names:
                    from kermix.errors import nearest

                    raise OptionError(
                        f"{function.__name__} has no option {name!r}{nearest(name, names)}"
                    )
            return function(*args, **{**defaults, **given})

        call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return cast("Function", call)

    return take


def check_number(name: str, value: Any) -> None:
    """Refuse what is no real number; truth values, text and lists are none.

    Example:
        >>> check_number("ridge", 0.1)
    """
    if type(value) in (float, int):
        return
    try:
        float("text" if isinstance(value, bool | str | bytes) else value)
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(f"{name}={value!r} must be a number.") from None


def check_seed(seed: Any) -> None:
    """Refuse a seed that is no whole number."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise OptionError(f"seed={seed!r} must be a whole number.")


def check_count(name: str, value: Any, least: int = 1, hint: str = "") -> None:
    """Refuse what is no whole number from `least` on; the hint ends the message.

    NumPy's integers are whole numbers; truth values and text are not.

    Example:
        >>> check_count("permutations", 0, least=0)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise OptionError(f"{name}={value!r} must be a whole number, at least {least}.{hint}")


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes that are no whole numbers from one on; None is a size that is not given.

    Example:
        >>> check_sizes(width=3, positions=None)
    """
    for name, size in sizes.items():
        if size is not None:
            check_count(name, size)


def rows_at_once(each: int, numbers: int = NUMBERS_AT_ONCE, most: int | None = None) -> int:
    """How many rows are worked on together, so that what is held of them fits in memory.

    Args:
        each: Numbers that are held of a row.
        numbers: Numbers that are held at all: less for the cache of a processor, more for a GPU.
        most: The most rows, however small they are.

    Example:
        >>> rows_at_once(2**13), rows_at_once(2**30), rows_at_once(0, most=500)
        (1024, 1, 500)
    """
    rows = max(1, numbers // max(1, each))
    return rows if most is None else min(most, rows)


def finite_in(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The value in another dtype, finite if it is finite here.

    Example:
        >>> finite_in(torch.tensor(1e6), torch.float16)
        tensor(65504., dtype=torch.float16)
    """
    limits = torch.finfo(dtype)
    return value.clamp(limits.min, limits.max).to(dtype)


def check_samples(name: str, x: Tensor) -> Tensor:  # (*B, N, d)
    """Return `x` if it can serve as a set of samples, else raise an error that says why not."""
    if hasattr(x, "feature_map"):
        raise SampleError(
            f"{name} is a sketch, which holds no points, but points are needed here. The costs "
            "and km.compare take sketches."
        )
    if hasattr(x, "covariance_kind"):
        raise SampleError(
            f"{name} is a {type(x).__name__}, which holds no points, but points are needed here: "
            f"{name}.sample((1000,)) draws some. The costs, their losses and km.decompose take "
            "mixtures."
        )
    if not isinstance(x, Tensor):
        raise SampleError(
            f"{name} is a {type(x).__name__}, not a torch.Tensor; "
            f"convert it first, for example with torch.as_tensor({name})."
        )
    if not x.dtype.is_floating_point:
        raise SampleError(
            f"{name} has dtype {x.dtype}; samples are real numbers: use {name}.float() or "
            f"{name}.double()."
        )
    if x.ndim < 2:
        raise ShapeError(
            f"{name} has shape {tuple(x.shape)}; samples have shape (*batch, points, dimension). "
            f"For points on a line use {name}[:, None]."
        )
    if 0 in x.shape:
        raise SampleError(f"{name} is empty: its shape is {tuple(x.shape)}.")
    if is_concrete(x) and not bool(torch.isfinite(x).all()):
        bad = ~torch.isfinite(x)
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise SampleError(
            f"{name} has {int(bad.sum())} NaN or infinite values, the first at index {first}; "
            "remove those rows, or check where the values come from."
        )
    return x


def broadcast_shape(first: torch.Size, *others: torch.Size) -> torch.Size:
    """The common batch shape; a RuntimeError where there is none.

    PyTorch's own function loads SymPy when it is first called, which takes seconds.
    """
    if all(shape == first for shape in others):
        return first
    return torch.broadcast_shapes(first, *others)


def check_pair(x: Tensor, y: Tensor, names: tuple[str, str] = ("x", "y")) -> None:
    """Check two sets of samples and that they can be compared with each other."""
    check_samples(names[0], x)
    check_samples(names[1], y)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            f"{names[0]} has dimension {x.shape[-1]} and {names[1]} has dimension {y.shape[-1]}; "
            "their last axes must match."
        )
    if x.device != y.device:
        raise DeviceError(
            f"{names[0]} is on {x.device} and {names[1]} on {y.device}; "
            f"move one, for example {names[1]}.to({names[0]}.device)."
        )
    try:
        broadcast_shape(x.shape[:-2], y.shape[:-2])
    except RuntimeError:
        raise ShapeError(
            f"{names[0]} has batch shape {tuple(x.shape[:-2])} and {names[1]} "
            f"{tuple(y.shape[:-2])}, which cannot be broadcast to each other."
        ) from None


def check_weights(name: str, weights: Tensor, x: Tensor) -> None:
    """Check the weights of the points `x`: non-negative, not all zero, one for each point."""
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        found = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise WeightError(f"{name} must be a floating-point tensor, not {found}.")
    if weights.ndim < 1 or weights.shape[-1] != x.shape[-2]:
        raise WeightError(
            f"{name} has shape {tuple(weights.shape)} for {x.shape[-2]} points; give one weight "
            "per point."
        )
    try:
        broadcast_shape(weights.shape[:-1], x.shape[:-2])
    except RuntimeError:
        raise WeightError(
            f"{name} has batch shape {tuple(weights.shape[:-1])}, which does not match the "
            f"samples' {tuple(x.shape[:-2])}."
        ) from None
    if weights.device != x.device:
        raise DeviceError(f"{name} is on {weights.device} and its samples are on {x.device}.")
    if is_concrete(weights):
        _check_weight_values(name, weights)


def _check_weight_values(name: str, weights: Tensor) -> None:
    if not bool(torch.isfinite(weights).all()):
        raise WeightError(f"{name} has NaN or infinite values.")
    if bool((weights < 0).any()):
        raise WeightError(
            f"{name} has negative values (smallest {float(weights.detach().min()):g}); weights "
            "are non-negative."
        )
    if bool((weights.sum(-1) <= 0).any()):
        raise WeightError(f"{name} sums to zero; at least one weight must be positive.")


def normalized_pair(
    x: Tensor, y: Tensor, weights: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor | None, Tensor | None]:
    """The weights of two sets, checked and divided by their sums, where there are any."""
    given = zip(("weights_x", "weights_y"), weights, (x, y), strict=True)
    a, b = (None if w is None else normalized_weights(name, w, points)
            for name, w, points in given)  # fmt: skip
    return a, b


def normalized_weights(name: str, weights: Tensor, x: Tensor) -> Tensor:  # (*B, N)
    """Check the weights of the points `x` and divide them by their sum."""
    check_weights(name, weights, x)
    weights = weights.to(working_dtype(weights, x))
    # Divided by the largest first: a sum of very small or very large weights stays in range.
    weights = weights / weights.detach().amax(-1, keepdim=True)
    return weights / weights.sum(-1, keepdim=True)


def row_weights(given: Any, rows: int) -> np.ndarray:  # (rows,), float32
    """Weights as shares of the largest, some of which may be 0.

    Example:
        >>> row_weights([1, 0, 2], 3).tolist()
        [0.5, 0.0, 1.0]
    """
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.empty(0)  # refused below
    good = weights.shape == (rows,) and bool(np.isfinite(weights).all())
    if not good or bool((weights < 0).any()) or not bool((weights > 0).any()):
        raise OptionError(
            f"sample_weight must be {rows} finite, non-negative numbers, not all zero."
        )
    return (weights / weights.max()).astype(np.float32)


def seed_from(random_state: Any) -> int:
    """A seed from what scikit-learn takes, or from a NumPy generator of either kind.

    Example:
        >>> seed_from(np.random.default_rng(0)) == seed_from(np.random.default_rng(0))
        True
    """
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31 - 1))


def generator_from(random_state: Any, device: Any = "cpu") -> torch.Generator:
    """A source of random numbers: a whole number is its seed; else see `seed_from`."""
    known = isinstance(random_state, int | np.integer)
    seed = int(random_state) if known else seed_from(random_state)
    return torch.Generator(device).manual_seed(seed)
