"""Primal statistics: moments of features, which add up over batches and machines."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kermix.checks import check_samples, check_weights
from kermix.errors import DeviceError, ShapeError, SketchError, WeightError
from kermix.sketches.accumulation import FeatureSums, apart, no_sums, scaled_sums, summed
from kermix.sketches.columns import same_scale
from kermix.sketches.features import FeatureMap, fingerprint
from kermix.sketches.moments import Moments
from kermix.sketches.origin import Origin, check_same_columns
from kermix.sketches.storage import read_sketch, write_sketch

__all__ = ["Sketch"]

ROWS_AT_A_TIME = 16384
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
            for start in range(0, len(batch), ROWS_AT_A_TIME):
                part = slice(start, start + ROWS_AT_A_TIME)
                share = None if weights is None else weights[part]
                sums = sums.plus(summed(self.feature_map, batch[part], share))
                held = both(held, apart(self.feature_map, batch[part], share))
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
        except (KeyError, TypeError, ValueError) as error:
            raise SketchError(f"{path}: damaged ({error}).") from None
        for name, value, other in zip(SUMS, found, held, strict=True):
            shape = getattr(sketch, name).shape
            if value.shape != shape or (other is not None and other.shape != shape):
                raise SketchError(f"{path}: its parts are inconsistent.")
            setattr(sketch, name, value)
        known = [other for other in held if other is not None]
        sketch.apart = FeatureSums(*known) if len(known) == len(SUMS) else None
        return sketch

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
    pairs = [torch.stack([s.centre, s.spread]).cpu() for s in scales if s is not None]
    if pairs[0].shape != pairs[1].shape:
        return ""
    first = int((pairs[0] != pairs[1]).any(0).nonzero()[0])
    origin = a.origin or b.origin
    return f" (column {first if origin is None else origin.columns[first]})"


def both(a: FeatureSums | None, b: FeatureSums | None) -> FeatureSums | None:
    """The sums over two sets of points, if those over each are known."""
    return None if a is None or b is None else a.plus(b)


def sample_moments(feature_map: FeatureMap, points: Tensor, weights: Tensor | None) -> Moments:
    """Moments of points, differentiable; features are computed again in the backward."""
    sums, log_scale = sample_sums(feature_map, points, weights)
    return moments_of_sums(feature_map, len(points), sums, log_scale)


def sample_sums(
    feature_map: FeatureMap, points: Tensor, weights: Tensor | None
) -> tuple[FeatureSums, Tensor]:
    """What moments are made of, and the logarithm of the features' scale.

    It can be added over sets of points, of which one may be empty, if the scales agree.
    """
    if not len(points):
        # Zeros that depend on the points: all ranks of a group must take part in a backward.
        zero = points.sum().to(feature_map.parameters)
        zero = zero if weights is None else zero + weights.sum().to(zero)
        r = feature_map.rank
        nothing = FeatureSums(zero, zero.expand(r), zero.expand(r, r), zero)
        return nothing, torch.full_like(zero.detach(), torch.finfo(zero.dtype).min)
    found = []
    for start in range(0, len(points), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        share = None if weights is None else weights[part]
        found.append(
            checkpoint(scaled_sums, feature_map, points[part], share, use_reentrant=False)
        )
    log_scale = torch.stack([scale for _, scale in found]).amax(0)
    total = found[0][0].rescaled(found[0][1] - log_scale)
    for sums, scale in found[1:]:
        total = total.plus(sums.rescaled(scale - log_scale))
    return total, log_scale


def moments_of_sums(
    feature_map: FeatureMap, count: int, sums: FeatureSums, log_scale: Tensor | None = None
) -> Moments:
    """Means from sums over `count` points, whose features have a scale taken out."""
    total, first, second, residual = sums
    left_out = residual / total if feature_map.certified else None
    scale = torch.zeros_like(total) if log_scale is None else log_scale
    return Moments(
        float(count), first / total, second / total, left_out, scale, feature_map.rounding
    )
