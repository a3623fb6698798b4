"""The compiled loop over pairs: any number of dtypes and dimensions, far points."""

import pytest
import torch
from torch.testing import assert_close

from cases import DTYPES, normal
from internals import means_module as compiled

# It had another name before PyTorch 2.6.
NAMES = ("recompile_limit", "cache_size_limit")
RECOMPILE_LIMIT = next(name for name in NAMES if hasattr(torch._dynamo.config, name))


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch):
    """What is counted is the compiler's versions; generating C++ would take minutes."""
    compile = torch.compile

    def eagerly(function, **options):
        return compile(function, **options, backend="eager")

    monkeypatch.setattr(torch, "compile", eagerly)
    compiled._compiled.cache_clear()
    torch._dynamo.reset()
    yield
    compiled._compiled.cache_clear()
    torch._dynamo.reset()


@torch._dynamo.config.patch({RECOMPILE_LIMIT: 2})
def test_every_dtype_and_dimension_has_its_loop():
    """The compiler gives up at the ninth version of one function; here, at the third."""
    for dtype in DTYPES:
        for d in (1, 3):
            p, s = normal(2, 5, d, seed=1, dtype=dtype), normal(2, 7, d, seed=2, dtype=dtype)
            found = compiled.compiled_nearest_distances(p, s, torch.ones(2, 7, dtype=dtype))
            truth = (s[:, None].double() - p[:, :, None].double()).square().sum(-1).amin(-1)
            assert_close(found.double(), truth, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments(dtype):
    p, s = normal(2, 5, 3, seed=1, dtype=dtype), normal(2, 7, 3, seed=2, dtype=dtype)
    weights, rate = torch.rand(2, 7, dtype=dtype), torch.tensor(0.7, dtype=dtype)
    gaps = s[:, None].double() - p[:, :, None].double()
    distances = gaps.square().sum(-1)
    value = weights[:, None].double() * (-0.7 * distances).exp()
    found = compiled.compiled_kernel_moments(p, s, weights, rate, gradient=True)
    truth = value.sum(-1), (value[..., None] * gaps).sum(-2), (value * distances).sum(-1)
    for f, t in zip(found, truth, strict=True):
        assert_close(f.double(), t, rtol=1e-5, atol=1e-6)


def test_very_far_points_are_finite():
    p, s = torch.zeros(1, 3, 2), torch.zeros(1, 4, 2)
    s[0, 0] = p[0, 1] = 1e25
    weights = torch.full((1, 4), 0.25)
    near = compiled.compiled_nearest_distances(p, s, weights)
    found = compiled.compiled_kernel_moments(
        p, s, weights, torch.tensor(1.0), near_targets=near, gradient=True
    )
    assert all(torch.isfinite(part).all() for part in (near, *found))
    assert_close(found.mass, torch.tensor([[0.75, 0.25, 0.75]]))
