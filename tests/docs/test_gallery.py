"""The scripts of the gallery run, are short, and their page and pictures are up to date."""

import ast
import importlib.util
import json
import runpy
import struct

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from pages import ROOT
from pictures import ink_of_file

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PICTURES = ROOT / "docs" / "gallery"


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore::kermix.errors.PoorFitWarning")  # a few steps
def test_example_runs_and_draws(script, tmp_path, monkeypatch):
    mpl.use("agg")
    monkeypatch.setenv("KERMIX_QUICK", "1")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    plt.close("all")
    drawn = [p for p in tmp_path.iterdir() if p.suffix == ".png"]
    assert [p.stem for p in drawn] == [script.stem]
    assert ink_of_file(drawn[0]) > 0.03


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example_is_short_and_has_its_picture(script):
    source = script.read_text()
    assert len(source.splitlines()) <= 60
    title, _, text = ast.get_docstring(ast.parse(source)).partition("\n\n")
    assert title.endswith((".", "?"))
    assert text
    picture = (PICTURES / f"{script.stem}.png").read_bytes()
    assert len(picture) < 150_000
    assert struct.unpack(">I", picture[16:20])[0] >= 400  # pixels wide


def test_there_are_enough():
    assert len(EXAMPLES) >= 10


def load_gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "scripts" / "gallery.py")
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    return gallery


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_notebooks_are_the_scripts(script):
    """Each cell is whole by itself, and together they are the script, which is run above."""
    written = (ROOT / "examples" / "notebooks" / f"{script.stem}.ipynb").read_text()
    assert written == load_gallery().notebook(script.stem), "run: make pages"
    cells = json.loads(written)["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) >= 2
    for code in codes:
        compile(code, script.stem, "exec")
    tree = ast.parse(script.read_text())
    assert ast.dump(ast.parse("\n\n".join(codes))) == ast.dump(
        ast.Module(body=tree.body[1:], type_ignores=[])
    )


def test_page_is_made_from_the_docstrings():
    gallery = load_gallery()
    assert gallery.page() == (PICTURES / "index.md").read_text(), "run: make gallery"
