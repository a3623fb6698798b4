"""Names that the examples in docstrings may use without importing them."""

import importlib.util

import pytest
import torch

import kermix

collect_ignore = [] if importlib.util.find_spec("triton") else ["src/kermix/fused.py"]


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
    doctest_namespace["km"] = kermix
