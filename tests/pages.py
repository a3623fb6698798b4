"""The pages of the documentation, as the tests see them: code blocks, links, front matter."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = (
    "benchmarks.md", "classification.md", "gallery/index.md", "images.md", "paper.md",
    "scaling.md",
)  # fmt: skip
FENCE = re.compile(
    r"(?:^<!-- (?P<note>tested with|not run): ?(?P<what>.*?) -->\n\n)?"
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A block of code, with what the page says about how it is tested."""

    language: str
    code: str
    line: int
    extra: str = ""  # arguments that the test adds to the commands
    not_run: str = ""  # why it is not run


def written_pages() -> list[Path]:
    """The README and all pages that were written by hand."""
    docs = ROOT / "docs"
    pages = [p for p in docs.rglob("*.md") if p.relative_to(docs).as_posix() not in GENERATED]
    return [ROOT / "README.md", *sorted(pages)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def required_module(page: Path) -> str | None:
    """The module that a page is about and that may not be there, from its front matter."""
    found = re.match(r"---\n(?:.*\n)*?requires: *(\S+)\n(?:.*\n)*?---\n", page.read_text())
    return found[1] if found else None


def is_ready(page: Path) -> bool:
    module = required_module(page)
    if module is None:
        return True
    path = ROOT / "src" / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            m["language"],
            m["code"],
            text[: m.start("code")].count("\n") + 1,
            extra=m["what"] if m["note"] == "tested with" else "",
            not_run=m["what"] if m["note"] == "not run" else "",
        )
        for m in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its code, comments and front matter; as many lines as it has."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"\A---\n.*?^---\n", blank, page.read_text(), flags=re.M | re.S)
    text = re.sub(r"^```.*?^```$", blank, text, flags=re.M | re.S)
    text = re.sub(r"^\$\$.*?\$\$$", blank, text, flags=re.M | re.S)
    text = re.sub(r"^(?: {4}.*\n)+", blank, text, flags=re.M)
    return re.sub(r"`[^`\n]*`|\$[^$\n]*\$", "", text)
