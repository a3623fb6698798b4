"""The multivariate approximator: values, gradients, structure, log space."""

import numpy as np
import pytest
import torch
from torch import nn

import tolerances
from internals import FORMS, GaussianProduct
from kermix.errors import OptionError, ShapeError

WIDTHS = [1, 3, 2]


def start(seed=0):
    return torch.Generator().manual_seed(seed)


def network(outputs=4, **options):
    """In float64, with batch statistics and affine parts that are not those of the start."""
    variables, depth = options.pop("variables", WIDTHS), options.pop("depth", 2)
    sizes = [*[6] * (depth - 1), 5]
    made = GaussianProduct(variables, outputs, sizes=sizes, generator=start(), **options).double()
    generator = start(1)
    for norm in (m for m in made.modules() if isinstance(m, nn.BatchNorm1d)):
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.data.add_(0.3 * torch.rand(tensor.shape, generator=generator).double())
    return made.eval()


def rows(n=7, columns=6):
    return torch.randn(n, columns, generator=start(2), dtype=torch.float64)


def reference(made, x):
    """Slow and obvious: one row, one variable, one feature at a time."""
    state = {k: v.numpy() for k, v in made.state_dict().items()}
    x = np.asarray(x)
    starts = np.cumsum([0, *made.widths])
    count, terms = len(made.widths), state["anchors"].shape[1]
    outputs = np.zeros((len(x), state["coefficients"].shape[1]))
    for n in range(len(x)):
        kept = np.zeros((count, terms))
        for t in range(count):
            y = np.zeros(max(made.widths))
            y[: made.widths[t]] = x[n, starts[t] : starts[t + 1]]
            for m in range(len(made.layers)):
                weight = state[f"layers.{m}.weight"]
                weight = weight[t] if len(weight) > 1 else weight[0]
                anchors = state[f"layers.{m}.anchors"][t]
                width = len(anchors)
                after = np.zeros(width)
                for j in range(width):
                    gauss = np.exp(-((sum(weight[:, j] * y) - anchors[j]) ** 2))
                    place = t * width + j
                    mean = state[f"layers.{m}.norm.running_mean"][place]
                    variance = state[f"layers.{m}.norm.running_var"][place]
                    unit = (gauss - mean) / np.sqrt(variance + made.layers[m].norm.eps)
                    scale = state[f"layers.{m}.norm.weight"][place]
                    after[j] = unit * scale + state[f"layers.{m}.norm.bias"][place]
                y = after
            kept[t] = y
        away = kept - state["anchors"]
        products = {
            "variational": np.exp(-(away**2).sum(0) / count),
            "product": np.exp(-(away**2)).prod(0),
            "signed": away.prod(0),
        }[made.form]
        for o in range(outputs.shape[1]):
            outputs[n, o] = (state["coefficients"][0, o] * products).sum()
    return outputs


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("outputs", [None, 4])
@pytest.mark.parametrize("form", FORMS)
def test_values_against_the_reference(form, outputs, depth):
    made = network(outputs, form=form, depth=depth)
    x = rows()
    expected = torch.from_numpy(reference(made, x))
    found = made(x)
    assert found.shape == ((7,) if outputs is None else (7, 4))
    torch.testing.assert_close(
        found.view(expected.shape), expected, **tolerances.value(torch.float64)
    )
    size, sign = made.log_abs(x)
    torch.testing.assert_close(sign * size.exp(), found, **tolerances.value(torch.float64))


def test_shared_maps_keep_anchors_apart():
    made = network(variables=3, shared=True)
    assert made.layers[0].weight.shape[0] == 1
    x = rows(columns=3)
    torch.testing.assert_close(made(x), torch.from_numpy(reference(made, x)))


def test_a_batch_of_one_row_has_no_statistics():
    with pytest.raises(ShapeError, match="1 row in training"):
        network().train()(rows(1))


def test_variables_can_be_given_one_by_one():
    made, x = network(), rows()
    torch.testing.assert_close(made(list(x.split(WIDTHS, 1))), made(x))


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    made = network(2, form=form).train()
    names = [name for name, _ in made.named_parameters()]
    x = rows(4)

    def call(x, *parameters):
        return torch.func.functional_call(made, dict(zip(names, parameters, strict=True)), (x,))

    for norm in (m for m in made.modules() if isinstance(m, nn.BatchNorm1d)):
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    inputs = [p.detach().clone().requires_grad_() for p in made.parameters()]
    assert torch.autograd.gradcheck(call, (x.requires_grad_(), *inputs))


def test_gradients_of_the_logarithm():
    made = network(2, form="product")
    assert torch.autograd.gradcheck(lambda x: made.log_abs(x)[0], (rows(3).requires_grad_(),))


def test_factor_of_zero_keeps_its_gradient():
    made = network(1, form="signed")
    x = rows(1)
    k = made.features(x).detach()
    with torch.no_grad():
        made.anchors[1] = k[0, 1]  # every factor of the second variable is exactly zero
    made(x).sum().backward()
    away = k[0] - made.anchors.detach()
    assert bool((away[1] == 0).all())
    expected = -made.coefficients.detach()[0, 0] * away[0] * away[2]
    torch.testing.assert_close(made.anchors.grad[1], expected)
    assert float(made(x).detach().abs()) < 1e-100


def test_one_variable_does_not_change_the_features_of_another():
    made, x = network(depth=3), rows()
    before = made.features(x)
    x[:, 1:4] += 100 * torch.randn(7, 3, generator=start(), dtype=torch.float64)
    after = made.features(x)
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before[:, 1], after[:, 1])


@pytest.mark.parametrize("form", ["product", "signed"])
def test_a_thousand_variables_do_not_underflow_in_log_space(form):
    made = GaussianProduct(1000, 2, sizes=(32, 8), form=form, generator=start())
    first = made.eval()(torch.randn(4, 1000, generator=start()))
    assert bool((first.abs() > 1e-6).all())  # training can begin
    with torch.no_grad():
        made.anchors.mul_(0.0 if form == "signed" else 100.0)
    x = torch.randn(4, 1000, generator=start()).requires_grad_()
    assert bool((made(x) == 0).all())
    size, sign = made.log_abs(x)
    assert bool(size.isfinite().all())
    assert set(sign.flatten().tolist()) <= {-1.0, 1.0}
    size.sum().backward()
    assert bool(x.grad.isfinite().all())
    assert bool(x.grad.any())
    wide = made.double().log_abs(x.detach().double())[0]
    torch.testing.assert_close(size.double(), wide, rtol=1e-4, atol=1e-2)


def test_variational_terms_are_at_most_one_for_any_number_of_variables():
    for count in (100, 1000):
        made = GaussianProduct(count, generator=start())
        size, _ = made.log_terms(torch.randn(16, count, generator=start()))
        assert bool((size <= 0).all())
        assert bool((size > -20).all())


def test_norm_is_a_precision_and_a_factor_for_each_term():
    made, plain = network(precision="norm"), network()
    plain.load_state_dict(made.state_dict(), strict=False)
    size, _ = made.log_terms(rows())
    square, _ = plain.log_terms(rows())
    norm = made.norm
    precision = norm.weight / (norm.running_var + norm.eps).sqrt()
    expected = (square - norm.running_mean) * precision + norm.bias
    torch.testing.assert_close(size, expected)
    with pytest.raises(OptionError, match="variational form"):
        network(precision="norm", form="product")


def test_members_are_independent_functions():
    together = network(4, members=3, precision="norm")
    x = torch.stack([rows() + e for e in range(3)], 1)
    found = together(x)
    assert found.shape == (7, 3, 4)
    for e in range(3):
        one = network(4, precision="norm")
        state = {}
        for name, tensor in together.state_dict().items():
            state[name] = tensor if tensor.ndim == 0 else tensor.chunk(3)[e]
        one.load_state_dict(state)
        torch.testing.assert_close(one(x[:, e]), found[:, e])
    torch.testing.assert_close(together(x[:, 1]).squeeze()[:, 1], found[:, 1])
    assert network(None, members=3)(rows()).shape == (7, 3)
    size, _ = network(None, members=3).log_abs(rows())
    assert size.shape == (7, 3)


def test_a_row_that_differs_in_a_constant_variable_keeps_its_value():
    made = GaussianProduct(20, 3, generator=start())
    x = torch.randn(64, 20, generator=start())
    x[:, 0] = 0.0
    for _ in range(200):
        made(x)
    x[0, 0] = 30.0
    assert float(made.eval()(x)[0].detach().abs().max()) > 1e-3


def test_state_dict_round_trip():
    made, again = network(), network()
    with torch.no_grad():
        for p in again.parameters():
            p.zero_()
    again.load_state_dict(made.state_dict())
    assert torch.equal(made(rows()), again(rows()))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([],), "variables=\\[\\]"),
        (([1, 0],), "variables"),
        ((2, 0), "outputs=0"),
    ],
)
def test_bad_sizes(arguments, expected):
    with pytest.raises(OptionError, match=expected):
        GaussianProduct(*arguments, generator=start())


def test_bad_options_and_shapes():
    with pytest.raises(OptionError, match="variational, product, signed"):
        GaussianProduct(2, form="sum", generator=start())
    with pytest.raises(OptionError, match="sizes"):
        GaussianProduct(2, sizes=(), generator=start())
    with pytest.raises(OptionError, match="several widths"):
        GaussianProduct([1, 2], shared=True, generator=start())
    with pytest.raises(ShapeError, match="3 variables of 6 numbers"):
        network()(torch.zeros(5, 5, dtype=torch.float64))
    with pytest.raises(ShapeError, match="2 members"):
        network(members=2)(torch.zeros(5, 3, 6, dtype=torch.float64))
