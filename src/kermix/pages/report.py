"""Report pages: one HTML file that holds everything it shows and needs no network.

A page says which run it belongs to, with which settings, versions and commit.
"""

import base64
import html
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kermix.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kermix.data.schema.schema import Schema

__all__ = ["DescribedRun", "Report", "add_machine", "add_schema", "add_settings", "png_of"]

# For what Matplotlib's own font lacks, where they are installed. Fonts of coloured emoji are not
# here, because it cannot draw them.
MORE_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei",
    "Droid Sans Fallback", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei",
    "Malgun Gothic", "Arial Unicode MS", "Noto Emoji", "Symbola", "Segoe UI Emoji",
)  # fmt: skip

CHART_STYLE = """
:root { --one: #0072B2; --two: #D55E00; }
@media (prefers-color-scheme: dark) { :root { --one: #56B4E9; --two: #E69F00; } }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 10.5px system-ui, sans-serif; fill: var(--quiet); }
svg .one { fill: var(--one); fill-opacity: .45; }
svg .two { fill: none; stroke: var(--two); stroke-width: 1.8; stroke-linejoin: round; }
svg .bar1 { fill: var(--one); fill-opacity: .75; } svg .bar2 { fill: var(--two); }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .strong { fill: var(--ink); font-weight: 600; }
"""
STYLE = """
:root { color-scheme: light dark;
        --ink: #1a1a1a; --quiet: #5f6368; --line: #dadce0; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --quiet: #9aa0a6; --line: #3c4043; --page: #17181a; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, p, figcaption { overflow-wrap: anywhere; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; }
.lead, figcaption { color: var(--quiet); }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; background: #fff;
         border-radius: 4px; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, .text th, .text td { text-align: left; }
.text td { vertical-align: top; } .text td:first-child { white-space: nowrap; }
@media (max-width: 36rem) { figure { overflow-x: auto; }
  figure img { max-width: none; width: 40rem; } }
pre { padding: .8rem; border: 1px solid var(--line); border-radius: 4px;
      white-space: pre-wrap; overflow-wrap: anywhere; }
.verdict { border-left: .5rem solid var(--line); padding: .2rem 1.2rem; margin: 1.5rem 0;
           font-size: 1.15rem; }
.verdict.different { border-color: var(--two); } .verdict.same { border-color: #009E73; }
.verdict .answer { font-size: 2.4rem; font-weight: 700; line-height: 1.15; margin: .4rem 0; }
.verdict svg { max-width: 26rem; }
.cards { display: grid; gap: 1.4rem;
         grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); }
.card h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
.card p { margin: 0 0 .3rem; font-size: .85rem; color: var(--quiet); overflow-wrap: anywhere; }
.card.dim h3 { font-weight: 400; color: var(--quiet); } .card.dim svg { opacity: .6; }
.legend span { display: inline-block; width: 1rem; height: .8rem; margin-left: .8rem; }
.legend .swatch1 { background: var(--one); opacity: .6; margin-left: 0; }
.legend .swatch2 { border: 2px solid var(--two); box-sizing: border-box; }
details { margin-top: 2.5rem; border-top: 1px solid var(--line); }
summary { cursor: pointer; padding: .8rem 0; font-weight: 600; }
"""


class Report:
    """A page built from top to bottom.

    Args:
        title: Heading of the page.
        lead: One sentence below it.
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._body = [f"<h1>{html.escape(title)}</h1>"]
        if lead:
            self._body.append(f'<p class="lead">{html.escape(lead)}</p>')

    def raw(self, markup: str) -> None:
        """Add HTML as it is; whoever calls has escaped the text in it."""
        self._body.append(markup)

    @contextmanager
    def fold(self, summary: str, opened: bool = False) -> Iterator[None]:
        """What is added inside is shown when its summary is clicked."""
        self.raw(f"<details{' open' * opened}><summary>{html.escape(summary)}</summary>")
        yield
        self.raw("</details>")

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._body.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._body.append(f"<p>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add text in a fixed-width font, such as a command to repeat."""
        self._body.append(f"<pre>{html.escape(text)}</pre>")

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], text: bool = False
    ) -> None:
        """Add a table; numbers are shown with five significant digits.

        Args:
            columns: What is above each column.
            rows: Their cells.
            text: Whether cells are sentences, to be read from the left.
        """
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        lines = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(v))}</td>" for v in row) + "</tr>"
            for row in rows
        )
        kind = ' class="text"' if text else ""
        self._body.append(
            f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div>"
        )

    def figure(self, figure: "Figure", caption: str) -> None:
        """Add a Matplotlib figure; the caption also describes it to those who cannot see it."""
        self.image(png_of(figure), caption)

    def image(self, png: bytes, caption: str) -> None:
        """Add a picture that was drawn before."""
        data = base64.b64encode(png).decode("ascii")
        text = html.escape(caption, quote=True)
        self._body.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )

    def save(self, path: Path) -> Path:
        """Write the page in one step."""
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<link rel="icon" href="data:,"><title>{html.escape(self.title)}</title>'
            f"<style>{STYLE}{CHART_STYLE}</style></head><body>{''.join(self._body)}</body></html>\n"
        )
        with whole_file(path) as part:
            part.write_text(page, encoding="utf-8")
        return path


def png_of(figure: "Figure") -> bytes:
    """A figure as a PNG file."""
    import matplotlib
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text

    buffer = io.BytesIO()
    there = set(fontManager.get_font_names())
    families = [*matplotlib.rcParams["font.family"], *(f for f in MORE_FONTS if f in there)]
    for text in figure.findobj(Text):
        text.set_fontfamily(families)
    # A tight box draws everything twice, and a constrained layout needs none.
    box = None if figure.get_layout_engine() is not None else "tight"
    with matplotlib.rc_context({"font.family": families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # drawn as a box
        figure.savefig(buffer, format="png", dpi=150, bbox_inches=box)
    return buffer.getvalue()


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


class DescribedRun(Protocol):
    """A run, as far as a report looks at it."""

    @property
    def folder(self) -> Path:
        """Where it is."""

    @property
    def config(self) -> dict[str, Any]:
        """The content of its `config.json`."""

    @property
    def settings(self) -> Any:
        """What the user chose."""

    def command(self) -> str:
        """The command that repeats it."""


def add_machine(page: Report, run: DescribedRun) -> None:
    """Where a run was made, and with which versions."""
    found = run.config["environment"]
    page.heading("Machine")
    page.table(
        ("", ""),
        [
            ("machine", found["machine"]["gpu"] or found["machine"]["cpu"]),
            ("commit", found["commit"]),
            ("directory", found["directory"]),
            *found["versions"].items(),
        ],
    )


def add_settings(page: Report, run: DescribedRun) -> None:
    """What a run was told, and where it was made."""
    page.heading("Settings")
    page.table(("setting", "value"), list(run.settings.as_json().items()))
    add_machine(page, run)


def add_schema(page: Report, schema: "Schema") -> None:
    """What the columns of a table are."""
    page.heading("Schema")
    page.table(("column", "kind", "type", "gaps", "codes", "what it holds"), schema.table(),
               text=True)  # fmt: skip
