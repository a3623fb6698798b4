"""Costs of few points on a GPU in one launch: the same values and derivatives, whoever asks.

Without a GPU a graph is played by a function that does what a replay does: it computes again from
the memory that was captured, into the memory that was captured.
"""

import contextlib
import threading
import types
import weakref

import pytest
import torch

import kermix as km
from internals import ReplayedCalls, functions_module, graphed, graphs_module

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are of a GPU")
COSTS = {
    "scalar": km.scalar_cost,
    "vector": km.vector_cost,
    "matrix": km.matrix_cost,
    "svd": km.svd_cost,
}
TIMES = 6  # calls of a kind, the last ones by a graph


def points(n, d, seed, device="cpu"):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed)).to(device)


class Replay:
    """A graph without a GPU."""

    def __init__(self, call, found):
        self.call, self.found, self.learns = call, found, torch.is_grad_enabled()

    def replay(self):
        with torch.set_grad_enabled(self.learns):
            again = self.call()
        for old, new in zip((self.found[0], *self.found[1]), (again[0], *again[1]), strict=True):
            old.copy_(new)


@pytest.fixture
def played(monkeypatch):
    """Graphs on a CPU: what a call reserves, and memory that graphs shared when all were gone."""
    note = types.SimpleNamespace(reserved=0, each=0, failing=False, alive={}, dead=[], stream=0)
    handles = iter(range(1, 1000))

    def captured(call, _device, _warm_ups, pool=None):
        if note.failing:
            raise torch.OutOfMemoryError("no room")
        note.reserved += note.each
        of = note.alive.setdefault(pool, weakref.WeakSet())
        if pool in seen and not of:
            note.dead.append(pool)
        seen.add(pool)
        graph = Replay(call, call())
        of.add(graph)
        return graph, graph.found

    seen = set()
    monkeypatch.setattr(graphs_module, "captured", captured)
    monkeypatch.setattr(graphs_module, "can_be_replayed", lambda tensors: bool(tensors))
    for name, fake in {
        "current_stream": lambda _=None: types.SimpleNamespace(cuda_stream=note.stream),
        "graph_pool_handle": lambda: next(handles),
        "memory_reserved": lambda _: note.reserved,
        "get_device_properties": lambda _: types.SimpleNamespace(total_memory=8000),
        "device": lambda _: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    note.pools = seen
    return note


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=on_gpu)])
def device(request):
    return request.param


@pytest.fixture
def calls(device, monkeypatch, request):
    """Graphs of no calls yet, real ones or those above."""
    if device == "cpu":
        request.getfixturevalue("played")
    made = ReplayedCalls()
    monkeypatch.setattr(functions_module, "CALLS", made)
    return made


def ask(name, x, y, v, **options):
    """A cost by a graph."""
    compute = COSTS[name].__wrapped__
    found = graphed(compute, (x, y, v), options)
    return compute(x, y, v, **options)[0] if found is None else found


def eager(name, x, y, v, **options):
    return COSTS[name](x, y, v, return_info=True, **options)[0]


def close(found, expected, device):
    # Products of a graph on a GPU are rounded in other places, and by ten bits.
    if device == "cpu":
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    else:
        assert float((found - expected).norm()) <= 0.02 * float(expected.norm())


def warmed(name, x, y, v, **options):
    for _ in range(TIMES):
        ask(name, x, y, v, **options)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_the_cost(name, weighted, calls, device):
    for seed in range(TIMES):
        x, y = points(60, 2, seed, device), points(50, 2, seed + 50, device).requires_grad_()
        w = points(50, 1, seed + 90, device)[:, 0].requires_grad_() if weighted else None
        wanted, options = [y, w] if weighted else [y], {"weights_y": w, "normalized": True}
        found, expected = (
            way(name, x, y, [0.05, 0.2], **options) for way in (ask, eager)
        )  # fmt: skip
        close(found.detach(), expected.detach(), device)
        pairs = zip(*(torch.autograd.grad(3 * t, wanted) for t in (found, expected)), strict=True)
        for one, other in pairs:
            close(one, other, device)
    assert len(calls.graphs) == 1


def test_graphs_are_for_all_variances(calls, device):
    """A schedule has another number in each step."""
    x, y = points(40, 2, 0, device), points(30, 2, 1, device)
    for step in range(TIMES):
        v = 0.5 * 0.7**step
        close(ask("svd", x, y, v), eager("svd", x, y, v), device)
        close(ask("svd", x, y, km.GaussianKernel(v, v / 2)), eager("svd", x, y,
              km.GaussianKernel(v, v / 2)), device)  # fmt: skip
    assert len(calls.graphs) == 2


def test_a_learned_variance_has_its_gradient(calls, device):
    x, y = points(40, 2, 0, device), points(30, 2, 1, device)
    for step in range(TIMES):
        v = torch.tensor(0.1 + 0.05 * step, device=device, requires_grad=True)
        slopes = [torch.autograd.grad(way("svd", x, y, v, log=True), v)[0] for way in (ask, eager)]
        close(*slopes, device)
    assert len(calls.graphs) == 1


def test_two_live_calls_have_gradients_of_their_own(calls, device):
    x = points(40, 2, 0, device)
    warmed("svd", x, points(40, 2, 1, device).requires_grad_(), 0.1)
    first, second = (points(40, 2, seed, device).requires_grad_() for seed in (2, 3))
    one, two = (ask("svd", x, y, 0.1) for y in (first, second))
    kept = one.detach().clone(), two.detach().clone()
    (one * two).backward()
    assert (one.detach(), two.detach()) == kept
    found = first.grad.clone(), second.grad.clone()
    first.grad = second.grad = None
    (eager("svd", x, first, 0.1) * eager("svd", x, second, 0.1)).backward()
    close(found[0], first.grad, device)
    close(found[1], second.grad, device)


def test_a_graph_of_autograd_that_is_kept_can_be_used_again(calls, device):
    x, y = points(40, 2, 0, device), points(40, 2, 1, device).requires_grad_()
    warmed("vector", x, y, 0.1)
    value = ask("vector", x, y, 0.1)
    (first,) = torch.autograd.grad(value, y, retain_graph=True)
    ask("vector", x, points(40, 2, 5, device).requires_grad_(), 0.1).backward()
    (again,) = torch.autograd.grad(2 * value, y)
    torch.testing.assert_close(again, 2 * first)


@pytest.mark.parametrize("name", COSTS)
def test_a_second_derivative_is_there(name, calls, device):
    x, y = points(20, 1, 0, device), points(15, 1, 1, device).requires_grad_()
    found = []
    for way in (*[ask] * TIMES, eager):
        (slope,) = torch.autograd.grad(way(name, x, y, 0.05, log=True), y, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), y)[0])
    close(found[-2], found[-1], device)


def test_what_is_changed_in_place_is_noticed(calls, device):
    x, y = points(40, 2, 0, device), points(40, 2, 1, device).requires_grad_()
    warmed("scalar", x, y, 0.1)
    for way in (ask, eager):
        moved = y.detach().clone().requires_grad_() + 0.0
        value = way("scalar", x, moved, 0.1)
        with torch.no_grad():
            moved.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def test_a_set_beside_itself_has_a_graph_of_its_own(calls, device):
    x = points(30, 2, 0, device).requires_grad_()
    other = x.detach().clone().requires_grad_()
    for _ in range(TIMES):
        one, two = (ask("scalar", x, of, 0.1) for of in (x, other))
    assert len(calls.graphs) == 2
    close(*(torch.autograd.grad(t, x)[0] for t in (one, eager("scalar", x, x, 0.1))), device)
    assert torch.autograd.grad(two, other)[0].abs().sum() > 0


def test_gradients_are_computed_only_where_they_are_wanted(calls, device):
    x, y = points(30, 2, 0, device), points(30, 2, 1, device).requires_grad_()
    with torch.no_grad():
        warmed("svd", x, y, 0.1)
        assert not ask("svd", x, y, 0.1).requires_grad
    with torch.inference_mode():
        warmed("svd", x, y, 0.1)
    warmed("svd", x, y, 0.1)
    (slope,) = torch.autograd.grad(ask("svd", x, y, 0.1), y)
    close(slope, torch.autograd.grad(eager("svd", x, y, 0.1), y)[0], device)
    assert len(calls.graphs) == 3


def test_threads_and_streams_do_not_meet(calls, device):
    x, failed = points(60, 2, 0, device), []

    def work(seed):
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            for step in range(3 * TIMES):
                y = points(60, 2, 100 * seed + step, device).requires_grad_()
                slopes = [torch.autograd.grad(way("svd", x, y, 0.1), y)[0] for way in (ask, eager)]
                if float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) > 0.02:
                    failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(calls.graphs) == 3


def test_bad_options_are_refused_as_ever(calls, device):
    x = points(20, 2, 0, device)
    for _ in range(TIMES):
        with pytest.raises(km.errors.KermixError):
            ask("svd", x, x, 0.1, method="magic")
        with pytest.raises(km.errors.VarianceError):
            ask("svd", x, x, -0.1)
        with pytest.raises(km.errors.KermixError):
            ask("svd", x, points(20, 3, 0, device), 0.1)
    assert not calls.graphs


def test_memory_is_bounded(played):
    made = ReplayedCalls(most_graphs=4)

    def call(size):
        for _ in range(TIMES):
            made.value(lambda tensors, _: tensors[0].sum(), [torch.zeros(size, 2)], (), "how")

    for size in range(10, 20):
        call(size)
    assert len(made.graphs) == 4
    played.each = 400  # of the 1000 that graphs may take
    for size in range(20, 30):
        call(size)
    assert len(made.graphs) == 2
    assert len(made.counts) <= made.most_counted
    # Each shares the memory of those beside it, and none that of graphs which are all gone.
    assert not played.dead


@pytest.mark.parametrize("reason", ["too large", "fails"])
def test_what_has_no_room_is_computed_as_it_is(played, reason):
    made = ReplayedCalls()
    played.each, played.failing = (2000, False) if reason == "too large" else (0, True)
    for _ in range(2 * TIMES):
        total = made.value(lambda tensors, _: tensors[0].sum(), [torch.ones(5, 2)], (), "how")
        assert float(total) == 10
    assert not made.graphs
    assert played.reserved <= 2000  # tried once


def test_no_pool_is_used_again_once_its_graphs_are_gone(played):
    made = ReplayedCalls(most_graphs=2)

    def call(size):
        made.value(lambda tensors, _: tensors[0].sum(), [torch.zeros(size, 2)], (), "how")

    for size in (10, 11) * TIMES:
        call(size)
    assert len(played.pools) == 1
    played.stream = 1
    for size in (12, 13) * TIMES:  # of another stream: they push the others out
        call(size)
    played.stream = 0
    for size in (10, 11) * TIMES:
        call(size)
    assert not played.dead
    assert len(played.pools) == 3


def test_nothing_is_noted_on_a_cpu(monkeypatch):
    made = ReplayedCalls()
    monkeypatch.setattr(functions_module, "CALLS", made)
    loss = km.SVDLoss(0.1)
    for _ in range(TIMES):
        loss(points(20, 2, 0), points(20, 2, 1))
    assert not made.graphs
    assert not made.counts


@on_gpu
@pytest.mark.parametrize("loss", ["ScalarLoss", "VectorLoss", "MatrixLoss", "SVDLoss"])
def test_losses_and_functions_share_graphs(loss, monkeypatch):
    made = ReplayedCalls()
    monkeypatch.setattr(functions_module, "CALLS", made)
    x, y = points(100, 2, 0, "cuda"), points(100, 2, 1, "cuda").requires_grad_()
    kept, cost = getattr(km, loss)(0.05), COSTS[loss.removesuffix("Loss").lower()]
    values = []
    for _ in range(TIMES):
        values += [-kept(x, y), -getattr(km, loss)(0.05)(x, y),
                   cost(x, y, 0.05, normalized=True, log=True)]  # fmt: skip
    assert len(made.graphs) == 1
    torch.testing.assert_close(torch.stack(values), values[0].expand(len(values)), rtol=0,
                               atol=3e-4)  # fmt: skip


@on_gpu
def test_other_programs_capture_and_transform_as_ever():
    x, y = points(50, 2, 0, "cuda"), points(50, 2, 1, "cuda")
    for _ in range(TIMES):
        km.svd_cost(x, y, 0.1)
    several = torch.func.vmap(lambda y: km.svd_cost(x, y, 0.1))(torch.stack([y, y]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = km.svd_cost(x, y, 0.1)
    graph.replay()
    expected = km.svd_cost(x, y, 0.1)
    torch.testing.assert_close(several, expected.expand(2), rtol=3e-4, atol=0)
    torch.testing.assert_close(value, expected, rtol=3e-4, atol=0)
