"""Files of sketches: a versioned header, the feature map, and numbers; nothing can be executed.

A checksum of the file is compared on reading.
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
from kermix.sketches.columns import ColumnScale
from kermix.sketches.features import FeatureMap, FourierFeatures, NystromFeatures, fingerprint
from kermix.sketches.kernel_features import KernelFeatures, described_kernel, kernel_of

__all__ = ["StoredSketch", "read_sketch", "write_sketch"]

FORMAT = "kermix.sketches.sketch"
FORMAT_VERSION = 5
GAUSSIAN_MAPS: dict[str, type[NystromFeatures] | type[FourierFeatures]] = {
    m.kind: m for m in (NystromFeatures, FourierFeatures)
}
MAPS = (*GAUSSIAN_MAPS, KernelFeatures.kind)
MISSING = "Saving and loading sketches needs safetensors: pip install 'kermix[sketch]'."
FOREIGN_MAP = "its feature map is not the one it was made with"


class StoredSketch(NamedTuple):
    """What a file of a sketch holds."""

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
        tensors |= {"centre": features.scale.centre, "spread": features.scale.spread}
    if features.chosen_from is not None:
        tensors["chosen_from"] = features.chosen_from
    write_sealed(path, tensors, json.dumps(header), MISSING)


def read_sketch(path: Path, device: torch.device | str) -> StoredSketch:
    """The feature map, the header and all numbers; damaged files are refused by name."""
    if not path.is_file():
        raise SketchError(f"{path}: there is no such file.")
    try:
        found, header = read_sealed(path, MISSING)
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
    except (KeyError, TypeError, ValueError) as error:
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
    scale = ColumnScale(tensors["centre"], tensors["spread"]) if "centre" in tensors else None
    features = replace(features, scale=scale, chosen_from=tensors.get("chosen_from"))
    if fingerprint(features) != header.get("fingerprint"):
        raise ValueError(FOREIGN_MAP)
    return features
