"""What the site is built from, as one number: a site whose number is the same need not be built.

`make docs` writes it beside the pages once these are built without warnings.
"""

import hashlib
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("mkdocs.yml", "docs", "results", "scripts", "src")
FILE = "sources.sha256"  # in the folder of a site


def digest(root: Path = ROOT) -> str:
    """Of the names and contents of all sources, and of the packages that are installed."""
    found = hashlib.sha256()
    for name in SOURCES:
        top = root / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                found.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    packages = Path(sysconfig.get_path("purelib")).glob("*.dist-info")  # named by their versions
    found.update(" ".join(sorted(path.name for path in packages)).encode())
    return found.hexdigest()


def is_built(site: Path, root: Path = ROOT) -> bool:
    """Whether a site is what a build would give."""
    kept = site / FILE
    return kept.is_file() and kept.read_text() == digest(root)


if __name__ == "__main__":
    (ROOT / "site" / FILE).write_text(digest())
