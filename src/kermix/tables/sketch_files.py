"""Sketches of files that are larger than memory, on one machine or many.

Sums over parts of files are computed here or by the workers of a Dask cluster, and merged in a
tree.
"""

import logging
import pkgutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_option, with_options
from kermix.data.readers.common import AS_FOUND, Reading, ReadingOptions, reading_of
from kermix.data.readers.formats import (
    Batch,
    Part,
)
from kermix.data.readers.parts import (
    Files,
    open_files,
)
from kermix.data.sources import MixedRows
from kermix.environment import __version__
from kermix.errors import (
    ClusterError,
    KermixError,
    MissingExtraError,
    OptionError,
    SketchError,
    TableError,
)
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import mixed_kernel
from kermix.kernels.subsets import row_keys
from kermix.sketches.accumulation import (
    FeatureSums,
    NystromSums,
    apart,
    both,
    no_sums,
)
from kermix.sketches.features import ColumnScale, NystromFeatures, nystrom_features
from kermix.sketches.sketch import Origin, Sketch, SketchedFile
from kermix.tables.sketch_sampling import order_of_rows, sampled, typed_sample

__all__ = [
    "Engine",
    "PartSums",
    "Tick",
    "absolute",
    "mixed_batches",
    "sketch_files",
    "sketch_on_cluster",
    "sketch_part",
]

Tick: TypeAlias = Callable[[int], None]


class PartSums(NamedTuple):
    """What is known of one part, or of several."""

    sums: FeatureSums
    apart: FeatureSums | None  # over the rows that the map was chosen from
    counts: dict[str, tuple[int, int]]  # rows and dropped rows by file

    @property
    def dropped(self) -> int:
        """Rows with missing values, which were left out."""
        return sum(dropped for _, dropped in self.counts.values())

    def plus(self, other: "PartSums") -> "PartSums":
        """Both together."""
        counts = dict(self.counts)
        for name, (rows, dropped) in other.counts.items():
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + rows, before[1] + dropped)
        return PartSums(self.sums.plus(other.sums), both(self.apart, other.apart), counts)


def sketch_part(
    part: Part,
    features: NystromFeatures,
    tick: Tick = lambda size: None,
    maker: MixedRows | None = None,
) -> PartSums:
    """Sums over the rows of one part of a file, which `maker` makes of a typed table."""
    accumulate = NystromSums(features)
    sums = no_sums(features)
    held = None if features.chosen_from is None else sums
    dropped = 0
    for batch in part.batches() if maker is None else mixed_batches(part, maker):
        rows = torch.from_numpy(np.ascontiguousarray(batch.values)).double()
        sums = sums.plus(accumulate(rows))
        held = both(held, apart(features, rows, None))
        dropped += batch.dropped
        tick(batch.size)
    return PartSums(sums, held, {part.address: (int(sums.total), dropped)})


def mixed_batches(part: Part, maker: MixedRows) -> Iterator[Batch]:
    """Mixed rows of a part; a value that the schema does not know is "unknown", a code."""
    for table, size in part.tables():
        encoded = maker.schema.encode(table, unseen="unknown", name=part.address, extra=True)
        yield Batch(maker(encoded).numpy(), 0, size)


def absolute(part: Part) -> Part:
    """The part with an address that other processes understand."""
    if "://" in part.address:
        return part
    return replace(part, address=str(Path(part.address).absolute()))


SECONDS_TO_CONNECT = 10


def sketch_on_cluster(
    parts: Sequence[Part],
    features: NystromFeatures,
    scheduler: str | None,
    workers: int | None,
    tick: Callable[[int], None],
    maker: MixedRows | None = None,
) -> PartSums:
    """Sums over all parts.

    A task is a pure function of its part, so what a lost worker had done is done again by
    another, and its result replaces the lost one: nothing is counted twice. Sums are merged in an
    order that does not depend on which worker was faster.
    """
    distributed = _distributed()
    with _client(scheduler, workers) as client:
        _check_workers(client)
        name = f"kermix-sketch-{uuid.uuid4().hex[:12]}"
        # Computed by a task, not scattered: data that was scattered dies with its worker.
        map_ = client.submit(
            NystromFeatures,
            features.landmarks,
            features.kernel,
            features.scale,
            features.chosen_from,
            key=f"{name}-map",
        )
        # On every worker: Dask likes to send tasks to the one that has what they need.
        distributed.wait(map_)
        client.replicate(map_)
        where = scheduler is not None
        level = [
            client.submit(_task, absolute(part), map_, where, maker, key=f"{name}-part-{k}")
            for k, part in enumerate(parts)
        ]
        places = dict(zip((f.key for f in level), parts, strict=True))
        done = distributed.as_completed(level)
        total = _merged_in_a_tree(client, level, name)
        for future in done:
            if future.status == "error":
                raise _explained(future.exception(), places[future.key])
            tick(places[future.key].size)
            future.release()
        try:
            sums: PartSums = total.result()
        except Exception as error:
            raise _explained(error, None) from error
    names = {absolute(part).address: part.address for part in parts}
    return sums._replace(counts={names[n]: count for n, count in sums.counts.items()})


def _merged_in_a_tree(client: Any, level: list[Any], name: str, together: int = 8) -> Any:
    """The future of all sums; those of a single part are merged too, as parts are released."""
    depth = 0
    while depth == 0 or len(level) > 1:
        groups = [level[k : k + together] for k in range(0, len(level), together)]
        level = [
            client.submit(_merged, group, key=f"{name}-merge-{depth}-{k}")
            for k, group in enumerate(groups)
        ]
        depth += 1
    return level[0]


def _task(
    part: Part, features: NystromFeatures, name_worker: bool, maker: MixedRows | None
) -> PartSums:
    try:
        return sketch_part(part, features, maker=maker)
    except KermixError as error:
        if not name_worker:
            raise
        from distributed import get_worker

        raise type(error)(f"{error} (on worker {get_worker().address})") from None


def _merged(parts: Iterable[PartSums]) -> PartSums:
    return reduce(PartSums.plus, parts)


def _explained(error: BaseException, part: Part | None) -> Exception:
    if isinstance(error, KermixError):
        return error
    name = "the sums were merged" if part is None else f"{part.address} was read"
    if type(error).__name__ == "KilledWorker":
        return ClusterError(
            f"Workers died again and again while {name}: {error}. They may have too little memory."
        )
    return ClusterError(f"A worker failed while {name}: {type(error).__name__}: {error}")


@contextmanager
def _client(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    distributed = _distributed()
    if scheduler is None:
        with (
            distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=":0",
                silence_logs=logging.ERROR,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ClusterError(f"The scheduler {scheduler} does not answer ({error}).") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=SECONDS_TO_CONNECT)
        except TimeoutError:
            raise ClusterError(f"The scheduler {scheduler} has no workers.") from None
        yield client


def _check_workers(client: Any) -> None:
    """Refuse to begin if a worker has no kermix, or another version of it."""
    # A function of the standard library: ours could not be sent to a worker without kermix.
    found = client.run(pkgutil.resolve_name, "kermix:__version__", on_error="return")
    for worker, answer in found.items():
        if isinstance(answer, Exception):
            raise ClusterError(
                f"The worker {worker} cannot import kermix ({type(answer).__name__}: {answer}); "
                "install the same version of kermix there."
            )
        if answer != __version__:
            raise ClusterError(
                f"The worker {worker} has kermix {answer}, but this is {__version__}; sketches "
                "can only be merged from equal versions."
            )


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise MissingExtraError("Clusters need Dask: pip install 'kermix[dask]'.") from None
    return distributed


Engine: TypeAlias = Literal["local", "dask"]


class SketchOptions(ReadingOptions, total=False):
    """What rarely needs to be said of a sketch of files."""

    engine: Engine
    scheduler: str | None
    workers: int | None
    started: Callable[[Files, NystromFeatures], None]
    tick: Tick


@with_options(SketchOptions, **AS_FOUND, engine="local", scheduler=None, workers=None,
              started=lambda files, features: None, tick=lambda size: None)  # fmt: skip
def sketch_files(
    sources: str | Path | Sequence[str | Path],
    *,
    variance: float | Sequence[float] | Literal["auto"] = "auto",
    rank: int | None = None,
    tolerance: float | None = None,
    standardize: bool | Literal["auto"] = "auto",
    landmarks_from: Sketch | str | Path | None = None,
    seed: int = 0,
    **options: Unpack[SketchOptions],
) -> Sketch:
    """Sketch the rows of many or large files, reading them once, batch by batch.

    Memory does not depend on the number of rows. Landmarks, the variance and the scale of the
    columns are found from a random sample of 20,000 rows (at most half of all, from 100 rows on),
    or taken from another sketch; only sketches that share them can be compared or merged. Tests
    leave out the rows of the sample. The scale is part of the sketch: rows added to it or compared
    with it must be raw rows, in the units of the files.

    Args:
        sources: Files, globs, folders or fsspec URLs. All must have the same columns. Files that
            cannot be read in parts, such as .xlsx, are held in memory. If columns are not all
            numbers, or values are missing, rows are mixed (by a `MixedKernel`), with a schema
            learned from the sample and stored with the sketch; no row is dropped. Files of numbers
            are read a second time if there is a missing value in a column that had none in the
            sample. Rows with missing values are dropped, and counted, only with
            `standardize=False`, or if the sketch in `landmarks_from` has only numbers.
        variance: Variance of the kernel, in the units of the points (see `standardize`): one,
            several whose kernels are averaged, or `"auto"`, the median rule.
        rank: Maximum number of landmarks; 256 by default.
        tolerance: Fewer landmarks are used if their residual is below this; 1e-4 by default.
        standardize: Whether columns are divided by their standard deviations; `"auto"` does so
            when these differ more than tenfold.
        landmarks_from: A sketch, or its file, whose landmarks, kernel, columns and scales are
            used.
        seed: Seed of the sample and the landmarks.
        columns: Columns to use; by default all.
        exclude: Columns to ignore.
        kinds: Kinds of columns by name, to override the detected ones; see `kermix.Schema.infer`.
        delimiter: Field delimiter of text files; detected by default.
        decimal: Decimal mark of text files, "." or ","; detected by default.
        encoding: Encoding of text files; by default UTF-8, else Windows-1252 or Latin-1.
        header: Whether the first line of text files holds column names; detected by default.
        missing: Cells that stand for a missing value, beside empty ones, NA and the like.
        sheet: Sheet of Excel files; by default that with most cells.
        engine: `"local"`, this process, or `"dask"`, which needs `kermix[dask]`.
        scheduler: Address of a Dask scheduler; by default a cluster on this machine is started.
        workers: Number of processes of that cluster; by default one per core.
        started: Called once when the files are known and reading begins.
        tick: Called repeatedly with the number of bytes read.

    Example:
        >>> import numpy as np, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> for day in range(2):
        ...     rows = np.random.default_rng(day).normal(size=(500, 2))
        ...     np.save(f"{folder.name}/{day}.npy", rows)
        >>> first = sketch_files(f"{folder.name}/0.npy", rank=50)
        >>> second = sketch_files(f"{folder.name}/1.npy", landmarks_from=first)
        >>> first.count, km.svd_cost(first, second, normalized=True).item() > 0.98
        (500, True)
        >>> folder.cleanup()
    """
    named = [str(s) for s in ([sources] if isinstance(sources, str | Path) else sources)]
    reading = reading_of(options)
    choice = FeatureChoice(variance, rank, tolerance, standardize, seed)
    summation = Summation(
        options["engine"], options["scheduler"], options["workers"], options["started"],
        options["tick"],
    )  # fmt: skip
    summation.check()
    if landmarks_from is None:
        read = _read_anew(named, reading, choice, summation)
    else:
        choice.check_omitted()
        read = _read_alike(_known(landmarks_from), named, reading, summation)
    files, sums = read.files, read.sums
    sketch = Sketch(read.features).add_sums(sums.sums, int(sums.sums.total), sums.apart)
    if sketch.count == 0:
        raise TableError(f"{files.addresses[0]}: no row is complete, here or in any other file.")
    sketch.origin = Origin(
        files.columns if read.maker is None else read.maker.column_names,
        tuple(SketchedFile(a, *sums.counts.get(a, (0, 0))) for a in files.addresses),
        None if read.maker is None else read.maker.to_dict(),
    )
    return sketch


@dataclass(frozen=True)
class FeatureChoice:
    """How scale, kernel and landmarks are chosen from a sample of the rows."""

    variance: float | Sequence[float] | Literal["auto"] = "auto"
    rank: int | None = None
    tolerance: float | None = None
    standardize: bool | Literal["auto"] = "auto"
    seed: int = 0

    def check_omitted(self) -> None:
        """Refuse what is said beside a sketch that decides it."""
        if self != FeatureChoice(seed=self.seed):
            raise OptionError(
                "variance, rank, tolerance and standardize come from the sketch given as "
                "landmarks_from; omit them."
            )

    def of_numbers(self, files: Files, unequal: float = 10.0) -> NystromFeatures:
        """From a sample of files of numbers, divided by their spreads if these are unequal."""
        sample = torch.from_numpy(_sample(files, order_of_rows(self.seed))).double()
        spread, center = sample.std(0, correction=0), sample.mean(0)
        positive = spread[spread > 0]
        standardize = self.standardize
        if standardize == "auto":
            standardize = len(positive) > 1 and bool(positive.max() > unequal * positive.min())
        scale = ColumnScale(center, torch.where(spread > 0, spread, 1.0)) if standardize else None
        points = sample if scale is None else scale(sample)
        return self._of(points, None, sample, scale)

    def of_mixed(self, sample: Tensor, layout: Layout) -> NystromFeatures:
        """From a sample of mixed rows."""
        return self._of(sample, layout, sample, None)

    def _of(
        self, points: Tensor, layout: Layout | None, sample: Tensor, scale: ColumnScale | None
    ) -> NystromFeatures:
        variance = None if isinstance(self.variance, str) else self.variance
        kernel = mixed_kernel(points, layout, variance)
        features = nystrom_features(
            points,
            mixed_kernel(points, layout, [float(v) for v in kernel.v_p]),
            rank=256 if self.rank is None else self.rank,
            tolerance=1e-4 if self.tolerance is None else self.tolerance,
            seed=self.seed,
        )
        return replace(features, scale=scale, chosen_from=row_keys(sample).unique())


@dataclass(frozen=True)
class Summation:
    """Where parts of files are summed: in this process, or on a cluster."""

    engine: Engine
    scheduler: str | None
    workers: int | None
    started: Callable[[Files, NystromFeatures], None]
    tick: Tick

    def check(self) -> None:
        """Refuse settings that do not go together."""
        check_option("engine", self.engine, ("local", "dask"))
        if self.engine == "local" and (
            self.scheduler is not None or self.workers not in (None, 1)
        ):
            raise OptionError("scheduler and workers require engine='dask'.")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers={self.workers}: must be at least 1.")

    def __call__(
        self, files: Files, features: NystromFeatures, maker: MixedRows | None
    ) -> PartSums:
        """Sums over all parts."""
        self.started(files, features)
        if self.engine == "dask":
            return sketch_on_cluster(
                files.parts, features, self.scheduler, self.workers, self.tick, maker
            )
        return _merged(sketch_part(part, features, self.tick, maker) for part in files.parts)


class ReadFiles(NamedTuple):
    """Files, how their rows are mixed (None: all are numbers), and what was summed of them."""

    files: Files
    maker: MixedRows | None
    features: NystromFeatures
    sums: PartSums


def _read_anew(
    named: Sequence[str], reading: Reading, choice: FeatureChoice, summation: Summation
) -> ReadFiles:
    """Choose features by a sample, then read everything."""
    files, maker, sample = typed_sample(named, reading, choice.standardize, choice.seed)
    if maker is None:
        features = choice.of_numbers(files)
        sums = summation(files, features, None)
        if not (sums.dropped and choice.standardize is not False and _of_one_kind(files)):
            return ReadFiles(files, None, features, sums)
        # No gap was in the sample. That must not decide whether rows are left out.
        files, maker, sample = typed_sample(
            named, reading, choice.standardize, choice.seed, gaps=True
        )
        assert maker is not None, "rows with gaps are mixed"
    features = choice.of_mixed(sample, maker.layout)
    return ReadFiles(files, maker, features, summation(files, features, maker))


def _read_alike(
    known: Sketch, named: Sequence[str], reading: Reading, summation: Summation
) -> ReadFiles:
    """Read everything with the features and the columns of another sketch."""
    if reading.exclude or reading.kinds:
        raise OptionError(
            "exclude and kinds come from the sketch given as landmarks_from; omit them."
        )
    saved = None if known.origin is None else known.origin.mixed
    maker = None if saved is None else MixedRows.from_dict(saved)
    columns: Sequence[str] | None = reading.columns
    if columns is None and known.origin is not None:
        columns = _named_columns(known.origin)
    files = open_files(named, columns, maker is not None, _with_kinds(reading, maker))
    features = _features_of(known, files, maker)
    return ReadFiles(files, maker, features, summation(files, features, maker))


def _of_one_kind(files: Files) -> bool:
    """Whether all files have names of columns, or none."""
    return len({address.lower().endswith(".npy") for address in files.addresses}) == 1


def _known(source: Sketch | str | Path) -> Sketch:
    sketch = source if isinstance(source, Sketch) else Sketch.load(source)
    if not isinstance(sketch.feature_map, NystromFeatures):
        raise SketchError(
            f"landmarks_from: this sketch has {type(sketch.feature_map).__name__}, not landmarks."
        )
    return sketch


def _named_columns(origin: Origin) -> Sequence[str] | None:
    # Columns without names are matched by their number, whatever a file calls them.
    unnamed = tuple(f"x{k}" for k in range(len(origin.columns)))
    return None if origin.columns == unnamed else origin.columns


def _with_kinds(reading: Reading, maker: MixedRows | None) -> Reading:
    """The kinds of columns are those of the sketch that landmarks are from."""
    return reading if maker is None else replace(reading, known_text=maker.schema.text_names)


def _features_of(known: Sketch, files: Files, maker: MixedRows | None) -> NystromFeatures:
    features = known.feature_map
    assert isinstance(features, NystromFeatures)
    if maker is None and features.dimension != len(files.columns):
        raise SketchError(
            f"landmarks_from: its points have {features.dimension} columns, but "
            f"{files.addresses[0]} has {len(files.columns)}: {', '.join(files.columns)}."
        )
    return features


def _sample(files: Files, generator: np.random.Generator) -> np.ndarray:
    """Complete rows, drawn at random."""
    return sampled(
        files,
        generator,
        lambda part: (batch.values for batch in part.batches()),
        np.concatenate,
        lambda rows, places: rows[places],
    )
