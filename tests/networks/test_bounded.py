"""Exponents that are normalized and bounded: in training and in answers, by rows and by bins."""

import numpy as np
import pytest
import torch
from torch import nn

from internals import (
    BoundedNorm,
    ColumnBins,
    GaussianProduct,
    binned_exponents,
    binned_values,
)

MEMBERS, COUNT = 2, 60


def network(**options) -> GaussianProduct:
    start = torch.Generator().manual_seed(3)
    settings = {"sizes": (4, 5), "members": MEMBERS, **options}
    made = GaussianProduct([2] * 3, 3, precision="norm", generator=start, **settings)
    assert made.norm is not None
    with torch.no_grad():  # a scale of each sign
        made.norm.weight.copy_(torch.linspace(-1, 1, len(made.norm.weight)))
    return made.double()


def table() -> ColumnBins:
    """Columns that are one value but for one row: in its exponents the row is like no other."""
    rows = np.zeros((COUNT, 3))
    rows[:, 2] = np.arange(COUNT) % 7
    rows[7, :2], rows[9, 1] = 3.0, -2.0
    return ColumnBins(rows)


def gradients(module: GaussianProduct, value: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    (value.sin() * weights).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def unbounded(module: GaussianProduct, inputs: torch.Tensor) -> torch.Tensor:
    """Normalized exponents, in deviations."""
    distances = (module.features(inputs) - module.anchors.view(MEMBERS, 3, -1)).square().mean(-2)
    return nn.functional.batch_norm(-distances.flatten(1), None, None, training=True)


def test_bins_have_the_same_value_and_gradient_where_the_bound_is_reached():
    bins = table()
    every = torch.arange(3).repeat(COUNT, 1)
    inputs = bins.grid.inputs[every, bins.codes.long()].view(COUNT, -1)
    plain, binned = network(), network()
    assert float(unbounded(network(), inputs).detach().abs().max()) > BoundedNorm.farthest + 0.5
    wanted = plain(inputs)
    expected = gradients(plain, wanted)
    codes = bins.codes[:, None].expand(-1, MEMBERS, -1)
    found = binned_values(binned, bins.grid, codes)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    for name, gradient in gradients(binned, found).items():
        atol = 1e-10 * (float(expected[name].abs().max()) + 0.1)
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=atol)


class Binned(nn.Module):
    """A network as a function of its parameters alone."""

    def __init__(self, bins: ColumnBins) -> None:
        super().__init__()
        self.inner, self.grid = network(), bins.grid
        self.codes = bins.codes[:, None].expand(-1, MEMBERS, -1)

    def forward(self) -> torch.Tensor:
        return binned_values(self.inner, self.grid, self.codes).sin()


def test_gradients_are_those_of_finite_differences():
    module = Binned(table())
    names = [name for name, _ in module.named_parameters()]

    def value(*parameters: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, given, ())

    far = binned_exponents(module.inner, module.grid, module.codes).detach()
    far = (far - far.mean(0)) / far.std(0, correction=0)
    assert float(far.abs().max()) > BoundedNorm.farthest + 0.5
    start = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(value, start, fast_mode=True)


@pytest.mark.parametrize("shape", [(50, 4), (1, 4, 50)])
def test_nothing_changes_within_the_bound(shape: tuple[int, ...]):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = BoundedNorm(4), nn.BatchNorm1d(4)
    for _ in range(2):
        torch.testing.assert_close(ours(x), theirs(x))
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_a_row_like_no_other_has_a_bounded_answer():
    norm = BoundedNorm(2).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([-2.0, 0.5]))
        norm.bias.fill_(1.0)
    found = norm(torch.tensor([[-1e6, -1e6], [1e6, 1e6]]))
    torch.testing.assert_close(found, torch.tensor([[9.0, -1.0], [-7.0, 3.0]]))
