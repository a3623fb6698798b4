r"""Hooks of the documentation site: formulas, and the result files behind numbers.

`$...$` and `$$...$$` become MathML when the site is built, and the font that they need is cut to
the letters in use, so a page asks nothing of other machines.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOLLARS = r"(?<![\\$\w])\$(?P<tex>[^\s$](?:[^$]*[^\s$])?)\$(?![\w$])"
letters: set[str] = set()


class Formula(InlineProcessor):
    """A formula in a line."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[ElementTree.Element, int, int]:
        """The formula as MathML, and where it was."""
        return mathml(m.group("tex"), "inline"), m.start(0), m.end(0)


class Blocks(Preprocessor):
    """Displayed formulas."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines with these replaced."""
        text = "\n".join(lines)
        return re.sub(r"^\$\$(.+?)\$\$$", self._displayed, text, flags=re.M | re.S).split("\n")

    def _displayed(self, match: re.Match[str]) -> str:
        tree = ElementTree.tostring(mathml(match[1], "block"), encoding="unicode")
        return self.md.htmlStash.store(f'<div class="formula">{tree}</div>')


class Formulas(Extension):
    """Both of the above."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Put them where code cannot be mistaken for a formula."""
        md.preprocessors.register(Blocks(md), "displayed formulas", 24)  # after fenced code
        # Code in backticks, of priority 190, may have dollars of its own.
        md.inlinePatterns.register(Formula(DOLLARS, md), "formula in dollars", 185)


def mathml(tex: str, display: str) -> ElementTree.Element:
    """A formula as an element, its letters remembered for the font."""
    plain = re.sub(r"\\\s*\n|\s+", " ", tex).strip()
    tree = ElementTree.fromstring(re.sub(r' xmlns="[^"]*"', "", convert(plain, display=display)))
    letters.update("".join(tree.itertext()))
    return tree


def on_config(config: Any) -> Any:
    """Add the formulas to what Markdown knows; docstrings are rendered with the same."""
    config["markdown_extensions"].append(Formulas())
    config["nav"] = present(config["nav"], Path(config["docs_dir"]))
    return config


def present(entries: list[Any], docs: Path) -> list[Any]:
    """The menu without pages that results have yet to make."""
    kept = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: present(target, docs)})
        elif (docs / target).is_file():
            kept.append(entry)
    return kept


def on_files(files: Files, config: Any) -> Files:
    """Put the result files on the site, to which numbers link."""
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in (".json", ".csv", ".png", ".svg"):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Mend the links to results.

    In the repository these lie beside docs, on the site inside: one folder less to climb.
    """
    return re.sub(r"\]\(\.\./((?:\.\./)*)results/", r"](\1results/", markdown)


def on_post_build(config: Any) -> None:
    """Write the font of the formulas, and what is searched also as a script.

    A page that was opened from a disk may load scripts, but no JSON.
    """
    search = Path(config["site_dir"]) / "search"
    index = (search / "search_index.json").read_text()
    (search / "search_index.js").write_text(f"var __index = {index}")
    _write_font(Path(config["site_dir"]) / "formula.woff")


def _write_font(path: Path) -> None:
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    package = find_spec("ziamath")  # not imported: it is needed for its font alone
    assert package is not None
    assert package.origin is not None
    font = TTFont(Path(package.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf")
    subset = Subsetter(Options(layout_features=["*"], notdef_outline=True))
    # Browsers draw roots and italic letters, which are other characters than in the text.
    drawn = [0x221A, 0x210E, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)]
    subset.populate(unicodes=[*map(ord, letters), *range(0x20, 0x7F), *drawn])
    subset.subset(font)
    font.flavor = "woff"
    font.save(path)
