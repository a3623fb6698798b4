"""`explore.html`: one file that asks a closed-form mixture, without Python or a network."""

import base64
import hashlib
import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import arrow_type
from kermix.errors import OptionError, SizeError
from kermix.explore.scales import texts
from kermix.explore.session import Explored
from kermix.files import finite_json, whole_file
from kermix.runs.table_mixture import TableMixture

__all__ = ["write_page"]

SCRIPTS = ("charts.js", "ask.js", "mixture.js", "start.js")
LARGEST = 2_000_000  # numbers of a mixture that a page holds


def write_page(explored: Explored, path: Path) -> None:
    """Write a page that holds the mixture of a run, and what is needed to ask it.

    The data are not in it: the mixture, and the ranges of the columns, are.

    Args:
        explored: A run whose model is a mixture.
        path: Where the page goes.
    """
    questions = explored.questions()
    model = questions.model
    if not isinstance(model, TableMixture):
        raise OptionError(
            f"{explored.run.folder}: this run kept the table model, a network that a page alone "
            "cannot evaluate; export a mixture (kermix fit TABLE --model mixture)."
        )
    content = {"name": explored.name, "rows": explored.run.config["shape"][0],
               "model": model.name, "farthest": model.farthest,
               **_mixture(model), **_columns(explored)}  # fmt: skip
    with whole_file(path) as part:
        part.write_text(_page(content, explored.name), encoding="utf-8")


def _mixture(model: TableMixture) -> dict[str, Any]:
    mixture = model.mixture_
    kind, spread = mixture.covariance_kind, mixture.covariances
    if kind == "isotropic":
        kind, spread = "diagonal", spread.unsqueeze(-1).expand_as(mixture.means)
    if spread.numel() > LARGEST:
        raise SizeError(
            f"The mixture has {spread.numel():,} numbers, too many for a page ({LARGEST:,}); fit "
            "one with fewer components or columns."
        )
    parts = {"weights": mixture.weights, "means": mixture.means, "covariances": spread}
    return {"mixture": {"kind": kind, **{n: part.tolist() for n, part in parts.items()}}}


def _columns(explored: Explored) -> dict[str, Any]:
    is_integer = load_pyarrow().types.is_integer
    questions = explored.questions()
    told = questions.described
    columns = []
    for described, column in zip(told["columns"], questions.schema.numbers, strict=True):
        edges = questions.scales[column.name].edges.tolist()
        columns.append({"name": column.name, "described": described, "edges": edges,
                        "decimals": column.decimals, "origin": str(column.origin),
                        "whole": is_integer(arrow_type(column.type.arrow))})  # fmt: skip
    constants = {}
    for left in questions.schema.left_out:
        if left.what == "constant":
            constants[left.name] = texts(left.decode(1))[0]
    known = {c["name"] for c in columns} | set(constants)
    order = [name for name in questions.schema.names if name in known]
    return {"columns": columns, "constants": constants, "order": order,
            "left_out": told["left_out"]}  # fmt: skip


def _page(content: Any, name: str) -> str:
    """The page of the server with everything in it, and a policy that lets nothing else run."""

    def file(name: str) -> str:
        return (resources.files("kermix.explore") / "page" / name).read_text(encoding="utf-8")

    style, script = f"\n{file('explore.css')}", "\n".join(file(name) for name in SCRIPTS)
    # No text of the data can end the element that it is in.
    data = json.dumps(finite_json(content), allow_nan=False).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = re.sub(r"<script src=.*</script>\n", "", file("index.html"))
    page = page.replace("<title>kermix explore</title>",
                        f"<title>{html.escape(name)}: kermix explore</title>")  # fmt: skip
    page = page.replace(
        '<link rel="stylesheet" href="explore.css">\n', f"<style>{style}</style>\n"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
    page = page.replace("<head>\n", f"<head>\n{meta}")
    embedded = f'<script type="application/json" id="model">{data}</script>\n'
    return page.replace("</body>", f"{embedded}<script>{script}</script>\n</body>")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
