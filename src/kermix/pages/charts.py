"""Charts of pages as SVG: bars, histograms of a column, heat maps, and a gauge of the AUC.

They are sharp at any width, take the colors of the page, and are described for screen readers.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kermix.pages.page import Card
from kermix.pages.plot import (
    KINDS,
    LETTER,
    WIDE,
    Axis,
    Plot,
    Svg,
    Ticks,
    anchor_of,
    cells,
    drawing,
    tag,
    text_at,
)

__all__ = ["CARD", "Bins", "bars", "column_chart", "confusion", "curves", "gauge", "heat_map",
           "histogram", "image", "training"]  # fmt: skip

CARD = 260  # width of a small chart in pixels: convention


@dataclass(frozen=True)
class Bins:
    """Where the numbers of a column are counted: at most 30 equal intervals of nearly all of them.

    What lies beyond the ends is counted at the ends.

    Attributes:
        edges: Ends of the intervals, in order.
        log: Whether they are of equal ratios.
    """

    edges: np.ndarray
    log: bool = False

    @classmethod
    def over(cls, numbers: np.ndarray, step: float | None = None, log: bool = True) -> "Bins":
        """Intervals for nearly all of some numbers: all but half a percent at either end.

        Args:
            numbers: Finite ones.
            step: What they are multiples of, if they are.
            log: Whether intervals may be of equal ratios, for numbers that are far from even.
        """
        if not len(numbers):
            return cls(np.array([0.0, 1.0]))
        return cls.spanning(np.quantile(numbers, (0.005, 0.5, 0.995)), step, log)

    @classmethod
    def spanning(
        cls, ends: Sequence[float] | np.ndarray, step: float | None = None, log: bool = True
    ) -> "Bins":
        """Intervals for numbers whose lowest, middle and highest are known; see `over`."""
        low, middle, high = map(float, ends)
        if not (log and low > 0 and high > 30 * middle):
            if step is not None:  # a quantile may lie between two multiples
                low, high = (step * math.floor(low / step + 1e-9),
                             step * math.ceil(high / step - 1e-9))  # fmt: skip
            return cls.between(low, high, step)
        edges = np.geomspace(low, high, 31)
        if step is not None:  # in none of them is no multiple
            edges = np.unique(np.round(edges / step)) * step - step / 2
        return cls(edges, True)

    @classmethod
    def between(cls, low: float, high: float, step: float | None = None) -> "Bins":
        """Equal intervals from one number to another, each with as many multiples of a step.

        Example:
            >>> Bins.between(1, 6, 1).edges
            array([0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
        """
        if step is None:
            half = 0.5 * max(1.0, abs(low)) * (not high > low)
            return cls(np.linspace(low - half, high + half, 31))
        steps = round((high - low) / step) + 1
        each = -(-steps // 30)
        edges = low - step / 2 + step * each * np.arange(-(-steps // each) + 1)
        return cls(edges.clip(max=high + step / 2))

    @property
    def places(self) -> np.ndarray:
        """Where the ends are drawn, between 0 and 1."""
        return self.place(self.edges)

    def place(self, numbers: np.ndarray) -> np.ndarray:
        """Where numbers are drawn; those beyond an end at that end."""
        low, high = self.edges[0], self.edges[-1]
        inside = np.clip(numbers, low, high)
        if self.log:
            return np.asarray(np.log(inside / low) / np.log(high / low))
        return np.asarray((inside - low) / (high - low))

    def shares(self, numbers: np.ndarray) -> np.ndarray:
        """The share of some finite numbers in each interval."""
        inside = numbers.clip(self.edges[0], self.edges[-1])
        return np.asarray(np.histogram(inside, self.edges)[0] / max(1, len(numbers)))

    def ticks(self, text: Callable[[float], str], step: float | None = None) -> Ticks:
        """The lowest, the middle and the highest number as text, with their places."""
        low, high = float(self.edges[0]), float(self.edges[-1])
        middle = math.sqrt(low * high) if self.log else (low + high) / 2
        if step is not None:  # values, not what lies half-way to the next
            low, high = low + step / 2, high - step / 2
            middle = low + step * round((middle - low) / step)
        return [(0.0, text(low)), (0.5, text(middle) + " (log)" * self.log), (1.0, text(high))]


def histogram(
    places: np.ndarray,
    sets: Sequence[np.ndarray],
    ticks: Ticks,
    about: str,
    mark: float | None = None,
) -> Svg:
    """Shares of the same intervals in one set or two: the first filled, the second as an outline.

    Args:
        places: Where the ends of the intervals are, between 0 and 1.
        sets: Shares of each set.
        ticks: Places between 0 and 1, and what is written there.
        about: For those who cannot see it.
        mark: A place between 0 and 1 to be shown.
    """
    highest = max(1e-12, *(float(np.nan_to_num(shares).max(initial=0)) for shares in sets))
    plot = Plot(Axis(0, 1, names=ticks), Axis(0, highest, names=()), about, CARD, 112)
    plot.left, plot.right, plot.top = 0.0, CARD, 4.0
    for shares, kind in zip(sets, KINDS, strict=False):
        plot.steps(places, shares, kind, filled=kind == "one")
    return (plot if mark is None else plot.mark(mark)).svg()


def bars(
    names: Sequence[str],
    sets: Sequence[np.ndarray],
    about: str,
    show: Sequence[int] = (),
    mark: int | None = None,
) -> Svg:
    """Shares of values as bars with their names; of many values the commonest.

    Args:
        names: Of the values.
        sets: Their shares in one set or two.
        about: For those who cannot see it.
        show: Values that are shown even if they are rare.
        mark: A value to be marked.
    """
    known = [not np.isnan(shares).all() for shares in sets]
    shares = np.nan_to_num(np.array(sets, float))  # (sets, values)
    shown = _shown_values(shares, [*show, *([] if mark is None else [mark])])
    told = [name or "(empty)" for name in names]
    if len(shown) < len(told):
        shares = np.column_stack([shares, 1 - shares[:, shown].sum(1)])
        told.append(f"{len(names) - len(shown)} others")
        shown = [*shown, len(names)]
    left, row, tall = 104, 20, 16 / len(sets) - 1
    room, longest = CARD - left - 58, max(1e-12, float(shares[:, shown].max(initial=0)))
    shapes = []
    for y, k in enumerate(shown):
        top = y * row + 2
        widths = room * shares[:, k].clip(min=0) / longest
        shapes.append(text_at(left - 6, top + 12, told[k], "end", 15, "name" * (k == mark)))
        shapes += [
            tag("rect", kind=f"bar {kind}", x=left, y=top + j * (tall + 1), width=width,
                height=tall)
            for j, (width, kind) in enumerate(zip(widths, KINDS, strict=False))
        ]  # fmt: skip
        percents = ", ".join(_percent(share) for share in shares[known, k])
        shapes.append(text_at(left + widths.max() + 4, top + 12, f"{percents} %"))
        if k == mark:
            shapes.append(tag("path", d=f"M{left - 2},{top - 1}v17", kind="mark"))
    return drawing(CARD, len(shown) * row + 4, about, shapes)


def _shown_values(shares: np.ndarray, wanted: Sequence[int]) -> list[int]:
    """Of many values the commonest seven, and those that are wanted: convention."""
    count = shares.shape[1]
    if count <= 8:
        return list(range(count))
    weights = shares.max(0)
    weights[wanted[-7:]] += 1.0
    return sorted(np.argsort(-weights, kind="stable")[:7].tolist())


def _percent(share: float) -> str:
    """A share in percent without its sign; what is there is never zero."""
    return f"{100 * share:.0f}" if share >= 0.01 or share <= 0 else f"{100 * share:.1g}"


def column_chart(
    about: str,
    sets: Sequence[np.ndarray],
    text: Callable[[float], str],
    step: float | None = None,
    log: bool = True,
) -> Svg:
    """Numbers of a column in one set or two: bars of a few values, or else histograms.

    Args:
        about: For those who cannot see it.
        sets: Numbers of each set, NaN where they are missing.
        text: A number as text.
        step: What all numbers are multiples of, if they are.
        log: Whether a histogram may be logarithmic.
    """
    filled = [numbers[np.isfinite(numbers)] for numbers in sets]
    both = np.concatenate(filled)
    distinct = np.unique(both)
    if len(distinct) > 8:
        bins = Bins.over(both, step, log)
        shares = [bins.shares(numbers) for numbers in filled]
        return histogram(bins.places, shares, bins.ticks(text, step), about)
    names = [text(number) for number in distinct.tolist()]
    counts = [np.searchsorted(distinct, numbers) for numbers in sets]  # those missing come last
    shares = [np.bincount(c, minlength=len(names) + 1) / max(1, len(c)) for c in counts]
    if sum(s[-1] for s in shares) > 0:
        names.append("(missing)")
    return bars(names, [s[: len(names)] for s in shares], about)


def heat_map(
    values: np.ndarray,  # (rows, columns), from the lowest row; -1 to 1, NaN where nothing is
    across: tuple[str, Ticks],
    up: tuple[str, Ticks],
    about: str,
    texts: Sequence[Sequence[str]] = (),
    kind: str = "two",
    downwards: bool = False,
) -> Svg:
    """A table as colored cells: numbers above zero in one color, those below in the other.

    Args:
        values: How strong each cell is colored.
        across: Name and ticks of the horizontal axis.
        up: Those of the vertical axis.
        about: For those who cannot see it.
        texts: What is written in the cells, if they are few.
        kind: The color of numbers above zero.
        downwards: Whether what is named on the vertical axis goes on from the top.
    """
    rows, columns = values.shape
    left = 12.0 * bool(up[1]) + LETTER * max((min(len(t), 12) for _, t in up[1]), default=0)
    wide, top = (WIDE - left) / columns, 18.0 * bool(up[0])
    tall = min((WIDE - left) * 0.75 / rows, 2 * wide, 40.0)
    ends = left + wide * np.arange(columns + 1), top + tall * np.arange(rows, -1, -1)
    levels, shapes = cells(values, *ends, kind)
    floor = float(ends[1][0])
    shapes.append(tag("rect", kind="frame", x=left, y=top, width=WIDE - left, height=floor - top))
    shapes += [
        text_at(left + wide * (j + 0.5), floor - tall * (i + 0.5) + 4, text, "middle",
                max(2, int(wide / LETTER)), "on" if abs(levels[i, j]) > 7 else "off")
        for i, line in enumerate(texts) for j, text in enumerate(line)
    ]  # fmt: skip
    shapes += [text_at(left - 5, floor - p * (floor - top) + 4, t, "end", 12) for p, t in up[1]]
    places = [p for p, _ in across[1]]
    apart = min(np.diff(sorted(places)), default=1.0)  # texts at the ends reach inwards
    room = max(3, int(0.8 * min(apart, 1 / 3) * (WIDE - left) / LETTER))
    shapes += [
        text_at(left + p * (WIDE - left), floor + 14, t, "middle" if texts else anchor_of(p), room)
        for p, t in across[1]
    ]
    shapes += _names(across[0], up[0], floor, "down" if downwards else "up")
    below = 16 * bool(across[1]) + 18 * bool(across[0])
    return drawing(WIDE, floor + below, about, shapes)


def _names(across: str, up: str, floor: float, upwards: str) -> list[str]:
    """What the axes of a heat map are."""
    return [
        text_at(x, y, f"{name} ({where})", anchor, 50, "name")
        for name, where, x, y, anchor in (
            (up, upwards, 2.0, 11.0, ""), (across, "across", WIDE, floor + 29, "end"),
        ) if name
    ]  # fmt: skip


def confusion(counts: np.ndarray, names: Sequence[str]) -> Svg:  # (true, predicted)
    """How often each class was taken for each: shares of the true class, in rows from the top."""
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    few = len(names) <= 12  # numbers can be read: convention
    ticks = [((k + 0.5) / len(names), name) for k, name in enumerate(names)]
    shown = ticks[:: -(-len(ticks) // 12)]
    # The square root shows rare mistakes beside the diagonal.
    texts = [[f"{n}" if n else "" for n in line] for line in counts[::-1].tolist()] if few else ()
    up = [(1 - place, name) for place, name in shown]
    return heat_map(np.sqrt(shares[::-1]), ("predicted class", shown), ("true class", up),
                "True and predicted classes", texts, downwards=True)  # fmt: skip


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str, about: str
) -> Svg:
    """Lines by name, as of a training: pairs of a step and a number."""
    points = {name: np.array(pairs, float).reshape(-1, 2) for name, pairs in lines.items()}
    every = np.concatenate([np.empty((0, 2)), *points.values()])
    plot = Plot(Axis.over(every[:, 0], label=across), Axis.over(every[:, 1], label=up), about)
    for (name, pairs), kind in zip(points.items(), KINDS, strict=False):
        plot.line(pairs[:, 0], pairs[:, 1], kind, name)
        if len(pairs) <= 12:  # a line of one point cannot be seen: convention
            plot.dots(pairs[:, 0], pairs[:, 1], kind, size=5)
    return plot.svg()


def training(history: Sequence[Mapping[str, float]], metric: str) -> list[Card]:
    """How a training went that ends with a likelihood: its metric, and the loss of each stage."""
    seen = [row for row in history if math.isfinite(row["metric"])]
    stages = {
        "autoencoder": [row for row in history if not math.isfinite(row["metric"])],
        "cost on samples": [row for row in seen if row["variance"] > 0],
        "likelihood, up to a constant": [row for row in seen if row["variance"] == 0],
    }
    losses = {
        name: [(r["step"], r["loss"]) for r in rows] for name, rows in stages.items() if rows
    }
    metrics = [(row["step"], row["metric"]) for row in seen]
    rises = "It rises as the variance falls." if "cost on samples" in losses else ""
    return [Card(metric, curves({"": metrics}, "step", "", f"{metric} in training")),
            Card("Loss", curves(losses, "step", "", "The loss in training"), rises)]  # fmt: skip


def image(png: bytes, pixels: np.ndarray, about: str) -> Svg:
    """An image among charts."""
    height, width = pixels.shape[:2]
    data = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    return drawing(width, height, about, [tag("image", href=data, width=width, height=height)])


def gauge(value: float, interval: tuple[float, float], shown: str, about: str) -> Svg:
    """An AUC between "cannot be told apart" and "always", with its interval."""
    wide, y = 320, 30.0
    axis = Axis(min(0.4, *interval), 1.0)

    def at(share: float) -> float:
        return 10 + (wide - 20) * float(axis.place(min(1.0, share)))

    shapes = [tag("path", d=f"M10,{y}H{wide - 10}", kind="axis")]
    for share, text, anchor in ((0.5, "0.5: chance", "middle"), (0.75, "0.75", "middle"),
                                (1.0, "1: always", "end")):  # fmt: skip
        shapes.append(tag("path", d=f"M{at(share):.1f},{y - 6}v12", kind="axis"))
        shapes.append(text_at(at(share), y + 21, text, anchor))
    low, high = at(interval[0]), at(interval[1])
    shapes += [
        tag("path", d=f"M{low:.1f},{y}H{max(high, low + 1):.1f}", kind="band two",
             stroke_width=10),
        tag("path", d=f"M{at(value):.1f},{y}h0", kind="dots two", stroke_width=14),
        text_at(min(at(value), wide - 16), y - 13, shown, "middle", 20, "name"),
    ]  # fmt: skip
    return drawing(wide, 56, about, shapes)
