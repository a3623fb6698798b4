"""Pages: one HTML file that holds everything it shows and needs no network.

A page is a template of `templates/` and what it shows. Every page begins with the answer; then
comes the evidence, and last how to repeat it. Templates escape all text.
"""

import base64
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from kermix.data.readers.common import number_text
from kermix.errors import MissingExtraError
from kermix.files import whole_file
from kermix.pages.plot import Svg

__all__ = ["Card", "Page", "Repeat", "render", "save_charts"]


class Card(NamedTuple):
    """A small chart with its name, beside others."""

    name: str
    chart: Svg
    line: str = ""
    dim: bool = False


class Repeat(NamedTuple):
    """How what a page shows is computed again.

    Attributes:
        command: What was typed.
        facts: Data, seed, versions and machine, by name.
        settings: All that was chosen, by name.
    """

    command: str
    facts: Sequence[tuple[str, Any]] = ()
    settings: Sequence[tuple[str, Any]] = ()

    @classmethod
    def of(
        cls,
        command: str,
        made: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> "Repeat":
        """A command with where it was given.

        Args:
            command: What was typed.
            made: Machine, versions, commit and directory.
            settings: All that was chosen, by name.
            seed: Of all draws, if there were any.
        """
        versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        seeds = [] if seed is None else [("seed", str(seed))]
        facts = [*seeds, ("directory", made["directory"]), ("commit", made["commit"]),
                 ("machine", made["machine"]["gpu"] or made["machine"]["cpu"]),
                 ("versions", versions)]  # fmt: skip
        return cls(command, facts, list((settings or {}).items()))


@dataclass(frozen=True)
class Page:
    """A page that can be saved.

    Attributes:
        template: Its name in `templates/`, without the endings.
        title: Heading of the page.
        shown: What the template shows, by name.

    Example:
        >>> "<h1>a &lt;b&gt;</h1>" in Page("base", "a <b>").html()
        True
    """

    template: str
    title: str
    shown: Mapping[str, Any] = field(default_factory=dict)

    def html(self) -> str:
        """The whole page."""
        shown = {"repeat": None, "notes": (), **self.shown}
        return render(f"{self.template}.html.j2", title=self.title, **shown)

    def repeated_by(self, repeat: Repeat) -> "Page":
        """The page with the command that computes it again."""
        return Page(self.template, self.title, {**self.shown, "repeat": repeat})

    def save(self, path: Path) -> Path:
        """Write the page in one step."""
        with whole_file(path) as part:
            part.write_bytes(self.html().encode("utf-8", "replace"))
        return path


def save_charts(cards: Sequence[Card], path: Path, about: str, gap: int = 24) -> Path:
    """Write charts side by side as an SVG file, which takes the colors of where it is shown."""
    placed, x, tallest = [], gap, 0.0
    for card in cards:
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', card.chart)
        assert size is not None
        width, height = float(size[1]), float(size[2])
        placed.append((card, x, gap + 12, width, height))
        x, tallest = x + int(width) + gap, max(tallest, height)
    shown = render(
        "figure.svg.j2", placed=placed, about=about, width=x, height=tallest + 2 * gap + 12
    )
    with whole_file(path) as part:
        part.write_text(shown, encoding="utf-8")
    return path


def render(name: str, **shown: Any) -> str:
    """What a template says of something."""
    return str(_environment().get_template(name).render(shown))


@cache
def _environment() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("Pages need Jinja2: pip install 'kermix[cli]'.") from None
    found = Environment(
        loader=PackageLoader("kermix.pages"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    found.globals["style"] = _style
    found.filters |= {"shown": _shown, "base64": _base64, "sentences": _sentences,
                      "breaks": _breaks, "quoted": shlex.quote}  # fmt: skip
    return found


def _style(*names: str) -> Svg:
    """What style sheets say, which are no templates."""
    folder = Path(__file__).parent / "templates"
    return Svg("\n".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in names))


def _shown(value: Any) -> Any:
    """A cell: numbers with five digits, words for switches, and a dash for what is not known."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(str(_shown(part)) for part in value) or "none"
    return number_text(value, 5) if isinstance(value, float) else value


def _breaks(value: Any, longest: int = 20) -> Any:
    """A text whose longer words may go on in the next line after an underscore or a slash."""
    if not isinstance(value, str) or isinstance(value, Svg):
        return value
    parts = (re.split(r"(?<=[_/])(?=\w)", word) if len(word) > longest else [word]
             for word in re.split(r"(\s)", value))  # fmt: skip
    return Svg("".join("<wbr>".join(map(escape, pieces)) for pieces in parts))


def _sentences(text: str) -> list[str]:
    """The first sentence of a text, and what comes after it."""
    return [part for part in re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text, maxsplit=1) if part]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
