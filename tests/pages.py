"""The pages of the documentation, as the tests see them: code blocks, links, front matter."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = (
    "benchmarks.md", "classification.md", "commands.md", "gallery/index.md", "images.md",
    "paper.md", "scaling.md",
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


def all_pages() -> list[Path]:
    """The README, how to work on it, and all pages, also those that a program wrote."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def missing_names(text: str) -> list[str]:
    """What a text calls `kermix.a.b` and is neither a module nor in one.

    Also as a file, `src/kermix/a/b.py`, and of `km.a` what the package has no name for.
    """
    named = set(re.findall(r"(?<![\w./-])kermix(?:\.[A-Za-z_]\w*)+", text))
    named |= {f"kermix.{name}" for name in re.findall(r"(?<![\w.])km\.([A-Za-z_]\w*)", text)}
    files = set(re.findall(r"(?<![\w/])(?:src/kermix|tests|scripts|examples)/[\w/]*\w\.\w+", text))
    # Records of old runs name what wrote them at the time.
    named = {name for name in named if not name.startswith("kermix.bench.")}
    missing = [name for name in named if not _is_there(name)]
    gone = [file for file in files if not ((ROOT / file).is_file() or "NAME" in file)]
    return sorted(missing + gone)


def _is_there(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise  # it is there, and cannot be imported
            continue
        # A function may have the name of its module: the module comes first.
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


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
