"""The command line: one module for each command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `kermix` command."""
    try:
        from kermix.cli.app import run
    except ImportError as missing:
        sys.exit(f"The command line needs {missing.name}: pip install 'kermix[cli]'.")
    except KeyboardInterrupt:  # while modules are read; commands see to it themselves
        sys.exit(130)
    run()
