"""What the reference page needs to know of how docstrings are written here (for Griffe)."""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Examples are code, and a cost takes `return_info` beside what its definition shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Adapt one object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.M
            )
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
