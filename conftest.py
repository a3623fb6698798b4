"""Names that examples in docstrings may use without importing them, and Ctrl-C for all tests."""

import importlib.util
import signal
from collections.abc import Iterator

import pytest
import torch

import kermix

NEEDS_TRITON = "src/kermix/kernels/means_triton.py"
collect_ignore = [] if importlib.util.find_spec("triton") else [NEEDS_TRITON]


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
