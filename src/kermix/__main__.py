"""`python -m kermix` is the `kermix` command."""

from kermix.cli import main

if __name__ == "__main__":
    main()
