"""The command line: arguments and files in, words, files and an exit status out.

One module for each command parses its arguments and calls the library.
"""

import ctypes
import os
import sys

__all__ = ["main"]

# How threads wait for each other, by the names of the OpenMP runtimes that PyTorch comes with.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SPINS = "2000"  # some microseconds, as long as from one step of a small model to the next
# Of glibc, by the numbers of its header; below the first, memory comes from one heap, of which so
# much stays when it is free. Reasoned, no record.
MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 2**25), (-1, 2**28)


def main() -> None:
    """Run the `kermix` command."""
    spin_briefly()  # read once, when PyTorch is loaded
    keep_memory()
    try:
        from kermix.cli.app import run
    except ImportError as missing:
        sys.exit(f"The command line needs {missing.name}: pip install 'kermix[cli]'.")
    except KeyboardInterrupt:  # while modules are read; commands see to it themselves
        sys.exit(130)
    run()


def spin_briefly() -> None:
    """Have threads sleep soon when they wait for each other, unless the user has said how they do.

    By default they spin for long: beside another busy process, each short step of one thread then
    waits until the other, which has nothing to do, gives its core back. Without any spinning, a
    fit that is alone is half as fast.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPINS


def keep_memory() -> None:
    """Have free memory stay with the process, unless the user has said how it is allocated.

    By default each step gives its matrices back to the system, which hands them out again page by
    page, filled with zeros.
    """
    said = any(name.startswith("MALLOC_") for name in os.environ)
    if sys.platform == "linux" and not said:
        tune = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries have none
        if tune is not None:
            for option in (MMAP_THRESHOLD, TRIM_THRESHOLD):
                tune(*option)
