"""Ctrl-C and the request to end, noted instead of obeyed at once."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptions"]


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came, for a loop to ask between two steps; the second one ends."""
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
