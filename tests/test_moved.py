"""Old names of modules and functions: they import, warn, and give the same objects."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

import kermix as km
from kermix.moved import MOVED, MOVED_NAMES
from kermix.runs.fit_run import FitRun


@pytest.mark.parametrize("old", MOVED)
def test_old_name_gives_the_same_objects(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        found = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    for name in new.__all__:
        assert getattr(found, name) is getattr(new, name)


@pytest.mark.parametrize(("module", "name"), [(m, n) for m in MOVED_NAMES for n in MOVED_NAMES[m]])
@pytest.mark.filterwarnings("ignore:.*is now:DeprecationWarning")
def test_an_old_name_of_an_object_gives_the_new_one(module, name):
    place, _, called = MOVED_NAMES[module][name].rpartition(".")
    there = importlib.import_module(module)
    with pytest.warns(
        DeprecationWarning, match=f"{module}.{name} is now {place}.{called};"
    ) as seen:
        found = getattr(there, name)
    assert found is getattr(importlib.import_module(place), called)
    assert seen[-1].filename == __file__
    assert "goes in version 0.3" in str(seen[-1].message)
    assert name not in getattr(there, "__all__", ())


# Names in README and docs of version 0.1 that no longer stand where they stood.
DOCUMENTED = [
    "kermix.distance_nuclear_cost",
    "kermix.estimators.KernelMixture",
    "kermix.evaluation.mode_coverage",
    "kermix.frobenius_cost",
    "kermix.measure.compare.Comparison",
    "kermix.measure.compare.Measure",
    "kermix.measure.compare.compare",
    "kermix.product_estimators.ProductClassifier",
    "kermix.product_estimators.ProductRegressor",
    "kermix.runs.fit_ranks.train",
    "kermix.training.settings.Settings",
]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_of_the_first_version_import(name):
    place, _, called = name.rpartition(".")
    sys.modules.pop(place, None) if place in MOVED else None
    with pytest.warns(DeprecationWarning, match="is now"):
        found = getattr(importlib.import_module(place), called)
    assert callable(found)


def test_the_run_of_the_first_version_is_a_fit_and_not_the_base_of_all_runs(tmp_path):
    shutil.copytree(Path(__file__).parent / "fixtures" / "v0.1" / "rows", tmp_path / "rows")
    with pytest.warns(DeprecationWarning, match="Run is now kermix.runs.fit_run.FitRun"):
        from kermix.runs.fit_run import Run
    assert Run is FitRun
    assert Run.open(tmp_path / "rows").kind == "fit"


def test_no_old_module_hides_a_function():
    for old in MOVED:
        assert old.removeprefix("kermix.") not in km.__all__


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kermix.measure.nothing")


@pytest.mark.parametrize("module", sorted(set(MOVED_NAMES) - set(MOVED)))
def test_attributes_that_never_were_are_not_found(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018
