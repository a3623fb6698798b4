"""Files of sketches: a versioned header, the feature map, and numbers; nothing can be executed.

Version 2 holds the scale of columns and the keys of the rows that the map was chosen from. In
version 1 the scale was a remark about the files that were sketched; it is taken from there.

A checksum of the file is compared on reading. Files of older versions have none: of their sums is
checked what those of any points fulfil.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.errors import SketchError
from kermix.kernels.gaussian import GaussianKernel
from kermix.kernels.mixed import Layout, MixedKernel
from kermix.sealed import read_sealed, write_sealed
from kermix.sketches.accumulation import FeatureSums
from kermix.sketches.columns import ColumnScale
from kermix.sketches.features import FeatureMap, FourierFeatures, NystromFeatures, fingerprint
from kermix.sketches.kernel_features import KernelFeatures, described_kernel, kernel_of

__all__ = ["DAMAGES", "StoredSketch", "check_sums", "read_sketch", "write_sketch"]

FORMAT = "kermix.sketches.sketch"
FORMAT_VERSION = 2
MIXED_VERSION = 3  # rows of numbers and codes, which older versions would take for numbers
KERNEL_VERSION = 4  # another kernel than the Gaussian
READABLE = (1, 2, MIXED_VERSION, KERNEL_VERSION)
GAUSSIAN_MAPS: dict[str, type[NystromFeatures] | type[FourierFeatures]] = {
    m.kind: m for m in (NystromFeatures, FourierFeatures)
}
MAPS = (*GAUSSIAN_MAPS, KernelFeatures.kind)
MISSING = "Saving and loading sketches needs safetensors: pip install 'kermix[sketch]'."
FOREIGN_MAP = "its feature map is not the one it was made with"
# What can be wrong with a header that was changed, or with tensors that do not fit it.
DAMAGES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError,
           ValueError)  # fmt: skip
ROUNDED = 1e-3  # far above what rounding does to sums, relative to the number of points


class StoredSketch(NamedTuple):
    """What a file of a sketch holds."""

    features: FeatureMap
    header: dict[str, Any]
    numbers: dict[str, Tensor]
    checked: bool  # False: written by an older version, without a checksum


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
        header |= {"version": KERNEL_VERSION, "kernel": described_kernel(features.kernel)}
    else:
        header |= {
            "variances": [float(v) for v in features.kernel.v_p],
            "per_dimension": features.kernel.per_dimension,
        }
    if isinstance(features.kernel, MixedKernel):
        header |= {"version": MIXED_VERSION, "layout": list(features.kernel.layout)}
    tensors = {"parameters": features.parameters, **numbers}
    if features.scale is not None:
        tensors |= {"centre": features.scale.centre, "spread": features.scale.spread}
    if features.chosen_from is not None:
        tensors["chosen_from"] = features.chosen_from
    write_sealed(path, tensors, json.dumps(header), MISSING)


def read_sketch(path: Path, device: torch.device | str) -> StoredSketch:
    """The feature map, the header and all numbers; damaged files are refused by name."""
    if not path.is_file():
        raise SketchError(f"{path}: there is no such file.")
    try:
        found, header, checked = read_sealed(path, MISSING)
    except ValueError as error:
        raise SketchError(f"{path}: damaged, or not a sketch ({error}).") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SketchError(f"{path}: a safetensors file, but not a sketch of kermix.")
    if header.get("version") not in READABLE or header.get("features") not in MAPS:
        raise SketchError(
            f"{path}: written by another version of kermix (format {header.get('version')}, "
            f"features {header.get('features')!r}; this one reads formats 1 to 4)."
        )
    tensors = {name: t.to(device) for name, t in found.items()}
    try:
        return StoredSketch(_map_of(header, tensors), header, tensors, checked)
    except DAMAGES as error:
        raise SketchError(f"{path}: damaged ({error}).") from None


def check_sums(
    sums: FeatureSums, count: int, weighted: bool, within: Tensor | None = None
) -> None:
    """Raise a ValueError for sums that no points have, whatever their features.

    The features of a point and its residual are those of a kernel with k(x, x) = 1, so that their
    squares add up to 1.

    Args:
        sums: Of points or, with `within`, of some of them.
        count: How many points.
        weighted: Whether they have weights, or are only some of them.
        within: The total weight of all points, where these are some of them.
    """
    total, first, second, residual = sums
    if not all(bool(part.isfinite().all()) for part in sums):
        raise ValueError("its sums are not finite")
    slack = ROUNDED * total
    most = total if within is None else within
    counted = weighted or bool((total - count).abs() <= slack)
    if not (counted and 0 <= total <= most + slack):
        raise ValueError(f"its sums are not those of {count} points")
    squares = second.diagonal()
    roots = squares.clamp(min=0).sqrt()
    good = (
        (squares >= 0).all()
        & ((second - second.mT).abs() <= slack).all()
        & (second.abs() <= roots.outer(roots) + slack).all()
        & (first.abs() <= total.sqrt() * roots + slack).all()
        & (residual >= 0)
        & ((squares.sum() + residual - total).abs() <= slack)
    )
    if not good:
        raise ValueError("its sums contradict each other")


def _map_of(header: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureMap:
    if header["version"] == KERNEL_VERSION:
        made = KernelFeatures(
            tensors["parameters"], kernel_of(header["kernel"]), tensors.get("chosen_from")
        )
        if fingerprint(made) != header.get("fingerprint"):
            raise ValueError(FOREIGN_MAP)
        return made
    kernel = GaussianKernel(header["variances"], per_dimension=header["per_dimension"])
    if header["version"] == MIXED_VERSION:
        codes, mismatch, columns = header["layout"]
        kernel = MixedKernel(header["variances"], Layout(int(codes), mismatch, int(columns)))
    features = GAUSSIAN_MAPS[header["features"]](tensors["parameters"], kernel)
    origin = header.get("origin") or {}
    if header["version"] == 1:
        if fingerprint(features) != header.get("fingerprint"):
            raise ValueError(FOREIGN_MAP)
        if origin.get("spread"):
            centre, spread = (
                torch.tensor(origin[name], dtype=torch.float64) for name in ("centre", "spread")
            )
            features = replace(features, scale=ColumnScale(centre, spread))
        return features
    scale = ColumnScale(tensors["centre"], tensors["spread"]) if "centre" in tensors else None
    features = replace(features, scale=scale, chosen_from=tensors.get("chosen_from"))
    if fingerprint(features) != header.get("fingerprint"):
        raise ValueError(FOREIGN_MAP)
    return features
