"""Watch a stream of batches for drift away from a reference, with a known rate of false alarms.

A monitor measures scores of each column, and features of kernels of all; batches are read as the
reference was. Its file holds the rows of the reference, what was seen, and a header of settings.
"""

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_count, check_number, check_samples
from kermix.data.readers.common import Reading, listed
from kermix.data.readers.reading import read_frame
from kermix.data.schema.schema import Schema
from kermix.data.sources import (
    MixedRows,
    Source,
)
from kermix.errors import OptionError, RunError, SampleError, SchemaError, ShapeError
from kermix.files import whole_file
from kermix.kernels.distances import Layout
from kermix.sketches.features import NystromFeatures
from kermix.sketches.kernel_features import features_at_two_scales
from kermix.tables.compare.column_changes import ComparedRows, change_of
from kermix.tables.drift.run_length import Calibration, Memories, calibrate, combined
from kermix.two_sample.column_scores import ColumnPlace, ColumnScores, MiddleRanks
from kermix.two_sample.permutation import own_generator

__all__ = [
    "DriftMonitor",
    "DriftUpdate",
    "MonitorFeatures",
    "MovedColumn",
    "RowReader",
    "read_monitor",
    "read_reference",
    "write_monitor",
]

# Reasoned, no record; results/bench/drift-monitor-cpu2.json measures what they give.
SCORES_OF_A_NUMBER = 4
MOST_SCORES = 256  # of all columns together, if that leaves each at least one
KERNEL_FEATURES, CANDIDATES = 32, 1000
LANDMARK_EVERY = 4  # landmarks are chosen among every fourth row of the reference
ROWS_OF_A_FEATURE = 16  # fewer rows have fewer kernel features
ROWS_AT_ONCE = 2**14  # sums depend on it


@dataclass(frozen=True)
class MonitorFeatures:
    """Features whose means tell whether rows are like those of the reference.

    Every part, a column or a kernel, has features of its own; its statistic is a weighted sum of
    the squares of their mean differences.

    Attributes:
        columns: Scores of each column.
        widths: How many of them are used.
        kernels: Features of all columns together, at a small and at a large variance.
        ranks: Among the reference, where rows are numbers as they were given; these kernels see
            normal scores.
        centre: Mean features of the reference, (q,).
        weights: Of the squares of each feature in each part's statistic, (q, parts); columns
            first.
    """

    columns: tuple[ColumnScores, ...]
    widths: tuple[int, ...]
    kernels: tuple[NystromFeatures, ...]
    ranks: MiddleRanks | None
    centre: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, rows: Tensor, places: Sequence[ColumnPlace], layout: Layout | None
    ) -> "MonitorFeatures":
        """Features from the rows of the reference, (N, d), float64."""
        shares = rows.new_full((len(rows),), 1 / len(rows))
        columns = tuple(_seeing_what_is_new(ColumnScores.of(p, rows, shares), rows, shares)
                        for p in places)  # fmt: skip
        most = max(1, MOST_SCORES // max(1, len(places)))
        each = tuple(min(most, max(1, len(c.values)) if c.ranks is None else SCORES_OF_A_NUMBER)
                     for c in columns)  # fmt: skip
        ranks = MiddleRanks.of(rows, shares) if layout is None else None
        found = cls(columns, each, (), ranks, rows.new_zeros(0), rows.new_zeros(0, 0))
        points = found._points(rows)
        rank = max(2, min(KERNEL_FEATURES, len(rows) // ROWS_OF_A_FEATURE))
        kernels = features_at_two_scales(
            points, layout, rank, CANDIDATES, points[::LANDMARK_EVERY]
        )
        found = replace(found, kernels=kernels)
        parts = found._parts(rows[:1])
        weights = rows.new_zeros(sum(p.shape[1] for p in parts), len(parts))
        at = 0
        for k, part in enumerate(parts):
            width = part.shape[1]
            weights[at : at + width, k] = 1.0
            if k < len(columns) and columns[k].ranks is not None:
                # Places and spreads move more often than finer things.
                falling = 1 / torch.arange(1, each[k] + 1).to(weights)
                weights[at : at + each[k], k] = falling
            at += width
        return replace(found, centre=found.mean(rows), weights=weights)

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, q)
        """Features less their means in the reference."""
        return torch.cat([
            torch.cat(self._parts(some), 1) - self.centre for some in rows.split(ROWS_AT_ONCE)
        ])  # fmt: skip

    def of_others(self, rows: Tensor) -> Tensor:  # (N, d) -> (M, q)
        """Features of the rows of the reference that landmarks were not chosen from, of mean 0.

        Landmarks are rows that stand out, and kernel features vary more there than elsewhere.
        """
        found = self(rows[torch.arange(len(rows)) % LANDMARK_EVERY > 0])
        return found - found.mean(0)

    def mean(self, rows: Tensor) -> Tensor:  # (q,)
        """Mean features of rows."""
        sums = [torch.cat(self._parts(some), 1).sum(0) for some in rows.split(ROWS_AT_ONCE)]
        return torch.stack(sums).sum(0) / len(rows)

    def _parts(self, rows: Tensor) -> list[Tensor]:
        found = []
        for column, width in zip(self.columns, self.widths, strict=True):
            scores = column(rows)
            kept = scores[:, :width]
            if column.gap > 0:
                kept = torch.cat([scores[:, :-1][:, :width], scores[:, -1:]], 1)
            found.append(kept)
        points = self._points(rows)
        return found + [kernel(points) for kernel in self.kernels]

    def _points(self, rows: Tensor) -> Tensor:
        """Numbers as normal scores among the reference; those of mixed rows are already."""
        if self.ranks is None:
            return rows
        edge = self.ranks(self.ranks.ordered[:, :1].mT) / 2
        return torch.special.ndtri(self.ranks(rows).clamp(edge, 1 - edge))


def _seeing_what_is_new(column: ColumnScores, rows: Tensor, shares: Tensor) -> ColumnScores:
    """Scores that also see the first gap, and the first change of a constant."""
    rare = math.sqrt(0.5 / (len(rows) + 1))  # as if half a row had it
    place = column.place
    if place.numbers is not None and place.codes is not None:
        column = replace(column, gap=max(column.gap, rare))
    if column.ranks is None and not len(column.values):
        at = place.codes if place.numbers is None else place.numbers
        assert at is not None
        known = rows[:, at]
        if place.numbers is not None and place.codes is not None:
            known = known[rows[:, place.codes] == 0]
        if len(known):
            column = replace(column, values=known[:1], roots=known.new_tensor([rare]))
    return column


@dataclass(frozen=True)
class RowReader:
    """How batches become rows.

    Attributes:
        names: Of the user's columns.
        mixed: How mixed rows are made; None if rows are arrays of numbers.
    """

    names: tuple[str, ...]
    mixed: MixedRows | None

    def __call__(self, batch: Any) -> Tensor:  # (N, d), float64
        """The rows of a batch; categories that the reference did not have are unknown ones."""
        if self.mixed is None:
            rows = _numbers(batch)
            if rows is None:
                raise SampleError(
                    "The reference is an array of numbers, but the batch is a "
                    f"{type(batch).__name__}; give both as arrays, or both as tables."
                )
            check_samples("batch", rows)
            if rows.shape[1] != len(self.names):
                raise ShapeError(
                    f"The batch has {rows.shape[1]} columns, but the reference has "
                    f"{len(self.names)}."
                )
            return rows
        schema = self.mixed.schema
        frame, _ = read_frame(batch, schema.reading())
        return self.mixed(schema.encode(frame, unseen="unknown", name=frame.name, extra=True))

    def compared(self, reference: Tensor, batch: Tensor) -> ComparedRows:
        """The reference and a batch in the user's units."""
        both = torch.cat([reference, batch])
        numbers = None if self.mixed is None else self.mixed.numbers(both)
        return ComparedRows(both, len(reference), self.names, self.mixed, numbers)


def read_reference(source: Any, reading: Reading) -> tuple[Tensor, RowReader, list[str]]:
    """The rows of a reference, how batches are read like it, and what was assumed."""
    numbers = _numbers(source)
    if numbers is not None and not torch.isnan(numbers).any() and not reading.said():
        check_samples("reference", numbers)
        return numbers, RowReader(tuple(f"x{k}" for k in range(numbers.shape[1])), None), []
    frame, notes = read_frame(source, reading)
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.infer(frame, kinds=kinds)
    if not schema.modelled:
        raise SchemaError(
            f"No column is left to monitor: {listed(schema.names)} are constants, keys or text."
        )
    encoded = schema.encode(frame, name=frame.name)
    maker = MixedRows.of(schema, [encoded], mark_all=True)
    return maker(encoded), RowReader(maker.column_names, maker), [*notes, *schema.notes()]


def _numbers(source: Any) -> Tensor | None:
    """An array of numbers as rows; None if it is something else."""
    if isinstance(source, np.ndarray) and source.dtype.kind in "fiub":
        source = torch.from_numpy(np.ascontiguousarray(source))
    if not isinstance(source, Tensor):
        return None
    if source.dim() != 2:
        raise ShapeError(
            f"Expected rows and columns, but the array has shape {tuple(source.shape)}."
        )
    return source.detach().cpu().double()


FORMAT = "kermix.drift_monitor"
VERSION = 1
NULL = ("centre", "spread", "columns")


def write_monitor(
    path: Path,
    facts: Mapping[str, Any],
    rows: Tensor,
    sums: Tensor,
    calibration: Calibration | None,
) -> None:
    """Write arrays and a JSON header as one `.npz` in one step."""
    header = {"format": FORMAT, "version": VERSION, **facts}
    arrays: dict[str, Any] = {"rows": rows.numpy(), "sums": sums.numpy()}
    if calibration is not None:
        header["threshold"] = calibration.threshold
        header["mean_run_length"] = calibration.mean_run_length
        arrays |= {name: getattr(calibration, name).numpy() for name in NULL}
    with whole_file(path) as part, part.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)


def read_monitor(
    path: Path,
) -> tuple[dict[str, Any], RowReader, Tensor, Tensor, Calibration | None]:
    """Settings, how batches are read, rows of the reference, sums of batches, and thresholds."""
    if not path.is_file():
        raise RunError(f"{path}: there is no such file.")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise RunError(
                f"{path}: not a drift monitor of this version of kermix (format "
                f"{header.get('format')!r}, version {header.get('version')})."
            )
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        mixed = None if header["mixed"] is None else MixedRows.from_dict(header["mixed"])
        reader = RowReader(tuple(header["names"]), mixed)
        calibration = None
        if "threshold" in header:
            calibration = Calibration(
                tensors["centre"], tensors["spread"], header["threshold"], tensors["columns"],
                header["mean_run_length"],
            )  # fmt: skip
        return header, reader, tensors["rows"], tensors["sums"], calibration
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: damaged, or not a drift monitor ({error}).") from None


# Reasoned, no record; results/bench/drift-monitor-cpu2.json measures what they give.
MEMORIES = (1, 4, 16)  # batches that sums remember
SHARE_OF_REFERENCE = 1 / 8  # that a memory's rows may be of
MOST_REFERENCE = 20_000
FEWEST_REFERENCE = 20
LEVEL = 0.05  # of columns that are named in an alarm
NAMED = 5
SMALL_BATCHES = 0.75  # of batch_size, from which down it is said


@dataclass(frozen=True)
class MovedColumn:
    """A column that changed: its p-value, corrected for the number of columns, and how it changed.

    `change` compares the batch of the alarm with the reference; it is empty if batches of several
    monitors were merged.
    """

    column: str
    pvalue: float
    short: str = ""
    change: str = ""


@dataclass(frozen=True)
class DriftUpdate:
    """The result of one batch.

    Attributes:
        batch: Its number, starting at 1.
        rows: Number of its rows.
        statistic: Statistic of this batch and those before it.
        threshold: Threshold for an alarm.
        alarm: Whether there is one.
        columns: If there is, the columns that changed, clearest first.
        began: If there is, the batch in which the drift most likely began.
    """

    batch: int
    rows: int
    statistic: float
    threshold: float
    alarm: bool
    columns: tuple[MovedColumn, ...] = ()
    began: int | None = None

    def sentence(self) -> str:
        """The result as a sentence."""
        level = f"statistic {self.statistic:.3g}, threshold {self.threshold:.3g}"
        if not self.alarm:
            return f"Batch {self.batch}: no alarm ({level})."
        since = f", most likely since batch {self.began}" if self.began != self.batch else ""
        moved = [c.column + (f" ({c.short}: {c.change})" if c.change else "")
                 for c in self.columns[:NAMED]]  # fmt: skip
        if not moved:
            return f"Alarm at batch {self.batch}{since} ({level}). No single column changed."
        more = len(self.columns) - len(moved)
        rest = f"; {more} more" if more else ""
        return f"Alarm at batch {self.batch}{since} ({level}). Moved: {', '.join(moved)}{rest}."

    __str__ = sentence

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


class DriftMonitor:
    r"""Monitors batches of rows for drift, with a given rate of false alarms.

    Each batch is compared with the reference by scores of every column and by two kernels of all
    columns, alone and together with the batches before it (about the last four or sixteen; older
    ones are forgotten), so that large drifts are detected at once and small ones after a while.
    One threshold for all of this is found by simulating streams of batches drawn from the
    reference: without drift, the mean number of batches until the first alarm is
    `expected_run_length`.

    That is a mean over streams *and* references. A given reference is a sample too, and its own
    run length may be longer or shorter, especially if it has few rows: it should have at least ten
    times as many as a batch. Rows are assumed to be independent.

    Args:
        reference: Rows without drift: an array, a tensor, a data frame, a file. Larger references
            are subsampled to 20,000 rows.
        expected_run_length: Mean number of batches until a false alarm.
        batch_size: Approximate number of rows of a batch; by default that of the first one. The
            threshold is for batches of this size: with far fewer rows, false alarms are more
            frequent than requested, and the report says so. If monitors of parallel streams are
            merged, the rows of all streams together.
        columns: Columns of a table to monitor; by default all.
        exclude: Columns of a table to ignore.
        kinds: Kinds of columns by name, to override the detected ones; see `kermix.Schema.infer`.
        seed: Of everything random.

    Example:
        >>> rows = torch.randn(2400, 2, generator=torch.Generator().manual_seed(0))
        >>> monitor = km.DriftMonitor(rows[:2000], expected_run_length=100, batch_size=20)
        >>> monitor.update(rows[2000:2020]).alarm
        False
        >>> found = [monitor.update(batch + torch.tensor([0.0, 1.0])) for batch in
        ...          rows[2020:].split(20)]
        >>> monitor.first_alarm.batch <= 6, monitor.first_alarm.columns[0].column
        (True, 'x1')
    """

    def __init__(
        self,
        reference: Source,
        *,
        expected_run_length: float = 200,
        batch_size: int | None = None,
        columns: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        kinds: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        _check_run_length(expected_run_length)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        reading = Reading(
            None if columns is None else tuple(columns), tuple(exclude), dict(kinds or {})
        )
        rows, reader, notes = read_reference(reference, reading)
        if len(rows) < FEWEST_REFERENCE:
            raise SampleError(
                f"The reference has {len(rows)} rows; at least {FEWEST_REFERENCE} are needed, "
                "and preferably ten times as many as in a batch."
            )
        if len(rows) > MOST_REFERENCE:
            notes.append(f"{MOST_REFERENCE:,} of {len(rows):,} rows of the reference are kept, "
                         "drawn at random.")  # fmt: skip
            order = torch.randperm(len(rows), generator=own_generator(seed))
            rows = rows[order[:MOST_REFERENCE].sort().values]
        self._begin(rows, reader, float(expected_run_length), batch_size, seed, tuple(notes))

    def _begin(
        self,
        rows: Tensor,
        reader: RowReader,
        expected_run_length: float,
        batch_size: int | None,
        seed: int,
        notes: tuple[str, ...],
    ) -> None:
        self._rows, self._reader, self._seed = rows, reader, seed
        self.expected_run_length, self.batch_size = expected_run_length, batch_size
        self.notes = notes
        with torch.no_grad():
            places = reader.compared(rows[:1], rows[:1]).places
            layout = None if reader.mixed is None else reader.mixed.layout
            self._features = MonitorFeatures.of(rows, places, layout)
        self._calibration: Calibration | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all batches and alarms, for example after a false alarm or a repair."""
        self._counts: list[int] = []
        self._sums: list[Tensor] = []
        self._memories: Memories | None = None
        self.first_alarm: DriftUpdate | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The monitored columns."""
        return self._reader.names

    @property
    def batches(self) -> int:
        """Number of batches so far."""
        return len(self._counts)

    @property
    def threshold(self) -> float:
        """Threshold of the statistic; simulated on first use."""
        return self._calibrated().threshold

    @torch.no_grad()
    def update(self, batch: Source) -> DriftUpdate:
        """Add the next batch and return whether the stream has drifted.

        After an alarm, monitoring continues; `reset` starts over.
        """
        rows = self._reader(batch)
        if not len(rows):
            raise SampleError("The batch has no rows.")
        if self.batch_size is None:
            self.batch_size = len(rows)
        return self._judge(self._features(rows).sum(0), len(rows), rows)

    def _judge(self, sums: Tensor, count: int, rows: Tensor | None) -> DriftUpdate:
        known = self._calibrated()
        if self._memories is None:
            self._memories = Memories.empty(self._lengths(), sums.shape, len(self._rows))
        self._memories.add(sums, count)
        self._counts.append(count)
        self._sums.append(sums)
        watched = len(self.columns)
        scores = known.scores(self._memories.differences().square() @ self._features.weights)
        statistic = float(combined(scores, watched))
        alarm = statistic >= known.threshold
        found = DriftUpdate(self.batches, count, statistic, known.threshold, alarm)
        if alarm:
            moved = self._moved(scores[:, :watched].amax(0), rows)
            began = self._began(int(scores.amax(0).argmax()))
            found = DriftUpdate(
                self.batches, count, statistic, known.threshold, True, moved, began
            )
            self.first_alarm = self.first_alarm or found
        return found

    def _moved(self, scores: Tensor, rows: Tensor | None) -> tuple[MovedColumn, ...]:
        known = self._calibrated()
        found = []
        for k in scores.argsort(descending=True, stable=True).tolist():
            pvalue = known.column_pvalue(float(scores[k]))
            if pvalue > LEVEL:
                break
            name = self.columns[k]
            change = None
            if rows is not None:
                values = self._reader.compared(self._rows, rows).column(name)
                change = change_of(values, len(self._rows))
            found.append(MovedColumn(name, pvalue) if change is None else
                         MovedColumn(name, pvalue, change.short, change.description))  # fmt: skip
        return tuple(found)

    def _began(self, part: int) -> int:
        """The batch from which on, in the part that moved most, the sum is most unusual."""
        sums = torch.stack(self._sums).flip(0).cumsum(0)
        counts = torch.tensor(self._counts).double().flip(0).cumsum(0)
        variance = counts + counts.square() / len(self._rows)
        unusual = (sums.square() / variance[:, None]) @ self._features.weights[:, part]
        return self.batches - int(unusual.argmax())

    def _lengths(self) -> tuple[int, ...]:
        assert self.batch_size is not None
        most = SHARE_OF_REFERENCE * len(self._rows) / self.batch_size
        return tuple(m for m in MEMORIES if m == 1 or m <= most)

    def _calibrated(self) -> Calibration:
        if self._calibration is None:
            if self.batch_size is None:
                raise OptionError(
                    "The threshold depends on the number of rows of a batch: give batch_size, or "
                    "update the monitor first."
                )
            self._calibration = calibrate(
                self._features.of_others(self._rows),
                len(self._rows),
                self._features.weights,
                len(self.columns),
                self.batch_size,
                self._lengths(),
                self.expected_run_length,
                own_generator(self._seed),
            )
        return self._calibration

    def report(self) -> str:
        """The first alarm in words, or that there was none."""
        rows = f"{sum(self._counts):,} rows"
        asked = f"one false alarm in {self.expected_run_length:g} batches is expected"
        lines = [f"No alarm in {self.batches} batches of {rows}; {asked}."]
        if self.first_alarm is not None:
            lines = [self.first_alarm.sentence(), f"{self.batches} batches of {rows}; {asked}."]
        return "\n".join([*lines, *self._of_other_sizes(), *self.notes])

    def _of_other_sizes(self) -> list[str]:
        """That batches are not of the size for which the threshold is."""
        if not self._counts or self.batch_size is None:
            return []
        usual = sum(self._counts) / len(self._counts)
        if usual > SMALL_BATCHES * self.batch_size:
            return []
        return [
            f"Batches have {usual:.3g} rows on average, but the threshold is for "
            f"{self.batch_size} (batch_size): false alarms are more frequent than requested. "
            f"Give batch_size={max(1, round(usual))}, or combine batches."
        ]

    def merge(self, other: "DriftMonitor") -> "DriftMonitor":
        """The monitor of both streams together, as a new one; also written `a + b`.

        Batches with the same number are combined: the result is that of a single monitor that has
        seen the rows of both. The monitors must have the same reference and settings and equally
        many batches; for example, `load` them from one file.
        """
        if not self._same_as(other):
            raise OptionError(
                "The monitors have different references or settings; create all of them from "
                "one reference, or load them from one file."
            )
        if self.batches != other.batches:
            raise OptionError(
                f"One monitor has seen {self.batches} batches and the other {other.batches}; "
                "both must have seen the same periods."
            )
        merged = DriftMonitor.__new__(DriftMonitor)
        merged.__dict__.update(self.__dict__)
        merged.reset()
        for ours, count, theirs, more in zip(
            self._sums, self._counts, other._sums, other._counts, strict=True
        ):
            merged._judge(ours + theirs, count + more, None)
        return merged

    def __add__(self, other: "DriftMonitor") -> "DriftMonitor":
        return self.merge(other)

    def _same_as(self, other: "DriftMonitor") -> bool:
        settings = ("expected_run_length", "batch_size", "columns", "_seed")
        return all(getattr(self, s) == getattr(other, s) for s in settings) and torch.equal(
            self._rows, other._rows
        )

    def save(self, path: str | Path) -> Path:
        """Write the monitor and its state to one file, which cannot contain code."""
        facts = {
            "names": self.columns,
            "mixed": None if self._reader.mixed is None else self._reader.mixed.to_dict(),
            "expected_run_length": self.expected_run_length,
            "batch_size": self.batch_size,
            "seed": self._seed,
            "notes": self.notes,
            "counts": self._counts,
            "first_alarm": None if self.first_alarm is None else self.first_alarm.to_dict(),
        }
        sums = torch.stack(self._sums) if self._sums else self._features.centre[None][:0]
        write_monitor(Path(path), facts, self._rows, sums, self._calibration)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "DriftMonitor":
        """Load a saved monitor to continue; a damaged file raises an error that names it."""
        facts, reader, rows, sums, calibration = read_monitor(Path(path))
        monitor = cls.__new__(cls)
        monitor._begin(rows, reader, facts["expected_run_length"], facts["batch_size"],
                       facts["seed"], tuple(facts["notes"]))  # fmt: skip
        monitor._calibration = calibration
        monitor._counts, monitor._sums = list(facts["counts"]), list(sums)
        if monitor._counts:
            monitor._memories = Memories.empty(monitor._lengths(), sums[0].shape, len(rows))
            for batch, count in zip(monitor._sums, monitor._counts, strict=True):
                monitor._memories.add(batch, count)
        if (alarm := facts["first_alarm"]) is not None:
            columns = tuple(MovedColumn(**c) for c in alarm.pop("columns"))
            monitor.first_alarm = DriftUpdate(**alarm, columns=columns)
        return monitor

    def __repr__(self) -> str:
        state = "no alarm" if self.first_alarm is None else (
            f"first alarm at batch {self.first_alarm.batch}"
        )  # fmt: skip
        return (
            f"DriftMonitor({len(self.columns)} columns, expected_run_length="
            f"{self.expected_run_length:g}, {self.batches} batches, {state})"
        )


def _check_run_length(expected: float) -> None:
    check_number("expected_run_length", expected)
    if not 2 <= expected <= 1e6:
        raise OptionError(
            f"expected_run_length={expected!r}: must be a number of batches between 2 and a "
            "million, such as 200."
        )
