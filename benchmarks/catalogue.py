"""The benchmarks that exist, and how one is run and recorded."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kermix.environment import environment, machine_name
from kermix.errors import OptionError
from kermix.files import write_json

__all__ = ["BENCHMARKS", "record_path", "run_benchmark"]

BENCHMARKS = {
    "svd": "SVD cost of normal points, value and gradient, against the paper's method, which is "
    "slower there than for the uniform points of speed; a training step",
    "speed": "speed ratios within one run: a fit, the SVD cost, a step, threads; --compare",
    "calls": "value and gradient of each cost, kept, made anew or a function; FlashSinkhorn",
    "equal-time": "a generator trained with the SVD cost or a Sinkhorn divergence, equal CPU time",
    "sketch": "all four costs from sketches, up to a million points",
    "sketch-files": "sketches of Parquet files larger than memory, one and two workers",
    "certificates": "error bounds in adversarial cases, against a dense reference: no violation",
    "tiles": "scalar cost without a Gram matrix, against geomloss",
    "memory": "peak memory of a cost with its gradient, against the number of points",
    "permutation": "speed of a permutation test, against a loop and hyppo",
    "power": "two-sample tests: rejection rates, compared with other tests on the same samples",
    "blind-spots": "the verdict on correlations in many dimensions, and on one column that moved",
    "drift-monitor": "drift monitors: run length without drift, delay with drift; alibi-detect",
    "errorbars": "error bars of compare, against the scatter over repeated samples",
    "levels": "every public test under the null: rejection rates at level 0.05",
    "verdict-levels": "the verdict of two equal sets: rejection rates at level 0.05",
    "verdict-speed": "time and memory of a verdict: a million rows, 5,000 columns, flights",
    "demo": "samples of the demo's table compared with it, and with one column moved, 20 seeds",
    "detectable": "the shift that the verdict says it would detect, against what it detects",
    "evaluate": "scores of generators: certificates, rank, Fourier features, planted faults",
    "evaluate-errors": "error bars of neighbour scores and KID, against repeated samples",
    "scaling": "one cost over 1, 2 and 4 processes, by every strategy",
    "modes": "mode coverage of all costs and baselines, 8-ring and 25-grid",
    "density": "two-dimensional densities, against a flow, EM and kernel density estimation",
    "images": "generators of MNIST, stacked MNIST and CIFAR-10: all costs, MMD, Sinkhorn",
    "tabular": "tables of numbers, against gradient boosting and an MLP",
    "typed-tables": "tables with categories, gaps and times: valid samples, drift, level, memory",
    "planted-relations": "exact relations of columns: found, not invented, kept in samples",
    "made-tables": "coordinates, half hours, chains of formulas: are samples told from data",
    "table-throughput": "rows a second that the table model samples, scores and imputes",
    "imputation": "imputing 30 % of the cells of real tables, against scikit-learn's imputers",
    "conditional": "conditional densities, against NGBoost and xgboost-distribution",
    "explore": "the page of kermix explore: time per answer, 20 tabs at once, memory of a tab",
    "regression": "two inverse problems, against a network trained by likelihood",
    "killed-runs": "every kind of run, killed at 20 moments and resumed: are the weights the same",
    "fuzz": "100,000 random calls of the public functions, against independent references",
    "table1": "classification of MNIST and CIFAR-10, the paper's table, against a CNN",
}


def record_path(name: str, out: Path) -> Path:
    """Where the record of a benchmark on this machine is."""
    return out / f"{name}-{machine_name()}.json"


def run_benchmark(name: str, out: Path, quick: bool = False) -> tuple[Path, dict[str, Any]]:
    """Run one benchmark and write its result file.

    Args:
        name: One of `BENCHMARKS`.
        out: Folder of the result files.
        quick: Whether to run a small version, which shows that it works.
    """
    if name not in BENCHMARKS:
        raise OptionError(f"There is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}.")
    if out.exists() and not out.is_dir():
        raise OptionError(f"{out} is a file; name a folder for the results.")
    found = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run(quick)
    record = {"benchmark": name, "quick": quick, **environment()}
    path = record_path(name, out)
    # A long one gives its tables again and again, with more in them: each time they are kept.
    for tables in found if isinstance(found, Iterator) else [found]:
        write_json(path, {**record, "tables": tables})
    return path, tables
