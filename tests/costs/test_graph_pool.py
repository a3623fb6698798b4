"""Memory that graphs share: PyTorch refuses that of graphs which are all gone."""

import contextlib
import types
import weakref

import torch

from kermix.costs import losses as graphed


def test_no_pool_is_used_again_once_its_graphs_are_gone(monkeypatch):
    alive, dead = {}, []

    class Graph:
        def __init__(self, _compute, _tensors, pool):
            self.pool = pool
            of = alive.setdefault(pool, weakref.WeakSet())
            if pool in seen and not of:
                dead.append(pool)
            seen.add(pool)
            of.add(self)

    seen, handles = set(), iter(range(100))
    monkeypatch.setattr(graphed, "_Graph", Graph)
    monkeypatch.setattr(graphed, "_can_be_captured", lambda _: True)
    monkeypatch.setattr(graphed._Replay, "apply", lambda _graph, compute, *t: compute(*t))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: stream)
    calls = graphed.GraphedCalls()

    def call(size):
        calls.value(lambda t: t.sum(), [torch.zeros(size, 2)], "how")

    for size in (10, 11) * (graphed.CALLS_BEFORE + 1):
        call(size)  # captured
    for size in range(20, 20 + graphed.MOST_GRAPHS):
        call(size)  # once each: counts alone push the graph out
    for _ in range(graphed.CALLS_BEFORE + 1):
        call(10)  # captured into the pool again
    assert not dead
    assert len(seen) == 2  # one at a time, and one for all sizes
