"""Columns of few values: the layers see each value once, and all else is as with rows."""

import numpy as np
import pytest
import torch
from torch import Tensor

from internals import ColumnBins, GaussianProduct, Grid, binned_values, set_binned_statistics

MEMBERS, COUNT = 2, 40


def network(columns: int, **options) -> GaussianProduct:
    depth = options.pop("depth", 2)
    settings = {"sizes": [*[4] * (depth - 1), 5], "members": MEMBERS, **options}
    start = torch.Generator().manual_seed(3)
    return GaussianProduct([2] * columns, 3, generator=start, **settings).double()


def table(columns: int = 3, values: int = 6) -> tuple[ColumnBins, Grid, Tensor]:
    rows = np.random.default_rng(0).integers(0, values, (COUNT, columns)).astype(float)
    rows[:, 0] = np.where(rows[:, 0] > 3, 3, rows[:, 0])  # fewer values, and not equally many
    bins = ColumnBins(rows)
    return bins, bins.grid, bins.inputs(rows)


def gradients(module: GaussianProduct, value: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    (value.sin() * weights).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "norm"},
        {"precision": "norm", "depth": 1},
        {"precision": "norm", "depth": 3},
        {"form": "product"},
        {"form": "variational"},
    ],
)
def test_all_rows_as_one_batch_are_what_autograd_finds(options: dict):
    bins, grid, inputs = table()
    plain, binned = network(3, **options), network(3, **options)
    wanted = plain(inputs)
    codes = bins.codes[:, None].expand(-1, MEMBERS, -1)
    found = binned_values(binned, grid, codes)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    expected, seen = gradients(plain, wanted), gradients(binned, found)
    for name, gradient in expected.items():
        atol = 1e-11 * (float(gradient.abs().max()) + 0.1)
        torch.testing.assert_close(seen[name], gradient, rtol=0, atol=atol)


def test_members_have_rows_of_their_own():
    bins, grid, inputs = table()
    module = network(3).eval()
    set_binned_statistics(module, grid, bins.codes[:, None].expand(-1, MEMBERS, -1))
    order = torch.stack([torch.arange(9), torch.arange(20, 29)], 1)  # (rows, members)
    with torch.no_grad():
        found, wanted = binned_values(module, grid, bins.codes[order]), module(inputs[order])
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    seen = gradients(module, binned_values(module, grid, bins.codes[order]))
    assert all(bool(gradient.isfinite().all()) for gradient in seen.values())


def test_statistics_are_those_of_the_rows():
    bins, grid, inputs = table()
    module, plain = network(3, precision="norm"), network(3, precision="norm")
    for part in (plain.norm, *(layer.norm for layer in plain.layers)):
        part.momentum = 1.0
    plain(inputs)
    module.eval()
    set_binned_statistics(module, grid, bins.codes[:, None].expand(-1, MEMBERS, -1))
    for name, wanted in plain.state_dict().items():
        if "running_mean" in name or name == "norm.running_var":
            torch.testing.assert_close(module.state_dict()[name], wanted, rtol=1e-12, atol=1e-12)
        elif "running_var" in name:  # of all rows there are, so not divided by one less
            wanted = wanted * (COUNT - 1) / COUNT
            torch.testing.assert_close(module.state_dict()[name], wanted, rtol=1e-12, atol=1e-12)


def test_columns_of_many_values_are_cut_at_quantiles():
    rows = np.random.default_rng(0).normal(size=(5000, 2)) ** 3
    rows[:, 1] = rows[:, 1].round(1)
    bins = ColumnBins(rows, most=50)
    codes = bins.codes.numpy()
    assert bins.grid.inputs.shape == (2, 50, 2)
    assert np.bincount(codes[:, 0]).max() < 110
    for column in range(2):
        points = bins.grid.inputs[column, :, 0].numpy()
        held = np.unique(codes[:, column])
        means = [rows[codes[:, column] == code, column].mean() for code in held]
        np.testing.assert_allclose(points[held], means, rtol=1e-5, atol=1e-6)
        assert (np.diff(means) > 0).all()
    torch.testing.assert_close(bins.grid.shares.sum(1), torch.ones(2).double())


def test_numbers_that_were_not_seen():
    bins = ColumnBins(np.array([[0.0], [1.0], [1.0], [3.0]]))
    found = bins.inputs(np.array([[-1e9], [0.0], [1.0], [2.0], [1e9]])).view(-1, 2)
    expected = (np.array([1 / 8, 1 / 8, 1 / 2, 11 / 16, 7 / 8]) - 0.5) * 12**0.5
    np.testing.assert_allclose(found[:, 1].numpy(), expected)
    np.testing.assert_array_equal(found[:, 0].numpy(), [0, 0, 1, 2, 3])  # as far as any was seen


@pytest.mark.parametrize("most", [64, 128])
def test_a_column_that_is_mostly_one_value_keeps_the_others(most: int):
    """Seen before: one bin, since all quantiles were zero."""
    rng = np.random.default_rng(0)
    column = (rng.random(10_000) < 0.03) * rng.normal(size=10_000)
    bins = ColumnBins(column[:, None], most)
    codes, values = bins.codes[:, 0].numpy(), bins.grid.inputs[0, :, 0].numpy()
    zero = int(codes[column == 0][0])
    assert values[zero] == 0
    assert set(codes[column != 0]).isdisjoint({zero})
    assert most <= len(values) <= most + 1  # zero splits the quantiles around it
    assert np.bincount(codes)[np.arange(len(values)) != zero].max() < 2.5 * 300 / most


@pytest.mark.parametrize("common", [1, 40, 127])
def test_codes_are_bytes_however_many_values_are_common(common: int):
    rest = np.random.default_rng(0).uniform(0, common, 100)
    column = np.concatenate([np.repeat(np.arange(float(common)), 150), rest])
    bins = ColumnBins(column[:, None])
    codes, values = bins.codes[:, 0].numpy(), bins.grid.inputs[0, :, 0].numpy()
    assert len(values) <= 255
    assert np.bincount(codes).min() > 0
    assert set(range(common)) <= set(values)
    assert (np.diff(values) > 0).all()
    np.testing.assert_array_equal(values[codes][:-100], column[:-100])


def test_ordinary_columns_keep_their_number_of_values():
    column = np.random.default_rng(0).normal(size=(5000, 1))
    for most in (64, 128):
        assert len(ColumnBins(column, most).grid.inputs[0]) == most


def test_values_rise_however_close_they_are():
    """Ranks are looked up among them; a mean of equal numbers may be rounded beyond them."""
    near = 1 / 3 + np.arange(300) * np.spacing(1 / 3)
    bins = ColumnBins(np.repeat(near, 7)[:, None], most=100)
    assert (np.diff(bins._values[0]) > 0).all()
    few = ColumnBins(np.repeat(near[:20], 7)[:, None])
    np.testing.assert_array_equal(few._values[0], near[:20])


@pytest.mark.parametrize("values", [[7.0] * 5, [0.0, 1e-300, 1.0, 1e6, -1e6]])
def test_odd_columns(values: list[float]):
    bins = ColumnBins(np.array(values)[:, None])
    assert bool(bins.grid.inputs.isfinite().all())
    assert len(bins.grid.inputs[0]) == len(set(values))
