"""Mean run length of drift monitors where nothing drifts, and their delay where something does.

`python -m benchmarks.drift_monitor --streams 2000 --processes 2` writes
`results/bench/drift-monitor-<machine>.json`. Beside it, if it is installed, alibi-detect's online
MMD, which looks at single rows: run lengths and delays of both are in rows.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.environment import environment, machine_name
from kermix.files import write_json
from kermix.tables.drift.monitor import DriftMonitor
from kermix.tables.drift.run_length import Memories, combined

__all__ = ["first_alarms", "run"]

STREAMS = 2000
STREAMS_OF_A_REFERENCE = 20
LONGEST = 20  # times the run length that was asked for; streams end there
STEPS_AT_ONCE = 32
QUIET = 10  # batches before the drift
DELAY_STREAMS = 200
PEER_REFERENCES, PEER_STREAMS_OF_A_REFERENCE = 4, 5
PARTS = ("lengths", "delays", "peers")

Draw = Callable[[int, torch.Generator], Tensor]


class Setting(NamedTuple):
    """A distribution, and how it is watched."""

    name: str
    draw: Draw
    reference: int
    batch: int
    expected: float


class Drift(NamedTuple):
    """What happens to the first of the columns."""

    name: str
    shift: float
    spread: float


def _normal(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, 5, generator=generator, dtype=torch.float64)


def _skewed(count: int, generator: torch.Generator) -> Tensor:
    """A long tail, counts, a rare mark, and a column that depends on the first."""
    z = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    counts = torch.poisson(torch.full((count,), 0.7, dtype=torch.float64), generator=generator)
    rare = (torch.rand(count, generator=generator) < 0.02).double()
    return torch.stack([z[:, 0].exp(), counts, rare, z[:, 0] + z[:, 1]], 1)


SETTINGS = (
    Setting("five normal columns", _normal, 1000, 20, 50),
    Setting("skewed, counts and rare marks", _skewed, 2000, 50, 50),
    Setting("five normal columns, long memory", _normal, 4000, 25, 60),
)
DRIFTS = (
    Drift("mean + 0.25 sd", 0.25, 1.0),
    Drift("mean + 0.5 sd", 0.5, 1.0),
    Drift("mean + 1 sd", 1.0, 1.0),
    Drift("sd x 1.5", 0.0, 1.5),
)


@torch.no_grad()
def first_alarms(
    monitor: DriftMonitor, draw: Callable[[int, int, int], Tensor], streams: int, longest: int
) -> Tensor:  # (streams,)
    """The number of the first batch with an alarm in each stream; 0 if there is none.

    It is what `DriftMonitor.update` finds, for many streams of one monitor at once.

    Args:
        monitor: Which was calibrated, and has seen nothing.
        draw: Rows for batches from a number on, so many, of so many streams; streams first.
        streams: How many.
        longest: After how many batches streams end.
    """
    features, known, size = monitor._features, monitor._calibrated(), monitor.batch_size
    assert size is not None
    state = Memories.empty(
        monitor._lengths(), (streams, len(features.weights)), len(monitor._rows)
    )
    found = torch.zeros(streams, dtype=torch.long)
    going = torch.arange(streams)
    for start in range(0, longest, STEPS_AT_ONCE):
        steps = min(STEPS_AT_ONCE, longest - start)
        count = len(going)
        sums = features(draw(start, steps, count)).reshape(count, steps, size, -1).sum(2)
        for step in range(steps):
            state.add(sums[:, step], size)
            scores = known.scores(state.differences().square() @ features.weights)
            alarm = combined(scores, len(monitor.columns)) >= known.threshold
            found[going[(found[going] == 0) & alarm]] = start + step + 1
        left = found[going] == 0
        going, state.sums = going[left], state.sums[left]
        if not len(going):
            break
    return found


def _started(setting: Setting, seed: int) -> tuple[DriftMonitor, torch.Generator]:
    """A monitor of a reference of its own, and what its stream is drawn by."""
    generator = torch.Generator().manual_seed(seed)
    monitor = DriftMonitor(
        setting.draw(setting.reference, generator), expected_run_length=setting.expected,
        batch_size=setting.batch, seed=seed,
    )  # fmt: skip
    return monitor, generator


def _run_lengths(setting: Setting, seed: int) -> list[int]:
    """Batches until the first alarm, without drift, in streams of one reference."""
    torch.set_num_threads(1)
    monitor, generator = _started(setting, seed)
    longest = int(LONGEST * setting.expected)

    def draw(start: int, steps: int, count: int) -> Tensor:
        del start
        return setting.draw(count * steps * setting.batch, generator)

    found = first_alarms(monitor, draw, STREAMS_OF_A_REFERENCE, longest)
    return [n if n else longest for n in found.tolist()]


def _delays(setting: Setting, drift: Drift, seed: int) -> list[int]:
    """Batches from the drift to its alarm, in streams without an alarm before it."""
    torch.set_num_threads(1)
    monitor, generator = _started(setting, seed)
    streams, longest = STREAMS_OF_A_REFERENCE, QUIET + int(LONGEST * setting.expected)

    def draw(start: int, steps: int, count: int) -> Tensor:
        rows = setting.draw(count * steps * setting.batch, generator)
        rows = rows.reshape(count, steps, setting.batch, -1)
        late = torch.arange(start, start + steps) >= QUIET
        rows[:, late, :, 0] = rows[:, late, :, 0] * drift.spread + drift.shift
        return rows.flatten(0, 2)

    found = first_alarms(monitor, draw, streams, longest)
    found = torch.where(found == 0, longest, found)
    return (found[found > QUIET] - QUIET).tolist()


def _peer_lengths(setting: Setting, seed: int) -> list[list[int]]:
    """Rows until alibi-detect's first alarm, without drift, and from each drift on."""
    import logging

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    from alibi_detect.cd import MMDDriftOnline

    generator = torch.Generator().manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # its generators are the global ones
    torch.manual_seed(seed)
    rows = setting.expected * setting.batch
    detector = MMDDriftOnline(
        setting.draw(setting.reference, generator).float().numpy(), ert=rows,
        window_size=setting.batch, backend="pytorch", n_bootstraps=int(5 * rows), verbose=False,
    )  # fmt: skip
    return [
        [n for _ in range(PEER_STREAMS_OF_A_REFERENCE)
         if (n := _peer_length(detector, setting, drift, generator)) > 0]
        for drift in (None, *DRIFTS)
    ]  # fmt: skip


def _peer_length(
    detector: Any, setting: Setting, drift: Drift | None, generator: torch.Generator
) -> int:
    quiet = 0 if drift is None else QUIET * setting.batch
    stream = setting.draw(quiet + int(LONGEST * setting.expected * setting.batch), generator)
    if drift is not None:
        stream[quiet:, 0] = stream[quiet:, 0] * drift.spread + drift.shift
    detector.reset_state()
    for k, row in enumerate(stream.float().numpy()):
        if detector.predict(row)["data"]["is_drift"]:
            return k + 1 - quiet
    return len(stream) - quiet


def run(
    quick: bool = False,
    streams: int | None = None,
    processes: int = 1,
    parts: tuple[str, ...] = PARTS,
    known: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Tables of run lengths and delays, again and again with more in them."""
    streams = (2 * STREAMS_OF_A_REFERENCE if quick else STREAMS) if streams is None else streams
    references = -(-streams // STREAMS_OF_A_REFERENCE)
    context = multiprocessing.get_context("spawn")
    tables: dict[str, Any] = known or {"mean_run_length": [], "detection_delay": []}
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for setting in SETTINGS[: 1 if quick else None] if "lengths" in parts else ():
            began = time.monotonic()
            found = list(pool.map(partial(_run_lengths, setting), range(references)))
            tables["mean_run_length"].append({
                "setting": setting.name, "rows of reference": setting.reference,
                "rows of batch": setting.batch, "asked, batches": setting.expected,
                **_summary("batches", found), "references": references,
                "cut": sum(n == LONGEST * setting.expected for part in found for n in part),
                "seconds": round(time.monotonic() - began, 1),
            })  # fmt: skip
            yield tables
        first = SETTINGS[0]
        count = 1 if quick else DELAY_STREAMS // STREAMS_OF_A_REFERENCE
        for drift in DRIFTS[: 1 if quick else None] if "delays" in parts else ():
            found = list(pool.map(partial(_delays, first, drift), range(1000, 1000 + count)))
            in_rows = [[n * first.batch for n in part] for part in found]
            tables["detection_delay"].append(
                {"drift": drift.name, "monitor": "kermix", **_summary("rows", in_rows)}
            )
            yield tables
        if "peers" in parts:
            yield from _peers(pool, first, tables, quick)


def _peers(
    pool: ProcessPoolExecutor, setting: Setting, tables: dict[str, Any], quick: bool
) -> Iterator[dict[str, Any]]:
    try:
        name = f"alibi-detect {version('alibi-detect')}, online MMD"
    except PackageNotFoundError:
        tables["detection_delay"].append(
            {"drift": "", "monitor": "alibi-detect: is not installed here"}
        )
        yield tables
        return
    seeds = range(2000, 2000 + (1 if quick else PEER_REFERENCES))
    parts = list(pool.map(partial(_peer_lengths, setting), seeds))
    for k, drift in enumerate((None, *DRIFTS)):
        found = _summary("rows", [part[k] for part in parts])
        if drift is None:
            tables["mean_run_length"].append({
                "setting": f"{setting.name}: {name}", "rows of reference": setting.reference,
                "rows of batch": 1, "asked, rows": setting.expected * setting.batch,
                **found, "references": len(parts),
            })  # fmt: skip
        else:
            tables["detection_delay"].append({"drift": drift.name, "monitor": name, **found})
    yield tables


def _summary(unit: str, parts: list[list[int]]) -> dict[str, Any]:
    """Mean and median, and the standard error over references, whose streams belong together."""
    values = np.array([n for part in parts for n in part], dtype=float)
    means = np.array([np.mean(part) for part in parts if part])
    error = means.std(ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return {f"mean, {unit}": round(float(values.mean()), 2),
            "+-": None if math.isnan(error) else round(float(error), 2),
            f"median, {unit}": float(np.median(values)), "streams": len(values)}  # fmt: skip


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    told = "only these; tables of an earlier run get more rows"
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help=told)
    given = parser.parse_args()
    path = given.out / f"drift-monitor-{machine_name()}.json"
    record = {"benchmark": "drift-monitor", "quick": given.quick, **environment()}
    known = None
    if tuple(given.parts) != PARTS and path.exists():
        known = json.loads(path.read_text())["tables"]
    streams = None if given.quick else given.streams
    for tables in run(given.quick, streams, given.processes, tuple(given.parts), known):
        write_json(path, {**record, "tables": tables})
        print(tables["mean_run_length"][-1:], tables["detection_delay"][-1:], flush=True)


if __name__ == "__main__":
    _main()
