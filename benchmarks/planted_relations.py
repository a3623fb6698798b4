"""Exact relations between columns: found, not invented, and kept in samples.

`python -m benchmarks planted-relations`. Made tables (`benchmarks.planted_tables`) with one
relation each, 0 to 5 % of whose rows break it, with and without gaps, and as hard tables without
any. `found` and `invented` need no training; `kept` fits small models, and compares how often the
relation holds in rows without gaps of the table and of as many samples.
"""

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

import kermix as km
from benchmarks.planted_tables import NULLS, PLANTED, null_table, planted_table
from kermix.tables.model.relation_search import find_relations

__all__ = ["run"]

EXCEPTIONS, GAPS = (0.0, 0.02, 0.05), (0.0, 0.1)
TABLES = {500: 100, 5000: 24, 50_000: 6}  # of each kind
MODEL = {"width": 64, "blocks": 2, "steps": 300, "device": "cpu"}

Row = dict[str, Any]


def run(quick: bool = False) -> Iterator[dict[str, list[Row]]]:
    """Tables of what was found, invented and kept, and of the time for many columns.

    Each line is a job of one thread; as many at once as there are cores.
    """
    jobs: list[tuple[str, Callable[..., Row], tuple[Any, ...]]] = []
    jobs += [("seconds", _seconds, (columns,)) for columns in ((25,) if quick else (25, 75))]
    for rows, count in ({500: 3} if quick else TABLES).items():
        jobs += [("found", _found, (kind, rows, count)) for kind in PLANTED]
        jobs += [("invented", _invented, (kind, rows, count)) for kind in NULLS]
    for kind in list(PLANTED)[:1] if quick else PLANTED:
        jobs += [("kept", _kept, (kind, share)) for share in ((0.0,) if quick else (0.0, 0.05))]
    tables: dict[str, list[Row]] = {}
    cores = len(os.sched_getaffinity(0))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, spawn, _one_thread) as pool:
        started = [(name, pool.submit(job, *given)) for name, job, given in jobs]
        for name, future in started:
            tables.setdefault(name, []).append(future.result())
            yield tables


def _one_thread() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _relations(columns: Any) -> list[frozenset[str]]:
    """The columns of each relation that is found in a table."""
    schema = km.Schema.infer(columns)
    names = [column.name for column in schema.modelled]
    found = find_relations(schema, schema.encode(columns))
    return [frozenset(names[k] for k in relation.places) for relation in found]


def _found(kind: str, rows: int, count: int) -> Row:
    hits, more = 0, 0
    for seed in range(count):
        planted = planted_table(kind, rows, EXCEPTIONS[seed % 3], GAPS[seed % 2], seed)
        found = _relations(planted.columns)
        hits += planted.about in found
        more += any(not one <= planted.about for one in found)
    return {"relation": kind, "rows": rows, "tables": count, "share found": hits / count,
            "share with another one": more / count}  # fmt: skip


def _invented(kind: str, rows: int, count: int) -> Row:
    hits = sum(bool(_relations(null_table(kind, rows, GAPS[k % 2], k))) for k in range(count))
    return {"columns": kind, "rows": rows, "tables": count, "share invented": hits / count}


def _seconds(columns: int, rows: int = 20_000) -> Row:
    """Numbers that go together, whole numbers of few values and categories, and one sum."""
    random = np.random.default_rng(columns)
    common = random.normal(size=(rows, 5))
    table: dict[str, Any] = {}
    for k in range(columns - 1):
        own = common @ random.normal(size=5) + random.normal(size=rows)
        kinds = (100 * own).round(1), 10 * own, np.clip(np.round(own), -4, 5)
        table[f"c{k}"] = kinds[k % 3] if k % 4 else np.array(list("abcdef"))[
            random.integers(0, 6, rows)]  # fmt: skip
    table["sum"] = table["c3"] + table["c9"] + table["c15"]
    schema = km.Schema.infer(table)
    encoded = schema.encode(table)
    begun = time.perf_counter()
    found = find_relations(schema, encoded)
    return {"columns": columns, "rows": rows, "relations": len(found),
            "seconds": time.perf_counter() - begun}  # fmt: skip


def _kept(kind: str, exceptions: float, rows: int = 2000) -> Row:
    import pandas as pd

    planted = planted_table(kind, rows, exceptions, 0.0, seed=7)
    model = km.TableModel(random_state=0, **MODEL).fit(pd.DataFrame(planted.columns))
    drawn = model.sample(10 * rows, random_state=1)
    shares = [float(planted.holds(table.dropna(subset=list(planted.about))).mean())
              for table in (pd.DataFrame(planted.columns), drawn)]  # fmt: skip
    return {"relation": kind, "exceptions": exceptions, "share in the table": shares[0],
            "share in samples": shares[1], "difference": shares[1] - shares[0],
            "said": "; ".join(model.relations)}  # fmt: skip
