"""Write the numbers of result files into the pages again: `python scripts/refresh_numbers.py`.

Each link from a number to its place in a result file gets the number that is there now, with as
many digits as it had. Sentences around it are not changed: read them again after a new record.
"""

import json
import re
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBER, FILE = r"(-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?)( ?%?)", r"([^()\s]*results/[^()\s#]*\.json)"
LINK = re.compile(rf"\[{NUMBER}\]\({FILE}#([^()\s]*)\)")


def at(content: object, pointer: str) -> float:
    """What a JSON pointer names."""
    for part in unquote(pointer).lstrip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        content = content[int(part)] if isinstance(content, list) else content[part]  # type: ignore[index]
    return float(content)  # type: ignore[arg-type]


def as_before(value: float, shown: str) -> str:
    """A number with the digits that another was shown with, which stays if it is the same."""
    number = Decimal(shown.replace(",", ""))
    decimals = -int(number.as_tuple().exponent)
    if abs(Decimal(repr(value)) - number) <= Decimal(1).scaleb(-decimals) / 2:
        return shown
    digits = len(number.as_tuple().digits)
    if "e" in shown:
        return f"{value:.{digits - 1}e}"
    size = Decimal(repr(value)).adjusted()
    if min(size, number.adjusted()) < 0 and value:  # of 0.0021 two digits stay, of 12.5 a decimal
        decimals = digits - 1 - size
    return f"{value:{',' if ',' in shown else ''}.{max(decimals, 0)}f}"


def refreshed(page: Path) -> str:
    """The text of a page with the numbers that its files have now."""

    def number(link: re.Match[str]) -> str:
        shown, percent, path, pointer = link.groups()
        value = at(json.loads((page.parent / path).read_text()), pointer)
        new = as_before(100 * value if "%" in percent else value, shown)
        return f"[{new}{percent}]({path}#{pointer})"

    return LINK.sub(number, page.read_text())


if __name__ == "__main__":
    for page in PAGES:
        text = refreshed(page)
        if text != page.read_text():
            page.write_text(text)
            print(page.relative_to(ROOT))
