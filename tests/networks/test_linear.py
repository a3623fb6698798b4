"""Linear layers give PyTorch's numbers, whichever library computes them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kermix.networks.linear import Linear, linear


def of_all(layer: object, rows: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The product and the gradients of a sum of its squares."""
    leaves = [t.clone().requires_grad_() for t in (rows, weight, bias) if t is not None]
    found = layer(*leaves)  # type: ignore[operator]
    return [found.detach(), *torch.autograd.grad(found.square().sum(), leaves)]


@pytest.mark.parametrize("rows", [3, 400])  # the latter is work enough for oneDNN
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_and_gradients_are_those_of_float64(rows: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(rows, 130, generator=generator)
    weight = torch.randn(90, 130, generator=generator)
    bias = torch.randn(90, generator=generator) if with_bias else None
    exact = of_all(
        functional.linear, *(None if t is None else t.double() for t in (own, weight, bias))
    )
    for found, wanted in zip(of_all(linear, own, weight, bias), exact, strict=True):
        assert found.dtype == torch.float32
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_transposed_rows_and_frozen_weights() -> None:
    rows = torch.randn(130, 400, generator=torch.Generator().manual_seed(1)).T.requires_grad_()
    layer = Linear(130, 90).requires_grad_(False)
    layer(rows).sum().backward()
    assert layer.weight.grad is None
    assert rows.grad is not None
    assert torch.allclose(rows.grad, layer.weight.sum(0).expand(400, -1), atol=1e-5)
