"""Sketches compared number by number."""

import torch
from torch.testing import assert_close


def sums(sketch):
    """All numbers of a sketch, in its own words."""
    total, first, second, residual = sketch._total, sketch._first, sketch._second, sketch._residual
    return [torch.tensor(sketch.count), total, first, second, residual]


def assert_same(a, b):
    for found, truth in zip(sums(a), sums(b), strict=True):
        assert_close(found, truth, rtol=1e-12, atol=1e-12)
