"""Run the examples and write the gallery: `python scripts/gallery.py [NAME ...]`.

Each script of `examples/` is one idea: the first line of its docstring is its title, the rest its
text, and it writes one picture, NAME.png, into the folder it is run in. Without names all of them
run; `--page` writes the page and the notebooks alone.
"""

import argparse
import ast
import json
import os
import runpy
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, GALLERY = ROOT / "examples", ROOT / "docs" / "gallery"
LARGEST = 150_000  # bytes of a picture
NOTEBOOKS = EXAMPLES / "notebooks"
ORDER = (
    "penguins", "gradient_flow", "mode_coverage", "custom_network", "conditional_regression",
    "pipeline", "debiased_loss", "drift", "two_sample_test", "choose_variance",
    "singular_functions", "sketch_training", "merge_sketches", "mixture_closed_forms", "between",
)  # fmt: skip


def page() -> str:
    """The gallery's Markdown, from the docstrings."""
    missing = set(ORDER) ^ {path.stem for path in EXAMPLES.glob("*.py")}
    if missing:
        raise SystemExit(f"ORDER in scripts/gallery.py and examples/ differ: {sorted(missing)}")
    lines = [
        "# Gallery",
        "",
        "Each figure is made by a short script in `examples/`. Run one with"
        " `python examples/NAME.py`; run all and write this page with `make gallery`.",
        "",
    ]
    for name in ORDER:
        source = (EXAMPLES / f"{name}.py").read_text()
        docstring = ast.get_docstring(ast.parse(source))
        if docstring is None:
            raise SystemExit(f"examples/{name}.py has no docstring")
        title, _, text = docstring.partition("\n\n")
        code = source.split('"""', 2)[2].strip()
        lines += [f"## {title.rstrip('.')}", "", text, "", f"![{title}]({name}.png)", ""]
        lines += [f'<details markdown="1"><summary>examples/{name}.py</summary>', ""]
        lines += ["```py", code, "```", "", "</details>", ""]
    return "\n".join(lines)


def notebook(name: str) -> str:
    """An example as a notebook: its docstring as text, then a cell for each part of its code."""
    source = (EXAMPLES / f"{name}.py").read_text()
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    parts = source.split('"""', 2)[2].strip().split("\n\n")
    cells = [
        {"cell_type": "markdown", "id": "text", "metadata": {},
         "source": f"# {title.rstrip('.')}\n\n{text}".splitlines(keepends=True)}
    ]  # fmt: skip
    for k, code in enumerate(_joined(parts)):
        cells.append(
            {"cell_type": "code", "execution_count": None, "id": f"code-{k}", "metadata": {},
             "outputs": [], "source": code.splitlines(keepends=True)}
        )  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4,
               "nbformat_minor": 5}  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _joined(parts: list[str]) -> list[str]:
    """Parts of a script that are whole by themselves: imports together, definitions unbroken."""
    found: list[str] = []
    for part in parts:
        inside = part.startswith((" ", ")")) or not part.strip()
        imports = found and all(
            line.startswith(("import ", "from ")) for line in part.splitlines()
        )
        if (inside and found) or imports:
            found[-1] += f"\n\n{part}"
        else:
            found.append(part.strip("\n"))
    return found


def run(name: str) -> None:
    """Run one example in the gallery's folder."""
    start = time.perf_counter()
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    size = Path(f"{name}.png").stat().st_size
    print(f"{name}.png: {size / 1000:.0f} kB, {time.perf_counter() - start:.0f} s", flush=True)
    if size > LARGEST:
        raise SystemExit(f"{name}.png has {size} bytes; at most {LARGEST} are wanted")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="examples to run; none: all")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    chosen = parser.parse_args()
    GALLERY.mkdir(parents=True, exist_ok=True)
    (GALLERY / "index.md").write_text(page())
    NOTEBOOKS.mkdir(exist_ok=True)
    for name in ORDER:
        (NOTEBOOKS / f"{name}.ipynb").write_text(notebook(name))
    if not chosen.page:
        import matplotlib.pyplot as plt

        os.chdir(GALLERY)
        for name in chosen.names or ORDER:
            run(name)
            plt.close("all")


if __name__ == "__main__":
    main()
