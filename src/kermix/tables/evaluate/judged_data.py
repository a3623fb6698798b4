"""Two sets of samples from wherever they are, as points that all scores can work on.

Sums over parts of them give error bars, by leaving parts out, and what equal sets would give.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.dataset import Dataset
from kermix.data.loading import load
from kermix.data.readers.common import Reading
from kermix.data.readers.reading import read_alike
from kermix.data.schema.schema import Schema
from kermix.data.sources import (
    MixedRows,
    Sources,
    Table,
    common_columns,
    read_sources,
    read_table,
    standardized,
)
from kermix.errors import ImageError, MissingExtraError, SampleError, TableError
from kermix.kernels.distances import Layout
from kermix.sketches.accumulation import (
    FeatureSums,
    Moments,
    moments_of_sums,
    summed,
)
from kermix.sketches.features import FeatureMap
from kermix.tables.compare.coincidence import CountedOnce, counted_once
from kermix.tables.compare.column_changes import ComparedRows
from kermix.two_sample.error_bars import jackknife_variance

__all__ = [
    "Embedding",
    "Jackknife",
    "JudgedData",
    "PartedPair",
    "euclidean",
    "jackknife",
    "moments_of_parts",
    "needed_rows",
    "read_judged",
]

# Reasoned, no record.
PARTS = 10
NAMELESS_UP_TO = 128  # columns; of more, principal components are compared: a convention


class Jackknife(NamedTuple):
    """What values with one part left out tell of the value of all samples."""

    error: float  # one standard error
    bias: float  # how much infinitely many samples would change the value, to first order


def jackknife(whole: float, without: list[float]) -> Jackknife:
    """From the value of all samples and those without each part.

    Example:
        >>> jackknife(2.0, [1.5, 2.5]).error
        0.5
    """
    values = torch.tensor(without, dtype=torch.float64)
    parts = len(values)
    bias = float((parts - 1) * (values.mean() - whole))
    return Jackknife(math.sqrt(jackknife_variance(values)), bias)


def needed_rows(
    rows: int, wanted: float, error: float, bias: float = 0.0, most: float = 1e9
) -> int:
    """Samples for which standard error and bias are both as small as wanted, to two digits.

    At most `most`: a distance of zero is never known to a tenth of itself.

    Example:
        >>> needed_rows(1000, 0.01, 0.02), needed_rows(1000, 0.01, 0.001, bias=0.03)
        (4000, 3000)
    """
    if not wanted > 0:
        return rows
    times = max(min(error / wanted, most) ** 2, min(abs(bias) / wanted, most))
    return int(float(f"{min(max(1.0, rows * times), most):.2g}"))


class SummedPart(NamedTuple):
    """How many samples are in a part, and sums of their features."""

    rows: int
    sums: FeatureSums


class PartedPair:
    """Sums of features over ten random parts of each of two sets of samples.

    Args:
        features: The feature map.
        x: Samples, shape (N, d).
        y: Samples, shape (M, d).
        seed: Of the parts.
    """

    def __init__(self, features: FeatureMap, x: Tensor, y: Tensor, seed: int) -> None:
        self.features = features
        generator = torch.Generator().manual_seed(seed)
        self.parts = [_parted(features, s, generator) for s in (x, y)]
        self._generator = generator

    @property
    def whole(self) -> tuple[Moments, Moments]:
        """Moments of both sets."""
        return _added(self.features, self.parts[0]), _added(self.features, self.parts[1])

    def without_each(self) -> list[tuple[Moments, Moments]]:
        """Moments of both sets without one part of each."""
        one, two = (_without_each(self.features, parts) for parts in self.parts)
        return list(zip(one, two, strict=False))

    def mixed(self, times: int = 19) -> list[tuple[Moments, Moments]]:
        """Moments of two sets that have half of the parts of each: what equal sets would give.

        Were parts drawn from both at random, a set with more parts of one would show a part of
        the difference that there is.
        """
        found = []
        for _ in range(times):
            sides: tuple[list[SummedPart], list[SummedPart]] = [], []
            for k, parts in enumerate(self.parts):
                order = torch.randperm(len(parts), generator=self._generator).tolist()
                half = (len(parts) + k) // 2  # of odd numbers, the larger half once on each side
                sides[0].extend(parts[i] for i in order[:half])
                sides[1].extend(parts[i] for i in order[half:])
            found.append((_added(self.features, sides[0]), _added(self.features, sides[1])))
        return found

    def error_of(self, statistic: Callable[[Moments, Moments], float]) -> Jackknife:
        """Standard error and bias of a function of both moments."""
        return jackknife(
            statistic(*self.whole), [statistic(*pair) for pair in self.without_each()]
        )


def moments_of_parts(
    features: FeatureMap, points: Tensor, seed: int
) -> tuple[Moments, list[Moments]]:
    """Moments of one set of samples, and without each of ten random parts."""
    parts = _parted(features, points, torch.Generator().manual_seed(seed))
    return _added(features, parts), _without_each(features, parts)


def _parted(features: FeatureMap, points: Tensor, generator: torch.Generator) -> list[SummedPart]:
    order = torch.randperm(len(points), generator=generator)
    parts = order.tensor_split(min(PARTS, len(points)))
    return [SummedPart(len(part), summed(features, points[part], None)) for part in parts]


def _added(features: FeatureMap, parts: list[SummedPart]) -> Moments:
    total = parts[0].sums
    for part in parts[1:]:
        total = total.plus(part.sums)
    return moments_of_sums(features, sum(p.rows for p in parts), total)


def _without_each(features: FeatureMap, parts: list[SummedPart]) -> list[Moments]:
    return [_added(features, parts[:k] + parts[k + 1 :]) for k in range(len(parts))]


Embedding = Callable[[Tensor], Tensor]

SAFE = ".safetensors"


@dataclass(frozen=True)
class JudgedData:
    """Real and fake samples, and held-out real ones.

    Attributes:
        names: Of the real and the fake set.
        points: Real points and then fake ones, (n + m, d): rows as they are or scaled, categories
            as columns of zeros and ones, or embeddings. Scales and columns come from the real
            rows alone, so that real points are the same beside any fake ones.
        n: How many are real.
        held_out: Held-out real points, (k, d).
        rows: The rows in the user's columns, coded by both sets together.
        counted: The same without rows that repeat others, as `km.compare` has them; None of very
            many nameless columns (convention).
        every: Real, fake and held-out rows, coded by the real ones alone.
        table: Whether columns have names of their own.
        pictures: Real and fake pictures as bytes or numbers, (n, c, h, w) each.
        notes: What was assumed.
    """

    names: tuple[str, str]
    points: Tensor
    n: int
    held_out: Tensor | None
    rows: ComparedRows
    counted: CountedOnce | None
    every: ComparedRows
    table: bool
    images: tuple[Tensor, Tensor] | None
    notes: tuple[str, ...]

    @property
    def real(self) -> Tensor:
        """Real points."""
        return self.points[: self.n]

    @property
    def fake(self) -> Tensor:
        """Fake points."""
        return self.points[self.n :]


def read_judged(
    real: Any,
    fake: Any,
    held_out: Any,
    reading: Reading,
    embed: Embedding | None,
    standardize: bool | None,
    shown: tuple[Any, Any] | None = None,
    strict: bool = True,
) -> JudgedData:
    """Read both sets, and held-out rows if there are any.

    Args:
        real: A tensor, an array, a table, a file of one, or a folder of pictures.
        fake: The other.
        held_out: Real samples that the generator has not seen, or None.
        reading: How tables are read.
        embed: From a batch of rows or pictures to embeddings.
        standardize: Whether columns of numbers are divided by the spread of the real ones; None:
            those of tables are, if it differs tenfold.
        shown: Folders of the pictures that real and fake rows are embeddings of.
        strict: Whether both tables must have the same columns.
    """
    opened = [_opened(s) for s in (real, fake, held_out)]
    images = _images(opened)
    given = _as_rows(opened, embed, images is not None)
    read = read_sources(given[:2], reading, strict)
    first, second = read.tables
    names = _names((real, fake), (first.name, second.name))
    rows = ComparedRows.of(read)
    table = _has_names(given[0]) and images is None and embed is None
    notes = list(read.notes)
    every = _coded_by_real(read, given[2], reading)
    asked: Any = ("auto" if table else False) if standardize is None else standardize
    points = _points(every, len(first), asked, notes)
    counted = None
    if table or points.shape[1] <= NAMELESS_UP_TO:
        counted = counted_once(read, given[:2], reading, strict)
    both, held = len(rows.pooled), len(every.pooled) > len(rows.pooled)
    if shown is not None:
        images = _images_of(shown, (len(first), len(second)))
    return JudgedData(
        names, points[:both], len(first), points[both:] if held else None, rows, counted, every,
        table, images, tuple(notes),
    )  # fmt: skip


def _as_rows(opened: list[Any], embed: Embedding | None, images: bool) -> list[Any]:
    """Embeddings, if anything embeds; of pictures, their numbers."""
    if embed is not None:
        return [None if s is None else _embedded(s, embed, images) for s in opened]
    return [s.values if images and isinstance(s, Dataset) else s for s in opened]


def _points(every: ComparedRows, n: int, standardize: Any, notes: list[str]) -> Tensor:
    """Rows as points; numbers alone are divided by the spread of the real ones, if asked."""
    if every.mixed is not None:
        return euclidean(every.pooled, every.mixed.layout, n)
    points = every.pooled.double()
    _, scale = standardized(points[:n], standardize, [])
    if scale is None:
        return points
    notes.append("Columns are divided by the standard deviations of the real rows.")
    return (points - scale[0]) / scale[1]


def _coded_by_real(read: Sources, held_out: Any, reading: Reading) -> ComparedRows:
    """Real, fake and held-out rows, whose kinds of columns and scales the real ones set."""
    first, second = read.tables
    if not read.frames:
        held = [] if held_out is None else [_held_numbers(held_out, first, reading)]
        every = torch.cat([first.values, second.values, *(h.to(first.values) for h in held)])
        return ComparedRows(every, len(first), tuple(first.columns))
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.infer(read.frames[0], kinds=kinds)
    if not schema.modelled and read.mixed is not None:
        schema = read.mixed.schema
    own = schema.encode(read.frames[0], unseen="unknown", name=first.name)
    maker = MixedRows.of(schema, [own], mark_all=True)
    frames = [(read.frames[1], second.name)]
    if held_out is not None:
        frames.append((read_alike([held_out], reading)[0][0], "held_out"))
    others = [schema.encode(f, unseen="unknown", name=n, extra=True) for f, n in frames]
    numbers = [schema.own_numbers(f) for f in (read.frames[0], *(f for f, _ in frames))]
    return ComparedRows(
        torch.cat([maker(own), *map(maker, others)]), len(first), maker.column_names, maker,
        torch.from_numpy(np.concatenate(numbers)),
    )  # fmt: skip


def euclidean(
    rows: Tensor, layout: Layout, known: int | None = None, most_values: int = 200
) -> Tensor:  # (N, c + k) -> (N, d)
    r"""Mixed rows as points whose distances are those of the kernel of mixed rows.

    A code becomes columns of zeros and, for its value, $s / \sqrt 2$; all is scaled so that
    squared distances divided by the dimension are those divided by the number of columns.

    Args:
        rows: Numbers, and then codes.
        layout: Which are which.
        known: How many of the first rows set the columns of a code, so that their points are the
            same whatever the other rows are; values that only those have share one column more.
        most_values: Of a code that have a column of their own.

    Example:
        >>> rows = torch.tensor([[0.0, 3.0], [1.0, 3.0], [0.0, 4.0]])
        >>> points = euclidean(rows, Layout(codes=1, mismatch=2.0, columns=2))
        >>> torch.cdist(points, points).square()[0] / points.shape[1]
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    numbers = rows.shape[1] - layout.codes
    parts = [rows[:, :numbers].double()]
    for code in rows[:, numbers:].mT:
        values, counts = code[:known].unique(return_counts=True)
        if len(values) > most_values:
            often = counts.argsort(descending=True, stable=True)[: most_values - 1]
            values = values[often.sort().values]
        rest = known is not None or len(values) < len(code.unique())
        hot = (code[:, None] == values).double()
        if rest:
            hot = torch.cat([hot, 1 - hot.sum(1, keepdim=True)], 1)
        if hot.shape[1] > 1:
            parts.append(hot * (layout.mismatch / 2) ** 0.5)
    points = torch.cat(parts, 1)
    return points * (points.shape[1] / layout.columns) ** 0.5


def _opened(source: Any) -> Any:
    """Folders of pictures and safetensors files are opened here; tables are read later."""
    if not isinstance(source, str | Path):
        if isinstance(source, Tensor) and source.ndim > 2:
            return source.reshape(len(source), -1)
        return source
    path = Path(source)
    if path.is_dir():
        return load(str(path))
    before, inside, tensor = str(path).rpartition(SAFE + ":")
    if path.suffix == SAFE or inside:
        return _safe_tensor(Path(before + SAFE) if inside else path, tensor if inside else None)
    return source


def _safe_tensor(path: Path, name: str | None) -> Tensor:
    try:
        from safetensors import safe_open
    except ImportError:
        raise MissingExtraError(
            "Reading .safetensors needs safetensors: pip install 'kermix[sketch]'."
        ) from None
    if not path.is_file():
        raise TableError(f"{path}: there is no such file.")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            chosen = names[0] if name is None and len(names) == 1 else name
            found = file.get_tensor(chosen) if chosen in names else None
    except Exception as error:  # noqa: BLE001
        raise TableError(f"{path}: damaged, or not a safetensors file ({error}).") from None
    if found is None:
        raise TableError(_not_there(path, name, names))
    if found.ndim < 2:
        raise TableError(f"{path}: {chosen} has shape {tuple(found.shape)}; rows of embeddings "
                         "have shape (N, d).")  # fmt: skip
    return found.reshape(len(found), -1).float() if found.dtype != torch.float64 else found


def _not_there(path: Path, name: str | None, names: list[str]) -> str:
    asked = f"say which: {path}:{names[0]}" if name is None and names else f"not {name!r}"
    return f"{path} holds the tensors {', '.join(names) or 'none'}; {asked}."


def _images(given: list[Any]) -> tuple[Tensor, Tensor] | None:
    """The pictures of both sets, if both are pictures of one shape."""
    sets = [(s.stored, s.image) for s in given if isinstance(s, Dataset) and s.image is not None]
    if not sets:
        return None
    if len(sets) != sum(s is not None for s in given):
        raise ImageError("One of the sets is a folder of images, but another is not.")
    shapes = {shape for _, shape in sets}
    if len(shapes) > 1:
        told = " and ".join("x".join(map(str, s)) for s in sorted(shapes))
        raise ImageError(
            f"The images have different shapes (channels, height, width): {told}; resize them to "
            "one size."
        )
    one, two = (rows.reshape(len(rows), *shape) for rows, shape in sets[:2])
    return one, two


def _images_of(folders: tuple[Any, Any], rows: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Pictures in folders, in the order of their names: one for each row."""
    found = _images([_opened(folder) for folder in folders])
    if found is None:
        raise ImageError(f"images={folders}: give two folders of images.")
    for folder, images, count in zip(folders, found, rows, strict=True):
        if len(images) != count:
            raise ImageError(f"{folder} holds {len(images)} images for {count} embeddings.")
    return found


def _embedded(source: Any, embed: Embedding, images: bool, batch: int = 256) -> Tensor:
    """What a callable makes of rows, in batches."""
    if isinstance(source, Dataset):
        rows = source.stored
        shape = source.image if images else None
    else:
        table = read_table(source)
        rows, shape = table.values, None
    found = []
    with torch.no_grad():
        for part in rows.split(batch):
            values = part.float().div(255) if part.dtype == torch.uint8 else part
            made = embed(values if shape is None else values.reshape(len(part), *shape))
            if not isinstance(made, Tensor) or made.ndim != 2 or len(made) != len(part):
                told = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
                raise SampleError(
                    f"embed returned {told} for {len(part)} rows; it must return a tensor of "
                    f"shape ({len(part)}, dimension)."
                )
            found.append(made.detach().cpu().float())
    return torch.cat(found)


def _held_numbers(source: Any, first: Table, reading: Reading) -> Tensor:
    """Held-out rows in the columns of the others."""
    found = read_table(source, reading=reading) if not isinstance(source, Table) else source
    if found.named and first.named:
        found = found.select(first.columns)
    return common_columns(first, found)[1].values


def _has_names(source: Any) -> bool:
    """Whether a set has columns with names of their own."""
    if isinstance(source, Tensor | np.ndarray | list):
        return False
    if isinstance(source, str | Path):
        return Path(str(source).partition(".npz:")[0]).suffix.lower() not in (".npy", ".npz")
    return True


def _names(given: tuple[Any, Any], found: tuple[str, str]) -> tuple[str, str]:
    named = [Path(g).name if isinstance(g, str | Path) else None for g in given]
    names = [a or b for a, b in zip(named, found, strict=True)]
    return ("real", "fake") if names[0] == names[1] else (names[0], names[1])
