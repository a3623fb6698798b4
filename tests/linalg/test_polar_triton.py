"""The products of a polar factor by kernels of our own, on a GPU or in Triton's interpreter.

Without either nothing is tested: `TRITON_INTERPRET=1 pytest tests/linalg/test_polar_triton.py`
needs no GPU.
"""

import os
from contextlib import nullcontext

import pytest
import torch

import kermix as km
from cases import normal
from internals import polar_module as polar
from internals import polar_module as polar_products

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

DEVICE = "cpu" if INTERPRETED else "cuda"
# Below, at and above whole tiles, and the sizes at which other tiles are taken.
SIZES = [(1, 60, 61), (2, 128, 128), (1, 129, 300)]
if not INTERPRETED:
    SIZES += [
        (1, 767, 769), (1, 1536, 1537), (3, 1000, 1300), (1, 3071, 3073), (1, 3072, 3072),
        (1, 2945, 6200), (1, 6145, 6145),
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    """On any matrix, and on any GPU that these tests have."""
    monkeypatch.setattr(polar, "products_for", lambda matrix, *_: polar_products._Fused(matrix))
    if INTERPRETED:
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


def matrices(batch, rows, columns):
    """Their singular values fall from about 1 to a hundredth."""
    found = normal(batch, rows, columns, seed=rows, dtype=torch.float32).to(DEVICE)
    fall = torch.linspace(0, -2, rows, device=DEVICE)
    return 10 ** fall[:, None] * found / columns**0.5


@pytest.mark.parametrize("size", SIZES)
def test_products(size):
    matrix = matrices(*size)
    fused = polar_products._Fused(matrix)
    x, gram, root = fused.first(matrix)
    torch.testing.assert_close(x * root[:, None, None], matrix)
    wide = x.double()
    exact = wide @ wide.mT
    scale = fused.gram_scale
    rounding = 1e-3 * float(exact.amax())
    torch.testing.assert_close(gram.double() / scale, exact, rtol=0, atol=rounding)
    assert torch.equal(gram, gram.mT)
    assert (torch.linalg.matrix_norm(exact, 2) <= 1).all()
    stepped = 2.0 * wide - 0.7 * exact @ wide
    x = fused.step(x, gram, 2.0, 0.7)
    rounding = 1e-3 * float(stepped.abs().amax())
    torch.testing.assert_close(x.double(), stepped, rtol=0, atol=rounding)
    # The rounded copy that the step has left is what the next product takes.
    exact = stepped @ stepped.mT
    rounding = 2e-3 * float(exact.amax())
    torch.testing.assert_close(fused.gram(x).double() / scale, exact, rtol=0, atol=rounding)


def test_what_is_done_is_left_alone():
    matrix = matrices(3, 130, 140)
    fused = polar_products._Fused(matrix)
    x, gram, _ = fused.first(matrix)
    fused.skip(torch.tensor([True, False, True], device=DEVICE))
    before, gram_before = x.clone(), gram.clone()
    x = fused.step(x, gram, 2.0, 0.5)
    after = fused.gram(x)
    assert [bool((p == q).all()) for p, q in zip(x, before, strict=True)] == [True, False, True]
    same = [bool((p == q).all()) for p, q in zip(after, gram_before, strict=True)]
    assert same == [True, False, True]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("readable", [False, True])
def test_polar_factors(monkeypatch, readable, turned):
    monkeypatch.setattr(polar, "can_sync", lambda _: readable)
    kernel = torch.exp(-((torch.linspace(0, 9, 200)[:, None] - torch.linspace(0, 9, 150)) ** 2))
    batch = torch.stack([kernel, torch.zeros_like(kernel), 1e-20 * torch.eye(200, 150)])
    batch = (batch.mT if turned else batch).to(DEVICE)
    found = polar.polar_factor(batch, 1e-4)
    exact = torch.linalg.svdvals(batch.double()).sum(-1)
    assert ((found.value - exact).abs() <= found.error_bound).all()
    assert (found.error_bound <= 6e-4 * exact).all()
    inner = (found.factor * batch).sum((-2, -1))
    torch.testing.assert_close(inner, found.value, rtol=1e-5, atol=0)


@pytest.mark.skipif(INTERPRETED, reason="graphs are of a GPU")
def test_a_graph_has_the_value_and_gradient_of_a_call(monkeypatch):
    monkeypatch.undo()
    x = normal(1000, 2, seed=1, dtype=torch.float32).cuda()
    loss, found = km.SVDLoss(0.01), []
    for _ in range(6):  # the last ones are replayed
        y = normal(900, 2, seed=2, dtype=torch.float32).cuda().requires_grad_()
        value = loss(x, y)
        value.backward()
        found.append((value.detach(), y.grad))
    torch.testing.assert_close(found[0][0], found[-1][0], rtol=2e-4, atol=0)
    missed = (found[0][1] - found[-1][1]).norm() / found[0][1].norm()
    assert missed < 0.02
