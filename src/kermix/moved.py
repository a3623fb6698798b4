"""What has moved: documented old names still import, with a warning that names the new one."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

__all__ = [
    "MOVED",
    "MOVED_NAMES",
    "forward_moved_modules",
    "moved_name",
]

# The rooms here are below this module, and named by strings: they are imported only when somebody
# asks for a deprecated name, so that no room depends on another through here.
#
# Old names that users of version 0.1 may import; they go in version 0.3. Not `kermix.gram`, which
# is the name of a function.
MOVED = {
    "kermix.debiased": "kermix.costs.debiased",
    "kermix.estimators": "kermix.sklearn.mixture",
    "kermix.images.evaluation": "kermix.models.images.evaluation",
    "kermix.images.spaces": "kermix.models.images.spaces",
    "kermix.kernel": "kermix.kernels.gaussian",
    "kermix.losses": "kermix.costs.losses",
    "kermix.measure.compare": "kermix.comparison.compare",
    "kermix.measure.comparison": "kermix.comparison.result",
    "kermix.measure.drift": "kermix.comparison.drift",
    "kermix.measure.twosample": "kermix.comparison.twosample",
    "kermix.nuclear": "kermix.linalg.nuclear",
    "kermix.plots": "kermix.reports.figures",
    "kermix.product_estimators": "kermix.sklearn.product",
    "kermix.runs.fit_ranks": "kermix.runs.training",
}
ABLATIONS = {
    name: f"kermix.paper.ablations.{name}" for name in ("distance_nuclear_cost", "frobenius_cost")
}
# What modules that are still there, or in MOVED, no longer have, and where it is.
MOVED_NAMES = {
    "kermix": ABLATIONS,
    "kermix.costs": ABLATIONS,
    "kermix.data.tables": {
        name: f"kermix.data.tables.table.{name}"
        for name in ("Table", "common_columns", "read_table")
    },
    "kermix.evaluation": {
        name: f"kermix.costs.baselines.{name}"
        for name in (
            "ModeCoverage",
            "energy_distance",
            "mmd_squared",
            "mode_coverage",
            "wasserstein2",
        )
    },
    "kermix.measure.compare": {"Measure": "kermix.comparison.result.Measure"},
    "kermix.runs.fit_run": {"Run": "kermix.runs.fit_run.FitRun"},
    "kermix.training.settings": {
        "FinishName": "kermix.training.settings.RefineName",
        "Settings": "kermix.training.settings.FitSettings",
    },
}
PACKAGES = {"kermix.images", "kermix.measure"}


class _Forwarder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in MOVED or fullname in PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname in PACKAGES)
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED.get(module.__name__)
        if new is None:
            return
        _warn(module.__name__, new, stacklevel=3)
        content = vars(importlib.import_module(new))
        vars(module).update({k: v for k, v in content.items() if not k.startswith("__")})
        if module.__name__ in MOVED_NAMES:
            vars(module)["__getattr__"] = lambda name: moved_name(module.__name__, name)


def forward_moved_modules() -> None:
    """Let old names of modules be imported."""
    if not any(isinstance(finder, _Forwarder) for finder in sys.meta_path):
        sys.meta_path.append(_Forwarder())


def moved_name(module: str, name: str) -> object:
    """What a module's `__getattr__` gives for a name that it no longer has.

    Args:
        module: The module's name.
        name: What it was asked for.

    Raises:
        AttributeError: The module never had it.
    """
    new = MOVED_NAMES[module].get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name}", new, stacklevel=4)
    place, _, called = new.rpartition(".")
    return getattr(importlib.import_module(place), called)


def _warn(old: str, new: str, stacklevel: int) -> None:
    text = f"{old} is now {new}; the old name goes in version 0.3."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
