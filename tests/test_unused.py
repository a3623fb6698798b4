"""Nothing in the package is there for its tests alone: each name is used, or documented."""

import ast
import collections
import re
from pathlib import Path

import kermix

ROOT = Path(__file__).parents[1]
USERS = ("src", "benchmarks", "scripts", "examples", "docs")
CALLED_FROM_OUTSIDE = {
    "_kermix",
    "list_commands",
    "_repr_html_",
    "_should_skip_dynamo",
    "on_validation_epoch_end",
}


def test_every_name_is_used_outside_the_tests():
    files = [p for room in USERS for p in (ROOT / room).rglob("*") if p.suffix in (".py", ".md")]
    words = collections.Counter()
    for file in [*files, ROOT / "README.md"]:
        words.update(re.findall(r"\w+", file.read_text(errors="ignore")))
    unused = set()
    for file in Path(kermix.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        exported = {
            name
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for name in ast.literal_eval(node.value)
        }
        defined = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        unused |= {n.name for n in defined if words[n.name] <= 1 + (n.name in exported)}
    assert unused - CALLED_FROM_OUTSIDE == {n for n in unused if n.startswith("__")}
    assert unused >= CALLED_FROM_OUTSIDE, "what is used again needs no exception"
