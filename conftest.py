"""Names that examples in docstrings may use, what holds for all tests, the switch of slow ones."""

import functools
import gc
import importlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

collect_ignore = ["tests/fixtures"]  # what wrote them belongs to older versions
if not importlib.util.find_spec("triton"):
    collect_ignore += sorted(str(path) for path in Path("src/kermix").glob("*/*_triton.py"))
COARSE = 50  # dots per inch

# A million objects of imported modules stay for good: looking for garbage among them again and
# again takes a tenth of the time.
gc.disable()

# Lightning asks every installed package for its entry points whenever a training begins.
metadata.entry_points = functools.cache(metadata.entry_points)


def pytest_collection_finish() -> None:
    """From here on, garbage is looked for among what the tests make."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that are marked slow, unless KERMIX_SLOW=1 asks for them."""
    if os.environ.get("KERMIX_SLOW") == "1":
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="set KERMIX_SLOW=1"))


@pytest.fixture(autouse=True, scope="session")
def _all_tests(doctest_namespace: dict[str, object]) -> Iterator[None]:
    """What holds for all tests. In one fixture: each takes its time before each test."""
    # Read here and not above: what hands tests to other processes reads this file as well.
    import torch

    import kermix

    doctest_namespace["torch"] = torch
    doctest_namespace["km"] = kermix
    # A shell lets its background jobs ignore Ctrl-C, and what they start inherits that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        _share_a_server(patch)
        _draw_coarsely(patch)
        # Waiting for the disk after each checkpoint guards against a power cut, which no test
        # makes; what a killed process has written is there.
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
    signal.signal(signal.SIGINT, before)


def _share_a_server(patch: pytest.MonkeyPatch) -> None:
    # Ranks are copies of the server that tests have for other processes.
    from processes import PRELOADED

    launch = importlib.import_module("internals").launch_module
    patch.setattr(launch, "PRELOADED", PRELOADED)


def _draw_coarsely(patch: pytest.MonkeyPatch) -> None:
    # Everything is drawn, but with a ninth of the pixels, and once: room for labels is found by
    # drawing them twice more. In half of the time.
    from matplotlib.figure import Figure

    drawn = Figure.savefig

    @functools.wraps(drawn)
    def coarse(figure: Figure, *arguments: Any, **options: Any) -> None:
        figure.set_layout_engine("none")
        drawn(figure, *arguments, **{**options, "dpi": COARSE, "bbox_inches": None})

    patch.setattr(Figure, "savefig", coarse)


def _blank(figure: "Figure", where: str | Path | BinaryIO, **options: Any) -> None:
    if isinstance(where, str | Path):
        Path(where).write_bytes(b"")
    else:
        where.write(b"")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's figures are made but not drawn, which takes most of the time.

    For tests of something else: what an odd name or number would break shows when it is drawn.
    """
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", _blank)
