"""Made tables with one exact relation between columns, and tables without any.

A planted relation stands among other columns that go together with it and with each other; a share
of its rows breaks it, by a value from another row, and cells are empty at random. Tables without
are as hard as may be: columns that nearly follow from others, whole numbers of few values, heavy
categories, constants, numbers that rise together, times that follow others at some distance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NULLS", "PLANTED", "Planted", "null_table", "planted_table"]

Columns = dict[str, np.ndarray]
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True)
class Planted:
    """A table and what was planted.

    Attributes:
        columns: The table.
        about: The columns of the relation, of which any may be said to follow from the others.
        holds: Says of such columns, without gaps, in which rows the relation holds.
    """

    columns: Columns
    about: frozenset[str]
    holds: Callable[[Any], np.ndarray]


def _amounts(random: np.random.Generator, rows: int) -> np.ndarray:
    scale = random.uniform(0.5, 1.3)
    return random.lognormal(random.uniform(2, 6), scale, rows).round(2) + 0.01


def _counts(random: np.random.Generator, rows: int) -> np.ndarray:
    return random.poisson(random.lognormal(random.uniform(1.5, 4), 0.7, rows)) + 1.0


def _of(target: str, formula: Callable[[Any], np.ndarray], decimals: int) -> Any:
    half = 0.5 * 10.0**-decimals

    def holds(table: Any) -> np.ndarray:
        wanted = np.asarray(formula(table), float)
        return np.asarray(np.abs(np.asarray(table[target], float) - wanted)
                          <= half * 1.0001 + 1e-9 * np.abs(wanted))  # fmt: skip

    return holds


def _sum(random: np.random.Generator, rows: int) -> Planted:
    count = int(random.integers(2, 5))
    maker = _counts if random.random() < 0.5 else _amounts
    columns = {f"part{k}": maker(random, rows) for k in range(count)}
    signs = np.ones(count)
    if random.random() < 0.3:
        signs[-1] = -1

    def formula(table: Any) -> np.ndarray:
        return np.asarray(sum(s * np.asarray(table[f"part{k}"]) for k, s in enumerate(signs)))

    columns["total"] = formula(columns).round(2)
    return Planted(columns, frozenset(columns), _of("total", formula, 2))


def _product(random: np.random.Generator, rows: int) -> Planted:
    columns = {"price": _amounts(random, rows), "count": _counts(random, rows)}
    if random.random() < 0.3:
        columns["count"] = columns["count"] % 7  # zeros among them

    def formula(table: Any) -> np.ndarray:
        return np.asarray(table["price"]) * np.asarray(table["count"])

    columns["amount"] = formula(columns).round(2)
    return Planted(columns, frozenset(columns), _of("amount", formula, 2))


def _ratio(random: np.random.Generator, rows: int) -> Planted:
    decimals = int(random.integers(1, 4))
    if random.random() < 0.5:
        by = float(random.choice([3000, 18, 12, 1.2, 0.45359237, 60]))
        columns = {"v": _amounts(random, rows) * by * 10}
        columns["v"] = columns["v"].round(2)

        def formula(table: Any) -> np.ndarray:
            return np.asarray(table["v"]) / by
    else:
        columns = {"v": _amounts(random, rows) * 30, "n": _counts(random, rows)}
        columns["v"] = columns["v"].round(2)

        def formula(table: Any) -> np.ndarray:
            return np.asarray(table["v"]) / np.asarray(table["n"])

    columns["b"] = formula(columns).round(decimals)
    return Planted(columns, frozenset(columns), _of("b", formula, decimals))


def _power(random: np.random.Generator, rows: int) -> Planted:
    if random.random() < 0.5:
        power = float(random.choice([2, 0.5, -1, 3]))
        columns = {"side": random.lognormal(2, 0.6, rows).round(2) + 0.1}

        def formula(table: Any) -> np.ndarray:
            return np.asarray(table["side"], float) ** power
    else:
        columns = {"weight": random.normal(75, 14, rows).clip(30).round(1),
                   "height": random.normal(1.72, 0.1, rows).round(2)}  # fmt: skip

        def formula(table: Any) -> np.ndarray:
            return np.asarray(table["weight"]) / np.asarray(table["height"]) ** 2

    columns["index"] = formula(columns).round(3)
    return Planted(columns, frozenset(columns), _of("index", formula, 3))


def _lookup(random: np.random.Generator, rows: int) -> Planted:
    keys = int(random.integers(6, 1 + min(60, rows // 12)))
    values = int(random.integers(3, 1 + min(8, keys // 2 + 1)))
    names = np.array([f"{LETTERS[k % 26]}{k}" for k in range(keys)])
    at = random.choice(keys, rows, p=random.dirichlet(np.full(keys, 2.0)))
    table_of = random.permutation(np.arange(keys) % values)
    if random.random() < 0.3 and keys <= 20:  # of two columns
        other = random.integers(0, 3, rows)
        both = random.permutation(np.arange(3 * keys) % values)
        columns = {"city": names[at], "kind": np.array(["x", "y", "z"])[other],
                   "country": LETTERS[both[at * 3 + other]]}  # fmt: skip
        known = {(n, k): LETTERS[both[i * 3 + j]] for i, n in enumerate(names)
                 for j, k in enumerate("xyz")}  # fmt: skip

        def holds(table: Any) -> np.ndarray:
            pairs = zip(table["city"], table["kind"], table["country"], strict=True)
            return np.array([known.get((c, k)) == v for c, k, v in pairs])
    else:
        columns = {"city": names[at], "country": LETTERS[table_of[at]]}
        single = dict(zip(names, LETTERS[table_of], strict=True))

        def holds(table: Any) -> np.ndarray:
            pairs = zip(table["city"], table["country"], strict=True)
            return np.array([single.get(c) == v for c, v in pairs])

    return Planted(columns, frozenset(columns), holds)


def _order(random: np.random.Generator, rows: int) -> Planted:
    gap = random.exponential(random.uniform(5, 40), rows).round()
    if random.random() < 0.5:
        gap[random.random(rows) < random.uniform(0.1, 0.5)] = 0
    if random.random() < 0.5:
        begin = random.integers(1900, 2010, rows).astype(float)
        columns = {"built": begin, "remodelled": begin + gap}
    else:
        begin = np.datetime64("2021-01-01") + random.integers(0, 500, rows)
        columns = {"built": begin, "remodelled": begin + gap.astype(int)}

    def holds(table: Any) -> np.ndarray:
        return np.asarray(table["remodelled"] >= table["built"])

    return Planted(columns, frozenset(columns), holds)


def _lattice(random: np.random.Generator, rows: int) -> Planted:
    step = int(random.choice([5, 25, 10, 50]))
    own = step * random.poisson(random.lognormal(3, 0.4, rows)).astype(float)

    def holds(table: Any) -> np.ndarray:
        return np.asarray(np.asarray(table["wind"], float) % step == 0)

    return Planted({"wind": own}, frozenset(["wind"]), holds)


PLANTED = {"sum": _sum, "product": _product, "ratio": _ratio, "power": _power,
           "lookup": _lookup, "order": _order, "lattice": _lattice}  # fmt: skip


def _others(random: np.random.Generator, rows: int, near: np.ndarray | None) -> Columns:
    """Columns that go together, and with the relation's, but follow from none."""
    common = random.normal(size=rows) if near is None else near
    return {
        "size": (50 + 10 * (common + random.normal(size=rows))).round(1),
        "age": random.integers(18, 90, rows).astype(float),
        "grade": np.clip(np.round(3 + common + 0.7 * random.normal(size=rows)), 1, 5),
        "region": LETTERS[random.integers(0, 5, rows)],
        "heavy": np.where(random.random(rows) < 0.95, "no", "yes"),
    }


def _emptied(random: np.random.Generator, columns: Columns, share: float) -> Columns:
    found = {}
    for name, cells in columns.items():
        if share and cells.dtype.kind == "f":
            cells = np.where(random.random(len(cells)) < share, np.nan, cells)
        elif share and cells.dtype.kind == "M":
            cells = cells.copy()
            cells[random.random(len(cells)) < share] = np.datetime64("NaT")
        elif share:
            cells = np.where(random.random(len(cells)) < share, None, cells.astype(object))
        found[name] = cells
    return found


def planted_table(kind: str, rows: int, exceptions: float, gaps: float, seed: int) -> Planted:
    """A table with one relation of a kind.

    Args:
        kind: One of `PLANTED`.
        rows: How many.
        exceptions: Share of rows that break it, but for those that keep it by chance.
        gaps: Share of empty cells.
        seed: Of all randomness.
    """
    random = np.random.default_rng([seed, rows, list(PLANTED).index(kind)])
    made = PLANTED[kind](random, rows)
    last = next(reversed(made.columns))
    cells, broken = made.columns[last].copy(), random.random(rows) < exceptions
    if kind == "lattice":
        cells[broken] = (cells + random.integers(-20, 20, rows)).clip(0)[broken]
    else:
        cells[broken] = random.permutation(cells)[broken]
    columns = {**made.columns, last: cells}
    first = columns[next(iter(columns))]
    near = None
    if first.dtype.kind == "f":
        near = (first - first.mean()) / max(1e-9, first.std())
    columns |= _others(random, rows, near)
    names = random.permutation(list(columns))
    return Planted(_emptied(random, {n: columns[n] for n in names}, gaps), made.about, made.holds)


def _independent(random: np.random.Generator, rows: int) -> Columns:
    return {"a": random.normal(size=rows), "b": _amounts(random, rows),
            "c": random.integers(0, 1000, rows).astype(float),
            "d": LETTERS[random.integers(0, 20, rows)],
            "e": random.uniform(0, 1, rows).round(3), "f": _counts(random, rows)}  # fmt: skip


def _correlated(random: np.random.Generator, rows: int) -> Columns:
    """Numbers that are nearly linear in others: a thousandth to one half is their own."""
    common = random.normal(size=rows)
    decimals = int(random.integers(0, 4))
    found = {}
    for k in range(6):
        size = random.uniform(1, 100)
        noise = max(
            size * 10.0 ** random.uniform(-2.5, 0), 10.0**-decimals
        )  # or rounding hides it
        own = size * common * random.uniform(0.5, 2) + noise * random.normal(size=rows)
        found[f"c{k}"] = (own + random.uniform(-50, 50)).round(decimals)
    return found


def _small_integers(random: np.random.Generator, rows: int) -> Columns:
    common = random.normal(size=rows)
    found = {}
    for k in range(7):
        own = common * random.uniform(0, 1.5) + random.normal(size=rows) * random.uniform(0.4, 1)
        found[f"i{k}"] = np.clip(np.round(own * random.uniform(0.7, 3) + 3), 0,
                                 int(random.integers(2, 12))).astype(float)  # fmt: skip
    return found


def _heavy(random: np.random.Generator, rows: int) -> Columns:
    """Heavy categories that are rare together, zeros in most rows, a constant."""
    share = random.uniform(0.8, 0.98, 4)
    rare = random.random(rows)
    found: Columns = {f"h{k}": np.where(random.random(rows) < s, "usual", LETTERS[
        random.integers(0, 6, rows)]) for k, s in enumerate(share)}  # fmt: skip
    found["fee"] = np.where(rare < 0.9, 0.0, _amounts(random, rows))
    found["fine"] = np.where(rare + 0.03 * random.normal(size=rows) < 0.9, 0.0,
                             _amounts(random, rows))  # fmt: skip
    found["always"] = np.full(rows, 7.0)
    found["nearly"] = np.where(random.random(rows) < 0.995, 1.0, 2.0)
    return found


def _associated(random: np.random.Generator, rows: int) -> Columns:
    """Categories of which one tells another in up to three of four rows."""
    base = random.integers(0, 8, rows)
    found = {"base": LETTERS[base]}
    for k in range(4):
        values = int(random.integers(2, 6))
        own = random.permutation(np.arange(8) % values)[base]
        keep = random.random(rows) < random.uniform(0.2, 0.7)
        found[f"t{k}"] = LETTERS[np.where(keep, own, random.integers(0, values, rows))]
    return found


def _factors(random: np.random.Generator, rows: int) -> Columns:
    """Amounts of people who are rich or poor, one of which is nearly always above another."""
    rich = random.lognormal(3, 1, rows)
    return {f"m{k}": (rich * random.uniform(0.5, 20) * random.lognormal(
        0, random.uniform(0.05, 0.6), rows)).round(2) for k in range(5)}  # fmt: skip


def _shifted(random: np.random.Generator, rows: int) -> Columns:
    """One is above another in nearly all rows, without an edge."""
    common = random.normal(size=rows)
    return {f"s{k}": (100 + 10 * (common + random.uniform(0, 5)
                      + random.uniform(0.2, 1) * random.normal(size=rows))).round(
                          int(random.integers(0, 3))) for k in range(5)}  # fmt: skip


def _times(random: np.random.Generator, rows: int) -> Columns:
    first = random.integers(0, 900, rows)
    day = np.datetime64("2020-01-01")
    lag = random.normal(random.uniform(0, 60), random.uniform(5, 20), rows).round().astype(int)
    return {"first": day + first, "second": day + first + lag,
            "third": day + random.integers(0, 900, rows),
            "hours": random.integers(0, 24, rows).astype(float)}  # fmt: skip


def _walks(random: np.random.Generator, rows: int) -> Columns:
    """Rows in the order of time, in which each number is near the one before."""
    steps = random.normal(size=(rows, 4)) @ random.normal(size=(4, 4))
    found = steps.cumsum(0).round(2)
    return {**{f"w{k}": found[:, k] for k in range(4)}, "row": np.arange(rows) // 7 * 1.0}


NULLS = {"independent": _independent, "correlated": _correlated, "integers": _small_integers,
         "heavy": _heavy, "associated": _associated, "factors": _factors, "shifted": _shifted,
         "times": _times, "walks": _walks}  # fmt: skip


def null_table(kind: str, rows: int, gaps: float, seed: int) -> Columns:
    """A table in which no column follows from others."""
    random = np.random.default_rng([seed, rows, 100 + list(NULLS).index(kind)])
    columns = NULLS[kind](random, rows)
    return _emptied(random, columns, gaps)
