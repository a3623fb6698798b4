"""compare(): the values are the costs, the errors and notes are there, and the witness points."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.errorbars import Setting, calibration

import kermix as km
from cases import normal
from kermix.comparison.draws import groups, halves, jackknife_error, standard_error
from kermix.costs.baselines import energy_distance
from kermix.errors import KermixError, OptionError, TableError


@pytest.fixture(scope="module")
def shifted():
    return normal(80, 2, seed=0), normal(60, 2, seed=1) + torch.tensor([1.0, 0.0]).double()


@pytest.fixture(scope="module")
def result(shifted):
    return km.compare(*shifted, [0.1, 1.0], permutations=49)


def test_values_are_the_costs_themselves(shifted, result):
    x, y = shifted
    for name, cost in (
        ("svd", km.svd_cost),
        ("matrix", km.matrix_cost),
        ("vector", km.vector_cost),
        ("scalar", km.scalar_cost),
    ):
        found = result.measure(name, 0.1)
        assert found.value == pytest.approx(cost(x, y, 0.1).item(), rel=1e-9)
        assert found.normalized == pytest.approx(cost(x, y, 0.1, normalized=True).item(), rel=1e-9)
    fidelity = result.measure("svd", 1.0).normalized
    assert result.measure("bures", 1.0).value == pytest.approx(math.sqrt(2 - 2 * fidelity))
    divergence = km.ScalarLoss(1.0)(x, y).item()
    assert result.measure("cauchy_schwarz", 1.0).value == pytest.approx(divergence, rel=1e-9)


def test_every_measure_has_an_error_bar_and_a_pvalue(result):
    assert len(result.measures) == 7 * 2 + 1
    for measure in result.measures:
        if measure.name == "vector" and measure.normalized > 0.99:
            assert measure.error is None or measure.error > 0  # may be too skewed for one
        else:
            assert measure.error > 0
        assert 0 < measure.pvalue <= 1
        assert math.isfinite(measure.if_same)
    assert result.measure("svd", 1.0).pvalue <= 0.05
    assert result.measure("svd", 1.0).if_same > result.measure("svd", 1.0).normalized


@pytest.mark.parametrize("setting", [Setting(40, 40, 2, 0.5), Setting(30, 60, 5, 0.0)])
def test_error_bars_have_the_size_of_the_scatter_of_repeated_samples(setting):
    """A standard deviation of thirty numbers is itself uncertain by an eighth."""
    for row in calibration(setting, 30):
        if row["standardized"] is None:
            assert row["measure"] == "vector"  # skewed near its bound
            continue
        # What a vector cost misses can fall faster than one over the number of points.
        larger = 2 if row["measure"] == "vector" else 1
        assert 0.5 / larger < row["standardized"] < 1.8, row
        assert 0.6 < row["error"] / row["scatter"] < 1.7 * larger, row


def test_a_value_too_skewed_for_an_error_bar_has_none():
    """Of 80 normal numbers some ten vector costs are between .9999 and 1, one is .998."""
    for row in calibration(Setting(80, 80, 1, 0.0), 12):
        if row["measure"] == "vector" and row["variance"] == "coarse":
            assert row["without_error"] >= 10
            assert row["standardized"] is None
        elif row["measure"] != "vector":
            assert row["without_error"] == 0
            assert row["standardized"] < 1.8


def test_standard_error_of_means_and_of_squares():
    """Of a mean, and of its square around zero, where a bootstrap is far too large."""
    errors, squares, values = [], [], []
    for seed in range(200):
        x = normal(60, 40, seed=seed)
        split = halves(60, 60, 400, torch.Generator().manual_seed(seed))
        means = x[split.x].mean(2)  # (S, 2, d)
        errors.append(standard_error(means[..., 0]))
        squares.append(standard_error(means.square().sum(-1)))
        values.append(float(x.mean(0).square().sum()))
    assert np.mean(errors) == pytest.approx(1 / math.sqrt(60), rel=0.1)
    assert np.mean(squares) == pytest.approx(np.std(values), rel=0.2)


def test_jackknife_error_is_between_those_of_means_and_of_squares():
    """As stated: at most 14 % too small (of a mean), at most 22 % too large (of its square)."""
    errors, squares, values = [], [], []
    for seed in range(200):
        x = normal(60, 40, seed=seed)
        left = groups(60, 60, 30, torch.Generator().manual_seed(seed)).x
        means = torch.stack([x[rows].mean(0) for rows in left])
        errors.append(jackknife_error(means[:, 0]))
        squares.append(jackknife_error(means.square().sum(-1)))
        values.append(float(x.mean(0).square().sum()))
    assert np.mean(errors) == pytest.approx(0.866 / math.sqrt(60), rel=0.03)
    assert np.mean(squares) == pytest.approx(1.22 * np.std(values), rel=0.12)


def test_each_row_is_left_out_once():
    for n, m in ((2, 3), (7, 100), (41, 40)):
        left = groups(n, m, 20, torch.Generator().manual_seed(0))
        assert len(left) == min(20, n, m)
        for parts, size in ((left.x, n), (left.y, m)):
            out = [set(range(size)) - set(rows.tolist()) for rows in parts]
            assert sorted(k for part in out for k in part) == list(range(size))
            assert {len(part) for part in out} <= {size // len(out), size // len(out) + 1}
    assert len(groups(1, 5, 20, torch.Generator())) == 0


def test_halves_do_not_overlap():
    for n, m in ((7, 1), (2, 3), (100, 30), (41, 400)):
        split = halves(n, m, 5, torch.Generator().manual_seed(0))
        for members, size in ((split.x, n), (split.y, m)):
            assert members.shape == (5, 2, max(1, size // 2))
            assert int(members.max()) < size
            if size > 1:
                assert all(not set(a.tolist()) & set(b.tolist()) for a, b in members)


def test_it_prints_as_a_table_and_becomes_json(result):
    text = str(result)
    assert "SVD cost" in text
    assert "Bures distance" in text
    assert "random parts of the rows" in text
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert len(content["measures"]) == 15
    assert content["tests"]["svd"]["pvalue"] <= 1


def test_witness_has_the_sign_of_the_difference(result):
    at = torch.tensor([[-1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    witness = result.witness(at)
    assert witness[0] > 0 > witness[1]
    assert result.sharpest_variance in (0.1, 1.0)


def test_subsampling_and_scaling_are_stated():
    wide = normal(300, 3) * torch.tensor([1.0, 100.0, 1.0])
    found = km.compare(wide, wide.clone(), 0.5, max_points=50, permutations=9, bootstrap=2)
    text = " ".join(found.notes)
    assert "50 of 300 rows used" in text
    assert "pooled standard deviations" in text
    assert found.sizes == (300, 300)
    assert found.used == (50, 50)
    torch.testing.assert_close(found.raw(found.x).std(0)[1].item(), 100.0, rtol=0.5, atol=0)
    plain = km.compare(wide, wide, 0.5, standardize=False, permutations=0, bootstrap=0)
    assert plain.measure("svd").normalized == pytest.approx(1, abs=1e-6)
    assert plain.measure("svd").error is None
    assert plain.measure("svd").pvalue is None


def test_tables_are_matched_by_column_and_columns_ranked():
    x, y = normal(100, 3, seed=0).numpy(), normal(100, 3, seed=1).numpy()
    first = pd.DataFrame(x, columns=["a", "b", "c"])
    second = pd.DataFrame(y[:, ::-1], columns=["c", "b", "a"])
    second["b"] += 2
    found = km.compare(first, second, permutations=49, bootstrap=2)
    assert found.column_differences[0].column == "b"
    assert found.column_differences[0].pvalue == 0.02
    assert found.column_differences[1].distance < 0.1
    with pytest.raises(TableError, match="only data frame has c"):
        km.compare(first, second.drop(columns="c"))
    only = km.compare(first, second, columns=["a"], permutations=0, bootstrap=0)
    assert only.columns == ("a",)


def test_the_same_seed_gives_the_same_answer(shifted):
    first, second = (km.compare(*shifted, 0.5, permutations=9, seed=3) for _ in range(2))
    assert first.measures == second.measures


def test_degenerate_and_wrong_input():
    same = torch.ones(10, 2)
    with pytest.warns(km.errors.DegenerateDataWarning):
        found = km.compare(same, same, permutations=9, bootstrap=2)
    assert found.measure("svd").normalized == pytest.approx(1, abs=1e-5)
    assert found.measure("svd").pvalue == 1
    with pytest.raises(OptionError, match="max_points"):
        km.compare(normal(5, 1), normal(5, 1), max_points=1)
    with pytest.raises(KermixError, match="no measure"):
        found.measure("wasserstein")


def test_sketches_are_compared_with_their_certificates():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(300, 2, generator=generator, dtype=torch.float64) + 0.3
    features = km.nystrom_features(torch.cat([x, y]), 0.1, rank=150)
    result = km.compare(km.Sketch(features).update(x), km.Sketch(features).update(y))
    table = str(result)
    assert "SVD cost" in table
    assert "certificate" in table
    exact = float(km.svd_cost(x, y, 0.1, normalized=True))
    assert f"{exact:.3f}" in table


def test_columns_far_from_zero_are_compared_like_those_that_are_not():
    x, y = normal(300, 2, seed=0) * 5, normal(300, 2, seed=1) * 5 + torch.tensor([0.0, 6.0])
    far = torch.tensor([1.7e9, -3e8], dtype=torch.float64)
    near, moved = (km.compare(x + s, y + s, permutations=99) for s in (0, far))
    for one, other in zip(near.column_differences, moved.column_differences, strict=True):
        assert (one.column, one.pvalue) == (other.column, other.pvalue)
        assert other.distance == pytest.approx(one.distance, rel=1e-4)
    assert moved.tests["svd"].pvalue == near.tests["svd"].pvalue == 0.01
    spread = torch.cat([x, y])[:, 1].std()
    expected = energy_distance(x[:, 1:], y[:, 1:]) / spread
    assert near.column_differences[0].distance == pytest.approx(float(expected), rel=1e-4)
