"""Modules that have moved: their old names still import, with a warning that names the new one."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

__all__ = ["MOVED", "forward_moved_modules"]

# Old names that users of version 0.1 may import; they go in version 0.3. Not `kermix.gram`, which
# is the name of a function.
MOVED = {
    "kermix.debiased": "kermix.costs.debiased",
    "kermix.estimators": "kermix.sklearn.mixture",
    "kermix.evaluation": "kermix.costs.baselines",
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
}
PACKAGES = {name.rpartition(".")[0] for name in MOVED} - {"kermix"}


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
        warnings.warn(
            f"{module.__name__} is now {new}; the old name goes in version 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        content = vars(importlib.import_module(new))
        vars(module).update({k: v for k, v in content.items() if not k.startswith("__")})


def forward_moved_modules() -> None:
    """Let old names of modules be imported."""
    if not any(isinstance(finder, _Forwarder) for finder in sys.meta_path):
        sys.meta_path.append(_Forwarder())
