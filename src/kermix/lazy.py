"""Names of a package that are imported when they are asked for.

PyTorch takes seconds to import, and some parts need packages that others do not.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence

__all__ = ["importer"]


def importer(package: str, where: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """What becomes the `__getattr__` of a package.

    Args:
        package: Its name.
        where: For each module, the names that the package has from it.

    Example:
        >>> importer("kermix", {"math": ["tau"]})("tau")
        6.283185307179586
    """
    modules = {name: module for module, names in where.items() for name in names}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return find
