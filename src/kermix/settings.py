"""Settings: frozen dataclasses in which each setting has a type, a range, a default and one text.

A class says once what a setting may be and what it is for:

    steps: Annotated[int, Setting("Number of training steps.", least=0)] = 800

From this come the check of its values, whether they are from Python, JSON or a shell, its option
with its help, and its line in the documentation of the class. A class may be of several families
of models: a setting says which have it (`of`), and a default may differ between them (`usual`).
What several classes have is declared here, as a type with its text.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args, get_origin
from typing import get_type_hints as hints_of

from kermix.errors import OptionError, nearest

__all__ = [
    "AVERAGE",
    "BATCH_SIZE",
    "BUDGET",
    "COVARIANCE_TYPE",
    "LEARNING_RATE",
    "SEED",
    "STEPS",
    "WEIGHT_DECAY",
    "CovarianceType",
    "Declared",
    "Family",
    "MatrixForm",
    "PriorName",
    "ProductForm",
    "ProductPath",
    "Setting",
    "Settings",
    "SettingsPart",
    "Strategy",
    "check_name",
    "usual",
    "value_of",
]

MatrixForm: TypeAlias = Literal["trace", "data_fixed", "logdet"]
CovarianceType: TypeAlias = Literal["isotropic", "diagonal"]
PriorName: TypeAlias = Literal["uniform", "gaussian", "hybrid"]
ProductForm: TypeAlias = Literal["variational", "product", "signed"]
Strategy: TypeAlias = Literal["auto", "gather", "shard", "moments"]  # of costs over processes
ProductPath: TypeAlias = Literal["plain", "fast"]

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
PYTHONS = {"True": True, "False": False, "None": None}  # JSON has other words for them


@dataclass(frozen=True)
class Setting:
    """The text and range of a setting, beside its type and its default.

    Attributes:
        text: What it is for, in a sentence or two; other settings are in backticks.
        least: The least number that it may be.
        most: The largest.
        above: A number that it must be above.
        below: A number that it must be below.
        unset: What happens where it is None, after the words "By default".
        rare: Whether it is set by `--set` alone, and has no option of its own.
        of_training: Whether it is about how a model is trained, and not what it is.
        of: The families of models that have it; all, where none is named.
    """

    text: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    unset: str = ""
    rare: bool = False
    of_training: bool = False
    of: tuple[str, ...] = ()

    def allows(self, number: float) -> bool:
        """Whether a number is in the range; infinite ones never are."""
        return (
            math.isfinite(number)
            and (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    @property
    def range(self) -> str:
        """The range in words.

        Example:
            >>> Setting("Share of the rows.", above=0, most=1).range
            'above 0 and at most 1'
        """
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most),
                  ("below", self.below))  # fmt: skip
        return " and ".join(f"{words} {n:g}" for words, n in bounds if n is not None)


@dataclass(frozen=True)
class _Usual:
    """A default of some families of models, and that of all others."""

    value: Any
    of: tuple[tuple[str, Any], ...]

    def within(self, family: str) -> Any:
        return dict(self.of).get(family, self.value)


def usual(value: Any, **of: Any) -> Any:
    """A default that differs for some families of models, which are named.

    Example:
        >>> usual(800, images=2000).within("images")
        2000
    """
    return _Usual(value, tuple(of.items()))


class Family(NamedTuple):
    """Models that have settings in common: a name, what they are in a word or two, and theirs."""

    name: str
    what: str
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """A setting of a class, as it is declared there.

    Attributes:
        name: Its name.
        kind: `bool`, `int`, `float` or `str`; of each of several values, if there may be some.
        choices: The texts that it may be, if only some are.
        many: Whether it is a tuple of values.
        optional: Whether it may be None.
        default: What it is where nothing is said.
        about: What was said of it.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    many: bool
    optional: bool
    default: Any
    about: Setting

    @classmethod
    def of(cls, name: str, hint: Any, default: Any) -> "Declared":
        """From a field's annotation, `Annotated[type, Setting(...)]`."""
        hint, about = get_args(hint)
        optional = NoneType in get_args(hint)
        if optional:
            (hint,) = [part for part in get_args(hint) if part is not NoneType]
        many = get_origin(hint) is tuple
        if many:
            hint = get_args(hint)[0]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        return cls(name, str if choices else hint, choices, many, optional, default, about)

    def within(self, family: str) -> "Declared":
        """With the default of a family of models."""
        if not isinstance(self.default, _Usual):
            return self
        return replace(self, default=self.default.within(family))

    def is_of(self, family: str) -> bool:
        """Whether a family of models has it."""
        return not self.about.of or family in self.about.of

    def checked(self, value: Any) -> Any:
        """The value, if it fits; NumPy's numbers become Python's, and lists tuples."""
        if value is None and self.optional:
            return None
        if not self.many:
            return self._one(value)
        if not isinstance(value, tuple | list):
            raise OptionError(f"{self.name}={value!r} must be a list{self._or_none}.")
        return tuple(self._one(one) for one in value)

    def _one(self, value: Any) -> Any:
        if getattr(value, "shape", None) == ():
            value = value.item()
        if self.choices:
            if value not in self.choices:
                raise OptionError(
                    f"{self.name}={value!r} is not supported; choose one of "
                    f"{', '.join(self.choices)}."
                )
            return value
        types = (int, float) if self.kind is float else self.kind
        fits = isinstance(value, types) and (self.kind is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, int | float) and not self.about.allows(value)):
            words = ", ".join(filter(None, (WORDS[self.kind], self.about.range)))
            raise OptionError(f"{self.name}={value!r} must be {words}{self._or_none}.")
        return value

    @property
    def _or_none(self) -> str:
        return ", or none (null in JSON)" if self.optional else ""

    def read(self, text: str) -> Any:
        """The value that a text of a shell stands for, unchecked: `1,10` is `(1, 10)`."""
        value = value_of(text)
        if not self.many or value is None:
            return value
        if isinstance(value, str):
            return tuple(value_of(part) for part in value.split(","))
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    def written(self, value: Any) -> str:
        """The text of a shell that stands for a value, the inverse of `read`."""
        if isinstance(value, tuple | list):
            return ",".join(map(self.written, value))
        return value if isinstance(value, str) else json.dumps(value)

    @property
    def usual(self) -> str:
        """The default in words; nothing for what is off."""
        if self.default is None:
            return self.about.unset
        if self.default is False or self.default == ():
            return ""
        if self.default is True:
            return "on"
        values = self.default if self.many else (self.default,)
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


class SettingsPart(NamedTuple):
    """The settings that a family of models has, with its defaults; what the family is."""

    what: str
    settings: tuple[Declared, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(setting.name for setting in self.settings)


class Settings:
    """The base of all classes of settings: checked when made, and the same in JSON.

    Attributes:
        families: The families of models that they are settings of; `model` says which is meant.
    """

    families: ClassVar[tuple[Family, ...]]

    def __init_subclass__(cls) -> None:
        """List the settings in the documentation of the class."""
        lines = [f"    {d.name}: {d.about.text}{cls._told(d)}" for d in cls.declared()]
        cls.__doc__ = "\n".join([cls.__doc__ or "", "", "Attributes:", *lines])

    @classmethod
    def _told(cls, setting: Declared) -> str:
        """The end of a line: what is usual, and which models alone have the setting."""
        having = [family for family in cls.families if setting.is_of(family.name)]
        words = {f.what.lower(): setting.within(f.name).usual for f in having}
        told = list(dict.fromkeys(filter(None, words.values())))
        if len(told) > 1:
            told = [f"{word} ({what})" for what, word in words.items() if word]
        only = "" if len(having) == len(cls.families) else f" Only: {', '.join(words)}."
        return (f" By default {', '.join(told)}." if told else "") + only

    def __post_init__(self) -> None:
        family = self.family
        for setting in self.declared():
            own, value = setting.within(family.name), getattr(self, setting.name)
            if isinstance(value, _Usual):
                value = own.default
            value = own.checked(value)
            if value != own.default and not own.is_of(family.name):
                having = [m for f in self.families for m in f.models if own.is_of(f.name)]
                raise OptionError(
                    f"{own.name} is a setting of {', '.join(having)}; the model is "
                    f"{getattr(self, 'model', None)}."
                )
            object.__setattr__(self, own.name, value)

    @property
    def family(self) -> Family:
        """The family of models that these settings are of."""
        model = getattr(self, "model", None)
        named = (family for family in self.families if model in family.models)
        return next(named, self.families[0])

    @classmethod
    @cache
    def declared(cls) -> tuple[Declared, ...]:
        """The settings, in the order in which they are declared."""
        hints = hints_of(cls, include_extras=True)
        own = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
        return tuple(Declared.of(name, hint, getattr(cls, name)) for name, hint in own.items())

    @classmethod
    @cache
    def part(cls, name: str | None = None) -> SettingsPart:
        """The settings of a family of models; by default the first."""
        family = next(f for f in cls.families if name in (None, f.name))
        own = [d.within(family.name) for d in cls.declared() if d.is_of(family.name)]
        settings = [replace(d, choices=family.models) if d.name == "model" else d for d in own]
        return SettingsPart(family.what, tuple(settings))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Their names."""
        return tuple(setting.name for setting in cls.declared())

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, text and lists: those that the model has."""
        content = {name: getattr(self, name) for name in self.part(self.family.name).names}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in content.items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The inverse of `as_json`; unknown names are an error."""
        for name in content:
            check_name(name, cls.names())
        return cls(**content)


def check_name(name: str, names: Iterable[str]) -> None:
    """Refuse the name of a setting that there is not."""
    if name not in names:
        raise OptionError(f"There is no setting {name!r}{nearest(name, sorted(names))}")


def value_of(text: str) -> Any:
    """A value of JSON or of Python, or else the text itself.

    Example:
        >>> value_of("3"), value_of("None"), value_of("trace")
        (3, None, 'trace')
    """
    try:
        return json.loads(text)
    except ValueError:
        return PYTHONS.get(text.strip(), text.strip())


STEPS = Setting("Number of training steps.", least=0, of_training=True)
BUDGET = Setting(
    "quick, default, best, or for tables a time such as 90s, 2m or 1h: the fit then ends about "
    "when it is over, with its report.",
    unset="default",
    of_training=True,
)
BATCH_SIZE = Setting("Batch size of a training step.", least=1, of_training=True)
LEARNING_RATE = Setting(
    "Peak learning rate.", above=0, unset="it depends on the model", of_training=True
)
AVERAGE = Setting(
    "Number of steps over which to average the weights; 0 for no averaging.",
    least=0,
    of_training=True,
)
WEIGHT_DECAY = Setting("Weight decay.", least=0, of_training=True)
SEED = Setting(
    "Random seed; the same seed on the same machine gives the same result.",
    least=0,
    most=2**32 - 1,
    of_training=True,
)
COVARIANCE_TYPE = Setting(
    "Covariance of a component: isotropic (one variance) or diagonal (one for each coordinate)."
)
