"""What the reference page needs to know of how docstrings are written here (for Griffe)."""

import importlib
import inspect
import re
from typing import Any

import griffe

from kermix.settings import Settings


class Docstrings(griffe.Extension):
    """Examples are code, and functions take keywords beside what their definitions show."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Adapt one object."""
        if obj.docstring is None:
            return
        if isinstance(obj, griffe.Class) and any("Settings" in str(b) for b in obj.bases):
            made = getattr(importlib.import_module(obj.module.path), obj.name, None)
            if isinstance(made, type) and issubclass(made, Settings):  # which list their settings
                obj.docstring.value = inspect.getdoc(made) or ""
        obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
        if isinstance(obj, griffe.Function) and any(
            d.callable_path.endswith("informative") for d in obj.decorators
        ):
            obj.returns = "Tensor | tuple[Tensor, Info]"
            obj.parameters.add(
                griffe.Parameter(
                    "return_info",
                    annotation="bool",
                    kind=griffe.ParameterKind.keyword_only,
                    default="False",
                )
            )

        if isinstance(obj, griffe.Function) and any(
            d.callable_path.endswith("with_options") for d in obj.decorators
        ):
            self._spell_out(obj)

    def _spell_out(self, function: griffe.Function) -> None:
        """Show the keywords that `with_options` adds, with their types and defaults."""
        made = getattr(importlib.import_module(function.module.path), function.name, None)
        if made is None:
            return
        for parameter in [p for p in function.parameters if p.name == "options"]:
            del function.parameters[parameter.name]
        known = {p.name for p in function.parameters}
        for name, parameter in inspect.signature(made).parameters.items():
            if name not in known:
                hint = inspect.formatannotation(parameter.annotation)
                hint = re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", hint)
                function.parameters.add(
                    griffe.Parameter(
                        name,
                        annotation=hint if len(hint) < 60 else None,  # no wider than a page
                        kind=griffe.ParameterKind.keyword_only,
                        default="..." if callable(parameter.default) else repr(parameter.default),
                    )
                )

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Take types without what is said of them, before signatures are made of them."""
        for module in pkg.modules.values():
            self.on_package(pkg=module)
        for member in pkg.classes.values():
            for attribute in member.attributes.values():
                if str(attribute.annotation).startswith("Annotated["):
                    attribute.annotation = attribute.annotation.slice.elements[0]
