"""The Gaussian layers: two paths that agree, compiled or not, gradients, statistics, errors."""

from functools import cache, partial

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import tolerances
from cases import normal
from internals import (
    GaussianLayer,
    GaussianOutput,
    gaussian,
    gaussian_norm,
    gaussian_sums,
    mean_square,
)
from internals import product_layers_module as functions
from kermix.errors import KermixError, OptionError, ShapeError

# The compiler's own, when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
B, T, F = 4, 6, 5
own_paths = pytest.mark.parametrize("path", ["plain", "fast"])
each_position = pytest.mark.parametrize("positions", [None, T])


def layer_of(path, positions=None, inputs=3, width=F):
    generator = torch.Generator().manual_seed(0)
    return GaussianLayer(inputs, width, positions, path=path, generator=generator).double()


def output_of(path, **options):
    generator = torch.Generator().manual_seed(0)
    positions = options.pop("positions", T)
    return GaussianOutput(F, positions, 2, path=path, generator=generator, **options).double()


@own_paths
@each_position
def test_a_layer_is_what_the_paper_writes(path, positions):
    layer, y = layer_of(path, positions), normal(B, T, 3, seed=1)
    if positions:
        layer.anchors.data = normal(T, F, seed=2)
    values = torch.exp(-((y @ layer.weight.T - layer.anchors) ** 2))
    mean, variance = values.mean((0, 1)), values.var((0, 1), correction=0)
    expected = (values - mean) / (variance + layer.norm.eps).sqrt()
    assert_close(layer(y), expected, **tolerances.same(torch.float64))
    assert_close(layer.norm.running_mean, 0.1 * mean, **tolerances.same(torch.float64))
    unbiased = values.var((0, 1))
    assert_close(layer.norm.running_var, 0.9 + 0.1 * unbiased, **tolerances.same(torch.float64))
    again = (values - layer.norm.running_mean) / (layer.norm.running_var + layer.norm.eps).sqrt()
    assert_close(layer.eval()(y), again, **tolerances.same(torch.float64))


@own_paths
@pytest.mark.parametrize("options", [{"alpha": "one"}, {"alpha": "each"}, {"alpha": "norm"}])
def test_the_output_is_what_the_paper_writes(path, options):
    output, k = output_of(path, **options).eval(), normal(B, T, F, seed=1)
    if output.log_alpha is not None:
        output.log_alpha.data = normal(F, seed=2)
    exponent = ((k - output.anchors) ** 2).mean(1)
    if output.log_alpha is not None:
        exponent = exponent * output.log_alpha.exp()
    if output.norm is not None:
        exponent = output.norm(exponent)
    expected = torch.exp(-exponent) @ output.scores.weight.T + output.scores.bias
    assert_close(output(k), expected, **tolerances.same(torch.float64))


@each_position
def test_gradients_of_the_normalized_gaussian(positions):
    leaves = [normal(B, T, F, seed=1), normal(*([T] if positions else []), F, seed=2)]
    leaves += [normal(F, seed=3), normal(F, seed=4)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert gradcheck(lambda *x: gaussian_norm(*x)[0], leaves)
    assert gradcheck(gaussian, leaves[:2])


@each_position
def test_gradients_of_the_mean_square(positions):
    k = normal(B, T, F, seed=1).requires_grad_()
    anchors = normal(*([T] if positions else []), F, seed=2).requires_grad_()
    assert gradcheck(mean_square, (k, anchors))


@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_whole_layers(path, training):
    layer, output = layer_of(path, T).train(training), output_of(path).train(training)
    y = normal(B, T, 3, seed=1).requires_grad_()
    names, values = zip(*layer.named_parameters(), strict=True)

    def whole(y, *values):
        parameters = dict(zip(names, values, strict=True))
        return output(torch.func.functional_call(layer, parameters, (y,)))

    assert gradcheck(whole, (y, *values))


@pytest.mark.parametrize(("positions", "dtype"), [(None, torch.float32), (T, torch.bfloat16)])
def test_the_paths_agree_on_values_and_gradients(positions, dtype, monkeypatch):
    if dtype == torch.float32:  # C++ is generated and compiled for one of both, the trained one
        without_codes = partial(torch.compile, backend="aot_eager")
        monkeypatch.setattr(functions, "_compiled", cache(without_codes))
    found = {}
    for path in ("plain", "fast", "compiled"):
        monkeypatch.setattr(functions, "compiles", lambda _, now=path: now == "compiled")
        way = "plain" if path == "plain" else "fast"
        layer, output = (made.float() for made in (layer_of(way, positions), output_of(way)))
        y = normal(B, T, 3, seed=1).float().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            k = layer(y)
            assert k.dtype == dtype
            scores = output(k)
        assert scores.dtype == torch.float32
        scores.square().sum().backward()
        parameters = [*layer.parameters(), *output.parameters()]
        found[path] = [scores.detach(), y.grad, *(p.grad for p in parameters)]
    accuracy = tolerances.RELATIVE[dtype]
    for path in ("fast", "compiled"):
        for ours, plain in zip(found[path], found["plain"], strict=True):
            assert_close(ours, plain, rtol=accuracy, atol=accuracy * float(plain.abs().max()))


@pytest.mark.parametrize(
    ("positions", "options"),
    [(None, {"alpha": "norm"}), (T, {"alpha": "each"}), (T, {"alpha": "one"})],
)
@pytest.mark.parametrize("at", [None, [4, 1, 3]])
def test_one_pass_over_the_last_layer_is_the_layer_and_the_output(positions, options, at):
    at = None if at is None else torch.tensor(at)
    y, found = normal(B, T if at is None else 3, 3, seed=1), {}
    for way in ("plain", "fast"):
        layer, output = layer_of(way, positions), output_of(way, **options)
        layer.norm.weight.data, layer.norm.bias.data = normal(F, seed=2), normal(F, seed=3)
        assert output.follows(layer) == (way == "fast")
        leaf = y.clone().requires_grad_()
        u = torch.nn.functional.linear(leaf, layer.weight)
        if way == "plain":
            scores = output(layer.after_affine(u, at), at)
        else:
            scores = output.after_affine(u, layer, at)
        scores.square().sum().backward()
        tensors = [*layer.parameters(), *output.parameters()]
        found[way] = [scores.detach(), leaf.grad, *(p.grad for p in tensors)]
        found[way] += [b.double() for m in (layer, output) for b in m.buffers()]
    for ours, plain in zip(found["fast"], found["plain"], strict=True):
        assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    assert not output.eval().follows(layer)


def test_gradients_of_sums_of_gaussians():
    u, anchors, places = normal(B, T, F, seed=1), normal(F, seed=2), normal(T, F, seed=3)
    leaves = [leaf.requires_grad_() for leaf in (u, anchors, places)]
    assert gradcheck(gaussian_sums, leaves)


def test_anchors_can_be_shared_between_positions():
    sharing = torch.eye(2, dtype=torch.float64).repeat_interleave(T // 2, 0)
    shared, own = output_of("fast", positions=sharing), output_of("fast")
    own.scores.load_state_dict(shared.scores.state_dict())
    own.anchors.data = sharing @ shared.anchors.data
    k = normal(B, T, F, seed=1)
    assert_close(shared(k), own(k))
    shared(k).sum().backward()
    own(k).sum().backward()
    assert_close(shared.anchors.grad, sharing.T @ own.anchors.grad)


def test_bad_sizes_have_named_errors():
    with pytest.raises(OptionError, match="width=0"):
        GaussianLayer(3, 0)
    with pytest.raises(OptionError, match="path='slow'"):
        GaussianLayer(3, 4, path="slow")
    with pytest.raises(ShapeError, match="6 positions"):
        GaussianLayer(3, F, 7)(torch.zeros(B, T, 3))
    with pytest.raises(KermixError, match=r"\(samples, positions, 5\)"):
        GaussianOutput(F, T, 2)(torch.zeros(B, T, F + 1))
    with pytest.raises(ShapeError, match="row for each position"):
        GaussianOutput(F, torch.ones(5), 2)


def test_a_sample_like_no_other_has_finite_scores():
    generator = torch.Generator().manual_seed(0)
    output = GaussianOutput(4, 9, 3, generator=generator)
    alike = 100 + 0.01 * torch.randn(64, 9, 4, generator=generator)
    for _ in range(100):
        output(alike)
    found = output.eval()(output.position_anchors().detach().unsqueeze(0))
    assert found.isfinite().all()
