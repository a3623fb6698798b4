"""Old names of modules and functions: they import, warn, and give the same objects."""

import importlib
import sys

import pytest

import kermix as km
from kermix.moved import MOVED, MOVED_FROM_EVALUATION, MOVED_FUNCTIONS


@pytest.mark.parametrize("old", MOVED)
def test_old_name_gives_the_same_objects(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        found = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    for name in new.__all__:
        assert getattr(found, name) is getattr(new, name)


@pytest.mark.parametrize("name", MOVED_FROM_EVALUATION)
def test_what_was_in_evaluation_is_still_found_there(name):
    place = MOVED_FROM_EVALUATION[name]
    with pytest.warns(DeprecationWarning, match=f"kermix.evaluation.{name} is now {place}"):
        found = getattr(importlib.import_module("kermix.evaluation"), name)
    assert found is getattr(importlib.import_module(place), name)
    assert set(MOVED_FROM_EVALUATION) == set(importlib.import_module(place).__all__)


def test_no_old_module_hides_a_function():
    for old in MOVED:
        assert old.removeprefix("kermix.") not in km.__all__


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kermix.measure.nothing")


@pytest.mark.parametrize("name", MOVED_FUNCTIONS)
@pytest.mark.parametrize("module", ["kermix", "kermix.costs"])
def test_old_place_of_a_function_gives_the_same_one(module, name):
    place = MOVED_FUNCTIONS[name]
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is now {place}.{name}") as seen:
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(place), name)
    assert seen[0].filename == __file__
    assert name not in km.__all__


@pytest.mark.parametrize("module", ["kermix", "kermix.costs"])
def test_attributes_that_never_were_are_not_found(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018
