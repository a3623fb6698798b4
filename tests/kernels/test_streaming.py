"""Kernel means in tiles: what the whole Gram matrix gives, without the Gram matrix."""

import math
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import DTYPES, normal, uniform
from internals import as_kernel, log_kernel_means
from processes import Process

N, K = 13, 9
RIDGE = 1e-3
CHUNKS = [1, 2, 4, 9, 13, 100, None]
KERNELS = {
    "one": 0.4,
    "several": [0.2, 1.0, 5.0],
    "unequal": km.GaussianKernel(0.3, 0.7),
    "undivided": km.GaussianKernel(0.4, per_dimension=False),
}
CHUNKED = {"scalar": km.scalar_cost, "vector": km.vector_cost}
every_chunk = pytest.mark.parametrize("chunk", CHUNKS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_cost = pytest.mark.parametrize("name", CHUNKED)


def shares(weights, like):
    count = like.shape[-2]
    return like.new_full((count,), 1 / count) if weights is None else weights / weights.sum()


def dense(name, x, y, v, weights_x=None, weights_y=None):
    """The cost by whole Gram matrices, for torch to differentiate."""
    kernel = as_kernel(v, x)
    a, b = shares(weights_x, x), shares(weights_y, y)
    r_f = km.gram(y, y.clone(), km.GaussianKernel(kernel.v_q, None, kernel.per_dimension))
    p_1 = km.gram(y, x, kernel) @ a
    if name == "scalar":
        return (b @ p_1) ** 2 / (b @ r_f @ b)
    root = (len(y) * b).sqrt()
    matrix = root[:, None] * r_f * root + RIDGE * torch.eye(len(y)).to(y)
    return (root * p_1) @ torch.linalg.solve(matrix, root * p_1)


def options(name):
    return {"ridge": RIDGE} if name == "vector" else {}


def value_and_gradients(function, *inputs):
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    value = function(*leaves)
    return [value, *grad(value.sum(), leaves)]


def assert_all_close(found, truth, **tolerance):
    for f, t in zip(found, truth, strict=True):
        assert_close(f, t, **tolerance)


def inputs_of(d, dtype=torch.float64, batch=()):
    x, y = normal(*batch, N, d, seed=1, dtype=dtype), normal(*batch, K, d, seed=2, dtype=dtype)
    return x, y, uniform(*batch, N, seed=3, dtype=dtype), uniform(*batch, K, seed=4, dtype=dtype)


@every_chunk
@every_kernel
@every_cost
def test_chunked_equals_dense(name, kernel, chunk):
    v = KERNELS[kernel]
    # In turns: both with every chunk, kernel and cost.
    d = (2, 11)[([*KERNELS].index(kernel) + CHUNKS.index(chunk)) % 2]

    def chunked(x, y, a, b):
        keywords = options(name) | {"weights_x": a, "weights_y": b, "chunk": chunk}
        return CHUNKED[name](x, y, v, **keywords)

    inputs = inputs_of(d)
    found = value_and_gradients(chunked, *inputs)
    truth = value_and_gradients(lambda *t: dense(name, *t[:2], v, *t[2:]), *inputs)
    assert_all_close(found, truth, rtol=1e-9, atol=1e-13)


@every_chunk
@every_cost
def test_without_weights_and_with_a_learned_variance(name, chunk):
    x, y, _, _ = inputs_of(3)
    v = torch.tensor([0.3, 1.2], dtype=torch.float64)
    keywords = options(name) | {"chunk": chunk}

    def averaged(x, y, v, **keywords):
        return CHUNKED[name](x, y, km.GaussianKernel(v), **keywords)

    found = value_and_gradients(lambda *t: averaged(*t, **keywords), x, y, v)
    truth = value_and_gradients(lambda *t: averaged(*t, **options(name)), x, y, v)
    assert_all_close(found, truth, rtol=1e-10, atol=1e-14)
    plain = value_and_gradients(lambda x, y: dense(name, x, y, km.GaussianKernel(v)), x, y)
    assert_all_close(found[:3], plain, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("dtype", DTYPES)
@every_cost
def test_outputs_batches_and_dtypes(name, dtype, chunk):
    """Every output of a batch, in tiles, is what each item gives in one tile."""
    x, y, a, b = inputs_of(2, dtype, (3,))
    for asked in ({}, {"log": True}, {"normalized": True}):
        keywords = options(name) | asked

        def cost(x, y, a, b, chunk=None, keywords=keywords):
            weights = {"weights_x": a, "weights_y": b}
            return CHUNKED[name](x, y, 0.5, chunk=chunk, **weights, **keywords)

        found = value_and_gradients(lambda *t: cost(*t, chunk=chunk), x, y, a, b)
        assert found[0].shape == (3,)
        items = [value_and_gradients(cost, *item) for item in zip(x, y, a, b, strict=True)]
        truth = [torch.stack(parts) for parts in zip(*items, strict=True)]
        assert all(f.dtype == dtype for f in found)
        assert_all_close(found, truth, **tolerances.same(dtype))


def log_by_differences(name, x, y, v):
    """The logarithm of a cost from differences of points, on logarithms of the kernel."""

    def log_kernel(a, b):
        return -(a[:, None] - b).square().sum(-1) / (2 * a.shape[-1] * 2 * v)

    log_p1 = log_kernel(y, x).logsumexp(1) - math.log(len(x))
    log_r = log_kernel(y, y)
    if name == "scalar":
        return 2 * log_p1.logsumexp(0) - log_r.flatten().logsumexp(0)
    top = log_p1.detach().max()
    p1 = (log_p1 - top).exp()
    matrix = log_r.exp() + RIDGE * torch.eye(len(y)).to(y)
    return 2 * top + (p1 @ torch.linalg.solve(matrix, p1)).log()


@pytest.mark.parametrize("chunk", [1, 2, 5, 50, None])
@pytest.mark.parametrize("away", [20.0, 200.0, 3000.0])
@every_cost
def test_far_apart(name, away, chunk):
    """Tiles whose every value underflows, beside tiles that do not."""
    x, y, _, _ = inputs_of(2)
    x[6:] += away
    y[:4] += 0.75 * away
    keywords = options(name) | {"log": True, "chunk": chunk}
    found = value_and_gradients(lambda *t: CHUNKED[name](*t, 0.1, **keywords), x, y)
    truth = value_and_gradients(lambda *t: log_by_differences(name, *t, 0.1), x, y)
    assert all(torch.isfinite(f).all() for f in found)
    assert_all_close(found, truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 2, None])
@every_cost
def test_nothing_near_anything(name, chunk):
    """Every value of the kernel between the two sets underflows."""
    x, y, _, _ = inputs_of(2)
    keywords = options(name) | {"log": True, "chunk": chunk}
    found = value_and_gradients(lambda *t: CHUNKED[name](*t, 0.1, **keywords), x, y + 500)
    truth = value_and_gradients(lambda *t: log_by_differences(name, *t, 0.1), x, y + 500)
    assert float(found[0].detach()) < -1e5
    assert_all_close(found, truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_points_of_weight_zero_do_not_count(chunk):
    x, y, a, _ = inputs_of(2)
    a[::2] = 0
    x[::2] += 5.0
    kept = km.scalar_cost(x[1::2], y, 0.3, weights_x=a[1::2], chunk=chunk)
    assert_close(km.scalar_cost(x, y, 0.3, weights_x=a, chunk=chunk), kept, rtol=1e-11, atol=0)


@pytest.mark.parametrize("chunk", [2, None])
def test_second_derivatives(chunk):
    x, y, a, b = (t[..., :5, :] if t.ndim == 2 else t[:5] for t in inputs_of(2))
    leaves = [t.clone().requires_grad_() for t in (x, y, a, b)]

    def cost(x, y, a, b):
        return km.scalar_cost(x, y, 0.4, weights_x=a, weights_y=b, chunk=chunk)

    assert torch.autograd.gradgradcheck(cost, leaves, atol=1e-6, fast_mode=True)


@every_chunk
@pytest.mark.parametrize("d", [2, 11])
def test_log_kernel_means(d, chunk):
    x, y, a, _ = inputs_of(d)
    a = a / a.sum()
    terms = as_kernel([0.2, 1.0], x).cross_terms(d)
    found = log_kernel_means(y, x, terms, a, torch.float64, chunk)
    truth = (km.gram(y, x, [0.2, 1.0]) @ a).log()
    assert_close(found, truth, rtol=1e-11, atol=1e-12)


def print_extra_memory(n, k, chunk, threads):
    torch.set_num_threads(threads)

    def step(n, k):
        x, y = normal(n, 2, seed=0, dtype=torch.float32), normal(k, 2, seed=1, dtype=torch.float32)
        y.requires_grad_()
        km.scalar_cost(x, y, 0.1, chunk=chunk).backward()
        assert torch.isfinite(y.grad).all()
        assert y.grad.abs().max() > 0
        # Not ru_maxrss, in which a process inherits the peak of the one that started it.
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

    before = step(100, 100)
    sys.stdout.write(str((step(n, k) - before) * 1024))
    sys.stdout.flush()


def extra_memory(n, k, chunk=None, threads=1):
    """Peak memory of a cost and its gradient above that of a small one, in bytes, by a process."""
    with Process(print_extra_memory, n, k, chunk, threads) as process:
        assert process.wait(1800) == 0, process.output
        return int(process.output)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_memory():
    """The Gram matrix would take 230 MB, and differentiating it several times as much."""
    assert extra_memory(7_500, 7_500, chunk=512) < 100e6


@linux
def test_memory_does_not_grow_with_the_number_of_tiles():
    """The Gram matrix would take 400 MB, one tile takes 4 MB."""
    assert extra_memory(100_000, 1_000) < 160e6


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_of_a_hundred_thousand_points():
    """The Gram matrix would take 40 GB."""
    assert extra_memory(100_000, 100_000, threads=os.cpu_count() or 1) < 500e6
