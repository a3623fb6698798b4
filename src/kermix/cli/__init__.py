"""The command line: one module for each command."""

import os
import sys

__all__ = ["main"]

# How threads wait for each other, by the names of the OpenMP runtimes that PyTorch comes with.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def main() -> None:
    """Run the `kermix` command."""
    wait_asleep()  # read once, when PyTorch is loaded
    try:
        from kermix.cli.app import run
    except ImportError as missing:
        sys.exit(f"The command line needs {missing.name}: pip install 'kermix[cli]'.")
    except KeyboardInterrupt:  # while modules are read; commands see to it themselves
        sys.exit(130)
    run()


def wait_asleep() -> None:
    """Have threads sleep while they wait for each other, unless the user has said how they do.

    By default they spin: beside another busy process, each short step of one thread then waits
    until the other, which has nothing to do, gives its core back.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
