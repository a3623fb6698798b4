"""Result files: JSON that says on which machine, with which versions and from which commit."""

import json
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from kermix.files import whole_file

__all__ = ["environment", "machine_name", "write_json"]

REPORTED_PACKAGES = (
    "kermix", "torch", "numpy", "scipy", "scikit-learn", "geomloss", "pykeops", "POT", "zuko",
    "hyppo", "triton", "dask", "pyarrow",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Machine, versions, commit and command of the running program."""
    import torch

    return {
        "machine": {
            "name": machine_name(),
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
        "command": " ".join([_program(), *sys.argv[1:]]),
    }


def machine_name() -> str:
    """A short name for the machine, used in the names of result files: its accelerator or CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name().lower().replace("nvidia ", "").replace(" ", "-")
    return f"cpu{os.cpu_count()}"


def write_json(path: Path, content: Any) -> Path:
    """Write a file in one step: a reader sees the old content or the new, never a part."""
    with whole_file(path) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def _program() -> str:
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    """The commit of the checkout this file lies in, if it lies in one."""
    return os.environ.get("KERMIX_COMMIT") or _described()


@cache  # the program that runs stays the one that was read, whatever is committed meanwhile
def _described() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
