"""Tables: readers of files and frames, whole or in batches."""

from kermix.moved import moved_name


def __getattr__(name: str) -> object:
    return moved_name(__name__, name)
