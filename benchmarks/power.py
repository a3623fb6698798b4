"""Power of two-sample tests, ours beside others on the same samples.

`python -m benchmarks.power` writes `results/bench/power-<machine>.json`, again whenever a part
ends, so that a run that is cut keeps what it has; `--resume` measures what is missing of what the
same commit began, in as many calls as it takes; `--processes` for several of one thread each.
Peers that are not installed are left out.
"""

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.power_development import development_problems
from benchmarks.power_problems import PUBLISHED, Problem, problems
from kermix.environment import environment, machine_name
from kermix.files import write_json
from kermix.kernels.distances import Layout, numbers_of
from kermix.kernels.gaussian import choose_variance, variance_grid
from kermix.kernels.others import LaplaceKernel
from kermix.two_sample.aggregate import KERNELS, TOGETHER, AggregateTest, aggregate_rows
from kermix.two_sample.cost_test import two_sample_test

__all__ = ["CASES", "METHODS", "begun_rows", "merged", "rejection_rates", "run"]

LEVEL = 0.05
PERMUTATIONS = 500
PART = 10  # repetitions at a time
Method = Callable[[Tensor, Tensor, Layout | None, int], float]
# p-values and seconds by method and repetition.
Measured = dict[str, dict[int, tuple[float, float]]]


def _aggregate(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
    return _aggregated(x, y, layout, seed).pvalue


def _kernels_alone(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
    """The kernels of the same test as if they were all of it: what its other parts cost them."""
    parts = {s.name: s.pvalue for s in _aggregated(x, y, layout, seed).statistics}
    return parts[TOGETHER[KERNELS]]


@lru_cache(maxsize=1)  # for both of the above, which get the same tensors
def _aggregated(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> AggregateTest:
    pooled = torch.cat([x, y])
    return aggregate_rows(pooled, len(x), layout=layout, permutations=PERMUTATIONS, seed=seed)


def _cost(cost: Any) -> Method:
    def test(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
        return two_sample_test(x, y, cost, seed=seed, layout=layout).pvalue

    return test


def _median_mmd(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
    variance = float(choose_variance(torch.cat([x, y]), layout=layout))
    return two_sample_test(x, y, "mmd", variance, seed=seed, layout=layout).pvalue


def _laplace_mmd(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
    x, y = one_hot(x, y, layout)
    return two_sample_test(x, y, "mmd", kernel=laplace_kernels(x, y), seed=seed).pvalue


def laplace_kernels(x: Tensor, y: Tensor) -> list[LaplaceKernel]:
    """As many scales as the Gaussian test has variances, at which both kernels are 1/e."""
    return [LaplaceKernel(2 * v**0.5) for v in variance_grid(torch.cat([x, y]))]


def one_hot(x: Tensor, y: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Rows for tests that know no codes."""
    if layout is None:
        return x, y
    pooled = torch.cat([x, y])
    parts = [numbers_of(pooled, layout)]
    for column in pooled[:, parts[0].shape[1] :].mT:
        values = torch.unique(column)
        parts.append((column[:, None] == values).to(pooled))
    wide = torch.cat(parts, 1)
    return wide[: len(x)], wide[len(x) :]


def _hyppo(name: str) -> Method:
    def test(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
        from hyppo import ksample

        del seed
        a, b = (t.double().numpy() for t in one_hot(x, y, layout))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Its default for such sample sizes: a p-value from a chi-square approximation.
            return float(getattr(ksample, name)().test(a, b)[1])

    return test


def _columns(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
    """Kolmogorov and Smirnov's test of each column, times the number of columns."""
    from scipy import stats

    del seed
    a, b = (t.double().numpy() for t in one_hot(x, y, layout))
    found = [stats.ks_2samp(p, q).pvalue for p, q in zip(a.T, b.T, strict=True)]
    return min(1.0, len(found) * float(min(found)))


def _classifier(x: Tensor, y: Tensor, layout: Layout | None, seed: int) -> float:
    """Whether boosted trees trained on half of the rows tell the sides of the others apart."""
    from scipy import stats
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = torch.cat(one_hot(x, y, layout)).double().numpy()
    sides = np.arange(len(rows)) < len(x)
    order = np.random.default_rng(seed).permutation(len(rows))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    model = HistGradientBoostingClassifier(max_iter=50, random_state=seed)
    scores = model.fit(rows[train], sides[train]).predict_proba(rows[test])[:, 1]
    found = stats.mannwhitneyu(
        scores[sides[test]], scores[~sides[test]], alternative="greater", method="asymptotic"
    )
    return float(found.pvalue)


METHODS: dict[str, Method] = {
    "kermix": _aggregate,
    "kernels alone": _kernels_alone,
    "kermix svd": _cost("svd"),
    "kermix mmd": _cost("mmd"),
    "kermix energy": _cost("energy"),
    "median-heuristic mmd": _median_mmd,
    "laplace mmd": _laplace_mmd,
    "scipy KS of columns": _columns,
    "boosted trees": _classifier,
    "hyppo MMD": _hyppo("MMD"),
    "hyppo Energy": _hyppo("Energy"),
}
NEEDED = {"scipy": "scipy", "boosted": "sklearn", "hyppo": "hyppo"}
CASES = tuple(p.name for p in problems())


def installed(methods: Iterable[str]) -> tuple[str, ...]:
    """Those methods whose packages are there."""
    return tuple(
        m
        for m in methods
        if m.split()[0] not in NEEDED or importlib.util.find_spec(NEEDED[m.split()[0]])
    )


class Part(NamedTuple):
    """Some repetitions of one case."""

    case: str
    repetitions: range
    methods: tuple[str, ...]
    mnist: Path | None
    tables: Path | None


def measured(part: Part) -> Measured:
    """p-values and seconds of each method by repetition."""
    problem = _known(part.mnist, part.tables)[part.case]
    found: Measured = {m: {} for m in part.methods}
    for repetition in part.repetitions:
        x, y = problem.draw(torch.Generator().manual_seed(repetition))
        for method in part.methods:
            began = time.perf_counter()
            pvalue = METHODS[method](x, y, problem.layout, repetition)
            found[method][repetition] = pvalue, time.perf_counter() - began
    return found


def rejection_rates(
    repetitions: int = 100,
    cases: Iterable[str] = CASES,
    methods: Iterable[str] = tuple(METHODS),
    mnist: Path | None = None,
    tables: Path | None = None,
    processes: int = 1,
    seconds: float = float("inf"),
    begun: dict[str, Measured] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of what is known so far, each time a part has ended.

    Args:
        repetitions: Of each case.
        cases: Which.
        methods: Which; those that are not installed are left out.
        mnist: Folder of the four IDX files.
        tables: Folder of the real tables.
        processes: How many run at a time.
        seconds: No part is begun after these.
        begun: What is known of each case and is not measured again.
    """
    began = time.perf_counter()
    known = _known(mnist, tables)
    chosen = [known[c] for c in cases if c in known]
    used = installed(methods)
    found = {
        p.name: {m: dict((begun or {}).get(p.name, {}).get(m, {})) for m in used} for p in chosen
    }
    parts = iter([
        Part(p.name, some, missing, mnist, tables)
        for start in range(0, repetitions, PART)
        for p in chosen
        for some in [range(start, min(start + PART, repetitions))]
        if (missing := tuple(m for m in used if not set(some) <= set(found[p.name][m])))
    ])  # fmt: skip

    def add(part: Part, result: Measured) -> dict[str, Any]:
        for method, values in result.items():
            found[part.case][method] |= values
        rows = [_row(known[case], of_case) for case, of_case in found.items()
                if any(0 in values for values in of_case.values())]  # fmt: skip
        return {"level": LEVEL, "permutations": PERMUTATIONS, "seeds": "repetition", "rows": rows}

    if processes == 1:
        for part in parts:
            yield add(part, measured(part))
            if time.perf_counter() - began > seconds:
                return
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        running: dict[Future[Any], Part] = {}
        while True:
            while len(running) < processes + 2 and time.perf_counter() - began < seconds:
                if (part := next(parts, None)) is None:
                    break
                running[pool.submit(measured, part)] = part
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield add(running.pop(future), future.result())


def _known(mnist: Path | None, tables: Path | None) -> dict[str, Problem]:
    """All problems by name, those by which settings are chosen last."""
    return {p.name: p for p in (*problems(mnist, tables), *development_problems(tables))}


def begun_rows(rows: Iterable[dict[str, Any]], commit: str) -> dict[str, Measured]:
    """What rows of a result file say of a commit's methods, by case."""
    found: dict[str, Measured] = {}
    for row in rows:
        if row.get("commit") != commit:
            continue
        older = row.get("commits", {})
        found[row["case"]] = {
            m: {k: (p, row["seconds"][m]) for k, p in enumerate(pvalues)}
            for m, pvalues in row["pvalues"].items()
            if older.get(m, commit) == commit
        }
    return found


def _row(problem: Problem, of_case: Measured) -> dict[str, Any]:
    of_case = {m: _from_the_first(v) for m, v in of_case.items()}
    values = {m: [p for _, (p, _) in sorted(v.items())] for m, v in of_case.items() if v}
    return {
        "case": problem.name,
        "sizes": problem.sizes,
        "repetitions": min((len(v) for v in values.values()), default=0),
        "rejected": {m: sum(p <= LEVEL for p in v) / len(v) for m, v in values.items()},
        "published": PUBLISHED.get(problem.name, {}),
        "seconds": {
            m: sum(s for _, s in v.values()) / len(v) for m, v in of_case.items() if v
        },
        "pvalues": values,
    }  # fmt: skip


def _from_the_first(
    values: dict[int, tuple[float, float]],
) -> dict[int, tuple[float, float]]:
    """Repetitions up to the first that is missing: of these a list of p-values tells which."""
    return {k: values[k] for k in itertools.takewhile(values.__contains__, itertools.count())}


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Tables of rejection rates, without MNIST and real tables, which need their files."""
    found = rejection_rates(3 if quick else 100, CASES[:1] if quick else CASES)
    for rates in found:
        yield {
            "rejected_at_0.05": [
                {"case": r["case"], "repetitions": r["repetitions"], **r["rejected"]}
                for r in rates["rows"]
            ]
        }


def merged(before: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    """A row with the methods that were measured before on the same samples.

    `commits` says of which commit a method's numbers are, where it is not that of the row.
    """
    if before is None or before["repetitions"] != row["repetitions"]:
        return row
    kept = [m for m in before["rejected"] if m not in row["rejected"]]
    if not kept or before.get("sizes") != row.get("sizes"):
        return row
    row = dict(row)
    for column in ("rejected", "seconds", "pvalues"):
        row[column] = {**{m: before[column][m] for m in kept}, **row[column]}
    known = before.get("commits", {})
    row["commits"] = {m: known.get(m, before.get("commit")) for m in kept}
    return row


def main() -> None:
    """Run everything and write the result file, after each part what there is so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument(
        "--cases", default="",
        help="by commas: how their names begin; 'development': those that settings are chosen by",
    )  # fmt: skip
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mnist", type=Path, default=None, help="folder of the four IDX files")
    parser.add_argument("--tables", type=Path, default=None, help="folder of the real tables")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for the whole run")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--resume", action="store_true", help="what this commit has begun")
    parser.add_argument(
        "--begun", type=Path, default=None,
        help="a record of another machine or commit of the same test, to be continued likewise",
    )  # fmt: skip
    asked = parser.parse_args()
    starts = tuple(asked.cases.split(","))
    known = _known(asked.mnist, asked.tables)
    if not asked.cases:
        known = {p.name: p for p in problems(asked.mnist, asked.tables)}
    cases = [name for name in known if name.startswith(starts)]
    path = asked.out / f"power-{machine_name()}.json"
    # A long run can be made in parts: what was measured before and is not asked for stays.
    before = json.loads(path.read_text()) if path.is_file() else {}
    result: dict[str, Any] = {**before, "environment": environment()}
    commit = result["environment"]["commit"]
    old = {row["case"]: row for row in before.get("power", {}).get("rows", [])}
    rates: dict[str, Any] = {"rows": []}
    begun = begun_rows(old.values(), commit) if asked.resume or asked.begun else {}
    if asked.begun:
        other = json.loads(asked.begun.read_text())
        result["begun"] = other["environment"]
        theirs = begun_rows(other["power"]["rows"], other["environment"]["commit"])
        begun = {
            case: {**theirs.get(case, {}), **begun.get(case, {})} for case in {**theirs, **begun}
        }
    for rates in rejection_rates(
        asked.repetitions, cases, asked.methods.split(","), asked.mnist, asked.tables,
        asked.processes, asked.seconds, begun,
    ):  # fmt: skip
        rows = {
            row["case"]: merged(old.get(row["case"]), {**row, "commit": commit})
            for row in rates["rows"]
        }
        result["power"] = {**rates, "rows": list({**old, **rows}.values())}
        write_json(path, result)
    for row in rates["rows"]:
        shares = "".join(f"  {m} {share:.3f}" for m, share in row["rejected"].items())
        sys.stdout.write(f"{row['case']:24} {row['repetitions']:4}{shares}\n")
    sys.stdout.write(f"Results: {path}\n")


if __name__ == "__main__":
    main()
