"""Samples of made tables with hard columns, told from their rows by boosted trees.

`python -m benchmarks made-tables [--quick]`. A model with the settings that a user gets on a
processor is fitted to each table, and draws as many rows. Trees (five folds) then try to tell both
apart, by all columns and by those that belong together: an AUC of one half says that they cannot.

- places: clustered coordinates of two decimals, dates with few weekends, prices in 9;
- halves: half hours of some months, whose prices and loads are rounded, so that each value
  comes back dozens of times, and columns that are constant until a day;
- chains: numbers that are computed from each other (sums, products, ratios, a logarithm of a sum,
  rounded in between), in which some rows have the values of others.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kermix as km
from benchmarks.relations_ablation import detection

__all__ = ["TABLES", "run"]

Table = Any


def places(rows: int, seed: int = 0) -> Table:
    """Where and when houses were sold, and for how much."""
    import pandas as pd

    random = np.random.default_rng(seed)
    centres = random.normal(size=(40, 2)) * [1.5, 2.5] + [47, 9]
    town = random.choice(40, rows, p=random.dirichlet(np.full(40, 0.7)))
    wide = random.uniform(0.02, 0.15, 40)
    where = (centres[town] + random.normal(size=(rows, 2)) * wide[town, None]).round(2)
    day = np.floor(900 * random.beta(1.6, 1.2, rows)).astype(int)
    day -= ((day % 7) >= 5) & (random.random(rows) < 0.85)
    size = np.exp(random.normal(4.4 + 0.2 * (town % 4), 0.35, rows)).round()
    price = size * np.exp(random.normal(1 + 0.3 * (town % 5) + day / 2500, 0.25, rows))
    return pd.DataFrame({
        "north": where[:, 0], "east": where[:, 1],
        "sold": pd.Timestamp("2019-01-07") + pd.to_timedelta(day, "D"),
        "size": size, "price": 10 * price.round() - (random.random(rows) < 0.7),
        "garden": np.where(random.random(rows) < 0.1 + 0.15 * (town % 5), "yes", "no"),
    })  # fmt: skip


def halves(rows: int, seed: int = 0) -> Table:
    """A market by half hours: most half hours of 150 days."""
    import pandas as pd

    random = np.random.default_rng(seed)
    days, slots = 150, 48
    season = np.sin(2 * np.pi * np.arange(days) / 365)
    drift = np.cumsum(random.normal(0, 0.08, days))
    at = np.sort(random.choice(days * slots, rows, replace=False))
    day, slot = at // slots, at % slots
    daily = -np.cos(2 * np.pi * (slot - 8) / 48) - 0.4 * np.cos(4 * np.pi * (slot - 4) / 48)
    weekend = (day % 7) >= 5
    load = 0.45 + 0.1 * season[day] + 0.14 * daily - 0.06 * weekend
    load = load + 0.025 * random.normal(size=rows)
    price = np.exp(-3 + 2.2 * load + 0.5 * drift[day] / 2 + 0.25 * random.normal(size=rows))
    late = day >= 58
    other = np.exp(-5.5 + 1.5 * load + 0.3 * random.normal(size=rows))
    flow = 0.5 + 0.3 * (price - price.mean()) / price.std() * 0.3 + 0.1 * random.normal(size=rows)
    return pd.DataFrame({
        "date": (day / (days - 1)).round(6), "weekday": (day % 7 + 1).astype(str),
        "slot": (slot / 47).round(6), "price": ((price / 0.0007).round() * 0.0007).round(6),
        "load": ((load / 0.0011).round() * 0.0011).clip(0).round(6),
        "price2": np.where(late, ((other / 0.00012).round() * 0.00012), 0.003467).round(6),
        "load2": np.where(late, ((0.9 * load + 0.03 * random.normal(size=rows)) / 0.0026).round()
                          * 0.0026, 0.422915).round(6),
        "flow": np.where(late, ((flow / 0.0026).round() * 0.0026).clip(0), 0.414912).round(6),
        "way": np.where(price > np.median(price) * (1 + 0.1 * drift[day]), "up", "down"),
    })  # fmt: skip


def chains(rows: int, seed: int = 0, broken: float = 0.03) -> Table:
    """Counts of parts of programs, and what is computed from them."""
    import pandas as pd

    random = np.random.default_rng(seed)
    size = np.where(random.random(rows) < 0.25, random.uniform(0.3, 1.5, rows),
                    random.lognormal(2.2, 1.3, rows))  # fmt: skip
    a = np.maximum(random.poisson(3 * size), 1).astype(float)
    b = random.poisson(2 * size * random.lognormal(0, 0.25, rows)).astype(float)
    a_kinds = np.round(3.2 * a**0.36 * random.lognormal(0, 0.15, rows)).clip(1, a)
    b_kinds = np.minimum(b, np.round(1.6 * b**0.62 * random.lognormal(0, 0.18, rows)).clip(1))
    with np.errstate(all="ignore"):
        volume = np.where(b > 0, (a + b) * np.log2(a_kinds + b_kinds), 0.0).round(2)
        hard = np.where(b > 0, a_kinds / 2 * b / b_kinds, 0.0).round(2)
        easy = np.where(hard > 0, 1 / hard, 0.0).round(2)
        content = np.where(hard > 0, volume / hard, 0.0).round(2)
    effort = (volume * hard).round(2)
    lines = 1 + np.round(a * random.lognormal(-0.6, 0.3, rows))
    table = pd.DataFrame({
        "lines": lines, "branches": 1.0 + random.poisson(0.12 * lines), "length": a + b,
        "volume": volume, "easy": easy, "hard": hard, "content": content, "effort": effort,
        "faults": (volume / 3000).round(2), "hours": (effort / 18).round(2),
        "remarks": 1.0 * random.poisson(0.1 * lines), "a_kinds": a_kinds, "b_kinds": b_kinds,
        "a": a, "b": b,
        "faulty": np.where(random.random(rows) < 0.02 + 0.4 * np.tanh(lines / 80), "yes", "no"),
    })  # fmt: skip
    other, out = random.permutation(rows), random.random(rows) < broken
    for name in ("length", "volume", "easy", "hard", "effort", "faults", "hours"):
        gone = out & (random.random(rows) < 0.35)
        table.loc[gone, name] = table[name].to_numpy()[other][gone]
    return table


TABLES: dict[str, tuple[Callable[[int], Table], int, tuple[tuple[str, ...], ...]]] = {
    "places": (places, 5000, (("north", "east"), ("sold",), ("north", "east", "sold"),
                              ("size", "price"))),
    "halves": (halves, 6000, (("date",), ("date", "slot"), ("price", "load"),
                                ("price2", "load2", "flow"), ("date", "weekday"))),
    "chains": (chains, 1700, (("length", "volume", "a_kinds", "b_kinds"), ("hard", "easy"),
                              ("volume", "hard", "effort", "hours", "content"),
                              ("length", "a", "b"))),
}  # fmt: skip


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A line for each table and for each group of columns."""
    rows: list[dict[str, Any]] = []
    for name, (maker, count, groups) in TABLES.items():
        table = maker(600 if quick else count)
        few = {"steps": 60, "width": 32, "blocks": 1} if quick else {}
        model = km.TableModel(device="cpu", random_state=0, **few)
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(table)
        seconds = time.perf_counter() - begun
        drawn = model.sample(len(table), random_state=1)
        for group in (tuple(table), *groups):
            area = detection(table[list(group)], drawn[list(group)])
            told = "all" if len(group) == len(table.columns) else ", ".join(group)
            rows.append({"table": name, "rows": len(table), "columns": told, "AUC": area,
                         "seconds": seconds, "said": "; ".join(model.relations)})  # fmt: skip
        yield {"tables": rows}
