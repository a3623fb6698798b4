"""Write how many modules and lines each room has into CHANGELOG.md: `python scripts/rooms.py`.

Only the last two columns of the table between the marks are written; those before them are of
commits that do not change. A room that the table does not have yet becomes a row.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CHANGELOG.md"
BEGIN, END = "<!-- rooms: written by scripts/rooms.py -->\n", "<!-- end of rooms -->\n"
TOP, WHEEL = "`errors`, `checks`, `files`, ...", "**in the wheel**"
BESIDE = {"benchmarks (in the wheel before)": "benchmarks", "tests": "tests"}
NEVER = "-"  # what a room had before there was one


class Size(NamedTuple):
    """Of a room."""

    modules: int
    lines: int

    @property
    def cells(self) -> list[str]:
        """As the table shows it."""
        return [f"{self.modules:,}", f"{self.lines:,}"]


def counted(root: Path = ROOT) -> dict[str, Size]:
    """The rooms of the tree, by what the table calls them."""
    package = root / "src" / "kermix"
    rooms = sorted(p.name for p in package.iterdir() if (p / "__init__.py").is_file())
    found = {TOP: _size(package.glob("*.py"))}
    found |= {f"`{room}`": _size((package / room).rglob("*.py")) for room in rooms}
    found[WHEEL] = _size(package.rglob("*.py"))
    return found | {name: _size((root / at).rglob("*.py")) for name, at in BESIDE.items()}


def table_of(page: str) -> list[list[str]]:
    """The cells of the table, row by row, heading and rule first."""
    inside = page.split(BEGIN)[1].split(END)[0].strip()
    return [[c.strip() for c in line.strip("|").split("|")] for line in inside.splitlines()]


def written(page: str, sizes: dict[str, Size]) -> str:
    """The page with the sizes of today."""
    heading, rule, *rows = table_of(page)
    earlier = {row[0]: row[1:-2] for row in rows}
    order = [*(name for name in earlier if name in sizes and name[0] == "`")]
    order += [name for name in sizes if name not in earlier and name[0] == "`"]
    order += [name for name in sizes if name[0] != "`"]
    rows = [
        [name, *earlier.get(name, [NEVER] * (len(heading) - 3)), *sizes[name].cells]
        for name in order
    ]
    text = "".join(f"| {' | '.join(row)} |\n" for row in [heading, rule, *rows])
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def _size(files: Iterable[Path]) -> Size:
    lines = [len(file.read_text().splitlines()) for file in files]
    return Size(len(lines), sum(lines))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), counted()))
