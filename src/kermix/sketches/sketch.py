"""Sketches: moments of features, which add up over batches and machines, and files of them.

A file has a versioned header, the feature map and numbers: nothing can be executed, and a checksum
is compared on reading. It says from which files and columns the rows came.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.checks import check_samples, check_weights
from kermix.errors import DeviceError, ShapeError, SketchError, WeightError
from kermix.files import read_checksummed, write_checksummed
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import GaussianKernel, MixedKernel
from kermix.sketches.accumulation import (
    FeatureSums,
    Moments,
    apart,
    both,
    moments_of_sums,
    no_sums,
    summed,
)
from kermix.sketches.features import (
    ColumnScale,
    FeatureMap,
    FourierFeatures,
    NystromFeatures,
    fingerprint,
    same_scale,
)
from kermix.sketches.kernel_features import KernelFeatures, described_kernel, kernel_of

__all__ = [
    "DAMAGES",
    "Origin",
    "Sketch",
    "SketchedFile",
    "StoredSketch",
    "check_same_columns",
    "read_sketch",
    "write_sketch",
]


@dataclass(frozen=True)
class SketchedFile:
    """One file, and how many of its rows are in the sketch; `dropped` had missing values."""

    name: str
    rows: int
    dropped: int


@dataclass(frozen=True)
class Origin:
    """The files that a sketch was made of. How columns are scaled is part of its feature map."""

    columns: tuple[str, ...]
    files: tuple[SketchedFile, ...] = ()
    mixed: dict[str, Any] | None = None  # how mixed rows are made, as saved

    def merge(self, other: "Origin") -> "Origin":
        """The origin of both sets of files together; a file in both is refused."""
        twice = {f.name for f in self.files} & {f.name for f in other.files}
        if twice:
            raise SketchError(
                f"Both sketches hold the rows of {sorted(twice)[0]}: they would be counted twice."
            )
        return Origin(self.columns, self.files + other.files, self.mixed)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Origin":
        """The inverse of `to_dict`."""
        return cls(
            tuple(content["columns"]),
            tuple(SketchedFile(f["name"], f["rows"], f["dropped"]) for f in content["files"]),
            content["mixed"],
        )


def check_same_columns(a: Origin | None, b: Origin | None) -> None:
    """Refuse sketches of different columns, where known."""
    if a is not None and b is not None and a.columns != b.columns:
        raise SketchError(
            f"The sketches have different columns: {', '.join(a.columns)} and "
            f"{', '.join(b.columns)}."
        )


SUMS = ("_total", "_first", "_second", "_residual")
APART = "apart"


class Sketch:
    r"""Moments of the features of a data set: everything a cost needs to know about it.

    Memory is $O(r^2)$, whatever the number of points. Sketches with the same feature map can be
    added and compared; `km.svd_cost(sketch, other)` and the other costs take them in place of
    samples, and samples may be compared with a sketch.

    Args:
        feature_map: From `kermix.nystrom_features` or `kermix.fourier_features`. If it scales
            columns (`feature_map.scale`, as from `kermix.sketch_files`), all points added to the
            sketch or compared with it must be raw rows.

    Example:
        >>> x = torch.linspace(0, 1, 100, dtype=torch.float64)[:, None]
        >>> features = km.nystrom_features(x, 0.1, rank=20)
        >>> whole = km.Sketch(features).update(x)
        >>> halves = km.Sketch(features).update(x[:50]) + km.Sketch(features).update(x[50:])
        >>> whole.count, km.svd_cost(whole, halves, normalized=True).item() > 1 - 1e-9
        (100, True)
    """

    def __init__(self, feature_map: FeatureMap) -> None:
        self.feature_map = feature_map
        self.count = 0
        self.weighted = False
        self.origin: Origin | None = None
        nothing = no_sums(feature_map)
        self._total, self._first, self._second, self._residual = nothing
        # Sums over the rows that the map was chosen from, which tests leave out; None: not known.
        self.apart = None if feature_map.chosen_from is None else nothing

    def __repr__(self) -> str:
        kind, rank = type(self.feature_map).__name__, self.feature_map.rank
        return f"Sketch({kind}, rank={rank}, count={self.count})"

    def update(self, batch: Tensor, weights: Tensor | None = None) -> "Sketch":
        """Add points; the sketch changes only if all of them are valid. Returns the sketch.

        Args:
            batch: Points, shape (N, d).
            weights: Weights, shape (N,), not normalized: relative to those of all other points.
        """
        self._check(batch)
        if weights is not None:
            check_batch_weights("weights", weights, batch)
            self.weighted = True
        sums, held = self.sums, self.apart
        with torch.no_grad():
            sums = sums.plus(summed(self.feature_map, batch, weights))
            held = both(held, apart(self.feature_map, batch, weights))
        self._take(sums, held, len(batch))
        return self

    def add_sums(
        self, sums: FeatureSums, count: int, held_apart: FeatureSums | None = None
    ) -> "Sketch":
        """Add sums over `count` points that were computed elsewhere with this feature map.

        Args:
            sums: Over all points.
            count: How many points.
            held_apart: Sums over those points that the map was chosen from; None if unknown.
        """
        held = None if held_apart is None else held_apart.to(self._total)
        self._take(self.sums.plus(sums.to(self._total)), both(self.apart, held), count)
        return self

    @property
    def sums(self) -> FeatureSums:
        """The sums so far."""
        return FeatureSums(*(getattr(self, name) for name in SUMS))

    def _take(self, sums: FeatureSums, held: FeatureSums | None, count: int) -> None:
        for name, value in zip(SUMS, sums, strict=True):
            setattr(self, name, value)
        self.apart = held
        self.count += count

    def merge(self, other: "Sketch") -> "Sketch":
        """The sketch of both data sets together, as a new sketch; also written `a + b`."""
        check_comparable(self, other)
        merged = Sketch(self.feature_map)
        merged.weighted = self.weighted or other.weighted
        count = self.count + other.count
        merged._take(self.sums.plus(other.sums), both(self.apart, other.apart), count)
        if self.origin is not None and other.origin is not None:
            merged.origin = self.origin.merge(other.origin)
        return merged

    def __add__(self, other: "Sketch") -> "Sketch":
        return self.merge(other)

    @property
    def moments(self) -> Moments:
        """Mean, second moment and mean residual of the features."""
        if self.count == 0:
            raise SketchError("The sketch is empty; update it with points first.")
        return moments_of_sums(self.feature_map, self.count, self.sums)

    @property
    def mean_residual(self) -> Tensor | None:
        """Mean residual of the kernel under the features, the source of all error bounds."""
        return self.moments.residual

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file atomically; it cannot contain code."""
        path = Path(path)
        facts = {
            "count": self.count,
            "weighted": self.weighted,
            "origin": None if self.origin is None else self.origin.to_dict(),
        }
        numbers = {name: getattr(self, name) for name in SUMS}
        if self.apart is not None:
            numbers |= {APART + name: t for name, t in zip(SUMS, self.apart, strict=True)}
        write_sketch(path, self.feature_map, facts, numbers)
        return path

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> "Sketch":
        """Read a sketch; a damaged file, or one of another kind, raises an error that names it."""
        path = Path(path)
        features, header, numbers = read_sketch(path, device)
        sketch = cls(features)
        try:
            sketch.count = int(header["count"])
            sketch.weighted = bool(header["weighted"])
            if header["origin"] is not None:
                sketch.origin = Origin.from_dict(header["origin"])
            found = [numbers[name] for name in SUMS]
            held = [numbers.get(APART + name) for name in SUMS]
            if sketch.count < 0:
                raise ValueError(f"count={sketch.count}")
        except DAMAGES as error:
            raise SketchError(f"{path}: damaged ({error}).") from None
        for name, value, other in zip(SUMS, found, held, strict=True):
            if not sketch._takes(name, value, other):
                raise SketchError(f"{path}: its parts are inconsistent.")
            setattr(sketch, name, value)
        known = [other for other in held if other is not None]
        sketch.apart = FeatureSums(*known) if len(known) == len(SUMS) else None
        return sketch

    def _takes(self, name: str, *parts: Tensor | None) -> bool:
        """Whether these could be the sums of that name."""
        blank = getattr(self, name)
        return all(p is None or (p.shape, p.dtype) == (blank.shape, blank.dtype) for p in parts)

    def _check(self, batch: Tensor) -> None:
        check_samples("batch", batch)
        if batch.ndim != 2 or batch.shape[1] != self.feature_map.dimension:
            raise ShapeError(
                f"batch has shape {tuple(batch.shape)}; this sketch takes points of shape "
                f"(N, {self.feature_map.dimension})."
            )
        if batch.device != self._total.device:
            raise DeviceError(
                f"batch is on {batch.device} and the sketch on {self._total.device}."
            )


def check_batch_weights(name: str, weights: Tensor, batch: Tensor) -> None:
    check_weights(name, weights, batch)
    if weights.ndim != 1:
        raise WeightError(
            f"{name} has shape {tuple(weights.shape)}; with a sketch it must be ({len(batch)},)."
        )


def check_comparable(a: Sketch, b: Sketch) -> None:
    """Refuse two sketches whose moments are of different features."""
    if not isinstance(a, Sketch) or not isinstance(b, Sketch):
        raise SketchError(f"Cannot combine {type(a).__name__} with {type(b).__name__}.")
    check_same_columns(a.origin, b.origin)
    if a.feature_map is b.feature_map:
        return
    if not same_scale(a.feature_map.scale, b.feature_map.scale):
        raise SketchError(
            f"The columns of the sketches were scaled differently{_where(a, b)}: make one with "
            "the feature map of the other (Sketch(other.feature_map), landmarks_from, or kermix "
            "sketch --landmarks-from)."
        )
    if fingerprint(a.feature_map) != fingerprint(b.feature_map):
        raise SketchError(
            f"The sketches have different feature maps ({a.feature_map.kernel} and "
            f"{b.feature_map.kernel}, rank {a.feature_map.rank} and {b.feature_map.rank}): sketch "
            "both data sets with the map of one of them, for example Sketch(a.feature_map), or "
            "kermix sketch --landmarks-from."
        )
    if a._total.device != b._total.device:
        raise DeviceError(f"One sketch is on {a._total.device}, the other on {b._total.device}.")


def _where(a: Sketch, b: Sketch) -> str:
    """The first column of which two sketches know different scales."""
    scales = [s.feature_map.scale for s in (a, b)]
    if any(scale is None for scale in scales):
        return " (one of them not at all)"
    pairs = [torch.stack([s.center, s.spread]).cpu() for s in scales if s is not None]
    if pairs[0].shape != pairs[1].shape:
        return ""
    first = int((pairs[0] != pairs[1]).any(0).nonzero()[0])
    origin = a.origin or b.origin
    return f" (column {first if origin is None else origin.columns[first]})"


FORMAT = "kermix.sketches.sketch"
FORMAT_VERSION = 5
GAUSSIAN_MAPS: dict[str, type[NystromFeatures] | type[FourierFeatures]] = {
    m.kind: m for m in (NystromFeatures, FourierFeatures)
}
MAPS = (*GAUSSIAN_MAPS, KernelFeatures.kind)
MISSING = "Saving and loading sketches needs safetensors: pip install 'kermix[sketch]'."
FOREIGN_MAP = "its feature map is not the one it was made with"
# What can be wrong with a header that was changed, or with tensors that do not fit it.
DAMAGES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError,
           ValueError)  # fmt: skip


class StoredSketch(NamedTuple):
    """The features, the header and the numbers that a file of a sketch has."""

    features: FeatureMap
    header: dict[str, Any]
    numbers: dict[str, Tensor]


def write_sketch(
    path: Path, features: FeatureMap, facts: Mapping[str, Any], numbers: Mapping[str, Tensor]
) -> None:
    """Write one safetensors file in one step.

    Args:
        path: Where.
        features: The feature map.
        facts: What else the header holds.
        numbers: Sums of features.
    """
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "features": features.kind,
        "fingerprint": fingerprint(features),
        **facts,
    }
    if not isinstance(features.kernel, GaussianKernel):
        header["kernel"] = described_kernel(features.kernel)
    else:
        header |= {
            "variances": [float(v) for v in features.kernel.v_p],
            "per_dimension": features.kernel.per_dimension,
        }
    if isinstance(features.kernel, MixedKernel):
        header["layout"] = list(features.kernel.layout)
    tensors = {"parameters": features.parameters, **numbers}
    if features.scale is not None:
        tensors |= {"center": features.scale.center, "spread": features.scale.spread}
    if features.chosen_from is not None:
        tensors["chosen_from"] = features.chosen_from
    write_checksummed(path, tensors, json.dumps(header), MISSING)


def read_sketch(path: Path, device: torch.device | str) -> StoredSketch:
    """The feature map, the header and all numbers; damaged files are refused by name."""
    if not path.is_file():
        raise SketchError(f"{path}: there is no such file.")
    try:
        found, header = read_checksummed(path, MISSING)
    except ValueError as error:
        raise SketchError(f"{path}: damaged, or not a sketch ({error}).") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SketchError(f"{path}: a safetensors file, but not a sketch of kermix.")
    if header.get("version") != FORMAT_VERSION or header.get("features") not in MAPS:
        raise SketchError(
            f"{path}: written by another version of kermix (format {header.get('version')}, "
            f"features {header.get('features')!r}; this one reads format {FORMAT_VERSION})."
        )
    tensors = {name: t.to(device) for name, t in found.items()}
    try:
        return StoredSketch(_map_of(header, tensors), header, tensors)
    except DAMAGES as error:
        raise SketchError(f"{path}: damaged ({error}).") from None


def _map_of(header: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureMap:
    if header["features"] == KernelFeatures.kind:
        made = KernelFeatures(
            tensors["parameters"], kernel_of(header["kernel"]), tensors.get("chosen_from")
        )
        if fingerprint(made) != header.get("fingerprint"):
            raise ValueError(FOREIGN_MAP)
        return made
    kernel = GaussianKernel(header["variances"], per_dimension=header["per_dimension"])
    if "layout" in header:
        codes, mismatch, columns = header["layout"]
        kernel = MixedKernel(header["variances"], Layout(int(codes), mismatch, int(columns)))
    features = GAUSSIAN_MAPS[header["features"]](tensors["parameters"], kernel)
    scale = ColumnScale(tensors["center"], tensors["spread"]) if "center" in tensors else None
    features = replace(features, scale=scale, chosen_from=tensors.get("chosen_from"))
    if fingerprint(features) != header.get("fingerprint"):
        raise ValueError(FOREIGN_MAP)
    return features
