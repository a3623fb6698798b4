"""What runs here: versions, machine and commit, and which of several processes this one is."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "__version__",
    "environment",
    "is_main_process",
    "is_rank",
    "machine_name",
    "world_of_environment",
]

__version__ = "0.2.0"


def is_rank() -> bool:
    """Whether this process was started as one of several, by `launch` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "LOCAL_RANK" in os.environ


def is_main_process() -> bool:
    """Whether this process is the one that talks to the user."""
    return not is_rank() or os.environ["RANK"] == "0"


def world_of_environment() -> tuple[int, int]:
    """Processes on each node, and nodes, as told to a rank by who started it."""
    world = int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return local, max(1, world // local)


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
