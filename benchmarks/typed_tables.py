"""Real tables with categories, gaps, times and keys: valid samples, months, drifts and level.

`python -m benchmarks.typed_tables --data FOLDER`, or `python -m benchmarks typed-tables` with the
environment variable KERMIX_TABLES; the folder holds diamonds.csv.gz, adult-train.csv.gz,
shoppers.csv.gz and flights.parquet.

samples: a small table model of at most 20,000 rows draws as many; shares of their cells.
months: flights, read whole, sketched and compared by month, in a process of its own; the columns
that tell the month (rownames, month, time_hour) are read and then left aside.
drifts: halves of diamonds, of which one has its `cut` set to one value and 60 % of its `color`
emptied; flights of January and July. level: random halves of some flights of January.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kermix as km
from benchmarks.quality import default_path, write_record
from benchmarks.timing import peak_memory_of
from kermix.errors import OptionError

__all__ = ["PARTS", "main", "measured", "run", "validity"]

TABLES = ("diamonds", "adult", "shoppers", "flights")
ROWS = 20_000
MODEL: dict[str, Any] = {"width": 96, "blocks": 2, "steps": 400}
TELL_THE_MONTH = ["rownames", "month", "time_hour"]
EMPTIED = 0.6
HALVES = (250, 1200)  # of all pairs of rows, and of blocks of them
REPETITIONS = 200
QUICK = {"width": 16, "blocks": 1, "steps": 4}
PERMUTATIONS = 99
LEVEL = 0.05
Row = dict[str, Any]


def read(name: str, folder: Path) -> Any:
    """One of the tables as pandas has it."""
    import pandas as pd

    if name == "flights":
        return pd.read_parquet(folder / "flights.parquet")
    if name == "adult":
        path = folder / "adult-train.csv.gz"
        return pd.read_csv(path, na_values="?", skipinitialspace=True)
    return pd.read_csv(folder / f"{name}.csv.gz")


def validity(table: Any, drawn: Any, schema: km.Schema) -> Row:
    """What can be said of each cell of drawn rows without a model: shares, in per cent."""
    cells = dict.fromkeys(("categories", "whole", "inside"), 0)
    valid = dict(cells)
    gaps: dict[str, float] = {}

    def count(what: str, good: Any) -> None:
        cells[what] += len(good)
        valid[what] += int(good.sum())

    for column in schema.modelled:
        given, found = table[column.name].dropna(), drawn[column.name].dropna()
        empty = drawn[column.name].isna().mean() - table[column.name].isna().mean()
        gaps[column.name] = 100 * abs(float(empty))
        if column.kind == "category":
            count("categories", found.isin(given.unique()))
        else:
            count("inside", found.between(given.min(), given.max()))
        if given.dtype.kind in "if" and (given % 1 == 0).all():
            count("whole", found % 1 == 0)
    names = [name for name in table if name in drawn]
    worst = max(gaps, key=gaps.__getitem__)
    return {
        **{f"{what} valid %" if what == "categories" else f"{what} %":
           100 * valid[what] / cells[what] if cells[what] else None for what in cells},
        "largest difference of gaps, points": gaps[worst],
        "in column": worst,
        "dtypes equal": bool((table[names].dtypes == drawn[names].dtypes).all()),
        "not drawn": ", ".join(name for name in table if name not in drawn) or "none",
        "raw_gaps": gaps,
    }  # fmt: skip


def samples(folder: Path, quick: bool, seed: int) -> Iterator[Row]:
    """A row for each table."""
    settings = QUICK if quick else MODEL
    for name in TABLES:
        table = read(name, folder)
        if len(table) > ROWS:
            table = table.sample(ROWS, random_state=seed).reset_index(drop=True)
        start = time.perf_counter()
        model = km.TableModel(random_state=seed, device="cpu", **settings).fit(table)
        fitted = time.perf_counter()
        drawn = model.sample(len(table), random_state=seed + 1)
        yield {
            "table": name, "rows": len(table), "columns": table.shape[1],
            **validity(table, drawn, model.schema_),
            "fit s": fitted - start, "sample s": time.perf_counter() - fitted,
        }  # fmt: skip


MONTHS = """
import json, time
start, cpu, steps = time.perf_counter(), time.process_time(), {{}}
def done(step):
    steps[step] = time.perf_counter() - start - sum(steps.values())
import kermix as km
from kermix.tables.compare.sketch_comparison import drift
done("import")
schema = km.Schema.infer({whole!r}, exclude=["rownames"])
done("read and schema of all rows")
names = {names!r}
first = km.sketch_files(names[0], exclude={left!r}, seed={seed})
found = [first, *(km.sketch_files(n, landmarks_from=first) for n in names[1:])]
done("sketches of all months")
series = drift(found, [n[-10:-8] for n in names])
done("drift of all months")
result = km.compare(names[0], names[-1], exclude={left!r}, permutations={permutations})
done("first and last, all rows")
open({said!r}, "w").write(json.dumps({{"rows": sum(s.count for s in found), "columns": len(schema),
    "seconds": time.perf_counter() - start, "cpu seconds": time.process_time() - cpu,
    "months that differ from the first": sum(step.pvalue < {level} for step in series.to_first),
    **{{k + " s": v for k, v in steps.items()}}}}))
print(peak())
"""


def months(folder: Path, quick: bool, seed: int) -> Iterator[Row]:
    """One row: seconds and memory."""
    flights = read("flights", folder)
    with tempfile.TemporaryDirectory(prefix="kermix-bench-") as place:
        names = []
        for month, rows in flights.groupby("month"):
            names.append(f"{place}/{month:02d}.parquet")
            rows.to_parquet(names[-1], index=False)
        del flights
        said = Path(place) / "said.json"
        code = MONTHS.format(
            said=str(said), whole=str(folder / "flights.parquet"), names=names,
            left=TELL_THE_MONTH, seed=seed, permutations=PERMUTATIONS, level=LEVEL,
        )  # fmt: skip
        load = os.getloadavg()[0]
        peak = peak_memory_of(code)
        row = json.loads(said.read_text())
    yield {**row, "peak MB": peak, "threads": torch.get_num_threads(), "load before": load}


def drifts(folder: Path, quick: bool, seed: int) -> Iterator[Row]:
    """Which columns are named, in order."""
    rng = np.random.default_rng(seed)
    diamonds = read("diamonds", folder).drop(columns="rownames")
    order = rng.permutation(len(diamonds))
    first, second = (diamonds.iloc[part] for part in np.array_split(order, 2))
    one = second.assign(cut="Ideal")
    empty = second["color"].mask(rng.random(len(second)) < EMPTIED)
    cases = {
        "diamonds, halves": (first, second),
        "diamonds, cut of one value": (first, one),
        "diamonds, 60 % of color emptied": (first, second.assign(color=empty)),
        "diamonds, both": (first, one.assign(color=empty)),
    }
    flights = read("flights", folder)
    month, left = flights["month"], flights.drop(columns=TELL_THE_MONTH)
    cases["flights, January and July"] = left[month == 1], left[month == 7]
    for name, (x, y) in cases.items():
        found = km.compare(x, y, permutations=PERMUTATIONS, jackknife_groups=0, seed=seed)
        differ = found.verdict.columns
        yield {
            "case": name, "rows": f"{len(x):,} and {len(y):,}",
            "p of MMD": found.tests["mmd"].pvalue, "p of the SVD cost": found.tests["svd"].pvalue,
            "columns with p below 0.05, in order": ", ".join(
                c.column for c in differ if c.pvalue is not None and c.pvalue <= LEVEL) or "none",
            "raw_columns": [[c.column, c.difference, c.pvalue] for c in differ],
        }  # fmt: skip


def level(folder: Path, quick: bool, seed: int) -> Iterator[Row]:
    """Shares of rejections among random halves of flights of January, for each test."""
    flights = read("flights", folder)
    january = flights[flights["month"] == 1].drop(columns=TELL_THE_MONTH)
    repetitions = 2 if quick else REPETITIONS
    for rows in (30,) if quick else HALVES:
        hits: dict[str, list[bool]] = {}
        for k in range(repetitions):
            some = january.sample(2 * rows, random_state=seed + k)
            found = km.compare(
                some[:rows],
                some[rows:],
                permutations=PERMUTATIONS,
                jackknife_groups=0,
                seed=seed + k,
            )
            for name, test in found.tests.items():
                hits.setdefault(name, []).append(test.pvalue <= LEVEL)
            hits.setdefault("any column", []).append(
                any(c.pvalue <= LEVEL for c in found.verdict.columns)
            )
        for name, found_hits in hits.items():
            share = float(np.mean(found_hits))
            yield {
                "rows of a half": rows, "test": name, "repetitions": repetitions,
                "share with p of at most 0.05": share,
                "standard error": (share * (1 - share) / repetitions) ** 0.5,
            }  # fmt: skip


PARTS: dict[str, Callable[[Path, bool, int], Iterator[Row]]] = {
    "months": months,
    "drifts": drifts,
    "samples": samples,
    "level": level,
}


def measured(
    folder: Path, parts: Sequence[str], quick: bool = False, seed: int = 0
) -> Iterator[dict[str, list[Row]]]:
    """The tables, again after each row."""
    missing = [n for n in parts if n not in PARTS]
    if missing:
        raise OptionError(f"There is no part {missing[0]}; there are {', '.join(PARTS)}.")
    if not (folder / "flights.parquet").is_file():
        raise OptionError(f"{folder} holds no flights.parquet; name the folder of the tables.")
    tables: dict[str, list[Row]] = {}
    for part in parts:
        for row in PARTS[part](folder, quick, seed):
            tables.setdefault(part, []).append(row)
            yield tables


def run(quick: bool = False) -> Iterator[dict[str, list[Row]]]:
    """All parts; the environment variable KERMIX_TABLES says where the tables are."""
    return measured(Path(os.environ.get("KERMIX_TABLES", "tables")), tuple(PARTS), quick)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, row by row."""
    parser = argparse.ArgumentParser("benchmarks.typed_tables", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=default_path("typed-tables"))
    given = parser.parse_args(arguments)
    protocol = {"what": __doc__, "seed": given.seed, "model": MODEL,
                "load before": os.getloadavg(), "threads": torch.get_num_threads()}  # fmt: skip
    path: Path = given.out
    for tables in measured(given.data, given.parts.split(","), given.quick, given.seed):
        path = write_record("typed-tables", given.out, tables, protocol, shown=list(tables)[-1],
                            quick=given.quick)  # fmt: skip
    return path


if __name__ == "__main__":
    main()
