"""All layers in one function, against autograd through torch's own operations."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from internals import GaussianProduct
from kermix.errors import OptionError, ShapeError


def pair(variables: int | list[int] = 3, **options) -> tuple[GaussianProduct, GaussianProduct]:
    """The same network twice: computed as a whole, and by plain operations."""
    settings = {"terms": 5, "width": 4, "depth": 2, "outputs": 2, **options}
    made = [
        GaussianProduct(
            variables, path=path, generator=torch.Generator().manual_seed(3), **settings
        ).double()
        for path in ("whole", "plain")
    ]
    return made[0], made[1]


def rows(count: int, *shape: int, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=draws, dtype=torch.float64)


def step(network: GaussianProduct, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Value and gradients of something that depends on every output differently."""
    network.zero_grad()
    value = network(x)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    (value.sin() * weights).sum().backward()
    return value.detach(), {n: p.grad.clone() for n, p in network.named_parameters()}


CASES = [
    ({"members": 3, "precision": "norm"}, (3, 3)),
    ({"members": 3, "precision": "norm"}, (3,)),
    ({"members": 2, "depth": 1}, (2, 3)),
    ({"members": 2, "depth": 3, "precision": "norm"}, (2, 3)),
    ({"members": 2, "form": "product"}, (2, 3)),
    ({"members": 2, "form": "signed"}, (2, 3)),
    ({"precision": "norm"}, (3,)),
    ({"outputs": None}, (3,)),
    ({"outputs": None, "members": 2}, (2, 3)),
    ({"shared": True, "members": 2}, (2, 3)),
    ({"variables": [1, 3, 2], "members": 2, "precision": "norm"}, (2, 6)),
]


@pytest.mark.parametrize(("options", "shape"), CASES)
@pytest.mark.parametrize("count", [2, 37])
def test_value_gradients_and_statistics(options: dict, shape: tuple[int, ...], count: int):
    whole, plain = pair(**options)
    x = rows(count, *shape)
    for _ in range(2):  # the second time in memory that was used before
        value, found = step(whole, x)
        right, expected = step(plain, x)
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
        for name, gradient in expected.items():
            # Two rows are all but equal once normalized: what is left of a gradient is small.
            atol = (1e-11 if count == 2 else 1e-12) * (float(gradient.abs().max()) + 0.1)
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=atol)
    ours, theirs = whole.state_dict(), plain.state_dict()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 30.0, 1e6])
def test_float32_is_as_near_as_autograd(scale: float):
    whole, plain = pair(6, members=2, precision="norm", terms=32, width=16)
    x = rows(256, 2, 6) * scale
    _, exact = step(plain, x)
    _, ours = step(whole.float(), x.float())
    _, theirs = step(plain.float(), x.float())

    def error(found: dict[str, Tensor], name: str) -> float:
        return float((found[name] - exact[name]).abs().max() / exact[name].abs().max())

    for name in exact:
        assert error(ours, name) < 3 * error(theirs, name) + 2e-6, name


@pytest.mark.parametrize("spread", [8.0, 9.0, 10.0, 1e3])
def test_values_too_far_for_a_normal_number(spread: float):
    # 2 ** -120 is reached at a distance of 9.1.
    whole, plain = pair(1, members=1, depth=1)
    x = torch.tensor([[-spread], [0.0], [0.5], [spread]], dtype=torch.float64)
    value, found = step(whole, x)
    right, expected = step(plain, x)
    torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"precision": "norm"}, {"form": "product"}])
def test_running_statistics_are_used_in_evaluation(options: dict):
    whole, plain = pair(members=2, **options)
    step(whole, rows(20, 2, 3)), step(plain, rows(20, 2, 3))
    x = rows(7, 3, seed=1)
    whole.eval(), plain.eval()
    with torch.no_grad():
        torch.testing.assert_close(whole(x), plain(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(whole.log_abs(x), plain.log_abs(x), rtol=1e-12, atol=1e-12)
    _, found = step(whole, x)
    _, expected = step(plain, x)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-11, atol=1e-11)


def test_gradients_of_rows_go_the_plain_way():
    whole, plain = pair()
    x, same = rows(9, 3).requires_grad_(), rows(9, 3).requires_grad_()
    step(whole, x), step(plain, same)
    torch.testing.assert_close(x.grad, same.grad, rtol=1e-12, atol=1e-12)


def test_two_graphs_at_once_do_not_share_memory():
    whole, plain = pair(members=2)
    step(whole, rows(9, 2, 3))  # leaves memory to use again
    for network in (whole, plain):
        network.zero_grad()
        first, second = network(rows(9, 2, 3)), network(rows(9, 2, 3, seed=1))
        (first.sum() + (second**2).sum()).backward()
    for ours, theirs in zip(whole.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-11)


def test_no_second_backward():
    whole, _ = pair(members=2)
    total = whole(rows(9, 2, 3)).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="path='plain'"):
        total.backward()


def test_copies_and_pickles_have_no_memory_of_others():
    whole, plain = pair(members=2)
    x = rows(500, 2, 3)
    step(whole, x), step(plain, x)
    assert len(pickle.dumps(whole)) < 1.2 * len(pickle.dumps(plain))
    for copied in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert copied.memory is not whole.memory
        torch.testing.assert_close(step(copied, x)[0], step(plain, x)[0], rtol=1e-12, atol=1e-12)


def test_answers_keep_no_memory():
    """Seen before: 136 MB for each number of rows that was ever asked for."""
    whole, _ = pair(members=2)
    whole.eval()
    with torch.no_grad():
        for count in range(2, 40):
            whole(rows(count, 2, 3))
    assert not whole.memory._free


def test_trainings_with_batches_of_many_sizes_keep_little():
    whole, _ = pair(members=2)
    for count in range(2, 60):
        step(whole, rows(count, 2, 3))
    kept = sum(t.numel() for free in whole.memory._free.values() for t in free)
    whole.memory.clear()
    step(whole, rows(59, 2, 3))
    once = sum(t.numel() for free in whole.memory._free.values() for t in free)
    assert once <= kept <= 12 * once


def test_inference_mode_leaves_nothing_behind():
    """Seen before: an error about tensors of inference mode in the next step."""
    whole, plain = pair(members=2)
    x = rows(9, 2, 3)
    with torch.inference_mode():
        whole(x)
        plain(x)
    value, found = step(whole, x)
    wanted, gradients = step(plain, x)
    torch.testing.assert_close(value, wanted)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("far", [1e9, 1e25])
def test_a_row_far_away_has_no_gradient(far: float):
    """Seen before: 3e23 for a weight, from Gaussians that were kept above zero."""
    whole, plain = pair(members=2)
    x = rows(9, 2, 3)
    x[4, 0, 1] = far
    value, found = step(whole, x)
    wanted, gradients = step(plain, x)
    torch.testing.assert_close(value, wanted)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-6)


def test_layers_that_are_frozen_stay_so():
    whole, plain = pair(members=2)
    for network in (whole, plain):
        network.train()
        network.layers.eval()
    x = rows(9, 2, 3)
    torch.testing.assert_close(whole(x), plain(x))
    for a, b in zip(whole.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)


def test_a_batch_of_one_row_has_no_statistics():
    whole, _ = pair(members=2)
    with pytest.raises(ShapeError, match="1 row in training"):
        whole(rows(1, 2, 3))


def test_a_path_that_does_not_exist():
    draws = torch.Generator()
    with pytest.raises(OptionError, match="path='nonsense'"):
        GaussianProduct(3, 2, terms=5, width=4, depth=2, path="nonsense", generator=draws)
