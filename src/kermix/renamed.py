"""Settings that have new names: the old ones are still read and accepted, for one version.

This is the only place that knows old names. Files of earlier versions (`config.json`, checkpoints,
records) are read with `current_names`, silently; an old keyword warns, and an old option of the
command line prints a note.
"""

import functools
import inspect
import warnings
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

from kermix.errors import OptionError

__all__ = [
    "DEPRECATED",
    "RENAMED",
    "accepts_old_names",
    "current_names",
    "replaced_parameter",
    "warn_old_names",
]

# They go in version 0.3.
RENAMED = {
    "polish": "refine_steps",
    "polish_batch": "refine_batch_size",
    "finish": "refine_with",
    "batch": "batch_size",
    "rate": "learning_rate",
    "variances": "covariance_type",
    "spread": "variance_factors",
}
DEPRECATED = "deprecated"  # the default of a parameter of an estimator that has a new name

Class = TypeVar("Class", bound=type)


def current_names(
    content: Mapping[str, Any], known: Collection[str] = tuple(RENAMED.values())
) -> dict[str, Any]:
    """The same settings under their current names, in the same order.

    Args:
        content: Settings by name, old or new.
        known: New names that apply here.

    Raises:
        OptionError: A setting is given under both names.

    Example:
        >>> current_names({"steps": 5, "polish": 3})
        {'steps': 5, 'refine_steps': 3}
    """
    found: dict[str, Any] = {}
    for name, value in content.items():
        new = RENAMED.get(name, name)
        if new != name and new in known:
            if new in content:
                raise OptionError(f"{name} is the old name of {new}; give only {new}.")
            name = new
        found[name] = value
    return found


def warn_old_names(
    content: Mapping[str, Any], known: Collection[str], stacklevel: int = 2
) -> dict[str, Any]:
    """As `current_names`, with a DeprecationWarning for each old name.

    Args:
        content: Settings by name, old or new.
        known: New names that apply here.
        stacklevel: As of `warnings.warn`, seen from the caller of this function.
    """
    found = current_names(content, known)
    for name in content:
        if name not in found:
            _warn(name, stacklevel + 1)
    return found


def accepts_old_names(cls: Class) -> Class:
    """Class decorator: the constructor takes old keywords, with a DeprecationWarning.

    A dataclass can also be asked for its fields by their old names.
    """
    construct = cls.__init__  # type: ignore[misc]
    known = set(inspect.signature(construct).parameters)

    @functools.wraps(construct)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **warn_old_names(options, known, stacklevel=2))

    def __getattr__(self: Any, name: str) -> Any:
        new = RENAMED.get(name)
        if new is None or not hasattr(cls, new):
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
        _warn(name, 2)
        return getattr(self, new)

    cls.__init__ = __init__  # type: ignore[misc]
    if is_dataclass(cls):
        cls.__getattr__ = __getattr__  # type: ignore[attr-defined]
    return cls


def replaced_parameter(name: str, old: Any, new: Any, default: Any = None) -> Any:
    """The value of an estimator's parameter that is there under its old name too.

    scikit-learn wants parameters as they were given until `fit`, and no `**options`: the old name
    stays a parameter, by default `"deprecated"`.

    Args:
        name: The old name.
        old: What is given under it.
        new: What is given under the new one.
        default: Of the new one.
    """
    if isinstance(old, str) and old == DEPRECATED:
        return new
    if new != default:
        raise OptionError(f"{name} is the old name of {RENAMED[name]}; give only {RENAMED[name]}.")
    _warn(name, 3)
    return old


def _warn(name: str, stacklevel: int) -> None:
    warnings.warn(
        f"{name} is now called {RENAMED[name]}; the old name will be removed in version 0.3.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )
