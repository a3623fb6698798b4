"""Where the rows of a sketch came from: files and columns."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kermix.errors import SketchError

__all__ = ["Origin", "SketchedFile", "check_same_columns"]


@dataclass(frozen=True)
class SketchedFile:
    """One file, and how many of its rows are in the sketch; `dropped` had missing values."""

    name: str
    rows: int
    dropped: int


@dataclass(frozen=True)
class Origin:
    """What a sketch of files knows of them. How columns are scaled is part of its feature map."""

    columns: tuple[str, ...]
    files: tuple[SketchedFile, ...] = ()
    mixed: dict[str, Any] | None = None  # how mixed rows are made, as saved

    def merge(self, other: "Origin") -> "Origin":
        """The origin of both sets of files together; a file in both is refused."""
        twice = {f.name for f in self.files} & {f.name for f in other.files}
        if twice:
            raise SketchError(
                f"Both sketches hold the rows of {sorted(twice)[0]}: they would be counted twice."
            )
        return Origin(self.columns, self.files + other.files, self.mixed)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Origin":
        """The inverse of `to_dict`."""
        return cls(
            tuple(content["columns"]),
            tuple(SketchedFile(f["name"], f["rows"], f["dropped"]) for f in content["files"]),
            content["mixed"],
        )


def check_same_columns(a: Origin | None, b: Origin | None) -> None:
    """Refuse sketches of different columns, where known."""
    if a is not None and b is not None and a.columns != b.columns:
        raise SketchError(
            f"The sketches have different columns: {', '.join(a.columns)} and "
            f"{', '.join(b.columns)}."
        )
