"""The fused kernels against the tiles, on a GPU or in Triton's interpreter.

Without either nothing is tested: `TRITON_INTERPRET=1 pytest tests/kernels/test_fused.py` needs no
GPU.
"""

import os

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

import kermix as km
from cases import normal, uniform
from internals import means_module as streaming
from internals import squared_distances

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from internals import means_triton_module as fused  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
# Sizes around the blocks of 64 and 128, and far from them.
SIZES = [(1, 1), (5, 7), (64, 128), (70, 150)] + ([] if INTERPRETED else [(3000, 2000)])
KERNELS = {"one": 0.3, "several": [0.05, 0.4, 3.0]}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@pytest.fixture
def calls(monkeypatch):
    """Counts what the fused kernels are asked for, so that a test cannot pass without them."""
    asked = []
    evaluate = fused.kernel_moments

    def counted(*args, **keywords):
        asked.append(keywords.get("gradient", False))
        return evaluate(*args, **keywords)

    monkeypatch.setattr(fused, "kernel_moments", counted)
    return asked


def on_device(*shape, seed):
    return normal(*shape, seed=seed, dtype=torch.float32).to(DEVICE)


def weights_of(*shape, seed):
    """Weights of which a third are zero, never the first."""
    weights = uniform(*shape, seed=seed, dtype=torch.float32)
    weights[..., 1::3] = 0
    return weights.to(DEVICE)


def results(function, inputs, by, monkeypatch, dtype=torch.float32):
    """Value and gradients by the fused kernels or by the tiles."""
    leaves = [t.detach().clone().to(dtype).requires_grad_() for t in inputs]
    with monkeypatch.context() as patch:
        if by == "tiles":
            patch.setattr(streaming, "_one_loop", lambda points, sources: None)
        elif INTERPRETED:
            loop = streaming._PairLoop(fused.nearest_distances, fused.kernel_moments)
            patch.setattr(streaming, "_one_loop", lambda points, sources: loop)
        value = function(*leaves)
        return [value.detach(), *grad(value.sum(), leaves)]


def assert_fused_equals_tiled(function, inputs, monkeypatch, calls, rtol=1e-4):
    found = results(function, inputs, "fused", monkeypatch)
    assert False in calls, "the forward was not fused"
    assert True in calls, "the backward was not fused"
    del calls[:]
    # In float64, so that the tiles' own rounding does not count.
    truth = results(function, inputs, "tiles", monkeypatch, torch.float64)
    assert not calls
    for f, t in zip(found, truth, strict=True):
        scale = float(t.abs().max())
        assert_close(f.double(), t, rtol=rtol, atol=rtol * scale)


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 3, 8])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_scalar_cost(n, k, d, kernel, monkeypatch, calls):
    inputs = on_device(n, d, seed=1), on_device(k, d, seed=2)
    function = lambda x, y: km.scalar_cost(x, y, KERNELS[kernel], log=True)  # noqa: E731
    assert_fused_equals_tiled(function, inputs, monkeypatch, calls)


@every_kernel
@pytest.mark.parametrize("normalized", [False, True])
def test_weights_with_zeros(normalized, kernel, monkeypatch, calls):
    x, y = on_device(70, 2, seed=1), on_device(40, 2, seed=2)
    a, b = weights_of(70, seed=3), weights_of(40, seed=4) + 0.1
    x[1] = y[0]  # a point without weight right at a centre

    def function(x, y, a, b):
        weights = {"weights_x": a, "weights_y": b}
        return km.scalar_cost(x, y, KERNELS[kernel], normalized=normalized, log=True, **weights)

    assert_fused_equals_tiled(function, (x, y, a, b), monkeypatch, calls, rtol=3e-4)


@every_kernel
def test_batches(kernel, monkeypatch, calls):
    inputs = on_device(3, 2, 30, 2, seed=1), on_device(2, 20, 2, seed=2), weights_of(2, 30, seed=3)

    def function(x, y, a):
        return km.scalar_cost(x, y, KERNELS[kernel], weights_x=a, log=True)

    assert_fused_equals_tiled(function, inputs, monkeypatch, calls)


def test_a_learned_variance(monkeypatch, calls):
    v = torch.tensor([0.2, 1.5], device=DEVICE)
    inputs = on_device(50, 3, seed=1), on_device(40, 3, seed=2), v
    function = lambda x, y, v: km.scalar_cost(x, y, km.GaussianKernel(v), log=True)  # noqa: E731
    assert_fused_equals_tiled(function, inputs, monkeypatch, calls)


@every_kernel
def test_far_apart(kernel, monkeypatch, calls):
    """The kernel underflows; its logarithm and the gradient of that do not."""
    inputs = on_device(50, 2, seed=1), on_device(40, 2, seed=2) + 60
    function = lambda x, y: km.scalar_cost(x, y, KERNELS[kernel], log=True)  # noqa: E731
    assert_fused_equals_tiled(function, inputs, monkeypatch, calls, rtol=1e-3)


def distances_of(points, sources):
    return (points[..., :, None, :] - sources[..., None, :, :]).double().square().sum(-1)


@pytest.mark.parametrize("d", [1, 2, 5, 8])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_nearest_distances(n, k, d):
    points, sources = on_device(2, k, d, seed=1), on_device(2, n, d, seed=2)
    weights = weights_of(2, n, seed=3)
    found = fused.nearest_distances(points, sources, weights)
    idle = (weights <= 0)[:, None, :]
    truth = distances_of(points, sources).masked_fill(idle, torch.inf).amin(-1)
    assert_close(found.double(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("near", ["targets", "others", "none"])
@pytest.mark.parametrize("d", [1, 2, 5, 8])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_kernel_moments(n, k, d, near):
    targets, others = on_device(2, k, d, seed=1), on_device(2, n, d, seed=2)
    weights, rate = weights_of(2, n, seed=3), torch.tensor(0.7, device=DEVICE)
    distances = distances_of(targets, others)
    offsets = {
        "targets": {"near_targets": distances.amin(-1).float()},
        "others": {"near_others": distances.amin(-2).float()},
        "none": {},
    }[near]
    shift = {"targets": distances.amin(-1, True), "others": distances.amin(-2, True)}.get(near, 0)
    value = weights[:, None, :].double() * (-0.7 * (distances - shift)).exp()
    differences = others[:, None, :, :].double() - targets[:, :, None, :].double()
    mass, pull = value.sum(-1), (value[..., None] * differences).sum(-2)
    found = fused.kernel_moments(targets, others, weights, rate, **offsets, gradient=True)
    scale = float(mass.abs().max())
    for f, t in zip(found, (mass, pull, (value * distances).sum(-1)), strict=True):
        assert_close(f.double(), t, rtol=1e-4, atol=1e-4 * scale)
    plain = fused.kernel_moments(targets, others, weights, rate, **offsets)
    assert_close(plain[0], found[0])
    assert plain[1:] == (None, None)


def far_clusters(n, d, far, seed, dtype=torch.float32):
    """Points of unit scale around two places that are far apart."""
    places = far * normal(2, d, seed=9, dtype=dtype)
    return (places[torch.arange(n) % 2] + normal(n, d, seed=seed, dtype=dtype)).to(DEVICE)


@pytest.mark.parametrize("d", [1, 3, 8])
@pytest.mark.parametrize("far", [1e3, 1e5])
def test_gradients_of_far_clusters(far, d, monkeypatch, calls):
    """Differences of sums over points far from the origin would lose all digits."""
    inputs = far_clusters(50, d, far, 1), far_clusters(40, d, far, 2)
    function = lambda x, y: km.scalar_cost(x, y, 0.5, log=True)  # noqa: E731
    assert_fused_equals_tiled(function, inputs, monkeypatch, calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1.0, 1e3, 1e6, 1e200])
@pytest.mark.parametrize("d", [9, 30])
@pytest.mark.parametrize(("n", "k"), SIZES[:4])
def test_mended_distances(n, k, d, far, dtype):
    """Whatever the matrix product made of them, distances are those of the differences."""
    if dtype == torch.float32 and far > 1e30:
        pytest.skip("float32 cannot hold such points")
    a, b = (far_clusters(m, d, far, m, dtype).double().expand(2, m, d) for m in (n, k))
    close = 2.0**-14 if dtype == torch.float64 else 2.0**-24
    squares = [t.square().sum(-1) for t in (a, b)]
    products = squares[0].unsqueeze(-1) + squares[1].unsqueeze(-2) - 2 * a @ b.mT
    found = fused.recompute_distances(products, *squares, a, b, close)
    truth = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
    assert_close(found, truth, rtol=1e-10 if dtype == torch.float64 else 1e-6, atol=0)


@pytest.mark.skipif(INTERPRETED, reason="captures a graph of a GPU")
def test_distances_in_many_dimensions_wait_for_nothing():
    a, b = far_clusters(70, 20, 1e8, 1, torch.float64), far_clusters(50, 20, 1e8, 2, torch.float64)
    squared_distances(a, b)  # compiles the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = squared_distances(a, b)
    graph.replay()
    truth = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
    assert_close(found, truth, rtol=1e-10, atol=0)


@pytest.mark.skipif(INTERPRETED, reason="asks what a GPU would do")
def test_where_the_fused_kernels_apply():
    x = on_device(4, 2, seed=1)
    for points in (x, x.double()):
        assert streaming._one_loop(points, points).nearest_distances is fused.nearest_distances
    assert streaming._one_loop(x.half(), x.half()) is None
    assert streaming._one_loop(x.cpu(), x.cpu()) is None
    wide = on_device(4, 9, seed=1)
    assert streaming._one_loop(wide, wide) is None
