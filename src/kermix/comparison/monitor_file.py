"""Files of drift monitors: the rows of the reference, what was seen, and a header of settings."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.comparison.monitor_rows import RowReader
from kermix.comparison.run_length import Calibration
from kermix.data.tables.mixed_rows import MixedRows
from kermix.errors import RunError
from kermix.files import whole_file

__all__ = ["read_monitor", "write_monitor"]

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
