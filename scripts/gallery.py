"""Run the examples and write the gallery: `python scripts/gallery.py [NAME ...]`.

Each script of `examples/` is one idea: the first line of its docstring is its title, the rest its
text, and it writes one picture, NAME.png, into the folder it is run in. Without names all of them
run; `--page` writes the page alone.
"""

import argparse
import ast
import os
import runpy
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, GALLERY = ROOT / "examples", ROOT / "docs" / "gallery"
LARGEST = 150_000  # bytes of a picture
ORDER = (
    "gradient_flow", "mode_coverage", "custom_network", "conditional_regression", "pipeline",
    "debiased_loss", "drift", "two_sample_test", "choose_variance", "singular_functions",
    "sketch_training", "merge_sketches", "mixture_closed_forms", "between",
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
    if not chosen.page:
        import matplotlib.pyplot as plt

        os.chdir(GALLERY)
        for name in chosen.names or ORDER:
            run(name)
            plt.close("all")


if __name__ == "__main__":
    main()
