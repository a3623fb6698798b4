"""A plot with two axes, and the SVG that all charts are made of.

Colors are classes of the page's style: `one` and `two` are the two sets that are compared, in blue
and orange, which every kind of color vision tells apart in light and dark mode; where there are
more lines, dashes tell them apart as well. What is not finite is left out.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from kermix.data.readers.common import number_text

__all__ = [
    "KINDS",
    "LETTER",
    "WIDE",
    "Axis",
    "Plot",
    "Svg",
    "Ticks",
    "anchor_of",
    "cells",
    "drawing",
    "short",
    "tag",
    "text_at",
]

KINDS = ("one", "two", "three", "four")  # colors of lines, in their order
Ticks = Sequence[tuple[float, str]]  # places between 0 and 1, and what is written there
WIDE, TALL = 380, 220  # pixels: convention
LETTER = 6  # width of a letter: convention
UNSAFE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not in XML


class Svg(str):
    """Markup of a chart, which templates take as it is."""

    def __html__(self) -> str:
        """What Jinja asks for."""
        return self


def short(text: str, most: int) -> str:
    """The beginning of a text, as wide as so many letters.

    Example:
        >>> short("a long name", 6), short("価格の表", 6)
        ('a lon…', '価格…')
    """
    room, kept = most, 0
    for kept, letter in enumerate(text, 1):
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < (kept < len(text)):
            return text[: kept - 1].rstrip() + "…"
    return text[:kept]


def tag(name: str, *children: str, **attributes: float | str | None) -> str:
    """An element; underscores in names of attributes are hyphens, and `kind` is the class."""
    told = "".join(
        f' {"class" if key == "kind" else key.replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value not in (None, "")
    )
    return f"<{name}{told}>{''.join(children)}</{name}>" if children else f"<{name}{told}/>"


def _value(value: float | str | None) -> str:
    return _safe(value) if isinstance(value, str) else f"{value:.4g}"


def _safe(text: str) -> str:
    return escape(UNSAFE.sub("\ufffd", text))


def text_at(
    x: float, y: float, text: str, anchor: str = "", most: int = 1000, kind: str = ""
) -> str:
    """A text, cut where it is too long; the whole is shown when it is pointed at."""
    cut = short(text, most)
    whole = [tag("title", _safe(text))] if cut != text else []
    return tag("text", *whole, _safe(cut), x=x, y=y, text_anchor=anchor, kind=kind)


def drawing(width: float, height: float, about: str, shapes: Iterable[str]) -> Svg:
    """A whole chart of some width and height."""
    return Svg(tag("svg", tag("title", _safe(about)), *shapes, role="img", aria_label=about,
                    viewBox=f"0 0 {width:g} {height:g}"))  # fmt: skip


def anchor_of(place: float) -> str:
    """How a text is aligned at a place between 0 and 1, so that it stays inside."""
    return "" if place < 0.15 else "end" if place > 0.85 else "middle"


@dataclass(frozen=True)
class Axis:
    """What one side of a plot shows.

    Attributes:
        low: The number at its beginning.
        high: The number at its end.
        label: What the numbers are.
        log: Whether equal ratios are equally long.
        names: Numbers with what is written there; round numbers by default.
        whole: Whether only whole numbers are written there.
    """

    low: float
    high: float
    label: str = ""
    log: bool = False
    names: Sequence[tuple[float, str]] | None = None
    whole: bool = False

    @classmethod
    def over(
        cls, *values: object, label: str = "", log: bool = False, margin: float = 0.0
    ) -> "Axis":
        """An axis that has room for all finite numbers, and for a share of them at either end.

        Example:
            >>> Axis.over([1.0, float("nan")], [3.0, 2.0])
            Axis(low=1.0, high=3.0, label='', log=False, names=None, whole=True)
        """
        numbers = np.concatenate([np.ravel(np.asarray(v, float)) for v in values])
        numbers = numbers[np.isfinite(numbers) & ((numbers > 0) | (not log))]
        low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
        if not high > low:
            half = max(abs(low), 1e-300) / 2 if low else 0.5
            low, high = low - half, high + half
        if not log:
            low, high = low - margin * (high - low), high + margin * (high - low)
        return cls(low, high, label, log, whole=bool((numbers == np.round(numbers)).all()))

    def place(self, values: object) -> np.ndarray:
        """Where numbers are, between 0 and 1; NaN for those that have no place."""
        numbers, ends = np.asarray(values, float), np.array([self.low, self.high])
        if self.log:
            numbers, ends = np.log(np.where(numbers > 0, numbers, np.nan)), np.log(ends)
        found = (numbers - ends[0]) / (ends[1] - ends[0])
        return np.where(np.isfinite(found), found, np.nan)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Places and texts of at most so many round numbers, or of the names."""
        if self.names is not None:
            every = max(1, -(-len(self.names) // most))
            return [(float(self.place(v)), text) for v, text in self.names[::every]]
        numbers = _powers(self.low, self.high, most) if self.log else np.empty(0)
        if len(numbers) < 2:  # of less than a decade, too
            numbers = _round(self.low, self.high, most)
            if self.whole:
                numbers = numbers[np.abs(numbers - np.round(numbers)) < 1e-9]
        return [(float(self.place(v)), number_text(v, 6)) for v in numbers]


def _round(low: float, high: float, most: int) -> np.ndarray:
    """Multiples of 1, 2 or 5 of a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power)
                if (high - low) / step <= most)  # fmt: skip
    return np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step


def _powers(low: float, high: float, most: int) -> np.ndarray:
    """Powers of ten, or twice and five times these where there are few."""
    ends = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = 10.0 ** np.arange(ends[0], ends[1] + 1)
    for parts in ((1, 2, 5), (1,)):
        found = np.ravel(powers[:, None] * np.array(parts, float))
        found = found[(found >= low * (1 - 1e-9)) & (found <= high * (1 + 1e-9))]
        if len(found) <= most:
            break
    return found[:: -(-len(found) // most)] if len(found) else found


class Plot:
    """A frame with two axes, into which lines, points and areas are drawn one after the other.

    Args:
        x: The horizontal axis.
        y: The vertical axis.
        about: What a reader who cannot see the chart is told.
        width: In pixels, at a scale of 1.
        height: Likewise.

    Example:
        >>> plot = Plot(Axis(0, 1, "step"), Axis(0, 2, "loss"), "The loss falls")
        >>> plot.line([0, 1], [2, 0.5], "one", "training").svg().count("line one")
        2
    """

    def __init__(
        self, x: Axis, y: Axis, about: str, width: float = WIDE, height: float = TALL
    ) -> None:
        self.x, self.y, self.about, self.width, self.height = x, y, about, width, height
        self._shapes: list[str] = []
        self._names: list[tuple[str, str]] = []
        self._up = y.ticks(5)
        self.left = 8.0 + LETTER * max((min(len(text), 10) for _, text in self._up), default=0)
        self.right, self.top = width - 8.0, 10.0 + 16 * bool(y.label)
        self.floor = height - 20.0 - 16 * bool(x.label)

    def _at(self, xs: object, ys: object) -> np.ndarray:  # (N, 2)
        x, y = self.x.place(xs).clip(-0.02, 1.02), self.y.place(ys).clip(-0.02, 1.02)
        x, y = np.broadcast_arrays(x, y)
        return np.stack([self.left + (self.right - self.left) * x.ravel(),
                         self.floor - (self.floor - self.top) * y.ravel()], 1)  # fmt: skip

    def _add(self, path: str, kind: str, name: str, width: float | None = None) -> "Plot":
        if path:
            self._shapes.append(tag("path", d=path, kind=kind, stroke_width=width))
        if name:
            self._names.append((kind, name))
        return self

    def line(self, xs: object, ys: object, kind: str, name: str = "") -> "Plot":
        """A line, broken where a number is missing."""
        return self._add(_path(self._at(xs, ys)), f"line {kind}", name)

    def dots(self, xs: object, ys: object, kind: str, name: str = "", size: float = 4) -> "Plot":
        """Points."""
        at = self._at(xs, ys)
        path = "".join(f"M{x:.1f},{y:.1f}h0" for x, y in at[np.isfinite(at).all(1)])
        return self._add(path, f"dots {kind}", name, size)

    def bands(
        self, xs: object, low: object, high: object, kind: str, name: str = "", wide: float = 3
    ) -> "Plot":
        """A vertical bar for each number: an interval, or an error bar."""
        ends = np.stack([self._at(xs, low), self._at(xs, high)], 1)
        path = "".join(f"M{a[0]:.1f},{a[1]:.1f}V{b[1]:.1f}" for a, b in ends
                       if np.isfinite([a, b]).all())  # fmt: skip
        return self._add(path, f"band {kind}", name, wide)

    def steps(
        self, edges: object, shares: object, kind: str, name: str = "", filled: bool = False
    ) -> "Plot":
        """Shares of intervals, as a histogram has them."""
        ends, parts = np.asarray(edges, float), np.nan_to_num(np.asarray(shares, float))
        xs = np.repeat(ends, 2)
        ys = np.concatenate([[0.0], np.repeat(parts, 2), [0.0]])
        path = _path(self._at(xs, np.maximum(ys, self.y.low)))
        return self._add(path, f"{'area' if filled else 'line'} {kind} step", name)

    def field(self, values: np.ndarray, kind: str) -> "Plot":
        """A table of numbers from -1 to 1, from the lowest row, over the whole plot."""
        rows, columns = values.shape
        xs = np.linspace(self.left, self.right, columns + 1)
        ys = np.linspace(self.floor, self.top, rows + 1)
        self._shapes += cells(values, xs, ys, kind)[1]
        return self

    def rule(self, *, x: float | None = None, y: float | None = None, name: str = "") -> "Plot":
        """A thin line across the whole plot, to compare with."""
        if y is not None:
            ends = self._at([self.x.low, self.x.high], y)
        else:
            ends = self._at(x, [self.y.low, self.y.high])
        return self._add(_path(ends), "rule", name)

    def mark(self, x: float) -> "Plot":
        """A strong vertical line: where a value lies."""
        return self._add(_path(self._at(x, [self.y.low, self.y.high])), "mark", "")

    def svg(self) -> Svg:
        """The whole chart."""
        shapes = [tag("path", d=f"M{self.left:.1f},{self.floor:.1f}H{self.right:.1f}",
                       kind="axis")]  # fmt: skip
        for place, text in self._up:
            y = self.floor - place * (self.floor - self.top)
            shapes += [
                tag("path", d=f"M{self.left:.1f},{y:.1f}H{self.right:.1f}", kind="grid"),
                text_at(self.left - 5, y + 4, text, "end", 10),
            ]
        across = self.x.ticks(6 if self.x.names is None else int(self.width / 85))
        for place, text in across:
            x, most = self.left + place * (self.right - self.left), 60 // len(across)
            half = LETTER * min(len(text), most) / 2
            anchor = "end" if x + half > self.width else "" if x - half < 0 else "middle"
            shapes.append(text_at(x, self.floor + 14, text, anchor, most))
        if self.x.label:
            shapes.append(text_at(self.right, self.height - 5, self.x.label, "end", 55, "name"))
        if self.y.label:
            shapes.append(text_at(2, 12, self.y.label, "", 55, "name"))
        legend, tall = _legend(self._names, self.left, self.right, self.height)
        return drawing(self.width, tall, self.about, [*shapes, *self._shapes, *legend])


def cells(
    values: np.ndarray, xs: np.ndarray, ys: np.ndarray, kind: str
) -> tuple[np.ndarray, list[str]]:
    """Colored cells between some ends, and the steps of their colors.

    Args:
        values: From the lowest row; -1 to 1, NaN where nothing is.
        xs: Ends of the columns.
        ys: Ends of the rows.
        kind: The color of numbers above zero.
    """
    levels = np.round(np.nan_to_num(values).clip(-1, 1) * 12).astype(int)
    return levels, [
        tag("path", d=_outlines(levels == level, xs, ys),
            kind=f"cell {kind if level > 0 else 'one'}", fill_opacity=abs(level) / 12)
        for level in np.unique(levels[levels != 0]).tolist()
    ]  # fmt: skip


def _outlines(inside: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> str:
    """Outlines of the runs of true cells in each row."""
    padded = np.pad(inside, ((0, 0), (1, 1))).astype(np.int8)
    pieces = []
    for line, low, high in zip(np.diff(padded, axis=1), ys, ys[1:], strict=False):
        for begin, end in zip(np.flatnonzero(line > 0), np.flatnonzero(line < 0), strict=True):
            pieces.append(f"M{xs[begin]:.1f},{low:.1f}V{high:.1f}H{xs[end]:.1f}V{low:.1f}z")
    return "".join(pieces)


def _path(at: np.ndarray) -> str:
    pieces, begun = [], False
    for x, y in at:
        if not math.isfinite(x + y):
            begun = False
            continue
        pieces.append(f"{'L' if begun else 'M'}{x:.1f},{y:.1f}")
        begun = True
    return "".join(pieces)


def _legend(
    names: Sequence[tuple[str, str]], left: float, right: float, top: float
) -> tuple[list[str], float]:
    """Names of what is drawn, below a plot, and where they end."""
    shapes, x, y = [], left, top + 4
    for kind, name in names:
        wide = 26 + LETTER * min(len(name), 45) + 10
        if x > left and x + wide > right:
            x, y = left, y + 16
        path, wide_stroke = f"M{x:.1f},{y:.1f}h18", None
        if kind.startswith("dots"):
            path, wide_stroke = f"M{x + 9:.1f},{y:.1f}h0", 7
        elif kind.startswith(("area", "band")):
            wide_stroke = 8
        shapes += [
            tag("path", d=path, kind=kind.replace("area", "band"), stroke_width=wide_stroke),
            text_at(x + 24, y + 4, name, "", 45),
        ]  # fmt: skip
        x += wide
    return shapes, y + 12 if names else top
