"""What pyproject.toml says kermix needs, for the scripts that try installations.

`python scripts/needed.py lowest` prints a line NAME==VERSION, for pip, with the oldest allowed
version of each package that the library and its extra `all` need. `python scripts/needed.py
extras` prints the extras that users install; one with a plus brings the command line.
"""

import re
import sys
import tomllib
from pathlib import Path

OF_DEVELOPERS = ("bench", "test", "lint", "docs", "dev")
PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def needed(extras: list[str]) -> set[str]:
    """The requirements of the library with these extras, those of extras in extras included."""
    found = set(PROJECT["dependencies"])
    for extra in extras:
        for requirement in EXTRAS[extra]:
            inner = re.fullmatch(r"kermix\[(.+)\]", requirement)
            found |= needed(inner[1].split(",")) if inner else {requirement}
    return found


def lowest() -> list[str]:
    """Each package at its lower bound; one without is an error."""
    pinned = []
    for requirement in sorted(needed(["all"])):
        bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement)
        if bound is None:
            sys.exit(f"pyproject.toml: {requirement} should have a lower bound, and nothing else.")
        pinned.append(f"{bound[1]}=={bound[2]}")
    return pinned


def extras() -> list[str]:
    """The extras of users, with a plus where the command line comes along."""
    shown = [extra for extra in EXTRAS if extra not in OF_DEVELOPERS]
    whole = needed(["cli"])
    return [extra + "+" * (whole <= needed([extra])) for extra in shown]


if __name__ == "__main__":
    print("\n".join({"lowest": lowest, "extras": extras}[sys.argv[1]]()))
