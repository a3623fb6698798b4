"""`torch.compile` and `torch.func` give what plain calls give."""

import pytest
import torch
from torch.func import grad, vmap
from torch.testing import assert_close

import tolerances
from cases import COSTS, LOSSES, normal, ridged, uniform, whole_graphs

every_cost = pytest.mark.parametrize("name", COSTS)
CLOSE = tolerances.same(torch.float64)


def bound_cost(name, **keywords):
    """A cost as a function of the samples alone."""
    keywords = keywords | ridged(name, 1e-3)
    return lambda x, y: COSTS[name](x, y, 0.5, **keywords)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("d", [2, 12])
@every_cost
def test_vmap(name, d, log):
    cost = bound_cost(name, log=log)
    x, y = normal(3, 6, d, seed=1), normal(3, 5, d, seed=2)
    assert_close(vmap(cost)(x, y), cost(x, y), **CLOSE)
    assert_close(vmap(cost, in_dims=(0, None))(x, y[0]), cost(x, y[0]), **CLOSE)
    assert_close(vmap(cost, in_dims=(None, 1))(x[0], y.transpose(0, 1)), cost(x[0], y), **CLOSE)


@every_cost
def test_vmap_over_weights(name):
    x, y, weights = normal(6, 2, seed=1), normal(5, 2, seed=2), uniform(3, 6, seed=3)

    def cost(w):
        return COSTS[name](x, y, 0.5, weights_x=w, **ridged(name, 1e-3))

    assert_close(vmap(cost)(weights), cost(weights), **CLOSE)


@every_cost
def test_gradient_for_each_item(name):
    cost = bound_cost(name, log=True)
    x, y = normal(3, 6, 2, seed=1), normal(3, 5, 2, seed=2).requires_grad_()
    found = vmap(grad(cost, argnums=1))(x, y.detach())
    (truth,) = torch.autograd.grad(cost(x, y).sum(), y)
    assert_close(found, truth, **CLOSE)


def assert_compiles(function, x, y, backend, dtype, fullgraph=False):
    """Compare value and gradients, and a second call with other numbers."""
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    for shift in (0.0, 0.3):
        results = []
        for call in (compiled, function):
            inputs = [(t + shift * t**2).detach().requires_grad_() for t in (x, y)]
            value = call(*inputs)
            results.append([value, *torch.autograd.grad(value.sum(), inputs)])
        for found, truth in zip(*results, strict=True):
            assert_close(found, truth, **tolerances.same(dtype))


@whole_graphs
@every_cost
def test_compile_without_a_break(name):
    d, log = ((2, True), (12, False))[list(COSTS).index(name) % 2]
    x, y = normal(6, d, seed=1), normal(5, d, seed=2)
    cost = bound_cost(name, log=log)
    assert_compiles(cost, x, y, "aot_eager", torch.float64, fullgraph=True)


# One cost of each way to its statistics: tiles, factors, singular values.
@pytest.mark.parametrize("name", ["scalar", "logdet", "svd"])
def test_compile_for_other_sizes(name):
    cost = bound_cost(name, log=True)
    compiled = torch.compile(cost, backend="aot_eager")
    for n in (6, 13):
        x, y = normal(n, 2, seed=n), normal(5, 2, seed=2)
        torch._dynamo.maybe_mark_dynamic(x, 0)  # as after a second size, without compiling twice
        assert_close(compiled(x, y), cost(x, y), **CLOSE)


@pytest.mark.parametrize("name", ["scalar", "data_fixed", "svd"])
def test_compile_of_a_training_step(name):
    """The gradient reaches the parameters of a network compiled together with the loss."""
    loss = LOSSES[name]([0.5, 2.0], **ridged(name, 1e-3))
    network = torch.nn.Linear(3, 2).double()
    x, noise, weights = normal(2, 6, 2, seed=1), normal(2, 5, 3, seed=2), uniform(6, seed=3)

    def step(noise):
        return loss(x, network(noise), weights_x=weights).mean()

    for found, truth in zip(
        *(
            [value := call(noise), *torch.autograd.grad(value, list(network.parameters()))]
            for call in (torch.compile(step, backend="aot_eager"), step)
        ),
        strict=True,
    ):
        assert_close(found, truth, **CLOSE)


# Inductor itself calls functions that torch calls deprecated. One cost, for each of its loops is
# C++ to be compiled; what becomes of the others' graphs is compared above.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch._prims_common.check:FutureWarning")
def test_compile_with_inductor():
    x, y = normal(8, 3, seed=1), normal(6, 3, seed=2)
    assert_compiles(LOSSES["svd"](0.5), x, y, "inductor", torch.float64)
