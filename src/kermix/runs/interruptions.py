"""Ctrl-C as a question that a loop asks between two steps, instead of an error anywhere."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptions"]


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C and the request to end, for the loop to see between two steps.

    Example:
        >>> with interruptions() as interrupted:
        ...     interrupted()
        False
    """
    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        if seen:  # asked twice: at once
            sys.exit(130)
        seen.append(number)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(s, note) for s in signals]
    try:
        yield lambda: bool(seen)
    finally:
        for s, handler in zip(signals, before, strict=True):
            signal.signal(s, handler)
