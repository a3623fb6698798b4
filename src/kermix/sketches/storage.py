"""Files of sketches: a versioned header, the feature map, and numbers; nothing can be executed.

Version 2 holds the scale of columns and the keys of the rows that the map was chosen from. In
version 1 the scale was a remark about the files that were sketched; it is taken from there.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kermix.errors import MissingExtraError, SketchError
from kermix.files import whole_file
from kermix.kernels.gaussian import GaussianKernel
from kermix.kernels.mixed import Layout, MixedKernel
from kermix.sketches.columns import ColumnScale
from kermix.sketches.features import FeatureMap, FourierFeatures, NystromFeatures, fingerprint
from kermix.sketches.kernel_features import KernelFeatures, described_kernel, kernel_of

__all__ = ["read_sketch", "write_sketch"]

FORMAT = "kermix.sketches.sketch"
FORMAT_VERSION = 2
MIXED_VERSION = 3  # rows of numbers and codes, which older versions would take for numbers
KERNEL_VERSION = 4  # another kernel than the Gaussian
READABLE = (1, 2, MIXED_VERSION, KERNEL_VERSION)
GAUSSIAN_MAPS: dict[str, type[NystromFeatures] | type[FourierFeatures]] = {
    m.kind: m for m in (NystromFeatures, FourierFeatures)
}
MAPS = (*GAUSSIAN_MAPS, KernelFeatures.kind)


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
    _, save = _safetensors()
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
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    content = save(plain, metadata={"kermix": json.dumps(header)})
    with whole_file(path) as part:
        part.write_bytes(content)


def read_sketch(
    path: Path, device: torch.device | str
) -> tuple[FeatureMap, dict[str, Any], dict[str, Tensor]]:
    """The feature map, the header and all numbers; damaged files are refused by name."""
    safe_open, _ = _safetensors()
    if not path.is_file():
        raise SketchError(f"{path}: there is no such file.")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = json.loads((file.metadata() or {}).get("kermix", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # noqa: BLE001
        raise SketchError(f"{path}: damaged, or not a sketch ({error}).") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SketchError(f"{path}: a safetensors file, but not a sketch of kermix.")
    if header.get("version") not in READABLE or header.get("features") not in MAPS:
        raise SketchError(
            f"{path}: written by another version of kermix (format {header.get('version')}, "
            f"features {header.get('features')!r}; this one reads formats 1 to 4)."
        )
    try:
        return _map_of(path, header, tensors), header, tensors
    except (KeyError, TypeError, ValueError) as error:
        raise SketchError(f"{path}: damaged ({error}).") from None


def _map_of(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureMap:
    if header["version"] == KERNEL_VERSION:
        made = KernelFeatures(
            tensors["parameters"], kernel_of(header["kernel"]), tensors.get("chosen_from")
        )
        if fingerprint(made) != header.get("fingerprint"):
            raise _foreign_map(path)
        return made
    kernel = GaussianKernel(header["variances"], per_dimension=header["per_dimension"])
    if header["version"] == MIXED_VERSION:
        codes, mismatch, columns = header["layout"]
        kernel = MixedKernel(header["variances"], Layout(int(codes), mismatch, int(columns)))
    features = GAUSSIAN_MAPS[header["features"]](tensors["parameters"], kernel)
    origin = header.get("origin") or {}
    if header["version"] == 1:
        if fingerprint(features) != header.get("fingerprint"):
            raise _foreign_map(path)
        if origin.get("spread"):
            centre, spread = (
                torch.tensor(origin[name], dtype=torch.float64) for name in ("centre", "spread")
            )
            features = replace(features, scale=ColumnScale(centre, spread))
        return features
    scale = ColumnScale(tensors["centre"], tensors["spread"]) if "centre" in tensors else None
    features = replace(features, scale=scale, chosen_from=tensors.get("chosen_from"))
    if fingerprint(features) != header.get("fingerprint"):
        raise _foreign_map(path)
    return features


def _foreign_map(path: Path) -> SketchError:
    return SketchError(f"{path}: damaged, its feature map is not the one it was made with.")


def _safetensors() -> tuple[Any, Any]:
    try:
        from safetensors import safe_open
        from safetensors.torch import save
    except ImportError:
        raise MissingExtraError(
            "Saving and loading sketches needs safetensors: pip install 'kermix[sketch]'."
        ) from None
    return safe_open, save
