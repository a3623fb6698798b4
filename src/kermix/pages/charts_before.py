"""Small charts as SVG: they are sharp at any width and take the colours of the page."""

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CHART_STYLE", "area_svg", "bars_svg", "gauge_svg", "map_svg"]

WIDE, TALL = 260, 110
LONGEST = 16
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


def area_svg(
    one: "np.ndarray", two: "np.ndarray", ticks: Sequence[tuple[float, str]], about: str
) -> str:
    """Two histograms over the same bins: the first filled, the second as an outline.

    Args:
        one: Shares of the bins.
        two: Those of the other.
        ticks: Places between 0 and 1, and what is written there.
        about: For those who cannot see it.
    """
    top, floor = 6.0, TALL - 18.0
    highest = max(float(one.max(initial=0)), float(two.max(initial=0)), 1e-12)

    def steps(shares: "np.ndarray") -> str:
        xs = [WIDE * k / len(shares) for k in range(len(shares) + 1)]
        ys = floor - (floor - top) * shares / highest
        return " ".join(f"L{xs[k]:.1f},{y:.1f} L{xs[k + 1]:.1f},{y:.1f}" for k, y in enumerate(ys))

    body = [
        f'<path class="one" d="M0,{floor} {steps(one)} L{WIDE},{floor} Z"/>',
        f'<path class="two" d="M0,{floor} {steps(two)} L{WIDE},{floor}"/>',
        f'<line class="axis" x1="0" x2="{WIDE}" y1="{floor}" y2="{floor}"/>',
    ]
    for place, text in ticks:
        anchor = "start" if place < 0.15 else "end" if place > 0.85 else "middle"
        body.append(_text(place * WIDE, TALL - 4, text, anchor, most=60 // len(ticks)))
    return _svg(WIDE, TALL, body, about)


def bars_svg(
    names: Sequence[str], one: Sequence[float], two: Sequence[float], about: str, rest: str = ""
) -> str:
    """Shares of values, two bars each, with their names to the left, and the rest in words."""
    left, row = 104, 19
    most = max(*one, *two, 1e-12)
    room = WIDE - left - 50
    body = []
    for k, (name, a, b) in enumerate(zip(names, one, two, strict=True)):
        y = k * row + 2
        body.append(_text(left - 6, y + 11, name, "end"))
        for share, kind, down in ((a, "bar1", 0), (b, "bar2", 7.5)):
            width = room * share / most
            body.append(
                f'<rect class="{kind}" x="{left}" y="{y + down}" width="{width:.1f}" '
                'height="6.5"/>'
            )
        end = left + room * max(a, b) / most + 4
        body.append(_text(end, y + 11, f"{100 * a:.0f}, {100 * b:.0f} %", "start"))
    if rest:
        body.append(_text(left, len(names) * row + 12, rest, "start", most=40))
    return _svg(WIDE, (len(names) + bool(rest)) * row + 4, body, about)


def map_svg(
    more: "np.ndarray",  # (rows, columns), -1: the first alone, 1: the second alone; NaN: nothing
    across: tuple[str, Sequence[tuple[float, str]]],
    up: tuple[str, Sequence[tuple[float, str]]],
    about: str,
) -> str:
    """Cells of two columns, coloured by which sample has more rows there.

    Args:
        more: From the lowest row to the highest.
        across: Name and ticks of the horizontal axis.
        up: Those of the vertical axis.
        about: For those who cannot see it.
    """
    left, floor, top = 66.0, 176.0, 18.0
    rows, columns = more.shape
    wide, tall = (WIDE - left) / columns, (floor - top) / rows
    body = [_text(0, 11, f"{_short(up[0], 40)} (up)", "start", "strong")]
    for i in range(rows):
        for j in range(columns):
            if math.isnan(more[i, j]):
                continue
            colour = "var(--two)" if more[i, j] > 0 else "var(--one)"
            body.append(
                f'<rect x="{left + j * wide:.1f}" y="{floor - (i + 1) * tall:.1f}" '
                f'width="{wide + 0.3:.1f}" height="{tall + 0.3:.1f}" fill="{colour}" '
                f'fill-opacity="{min(1.0, abs(more[i, j])):.2f}"/>'
            )
    body.append(f'<rect x="{left}" y="{top}" width="{WIDE - left}" height="{floor - top}" '
                'fill="none" class="axis"/>')  # fmt: skip
    for place, text in up[1]:
        y = floor - place * (floor - top)
        body.append(_text(left - 5, min(max(y + 4, top + 9), floor), text, "end", most=10))
    for place, text in across[1]:
        anchor = "start" if place < 0.15 else "end" if place > 0.85 else "middle"
        body.append(_text(left + place * (WIDE - left), floor + 14, text, anchor, most=12))
    body.append(_text(WIDE, floor + 30, f"{_short(across[0], 40)} (across)", "end", "strong"))
    return _svg(WIDE, floor + 34, body, about)


def gauge_svg(value: float, interval: tuple[float, float], shown: str, about: str) -> str:
    """A place between "cannot be told apart" and "always", with its interval."""
    wide, y = 300, 26

    def at(share: float) -> float:
        return 10 + (wide - 20) * min(1.0, max(0.0, (share - 0.4) / 0.6))

    low, high = (at(end) for end in interval)
    body = [f'<line class="axis" x1="10" x2="{wide - 10}" y1="{y}" y2="{y}" stroke-width="2"/>']
    for share, text, anchor in ((0.5, "0.5: chance", "middle"), (0.75, "0.75", "middle"),
                                (1.0, "1: always", "end")):  # fmt: skip
        x = at(share)
        body.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{y - 6}" y2="{y + 6}"/>')
        body.append(_text(x, y + 21, text, anchor, most=40))
    body += [
        f'<rect class="bar2" x="{low:.1f}" y="{y - 5}" width="{max(2, high - low):.1f}" '
        'height="10" rx="5" fill-opacity=".45"/>',
        f'<circle class="bar2" cx="{at(value):.1f}" cy="{y}" r="7"/>',
        _text(at(value), y - 12, shown, "middle", "strong"),
    ]
    return _svg(wide, 52, body, about)


def _svg(wide: float, tall: float, body: Sequence[str], about: str) -> str:
    label = html.escape(about, quote=True)
    return (
        f'<svg viewBox="0 0 {wide:g} {tall:g}" role="img" aria-label="{label}">'
        f"{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "", most: int = LONGEST) -> str:
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>'
        f"{html.escape(_short(text, max(most, 40 if kind else 0)))}</text>"
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
