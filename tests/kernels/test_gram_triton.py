"""Gram matrices by fused kernels against the plain way, on a GPU or in Triton's interpreter.

Without either nothing is tested: `TRITON_INTERPRET=1 pytest tests/kernels/test_gram_triton.py`
needs no GPU.
"""

import os
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

import kermix as km
from cases import normal

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from internals import gram_module, gram_triton_module, scaled_gram  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
SIZES = [(1, 1), (5, 7), (64, 65), (70, 300)] + ([] if INTERPRETED else [(3000, 2000)])


@pytest.fixture
def asked(monkeypatch):
    """What the kernels are asked for, on any device."""
    calls = []
    for name in ("gram", "pulls"):
        call = getattr(gram_triton_module, name)
        monkeypatch.setattr(
            gram_triton_module, name,
            lambda *args, call=call, name=name: calls.append(name) or call(*args),
        )  # fmt: skip
    if INTERPRETED:
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(gram_module, "_in_one_pass", lambda *_: True)
    return calls


def found_by(way, a, b, kernel, weights, monkeypatch):
    """The scaled matrix, and gradients to points and variance of a sum of it."""
    with monkeypatch.context() as patch:
        if way == "plain":
            patch.setattr(gram_module, "_in_one_pass", lambda *_: False)
        a, b = (t.detach().clone().requires_grad_() for t in (a, b))
        found = scaled_gram(a, b, kernel.cross_terms(a.shape[-1], True), a.dtype)
        total = (found.matrix * weights).sum()
        first = torch.autograd.grad(total, (a, b), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (a, b))
        plain = torch.autograd.grad((found.matrix * weights).sum(), (a, b), retain_graph=False)
    return found.matrix.detach(), found.log_scale, *(g.detach() for g in first), *plain, *second


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_the_same_as_in_steps(m, n, d, dtype, asked, monkeypatch):
    a, b = (normal(k, d, seed=k, dtype=dtype).to(DEVICE) for k in (m, n))
    weights = normal(m, n, seed=1, dtype=dtype).to(DEVICE)
    kernel = km.GaussianKernel(0.1, 0.3)
    fused = found_by("fused", a, b, kernel, weights, monkeypatch)
    assert asked == ["gram", "pulls"]
    plain = found_by("plain", a, b, kernel, weights, monkeypatch)
    close = 1e-4 if dtype == torch.float32 else 1e-10
    for one, other in zip(fused, plain, strict=True):
        assert_close(one, other, rtol=close, atol=close * float(other.abs().max() + 1e-30))


def test_batches_and_far_points(asked, monkeypatch):
    a = normal(3, 1, 20, 2, seed=1, dtype=torch.float32).to(DEVICE) + 1e6
    b = normal(2, 30, 2, seed=2, dtype=torch.float32).to(DEVICE)
    weights = normal(3, 2, 20, 30, seed=3, dtype=torch.float32).to(DEVICE)
    ways = [found_by(way, a, b, km.GaussianKernel(0.1), weights, monkeypatch)
            for way in ("fused", "plain")]  # fmt: skip
    for one, other in zip(*ways, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
    assert float(ways[0][0].max()) == 1


def test_a_learned_variance_has_its_gradient(asked, monkeypatch):
    a, b = (normal(k, 2, seed=k).to(DEVICE) for k in (30, 40))
    slopes = []
    for way in ("fused", "plain"):
        with monkeypatch.context() as patch:
            if way == "plain":
                patch.setattr(gram_module, "_in_one_pass", lambda *_: False)
            v = torch.tensor(0.2, dtype=torch.float64, device=DEVICE, requires_grad=True)
            slopes.append(torch.autograd.grad(km.gram(a, b, v).square().sum(), v)[0])
    assert_close(*slopes)
