"""What reproducing a figure or table gives: pictures, numbers, and claims judged by them.

Statements that several figures bear on are counted once.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kermix.environment import environment
from kermix.errors import MissingExtraError, RunError
from kermix.files import whole_file, write_json

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ACCURATE",
    "BEST",
    "BLUE",
    "CLOSER",
    "CONSISTENT",
    "COST_COLOURS",
    "DIAGONAL_GOES",
    "FROBENIUS",
    "GREEN",
    "GREY",
    "IDENTITY",
    "INK_COLOUR",
    "L2",
    "LESS_ACCURATE",
    "MATRIX_BOUND",
    "NOT_SYMMETRICAL",
    "NO_DIFFICULTIES",
    "NUCLEAR_BOUND",
    "ORANGE",
    "PINK",
    "ROOT_VECTORS",
    "SAMPLES_SVD",
    "SATURATES",
    "SIMILAR",
    "Artefact",
    "Claim",
    "Record",
    "Rows",
    "State",
    "Tick",
    "bare",
    "files_of",
    "ignore",
    "picture_png",
    "points_panel",
    "read_record",
    "sheet",
]

NO_DIFFICULTIES = "No difficulties in fitting toy 2D data and images such as MNIST and CelebA."
BEST = "Among the costs, the SVD cost works best."
SIMILAR = "The scalar, vector-matrix and matrix-matrix costs perform similarly."
FROBENIUS = "The Frobenius norm of the cross Gram matrix is ineffective."
L2 = "Decomposing an L2 distance matrix is ineffective."
CLOSER = "The closer q and p are, the larger is the cost."
NOT_SYMMETRICAL = "Vector-matrix and matrix-matrix cost are not symmetrical."
SATURATES = "The scalar cost may saturate much faster than the others."
ACCURATE = "Comparing the four costs, the SVD cost is the most accurate descriptor."
MATRIX_BOUND = "The matrix-matrix cost is bounded by the norm of p (Section IV)."
IDENTITY = "The quantity of Eq. 22 approximates an identity matrix."
DIAGONAL_GOES = "As q shifts away from p, the diagonal elements disappear."
LESS_ACCURATE = "With v = 0.01 it still approximates a diagonal matrix, but less accurately."
CONSISTENT = "The shapes of left and right singular functions are consistent."
ROOT_VECTORS = "For q = p, the eigenvectors are left singular vectors of C (Eq. 20)."
NUCLEAR_BOUND = "The nuclear norm is bounded, and the bound is tight when q = p (Eq. 19)."
SAMPLES_SVD = "The SVD of P_FG is the decomposition under p and q (Property 8, Eq. 16)."

State: TypeAlias = Literal["judged", "tie", "not counted"]


@dataclass(frozen=True)
class Claim:
    """One statement, the rule that decides it, and what the numbers say.

    Attributes:
        text: What is claimed, in a sentence.
        rule: When it counts as confirmed, in words.
        numbers: What the rule was applied to.
        holds: Whether it was confirmed.
        ours: Whether the statement is not the paper's but a correction of it.
        statement: The paper's statement, in its own words where that is short. Claims of the same
            statement are readings of it, or cases, and count as one.

    Example:
        >>> claim = Claim("One is small.", "below 2", {"one": 1.0}, holds=True)
        >>> claim.sentence()
        'Confirmed: One is small. (below 2; one 1)'
    """

    text: str
    rule: str
    numbers: Mapping[str, float]
    holds: bool
    ours: bool = False
    statement: str = ""
    state: State = "judged"
    why: str = ""
    seeds: int = 0
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`Confirmed`, `NOT confirmed`, `Tie` or `Not counted`."""
        if self.state != "judged":
            return {"tie": "Tie", "not counted": "Not counted"}[self.state]
        return "Confirmed" if self.holds else "NOT confirmed"

    @property
    def evidence(self) -> str:
        """The numbers as text, with their intervals, the seeds, and what was not counted."""
        parts = [
            f"{name} {value:.4g}"
            + (
                " ({:.3g} to {:.3g})".format(*self.intervals[name])
                if name in self.intervals
                else ""
            )
            for name, value in self.numbers.items()
        ]
        parts += [f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"] if self.seeds else []
        return ", ".join(parts) + (f"; {self.why}" if self.why else "")

    def sentence(self) -> str:
        """The verdict, the claim, the rule and the numbers."""
        return f"{self.verdict}: {self.text} ({self.rule}; {self.evidence})"

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        plain = {name: float(value) for name, value in self.numbers.items()}
        ends = {name: [float(end) for end in both] for name, both in self.intervals.items()}
        return {**asdict(self), "numbers": plain, "holds": bool(self.holds), "intervals": ends}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Claim":
        """The inverse of `as_json`."""
        return cls(**content)


Rows: TypeAlias = list[dict[str, Any]]
Tick: TypeAlias = Callable[[float], None]  # called with the share that is done
Record: TypeAlias = dict[str, Any]


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
        for kind, picture in (("png", picture_png(self.figure)), ("svg", _svg(self.figure))):
            _write(folder / f"{self.name}.{kind}", picture)
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


def picture_png(figure: "Figure", large: int = 300_000) -> bytes:
    """A figure as PNG; of more than `large` bytes, with 256 colours.

    Of smooth maps that is half of the bytes.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    if buffer.tell() <= large:
        return buffer.getvalue()
    from PIL import Image  # Matplotlib needs it too

    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(256).save(small, "png", optimize=True)
    return small.getvalue()


def _svg(figure: "Figure") -> bytes:
    """A figure as SVG; the parts of it that are pixels have 80 to the inch."""
    import matplotlib

    buffer = io.BytesIO()
    # Neither date nor random identifiers: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "kermix", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", dpi=80, metadata={"Date": None})
    return buffer.getvalue()


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


# Of Okabe and Ito, told apart by every kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
INK_COLOUR, GREY = "#1a1a1a", "#d0d0d0"
# The same colour for the same cost in every figure.
COST_COLOURS = {"svd": BLUE, "scalar": ORANGE, "vector": GREEN, "matrix": PINK}


def sheet(
    rows: int, columns: int, width: float, height: float, widths: Sequence[float] | None = None
) -> "tuple[Figure, np.ndarray]":
    """A figure of that size in inches, and its panels (rows, columns)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Figures need Matplotlib: pip install 'kermix[plots]'.") from None
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    ratios = None if widths is None else {"width_ratios": list(widths)}
    panels = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios)
    for axes in panels.flat:
        axes.tick_params(colors=INK_COLOUR, labelsize=7, width=0.6)
        for spine in axes.spines.values():
            spine.set_color(GREY)
    return figure, panels


def points_panel(
    axes: "Axes", data: "np.ndarray", samples: "np.ndarray", title: str, margin: float = 0.03
) -> None:
    """Points of the unit square, data in blue and samples in orange, with so much around it."""
    for points, colour in ((data, BLUE), (samples, ORANGE)):
        axes.scatter(points[:, 0], points[:, 1], s=2.5, color=colour, alpha=0.6, linewidths=0,
                     rasterized=True)  # fmt: skip
    axes.set(xlim=(-margin, 1 + margin), ylim=(-margin, 1 + margin), aspect="equal")
    bare(axes, title)


def bare(axes: "Axes", title: str = "") -> None:
    """No ticks; a small title."""
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=8, color=INK_COLOUR)
