"""Sketches of files that are larger than memory, on one machine or many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_option
from kermix.data.tables.batches import Files, Part, open_files
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.mixed_rows import MixedRows
from kermix.errors import OptionError, SketchError, TableError
from kermix.kernels.mixed import Layout, mixed_kernel
from kermix.sketches.candidates import row_keys
from kermix.sketches.cluster import sketch_on_cluster
from kermix.sketches.columns import ColumnScale
from kermix.sketches.features import NystromFeatures, nystrom_features
from kermix.sketches.origin import Origin, SketchedFile
from kermix.sketches.part_sums import PartSums, Tick, sketch_part
from kermix.sketches.sampling import order_of_rows, sampled
from kermix.sketches.sketch import Sketch
from kermix.sketches.typed_sample import typed_sample

__all__ = ["Engine", "sketch_files"]

Engine: TypeAlias = Literal["local", "dask"]

RANK = 256
TOLERANCE = 1e-4
STANDARDIZE_BEYOND = 10.0


def sketch_files(
    sources: str | Path | Sequence[str | Path],
    *,
    variance: float | Sequence[float] | Literal["auto"] = "auto",
    rank: int | None = None,
    tolerance: float | None = None,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    standardize: bool | Literal["auto"] = "auto",
    landmarks_from: Sketch | str | Path | None = None,
    engine: Engine = "local",
    scheduler: str | None = None,
    workers: int | None = None,
    seed: int = 0,
    started: Callable[[Files, NystromFeatures], None] = lambda files, features: None,
    tick: Tick = lambda size: None,
) -> Sketch:
    """Sketch the rows of many or large files, reading them once, batch by batch.

    Memory does not depend on the number of rows. Landmarks, the variance and the scale of the
    columns are found from a random sample of 20,000 rows (at most half of all, from 100 rows on),
    or taken from another sketch; only sketches that share them can be compared or merged. Tests
    leave out the rows of the sample. The scale is part of the sketch: rows added to it or compared
    with it must be raw rows, in the units of the files.

    Args:
        sources: Files (.parquet, .csv, .tsv, also .gz, .zst or .bz2; .npy), globs, folders or
            fsspec URLs. All must have the same columns. Files of other kinds (.feather, .jsonl,
            .xlsx, .npz) are held in memory while they are read. If columns are not all numbers, or
            values are missing, rows are mixed (`kermix.kernels.mixed`), with a schema learned from
            the sample and stored with the sketch; no row is dropped. Files of numbers are read a
            second time if there is a missing value in a column that had none in the sample. Rows
            with missing values are dropped, and counted, only with `standardize=False`, or if the
            sketch in `landmarks_from` has only numbers.
        variance: Variance of the kernel, in the units of the points (see `standardize`): one,
            several whose kernels are averaged, or `"auto"`, the median rule.
        rank: Maximum number of landmarks; 256 by default.
        tolerance: Fewer landmarks are used if their residual is below this; 1e-4 by default.
        columns: Columns to use; by default all.
        exclude: Columns to ignore.
        kinds: Kinds of columns by name, to override the detected ones; see `kermix.Schema.of`.
        delimiter: Field delimiter of text files; detected by default.
        decimal: Decimal mark of text files, "." or ","; detected by default.
        encoding: Encoding of text files; by default UTF-8, or Latin-1 if that fails.
        header: Whether the first line of text files holds column names; detected by default.
        standardize: Whether columns are divided by their standard deviations; `"auto"` does so
            when these differ more than tenfold.
        landmarks_from: A sketch, or its file, whose landmarks, kernel, columns and scales are
            used.
        engine: `"local"`, this process, or `"dask"`, which needs `kermix[dask]`.
        scheduler: Address of a Dask scheduler; by default a cluster on this machine is started.
        workers: Number of processes of that cluster; by default one per core.
        seed: Seed of the sample and the landmarks.
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
    check_option("engine", engine, ("local", "dask"))
    if engine == "local" and (scheduler is not None or workers not in (None, 1)):
        raise OptionError("scheduler and workers require engine='dask'.")
    if workers is not None and workers < 1:
        raise OptionError(f"workers={workers}: must be at least 1.")
    named = [str(s) for s in ([sources] if isinstance(sources, str | Path) else sources)]
    reading = Reading(
        None if columns is None else tuple(columns), tuple(exclude), dict(kinds or {}),
        delimiter, decimal, encoding, header,
    )  # fmt: skip
    maker: MixedRows | None = None

    def summed(files: Files, features: NystromFeatures) -> PartSums:
        started(files, features)
        if engine == "dask":
            return sketch_on_cluster(files.parts, features, scheduler, workers, tick, maker)
        return _one_by_one(files.parts, features, tick, maker)

    if landmarks_from is not None:
        if (variance, rank, tolerance, standardize) != ("auto", None, None, "auto"):
            raise OptionError(
                "variance, rank, tolerance and standardize come from the sketch given as "
                "landmarks_from; omit them."
            )
        if exclude or kinds:
            raise OptionError(
                "exclude and kinds come from the sketch given as landmarks_from; omit them."
            )
        known = _known(landmarks_from)
        saved = None if known.origin is None else known.origin.mixed
        maker = None if saved is None else MixedRows.from_dict(saved)
        if columns is None and known.origin is not None:
            columns = _named_columns(known.origin)
        files = open_files(named, columns, maker is not None, _with_kinds(reading, maker))
        features = _features_of(known, files, maker)
        found = summed(files, features)
    else:
        files, maker, sample = typed_sample(named, reading, standardize, seed)
        if maker is None:
            features = _chosen(files, variance, rank, tolerance, standardize, seed)
            found = summed(files, features)
            if found.dropped and standardize is not False and _of_one_kind(files):
                # No gap was in the sample. That must not decide whether rows are left out.
                files, maker, sample = typed_sample(named, reading, standardize, seed, gaps=True)
        if maker is not None:
            features = _features(sample, maker.layout, variance, rank, tolerance, seed)
            features = replace(features, chosen_from=row_keys(sample).unique())
            found = summed(files, features)
    sketch = Sketch(features).add_sums(found.sums, int(found.sums.total), found.apart)
    if sketch.count == 0:
        raise TableError(f"{files.addresses[0]}: no row is complete, here or in any other file.")
    sketch.origin = Origin(
        files.columns if maker is None else maker.column_names,
        tuple(SketchedFile(a, *found.counts.get(a, (0, 0))) for a in files.addresses),
        None if maker is None else maker.to_dict(),
    )
    return sketch


def _of_one_kind(files: Files) -> bool:
    """Whether all files have names of columns, or none."""
    return len({address.lower().endswith(".npy") for address in files.addresses}) == 1


def _one_by_one(
    parts: Sequence[Part], features: NystromFeatures, tick: Tick, maker: MixedRows | None
) -> PartSums:
    found = sketch_part(parts[0], features, tick, maker)
    for part in parts[1:]:
        found = found.plus(sketch_part(part, features, tick, maker))
    return found


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


def _chosen(
    files: Files,
    variance: float | Sequence[float] | Literal["auto"],
    rank: int | None,
    tolerance: float | None,
    standardize: bool | Literal["auto"],
    seed: int,
) -> NystromFeatures:
    """Scale, kernel and landmarks from a sample of the rows."""
    sample = torch.from_numpy(_sample(files, order_of_rows(seed))).double()
    spread, centre = sample.std(0, correction=0), sample.mean(0)
    positive = spread[spread > 0]
    if standardize == "auto":
        standardize = len(positive) > 1 and bool(
            positive.max() > STANDARDIZE_BEYOND * positive.min()
        )
    scale = ColumnScale(centre, torch.where(spread > 0, spread, 1.0)) if standardize else None
    points = sample if scale is None else scale(sample)
    features = _features(points, None, variance, rank, tolerance, seed)
    return replace(features, scale=scale, chosen_from=row_keys(sample).unique())


def _features(
    points: Tensor,
    layout: Layout | None,
    variance: float | Sequence[float] | Literal["auto"],
    rank: int | None,
    tolerance: float | None,
    seed: int,
) -> NystromFeatures:
    kernel = mixed_kernel(points, layout, None if isinstance(variance, str) else variance)
    return nystrom_features(
        points,
        mixed_kernel(points, layout, [float(v) for v in kernel.v_p]),
        rank=RANK if rank is None else rank,
        tolerance=TOLERANCE if tolerance is None else tolerance,
        seed=seed,
    )


def _sample(files: Files, generator: np.random.Generator) -> np.ndarray:
    """Complete rows, drawn at random."""
    return sampled(
        files,
        generator,
        lambda part: (batch.values for batch in part.batches()),
        np.concatenate,
        lambda rows, places: rows[places],
    )
