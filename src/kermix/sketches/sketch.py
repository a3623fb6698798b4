"""Primal statistics: moments of features, which add up over batches and machines."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kermix.checks import check_samples, check_weights
from kermix.costs.primal import Moments
from kermix.errors import DeviceError, MissingExtraError, ShapeError, SketchError, WeightError
from kermix.files import whole_file
from kermix.kernels.gaussian import GaussianKernel
from kermix.sketches.accumulation import FeatureSums, feature_sums, summed
from kermix.sketches.features import FeatureMap, FourierFeatures, NystromFeatures, fingerprint
from kermix.sketches.origin import Origin, check_same_columns

__all__ = ["Sketch"]

FORMAT_VERSION = 1
MAPS: dict[str, type] = {m.kind: m for m in (NystromFeatures, FourierFeatures)}
ROWS_AT_A_TIME = 16384
SUMS = ("_total", "_first", "_second", "_residual")


class Sketch:
    r"""Moments of the features of a data set: all that a cost needs to know of it.

    Memory is :math:`O(r^2)`, whatever the number of points. Sketches with the same feature map can
    be added and compared; `km.svd_cost(sketch, other)` and the other costs take them in place of
    samples, and samples on one side may be compared with a sketch on the other.

    Args:
        feature_map: From :func:`~kermix.nystrom_features` or :func:`~kermix.fourier_features`.

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
        parameters, r = feature_map.parameters, feature_map.rank
        self.count = 0
        self.weighted = False
        self.origin: Origin | None = None
        self._total = parameters.new_zeros(())
        self._first = parameters.new_zeros(r)
        self._second = parameters.new_zeros(r, r)
        self._residual = parameters.new_zeros(())

    def __repr__(self) -> str:
        kind, rank = type(self.feature_map).__name__, self.feature_map.rank
        return f"Sketch({kind}, rank={rank}, count={self.count})"

    def update(self, batch: Tensor, weights: Tensor | None = None) -> "Sketch":
        """Add points; the sketch is changed only if all of them are good. Returns the sketch.

        Args:
            batch: Points, shape (N, d).
            weights: Weights, shape (N,), relative to those of all other points: not normalised.
        """
        self._check(batch)
        if weights is not None:
            check_batch_weights("weights", weights, batch)
            self.weighted = True
        sums = self._sums
        with torch.no_grad():
            for start in range(0, len(batch), ROWS_AT_A_TIME):
                part = slice(start, start + ROWS_AT_A_TIME)
                share = None if weights is None else weights[part]
                sums = sums.plus(summed(self.feature_map, batch[part], share))
        self._take(sums, len(batch))
        return self

    def add_sums(self, sums: FeatureSums, count: int) -> "Sketch":
        """Add sums over `count` points that were computed elsewhere with this feature map."""
        self._take(self._sums.plus(FeatureSums(*(t.to(self._total) for t in sums))), count)
        return self

    @property
    def _sums(self) -> FeatureSums:
        return FeatureSums(*(getattr(self, name) for name in SUMS))

    def _take(self, sums: FeatureSums, count: int) -> None:
        for name, value in zip(SUMS, sums, strict=True):
            setattr(self, name, value)
        self.count += count

    def merge(self, other: "Sketch") -> "Sketch":
        """The sketch of both data sets together, as a new sketch; also written `a + b`."""
        check_comparable(self, other)
        merged = Sketch(self.feature_map)
        merged.count = self.count + other.count
        merged.weighted = self.weighted or other.weighted
        for name, value in zip(SUMS, self._sums.plus(other._sums), strict=True):
            setattr(merged, name, value)
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
        return moments_of_sums(self.feature_map, self.count, *self._sums)

    @property
    def mean_residual(self) -> Tensor | None:
        """Mean of what the features leave out of the kernel, the source of all error bounds."""
        return self.moments.residual

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file in one step; nothing in it can be executed."""
        _, save = _safetensors()
        path = Path(path)
        kernel, features = self.feature_map.kernel, self.feature_map
        header = {
            "format": "kermix.sketches.sketch",
            "version": FORMAT_VERSION,
            "features": features.kind,
            "fingerprint": fingerprint(features),
            "variances": [float(v) for v in kernel.v_p],
            "per_dimension": kernel.per_dimension,
            "count": self.count,
            "weighted": self.weighted,
            "origin": None if self.origin is None else self.origin.to_dict(),
        }
        tensors = {"parameters": features.parameters}
        tensors |= {name: getattr(self, name) for name in SUMS}
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        content = save(plain, metadata={"kermix": json.dumps(header)})
        with whole_file(path) as part:
            part.write_bytes(content)
        return path

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> "Sketch":
        """Read a sketch; a damaged file, or one of another kind, is refused by name."""
        safe_open, _ = _safetensors()
        path = Path(path)
        if not path.is_file():
            raise SketchError(f"{path}: there is no such file.")
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                header = json.loads((file.metadata() or {}).get("kermix", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:  # noqa: BLE001
            raise SketchError(f"{path}: damaged, or not a sketch ({error}).") from None
        return cls._from_parts(path, header, tensors)

    @classmethod
    def _from_parts(
        cls, path: Path, header: dict[str, Any], tensors: dict[str, Tensor]
    ) -> "Sketch":
        if not isinstance(header, dict) or header.get("format") != "kermix.sketches.sketch":
            raise SketchError(f"{path}: a safetensors file, but not a sketch of kermix.")
        if header.get("version") != FORMAT_VERSION or header.get("features") not in MAPS:
            raise SketchError(
                f"{path}: written by another version of kermix (format {header.get('version')}, "
                f"features {header.get('features')!r}; this one reads format {FORMAT_VERSION})."
            )
        try:
            kernel = GaussianKernel(header["variances"], per_dimension=header["per_dimension"])
            sketch = cls(MAPS[header["features"]](tensors["parameters"], kernel))
            sketch.count = int(header["count"])
            sketch.weighted = bool(header["weighted"])
            # Files written before there were origins have none.
            if header.get("origin") is not None:
                sketch.origin = Origin.from_dict(header["origin"])
            for name in SUMS:
                if tensors[name].shape != getattr(sketch, name).shape:
                    raise SketchError(f"{path}: its parts do not fit together.")
                setattr(sketch, name, tensors[name])
        except (KeyError, TypeError, ValueError) as error:
            raise SketchError(f"{path}: damaged ({error}).") from None
        if fingerprint(sketch.feature_map) != header.get("fingerprint"):
            raise SketchError(f"{path}: damaged, its feature map is not the one it was made with.")
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
            f"{name} has shape {tuple(weights.shape)}; beside a sketch it must be ({len(batch)},)."
        )


def check_comparable(a: Sketch, b: Sketch) -> None:
    """Refuse two sketches whose moments are of different features."""
    if not isinstance(a, Sketch) or not isinstance(b, Sketch):
        raise SketchError(f"Cannot combine {type(a).__name__} with {type(b).__name__}.")
    check_same_columns(a.origin, b.origin)
    if a.feature_map is b.feature_map:
        return
    if fingerprint(a.feature_map) != fingerprint(b.feature_map):
        raise SketchError(
            f"The sketches have different feature maps ({a.feature_map.kernel} and "
            f"{b.feature_map.kernel}, rank {a.feature_map.rank} and {b.feature_map.rank}): sketch "
            "both data sets with the map of one of them, for example Sketch(a.feature_map), or "
            "kermix sketch --landmarks-from."
        )
    if a._total.device != b._total.device:
        raise DeviceError(f"One sketch is on {a._total.device}, the other on {b._total.device}.")


def sample_moments(feature_map: FeatureMap, points: Tensor, weights: Tensor | None) -> Moments:
    """Moments of points, differentiable; features are computed again in the backward."""
    return moments_of_sums(feature_map, len(points), *sample_sums(feature_map, points, weights))


def sample_sums(
    feature_map: FeatureMap, points: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What moments are made of: it can be added over sets of points, of which one may be empty."""
    if not len(points):
        # Zeros that depend on the points: all ranks of a group must take part in a backward.
        zero = points.sum().to(feature_map.parameters)
        zero = zero if weights is None else zero + weights.sum().to(zero)
        r = feature_map.rank
        return zero, zero.expand(r), zero.expand(r, r), zero
    starts = range(0, len(points), ROWS_AT_A_TIME)
    parts = [slice(start, start + ROWS_AT_A_TIME) for start in starts]
    sums: list[Tensor] | None = None
    for part in parts:
        share = None if weights is None else weights[part]
        new = checkpoint(feature_sums, feature_map, points[part], share, use_reentrant=False)
        sums = list(new) if sums is None else [s + n for s, n in zip(sums, new, strict=True)]
    assert sums is not None
    total, first, second, residual = sums
    return total, first, second, residual


def moments_of_sums(
    feature_map: FeatureMap,
    count: int,
    total: Tensor,
    first: Tensor,
    second: Tensor,
    residual: Tensor,
) -> Moments:
    """Means from sums over `count` points."""
    left_out = residual / total if feature_map.certified else None
    return Moments(float(count), first / total, second / total, left_out)


def _safetensors() -> tuple[Any, Any]:
    try:
        from safetensors import safe_open
        from safetensors.torch import save
    except ImportError:
        raise MissingExtraError(
            "Saving and loading sketches needs safetensors: pip install 'kermix[sketch]'."
        ) from None
    return safe_open, save
