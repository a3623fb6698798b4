"""Every block of code in the README and on the documentation's pages runs."""

import re
import shlex
import tomllib

import matplotlib as mpl
import pytest
import torch
from typer.testing import CliRunner

from internals import app
from pages import ROOT, all_pages, blocks, missing_names, name_of, written_pages

PAGES = written_pages()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_blocks_run_in_the_order_of_the_page(page, tmp_path, monkeypatch):
    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names = {"__name__": "__page__"}
    for block in blocks(page):
        where = f"{name_of(page)}:{block.line}"
        if block.not_run and not (block.not_run == "needs a GPU" and torch.cuda.is_available()):
            continue
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, where, "exec"), names)
        elif block.language == "sh":
            for line in block.code.replace("\\\n", " ").splitlines():
                run_line(line, block.extra, where)
        else:
            pytest.fail(f"{where}: is it python or sh?")


def run_line(line, extra, where):
    """Run a command of kermix; of others, check that what they name exists."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "kermix":
        result = CliRunner().invoke(app, [*words[1:], *shlex.split(extra)])
        assert result.exit_code == 0, f"{where}: {line}\n{result.output}\n{result.exception}"
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(words[1:]) <= set(targets), f"{where}: {line}"
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = re.findall(r"\[(.*?)\]", line)
        assert set(named[0].split(",")) <= set(extras["optional-dependencies"]), where
    elif words[0] in ("python", "bash"):
        script = next(w for w in words[1:] if not w.startswith("-"))
        assert (ROOT / script).is_file(), f"{where}: {line}"
    else:
        pytest.fail(f"{where}: what should the test do with {line!r}?")


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_what_a_page_names_is_there(page):
    assert missing_names(page.read_text()) == []


@pytest.mark.parametrize(
    "name",
    ["kermix.gone", "kermix.costs.gone", "kermix.gone.svd_cost", "km.gone", "src/kermix/gone.py",
     "tests/gone.py"],
)  # fmt: skip
def test_a_name_that_is_gone_is_not_passed_over(name):
    full = name.replace("km.", "kermix.")
    kept = "`kermix.costs`, `kermix.costs.functions.svd_cost`, km.svd_cost(x), `tests/pages.py`"
    kept += ", pykermix.x"
    assert missing_names(f"{kept} and\n::: {name}\n") == [full]


def test_every_page_is_tested():
    """No page says that it may be left out."""
    assert all(not page.read_text().startswith("---\n") for page in PAGES)
    assert len(PAGES) >= 16


def test_blocks_are_found_with_their_notes():
    page = ROOT / "docs" / "index.md"
    found = blocks(page)
    assert [b.language for b in found] == ["python", "sh", "sh", "sh"]
    assert found[1].extra == "--steps 20 --refine-steps 10"
    assert page.read_text().splitlines()[found[0].line - 1] == "import torch"


def test_an_unknown_command_is_not_passed_over():
    with pytest.raises(pytest.fail.Exception, match="what should the test do"):
        run_line("rm -rf everything", "", "here")
