"""Names that the examples in docstrings may use without importing them."""

import pytest
import torch

import kermix


@pytest.fixture(autouse=True)
def _example_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
    doctest_namespace["km"] = kermix
