"""Numbers that follow others closely: found, and followed by the mixtures of a network."""

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from internals import REGRESSORS, TableLayout, TableNetwork, find_regressors, regressor_places
from kermix import Schema


def bills(rows=1500, seed=0):
    """Bills of three months, each within a hundredth of the one before, and a number apart."""
    rng = np.random.default_rng(seed)
    first = rng.lognormal(8, 1.5, rows)
    second = first * rng.normal(1, 0.01, rows)
    third = second * rng.normal(1, 0.01, rows)
    return pd.DataFrame({"a": first, "apart": rng.normal(size=rows), "b": second, "c": third})


def test_regressors_are_the_numbers_that_a_column_is_correlated_with():
    table = bills()
    schema = Schema.infer(table)
    found = find_regressors(schema, schema.encode(table))
    assert [set(row) for row in found] == [{"b", "c"}, set(), {"a", "c"}, {"a", "b"}]
    places = regressor_places(schema, found)
    assert all(len(row) == REGRESSORS for row in places)
    assert places[1] == (-1,) * REGRESSORS
    assert TableLayout.of(schema, (), found).relations(schema)["regressors"][1] == []


@pytest.mark.parametrize(
    "table",
    [{"a": [1.5, 2.5, 3.5] * 5}, {"a": [0.5, 1.25] * 9, "b": [0.5] * 18}, {"a": ["x", "y"] * 9}],
)
def test_tables_without_regressors(table):
    schema = Schema.infer(table)
    found = find_regressors(schema, schema.encode(table))
    assert not any(found)
    assert TableLayout.of(schema, (), found).regressors == ()


@torch.no_grad()
def test_a_regressor_that_is_not_seen_moves_nothing():
    table = bills(100)
    schema = Schema.infer(table)
    encoded = schema.encode(table)
    layout = TableLayout.of(schema, (), find_regressors(schema, encoded))
    torch.manual_seed(0)
    network = TableNetwork(layout, width=8, blocks=1).eval()
    torch.nn.init.normal_(network.follow.weight)
    torch.nn.init.ones_(network.follow.bias)
    codes, values = encoded.tensors()
    nothing = torch.zeros(100, 4, dtype=torch.bool)
    moved = values + 1
    assert torch.equal(network(codes, values, nothing).means, network(codes, moved, nothing).means)
    seen = nothing.clone()
    seen[:, 0] = True
    means, other = network(codes, values, seen).means, network(codes, moved, seen).means
    assert not torch.allclose(means[:, 2], other[:, 2])


def test_a_fitted_network_follows_the_regressors_of_its_table():
    network = km.TableModel(width=8, blocks=1, steps=2, random_state=0).fit(bills(300)).network_
    assert [set(row) - {-1} for row in network.layout.regressors] == [
        {2, 3},
        set(),
        {0, 3},
        {0, 2},
    ]
    assert network.follow.weight.abs().sum() > 0, "trained with the rest"
