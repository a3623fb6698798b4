"""Losses of few points on a GPU in one launch: the same values and derivatives."""

import copy
import pickle

import pytest
import torch

import kermix as km
from kermix.costs.losses import CALLS_BEFORE, GraphedCalls

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are of a GPU")


def points(n, d, seed, device="cpu"):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed)).to(device)


def test_a_copy_has_no_graphs():
    calls = GraphedCalls()
    calls._made["something"] = 1
    assert not copy.deepcopy(calls)._made
    assert not pickle.loads(pickle.dumps(calls))._made


def test_nothing_is_noted_on_a_cpu():
    loss = km.SVDLoss(0.1)
    for _ in range(CALLS_BEFORE + 2):
        loss(points(20, 2, 0), points(20, 2, 1))
    assert not loss._graphed._made
    assert isinstance(pickle.loads(pickle.dumps(loss)), km.SVDLoss)


@on_gpu
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_graphs_are_as_good_as_the_loss_itself(weighted, log):
    """Both beside an SVD in double precision: their products are rounded in other places."""
    loss = km.SVDLoss([0.01, 0.1], log=log)
    exact = km.SVDLoss([0.01, 0.1], log=log, method="svd")
    for seed in range(CALLS_BEFORE + 4):
        x, y = points(300, 2, seed, "cuda"), points(200, 2, seed + 50, "cuda")
        w = points(200, 1, seed + 90, "cuda")[:, 0] if weighted else None
        found = []
        for cost, dtype in ((loss, x.dtype), (km.SVDLoss([0.01, 0.1], log=log), x.dtype),
                            (exact, torch.float64)):  # fmt: skip
            given = [t if t is None else t.to(dtype, copy=True).requires_grad_() for t in (y, w)]
            value = cost(x.to(dtype), given[0], weights_y=given[1])
            wanted = [t for t in given if t is not None]
            found.append((value.detach(), *torch.autograd.grad(3 * value, wanted)))
        replayed, one_by_one, truth = found
        assert abs(float(replayed[0] - truth[0])) < 2e-4
        for a, b, c in zip(replayed, one_by_one, truth, strict=True):
            error, usual = (float((t - c).norm() / c.norm()) for t in (a, b))
            assert error < 2 * usual + 0.02
    assert any(not isinstance(made, int) for made in loss._graphed._made.values())


@on_gpu
def test_values_that_are_kept_do_not_change():
    loss, x = km.SVDLoss(0.05), points(200, 2, 0, "cuda")
    values = [loss(x, points(200, 2, seed, "cuda")) for seed in range(1, 9)]
    again = [km.SVDLoss(0.05)(x, points(200, 2, seed, "cuda")) for seed in range(1, 9)]
    torch.testing.assert_close(torch.stack(values), torch.stack(again), rtol=0, atol=3e-4)


@on_gpu
def test_a_second_derivative_is_there():
    loss, x = km.SVDLoss(0.05), points(100, 1, 0, "cuda")
    slopes = []
    for _ in range(CALLS_BEFORE + 3):
        y = points(100, 1, 1, "cuda").requires_grad_()
        (slope,) = torch.autograd.grad(loss(x, y), y, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), y)
        slopes.append(second)
    assert float((slopes[-1] - slopes[0]).norm() / slopes[0].norm()) < 0.02
