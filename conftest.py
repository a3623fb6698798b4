"""Names that examples in docstrings may use, what holds for all tests, the switch of slow ones."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

import kermix

collect_ignore = ["tests/fixtures"]  # what wrote them belongs to older versions
if not importlib.util.find_spec("triton"):
    collect_ignore.append("src/kermix/kernels/means_triton.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that are marked slow, unless KERMIX_SLOW=1 asks for them."""
    if os.environ.get("KERMIX_SLOW") == "1":
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="set KERMIX_SLOW=1"))


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
    doctest_namespace["km"] = kermix


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> Iterator[None]:
    # A shell lets its background jobs ignore Ctrl-C, and what they start inherits that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not drawn, which takes most of the time of a short run.

    For tests of something else than pages. What an odd name or number would break shows only when
    it is drawn.
    """
    from matplotlib.figure import Figure

    def blank(figure: Figure, where: str | Path | BinaryIO, **options: Any) -> None:
        if isinstance(where, str | Path):
            Path(where).write_bytes(b"")
        else:
            where.write(b"")

    monkeypatch.setattr(Figure, "savefig", blank)


@pytest.fixture(autouse=True, scope="session")
def _power_stays_on() -> Iterator[None]:
    # Waiting for the disk after each checkpoint guards against a power cut, which no test makes;
    # what a killed process has written is there.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
