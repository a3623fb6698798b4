"""A table like one of houses sold: 2,930 rows of 74 columns, 40 of them categories."""

from typing import Any

import numpy as np

__all__ = ["houses"]

GRADES = ("Po", "Fa", "TA", "Gd", "Ex")
GRADED = ("exterior", "condition", "heating", "kitchen", "basement", "fireplace", "garage", "pool")
KINDS = {
    "zone": 5, "street": 2, "alley": 3, "shape": 4, "contour": 4, "utilities": 2, "lot": 5,
    "slope": 3, "near": 6, "nearby": 4, "building": 5, "style": 7, "roof": 5, "cover": 4,
    "siding": 12, "second_siding": 12, "veneer": 4, "foundation": 5, "exposure": 5,
    "finish": 7, "second_finish": 7, "heat": 4, "air": 2, "electrics": 4, "function": 6,
    "garage_type": 6, "garage_finish": 3, "drive": 3, "fence": 5, "feature": 3, "sale": 7,
}  # fmt: skip


def houses(rows: int = 2930, seed: int = 0) -> Any:
    """The table as a pandas frame; what houses share makes columns depend on each other.

    Args:
        rows: How many houses.
        seed: Of what is random.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    place = rng.choice(28, rows, p=np.sort(rng.dirichlet(np.full(28, 2.0)))[::-1])
    wealth = rng.normal(size=28)[place] * 0.8 + rng.normal(size=rows) * 0.6
    built = np.clip(1972 + 22 * wealth + rng.normal(0, 15, rows), 1872, 2010).astype(int)
    age = (2010 - built) / 40
    sold = rng.integers(2006, 2011, rows)
    built = np.minimum(built, sold)
    again = np.where(rng.random(rows) < 0.5, built, rng.integers(1950, 2011, rows))
    size = np.exp(7.2 + 0.25 * wealth + rng.normal(0, 0.22, rows))
    found: dict[str, Any] = {"neighborhood": np.array([f"Area{k:02d}" for k in range(28)])[place]}
    for k, (name, count) in enumerate(KINDS.items()):
        names = np.array([f"{name[:3].title()}{j}" for j in range(count)])
        lean = rng.normal(size=(3, count)) * (0.4 + 0.2 * (k % 4))
        logits = 2.0 * rng.normal(size=count) + np.stack([wealth, age, np.ones(rows)], 1) @ lean
        found[name] = names[(logits + rng.gumbel(size=(rows, count))).argmax(1)]
    found["second_siding"] = np.where(rng.random(rows) < 0.85, found["siding"],
                                      found["second_siding"])  # fmt: skip
    there = {"basement": 0.97, "fireplace": 0.52, "garage": 0.95, "pool": 0.02}
    has = {name: rng.random(rows) < there.get(name, 1.0) for name in GRADED}
    for name in GRADED:
        grade = np.clip(np.rint(2.4 + 0.8 * wealth + 0.7 * rng.normal(size=rows)), 0, 4)
        own = np.array(GRADES)[grade.astype(int)].astype(object)
        own[~has[name]] = None
        found[f"{name}_grade"] = own

    def area(mean: float, share: Any, spread: float = 0.5) -> np.ndarray:
        own = np.exp(np.log(mean) + 0.3 * wealth + spread * rng.normal(size=rows))
        return np.where(rng.random(rows) < share, np.rint(own), 0).astype(int)

    quality = np.clip(np.rint(6 + 1.2 * wealth + 0.6 * rng.normal(size=rows)), 1, 10).astype(int)
    stories = rng.random(rows) < 0.43
    first = np.rint(size * np.where(stories, 0.58, 1.0)).astype(int)
    upstairs = np.rint(size * 0.42 + rng.normal(0, 60, rows)).clip(0)
    second = np.where(stories, upstairs, 0).astype(int)
    low = area(350, 0.014)
    parts = [area(640, 0.66) * has["basement"], area(380, 0.12) * has["basement"],
             area(480, 0.91) * has["basement"]]  # fmt: skip
    cars = np.where(has["garage"], np.clip(np.rint(1.8 + 0.5 * wealth), 1, 4), 0).astype(int)
    living = first + second + low
    frontage = np.rint(np.exp(4.2 + 0.3 * rng.normal(size=rows)))
    own = {
        "frontage": np.where(rng.random(rows) < 0.17, np.nan, frontage),
        "lot_area": np.rint(np.exp(4.9 + 0.3 * rng.normal(size=rows)) * frontage).astype(int),
        "quality": quality, "state": np.clip(rng.poisson(0.6, rows) + 5, 1, 9),
        "built": built, "remodeled": np.clip(again, built, sold), "veneer_area": area(230, 0.4),
        "finished": parts[0], "second_finished": parts[1], "unfinished": parts[2],
        "basement_area": sum(parts), "first_floor": first, "second_floor": second,
        "low_quality": low, "living_area": living,
        "basement_baths": has["basement"] * rng.binomial(2, 0.22, rows),
        "basement_half_baths": rng.binomial(1, 0.06, rows),
        "baths": np.clip(np.rint(living / 950), 1, 4).astype(int),
        "half_baths": rng.binomial(1, np.where(stories, 0.7, 0.15)),
        "bedrooms": np.clip(np.rint(living / 560 + 0.5 * rng.normal(size=rows)), 0, 8).astype(int),
        "kitchens": 1 + rng.binomial(1, 0.04, rows),
        "rooms": np.clip(np.rint(living / 240 + 0.6 * rng.normal(size=rows)), 2, 15).astype(int),
        "fireplaces": has["fireplace"] * (1 + rng.binomial(1, 0.15, rows)),
        "garage_built": np.where(has["garage"], np.where(rng.random(rows) < 0.78, built,
                                 np.clip(built + rng.poisson(8, rows), 1872, 2010)), np.nan),
        "cars": cars,
        "garage_area": np.rint(cars * (260 + 35 * rng.normal(size=rows))).clip(0).astype(int),
        "deck": area(150, 0.48), "porch": area(60, 0.55), "closed_porch": area(110, 0.16),
        "season_porch": area(180, 0.013), "pool_area": area(450, 0.9) * has["pool"],
        "month": np.clip(np.rint(rng.normal(6.2, 2.7, rows)), 1, 12).astype(int), "year": sold,
        "price": (np.rint(np.exp(7.2 + 0.6 * np.log(living) + 0.11 * quality - 0.08 * age
                         + 0.1 * rng.normal(size=rows)) / 100) * 100).astype(int),
    }  # fmt: skip
    return pd.DataFrame({**found, **own})
