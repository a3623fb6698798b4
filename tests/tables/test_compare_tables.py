"""Comparisons of tables as they are: categories, gaps, times; results in the user's columns."""

import json
from importlib import import_module

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import kermix as km
from internals import (
    CostStatistics,
    EnergyStatistic,
    ExchangeableUnits,
    Layout,
    Reading,
    cost_tests,
    mixed_kernel,
    read_sources,
)
from kermix import two_sample_test
from kermix.errors import OptionError, SchemaError


def table(n, seed):
    rng = np.random.default_rng(seed)
    size = rng.lognormal(0, 1, n).round(2)
    return pd.DataFrame({
        "id": range(n),
        "size": size,
        "price": (100 * size * rng.lognormal(0, 0.1, n)).astype(int),
        "color": rng.choice(["red", "green", "blue", None], n, p=[0.5, 0.3, 0.1, 0.1]),
        "town": rng.choice([f"town {k}" for k in range(40)], n),
        "age": np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 90, n)),
        "sold": rng.random(n) < 0.3,
        "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
    })  # fmt: skip


def one_color(t):
    return t.assign(color="red")


def emptied(t):
    return t.assign(price=t["price"].where(np.random.default_rng(7).random(len(t)) > 0.6))


def other_towns(t):
    return t.assign(town=t["town"].str.replace("town 1", "town 2"))


def later(t):
    return t.assign(when=t["when"] + pd.Timedelta("90D"))


DRIFTS = {"color": one_color, "price": emptied, "town": other_towns, "when": later}


@pytest.mark.parametrize(("column", "rows"), [*((c, 200) for c in DRIFTS), ("price", 1050)])
def test_a_drift_is_found_and_its_column_named_first(column, rows, monkeypatch):
    for limit in ("PAIRS_UP_TO", "MEANS_UP_TO"):  # of measures; tests are of all rows
        monkeypatch.setattr(import_module("internals").cost_details_module, limit, 200)
    first, second = table(rows, 0), DRIFTS[column](table(rows, 1))
    result = km.compare(first, second, 0.5, permutations=59, jackknife_groups=0)
    assert result.tests["svd"].pvalue <= 0.05
    assert result.tests["energy"].pvalue <= 0.05
    assert result.verdict.columns[0].column == column
    assert result.verdict.columns[0].pvalue <= 0.02
    assert result.sizes == (rows, rows)
    assert "id" not in result.columns
    json.dumps(result.to_dict())


@pytest.mark.parametrize("rows", [60, 1100])
def test_equal_sources_are_at_the_level(rows):
    found = []
    for k in range(12):
        pair = read_sources([table(rows, 2 * k), table(rows, 2 * k + 1)], Reading())
        x, y = (t.values for t in pair.tables)
        layout, generator = pair.mixed.layout, torch.Generator().manual_seed(k)
        if rows < 100:
            tests = {c: two_sample_test(x, y, c, 0.5, 39, seed=generator, layout=layout)
                     for c in ("svd", "mmd", "energy")}  # fmt: skip
        else:
            kernel = mixed_kernel(x, layout, 0.5)
            units = ExchangeableUnits.of(torch.cat([x, y]), rows, 39, generator, rows_up_to=0)
            statistics = CostStatistics(("svd", "mmd"), kernel), EnergyStatistic(layout, generator)
            tests = cost_tests(units, statistics, (0.5,), (rows, rows))
        found.append([t.pvalue for t in tests.values()])
    pvalues = np.array(found)
    assert (pvalues <= 0.05).mean() <= 0.2
    assert 0.25 < pvalues.mean() < 0.75


def test_a_comparison_does_not_depend_on_which_side_is_which():
    first, second = table(200, 0), one_color(table(150, 1))
    a = km.compare(first, second, permutations=19, jackknife_groups=0)
    b = km.compare(second, first, permutations=19, jackknife_groups=0)
    assert a.variances == b.variances
    assert a.measure("mmd").value == pytest.approx(b.measure("mmd").value)
    differences = [{c.column: c.difference for c in r.verdict.columns} for r in (a, b)]
    assert differences[0] == pytest.approx(differences[1])


def test_rows_are_a_symmetric_function_of_the_pooled_tables():
    first, second = table(50, 0), table(60, 1)
    pair = read_sources([first, second], Reading())
    turned = read_sources([second, first], Reading())
    assert torch.equal(pair.tables[0].values, turned.tables[1].values)
    assert pair.mixed.layout == turned.mixed.layout


def test_frames_of_every_kind_give_the_same():
    first, second = table(80, 0), table(90, 1)
    wanted = km.compare(first, second, 0.5, permutations=0, jackknife_groups=0)
    as_arrow = [pa.Table.from_pandas(t, preserve_index=False) for t in (first, second)]
    found = km.compare(*as_arrow, 0.5, permutations=0, jackknife_groups=0)
    assert found.measure("svd").value == pytest.approx(wanted.measure("svd").value)


def test_numbers_alone_are_compared_as_before():
    numbers = [table(100, k)[["size", "price"]] for k in range(2)]
    plain = [torch.tensor(t.to_numpy(dtype=float)) for t in numbers]
    framed = km.compare(*numbers, permutations=0, jackknife_groups=0)
    assert not framed.mixed
    wanted = km.compare(*plain, permutations=0, jackknife_groups=0)
    assert framed.measure("svd").value == wanted.measure("svd").value
    kinds = {"price": "category"}
    assert km.compare(*numbers, kinds=kinds, permutations=0, jackknife_groups=0).mixed


def test_an_array_with_gaps_loses_no_row():
    values = np.random.default_rng(0).normal(size=(50, 3))
    values[::5, 1] = np.nan
    found = km.compare(values, values[:, ::-1].copy(), permutations=0, jackknife_groups=0)
    assert found.used == (50, 50)
    assert found.mixed


def test_options_and_refusals():
    first, second = table(60, 0), table(60, 1)
    found = km.compare(first, second, exclude=["when"], permutations=0, jackknife_groups=0)
    assert "when" not in found.columns
    with pytest.raises(OptionError, match="standardize=False"):
        km.compare(first, second, standardize=False)
    with pytest.raises(SchemaError, match=r"only the (first|second) data frame has when"):
        km.compare(first, second.drop(columns="when"), strict=True)
    found = km.compare(first, second.drop(columns="when"), permutations=0, jackknife_groups=0)
    assert "left out: when (only in the first data frame)" in found.reading_notes[0]
    with pytest.raises(SchemaError, match="no column in common"):
        km.compare(first[["when"]], second.drop(columns="when"))
    with pytest.raises(SchemaError, match="No column is left"):
        km.compare(first[["id"]].astype(str), second[["id"]].astype(str))


def test_the_energy_of_mixed_rows_is_that_of_one_hot_columns():
    generator = torch.Generator().manual_seed(0)
    layout = Layout(2, 2.5, 4)
    codes = torch.randint(3, (2000, 2), generator=generator).double()
    codes[1000:, 0] = codes[1000:, 0].clamp(max=1)
    rows = torch.cat([torch.randn(2000, 2, generator=generator, dtype=torch.float64), codes], 1)
    hot = torch.nn.functional.one_hot(codes.long(), 3).flatten(1).double()
    wide = torch.cat([rows[:, :2], (layout.mismatch / 2) ** 0.5 * hot], 1)
    units = ExchangeableUnits.of(rows, 1000, 1, generator, rows_up_to=0)
    (found,) = EnergyStatistic(layout, generator, 64).values(units)
    distances = torch.cdist(wide, wide)
    exact = 2 * distances[:1000, 1000:].mean() - distances[:1000, :1000].mean() - (
        distances[1000:, 1000:].mean())  # fmt: skip
    assert float(found.values[0]) == pytest.approx(float(exact), rel=0.15)
