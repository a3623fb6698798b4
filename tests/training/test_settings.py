"""Settings of all kinds: what does not fit a field is refused, what fits survives a command."""

import inspect
import json
import math
import shlex
from dataclasses import fields
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from internals import (
    FitSettings,
    ProductSettings,
    TableModelSettings,
    equivalent_command,
    set_options,
    value_of,
)
from kermix.errors import OptionError

CLASSES = (FitSettings, TableModelSettings, ProductSettings)
FIELDS = [(c, f.name, get_type_hints(c)[f.name]) for c in CLASSES for f in fields(c)]
IDS = [f"{c.__name__}-{name}" for c, name, _ in FIELDS]
MISFITS = ("False", "3", "none", 2.5, 7, True, False, None, (1.5,), ("a",), {"a": 1})


def kinds_of(kind):
    """The types of a field that may be one of several."""
    several = get_origin(kind) not in (None, Literal, tuple)
    return get_args(kind) if several else (kind,)


def values(kind):
    """Values of a type."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), min_size=1, max_size=3).map(tuple)
    return {
        NoneType: st.none(), bool: st.booleans(), str: st.text(max_size=5).filter(is_no_json),
        int: st.integers(), float: st.floats(allow_nan=False, allow_infinity=False),
    }[kind]  # fmt: skip


def declared(cls):
    return {setting.name: setting for setting in cls.declared()}


def is_no_json(text):
    return text == text.strip() and value_of(text) == text


@given(data=st.data())
def test_what_a_command_says_of_a_setting_is_read_as_it_was(data):
    cls, name, kind = data.draw(st.sampled_from(FIELDS))
    value = data.draw(st.one_of([values(one) for one in kinds_of(kind)]))
    words = equivalent_command("fit", "moons", {}, {name: value})
    *_, option, text = shlex.split(shlex.join(words))
    assert option == "--set"
    found = set_options([text], declared(cls))[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS, ids=IDS)
def test_a_value_that_does_not_fit_its_field_is_refused(cls, name, kind):
    kinds = kinds_of(kind)
    for value in MISFITS:
        fits = (
            type(value) in kinds
            or (float in kinds and type(value) is int)
            or any(get_origin(one) is tuple and isinstance(value, tuple) for one in kinds)
        )
        if not fits:
            with pytest.raises(OptionError, match=f"^{name}="):
                cls(**{name: value})


def test_the_message_says_what_fits():
    with pytest.raises(OptionError, match=r"^calibrate='False' must be true or false, or none"):
        TableModelSettings(calibrate="False")
    with pytest.raises(OptionError, match=r"^steps=2.5 must be a whole number, at least 0\.$"):
        TableModelSettings(steps=2.5)
    with pytest.raises(
        OptionError, match=r"^dropout='a lot' must be a number, at least 0 and below 1\.$"
    ):
        TableModelSettings(dropout="a lot")
    with pytest.raises(OptionError, match=r"^prior='flat' is not supported; choose one of unif"):
        FitSettings(prior="flat")
    with pytest.raises(OptionError, match=r"^variance_factors='ten' must be a number"):
        FitSettings(variance_factors=(1, "ten"))


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS, ids=IDS)
def test_numbers_out_of_range_are_refused(cls, name, kind):
    (setting,) = (s for s in cls.declared() if s.name == name)
    about, step = setting.about, 1 if setting.kind is int else 1e-9
    bounds = [(about.least, -step), (about.most, step), (about.above, 0), (about.below, 0)]
    outside = [bound + beyond for bound, beyond in bounds if bound is not None]
    if setting.kind is float:
        assert about.least is not None or about.above is not None
        outside += [math.nan, math.inf]
    for number in outside:
        with pytest.raises(OptionError, match=f"^{name}=.* must be a"):
            cls(**{name: (number,) if setting.many else number})


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS, ids=IDS)
def test_a_setting_says_once_what_it_is_for(cls, name, kind):
    (setting,) = (s for s in cls.declared() if s.name == name)
    text = setting.about.text
    assert text[-1] == "."
    assert all(choice in text for choice in setting.choices)
    assert bool(setting.about.unset and setting.default is None) == (
        setting.default is None and name not in ("kernel_variance", "target")
    )
    assert inspect.getdoc(cls).count(f"\n    {name}: {text}") == 1
    same = {s.about.text for c in CLASSES for s in c.declared() if s.name == name}
    if name in ("learning_rate", "seed", "covariance_type", "prior", "variance_factors"):
        assert same == {text}


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(OptionError, match=r"^There is no setting 'stpes'; did you mean steps"):
        FitSettings.from_json({"stpes": 3})
    with pytest.raises(OptionError, match=r"^There is no setting 'quux'; there are .*width"):
        TableModelSettings.from_json({"quux": 3})


def test_numbers_of_numpy_and_lists_become_those_of_python():
    settings = TableModelSettings(
        width=np.int64(8), dropout=np.float32(0), out_of_fold=np.bool_(True)
    )
    assert json.loads(json.dumps(settings.as_json())) == settings.as_json()
    assert (settings.width, settings.out_of_fold) == (8, True)
    assert FitSettings(variance_factors=[1, np.int32(10)]).variance_factors == (1, 10)


@pytest.mark.parametrize("text", ["true", "True", "false", "False"])
def test_truth_values_are_read_in_json_and_in_python(text):
    known = declared(TableModelSettings)
    assert set_options([f"calibrate={text}"], known) == {"calibrate": text.lower() == "true"}


def test_lists_are_read_as_in_a_shell_and_names_are_known():
    known = declared(FitSettings)
    assert set_options(["variance-factors=1,10"], known) == {"variance_factors": (1, 10)}
    with pytest.raises(OptionError, match=r"^--set steps: write NAME=VALUE\.$"):
        set_options(["steps"], known)
    with pytest.raises(OptionError, match=r"^There is no setting 'stpes'; did you mean steps"):
        set_options(["stpes=3"], known)
