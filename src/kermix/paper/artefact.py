"""What reproducing a figure or table gives, and the files it is written to."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kermix.errors import RunError
from kermix.files import whole_file
from kermix.paper.claims import Claim
from kermix.reports.provenance import environment, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Artefact", "Record", "Rows", "Tick", "files_of", "ignore", "read_record"]

Rows: TypeAlias = list[dict[str, Any]]
Tick: TypeAlias = Callable[[float], None]  # called with the share that is done
Record: TypeAlias = dict[str, Any]

DOTS_PER_INCH = {"png": 150, "svg": 80}  # in a vector file, of the parts that are pixels
LARGE = 300_000  # bytes of a picture


def ignore(share: float) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Artefact:
    """A figure or table of the paper, computed anew.

    Attributes:
        name: As on the command line.
        title: Which one of the paper it is.
        caption: What the picture shows.
        figure: The picture.
        settings: Everything that the numbers depend on.
        tables: The numbers, by the name of the table.
        claims: What the paper says of it, judged.
        notes: What a reader must know besides.
    """

    name: str
    title: str
    caption: str
    figure: "Figure"
    settings: dict[str, Any]
    tables: dict[str, Rows]
    claims: list[Claim]
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path, *, quick: bool, seconds: float) -> Record:
        """Write picture (PNG, SVG), numbers (JSON, CSV) and claims; each file in one step."""
        record = {
            "paper": self.name,
            "title": self.title,
            "caption": self.caption,
            "quick": quick,
            "seconds": round(seconds, 1),
            **environment(),
            "settings": self.settings,
            "claims": [claim.as_json() for claim in self.claims],
            "notes": self.notes,
            "tables": self.tables,
        }
        for kind in ("png", "svg"):
            _write(folder / f"{self.name}.{kind}", _picture(self.figure, kind))
        for table, rows in self.tables.items():
            _write(folder / f"{self.name}.{table}.csv", _csv(rows))
        # Last: where there is a JSON file, the others are whole.
        write_json(folder / f"{self.name}.json", record)
        return record


def files_of(name: str, folder: Path) -> list[Path]:
    """The files of a figure or table that a folder holds."""
    return sorted(folder.glob(f"{name}.*"))


def read_record(path: Path) -> Record:
    """What `Artefact.save` wrote."""
    try:
        record = json.loads(path.read_text())
        [Claim.from_json(claim) for claim in record["claims"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not a result of kermix reproduce ({error}).") from None
    return record


def _picture(figure: "Figure", kind: str) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    # Neither date nor random identifiers: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "kermix", "svg.fonttype": "none"}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH[kind], metadata=metadata)
    if kind == "png" and buffer.tell() > LARGE:
        return _fewer_colours(buffer)
    return buffer.getvalue()


def _fewer_colours(png: io.BytesIO) -> bytes:
    """The same picture with 256 colours: of smooth maps, half of the bytes."""
    from PIL import Image  # Matplotlib needs it too

    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(256).save(small, "png", optimize=True)
    return small.getvalue()


def _csv(rows: Rows) -> bytes:
    text = io.StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as part:
        part.write_bytes(content)
