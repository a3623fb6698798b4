"""compare(): the values are the costs, the errors and notes are there, and the witness points."""

import inspect
import json
import math

import pandas as pd
import pytest
import torch

import kermix as km
from cases import normal
from internals import energy_distance
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


def test_it_prints_as_a_table_and_becomes_json(result):
    assert str(result).startswith("They differ (p = 0.02): a classifier tells their rows apart")
    assert "SVD cost" not in str(result)
    text = result.details()
    assert "SVD cost" in text
    assert "Bures distance" in text
    assert "random subsets of the rows" in text
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert len(content["measures"]) == 15
    assert content["verdict"]["different"] is True
    assert "measures" not in result.to_dict(details=False)
    assert content["tests"]["svd"]["pvalue"] <= 1


def test_witness_has_the_sign_of_the_difference(result):
    at = torch.tensor([[-1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    witness = result.witness(at)
    assert witness[0] > 0 > witness[1]
    assert result.sharpest_variance in (0.1, 1.0)


def test_subsampling_and_scaling_are_stated():
    wide = normal(300, 3) * torch.tensor([1.0, 100.0, 1.0])
    found = km.compare(wide, wide.clone(), 0.5, max_points=50, permutations=9, jackknife_groups=2)
    text = " ".join(found.notes)
    assert "50 of 300 rows are used" in text
    assert "pooled standard deviations" in text
    assert found.sizes == (300, 300)
    assert found.used == (50, 50)
    torch.testing.assert_close(found.raw(found.x).std(0)[1].item(), 100.0, rtol=0.5, atol=0)
    plain = km.compare(wide, wide, 0.5, standardize=False, permutations=0, jackknife_groups=0)
    assert plain.measure("svd").normalized == pytest.approx(1, abs=1e-6)
    assert plain.measure("svd").error is None
    assert plain.measure("svd").pvalue is None


def test_tables_are_matched_by_column_and_columns_ranked():
    x, y = normal(100, 3, seed=0).numpy(), normal(100, 3, seed=1).numpy()
    first = pd.DataFrame(x, columns=["a", "b", "c"])
    second = pd.DataFrame(y[:, ::-1], columns=["c", "b", "a"])
    second["b"] += 2
    found = km.compare(first, second, permutations=49, jackknife_groups=2)
    assert found.verdict.columns[0].column == "b"
    assert found.verdict.columns[0].pvalue == 0.02
    assert found.verdict.columns[1].pvalue > 0.1
    with pytest.raises(TableError, match="only the first data frame has c"):
        km.compare(first, second.drop(columns="c"), strict=True)
    fewer = km.compare(first, second.drop(columns="c"), permutations=0, jackknife_groups=0)
    assert fewer.columns == ("a", "b")
    assert fewer.reading_notes == (
        "Compared by the columns that both have; left out: c (only in the first data frame).",
    )
    only = km.compare(first, second, columns=["a"], permutations=0, jackknife_groups=0)
    assert only.columns == ("a",)


def test_the_same_seed_gives_the_same_answer(shifted):
    first, second = (km.compare(*shifted, 0.5, permutations=9, seed=3) for _ in range(2))
    assert first.measures == second.measures


def test_degenerate_and_wrong_input():
    same = torch.ones(10, 2)
    found = km.compare(same, same, permutations=9, jackknife_groups=2)
    with pytest.warns(km.errors.DegenerateDataWarning):  # costs need a variance, a verdict none
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
    x, y = normal(100, 2, seed=0) * 5, normal(100, 2, seed=1) * 5 + torch.tensor([0.0, 6.0])
    far = torch.tensor([1.7e9, -3e8], dtype=torch.float64)
    near, moved = (km.compare(x + s, y + s, permutations=99, jackknife_groups=0) for s in (0, far))
    for one, other in zip(near.verdict.columns, moved.verdict.columns, strict=True):
        assert (one.column, one.pvalue) == (other.column, other.pvalue)
    assert moved.tests["svd"].pvalue == near.tests["svd"].pvalue == 0.01


def test_a_verdict_does_not_load_sympy(monkeypatch):
    """PyTorch's function does, for seconds, when it is first called."""

    def called(*shapes):
        raise AssertionError(f"torch.broadcast_shapes{shapes}")

    monkeypatch.setattr(torch, "broadcast_shapes", called)
    x, y = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    assert km.compare(x, y, permutations=19).verdict.pvalue > 0
    with pytest.raises(AssertionError):
        energy_distance(x.expand(2, 40, 3), y)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(km.compare, 2), (km.evaluate, 2), (km.drift_over_time, 1)],
)
def test_a_wrong_option_is_told_with_the_nearest_one(function, arguments):
    with pytest.raises(OptionError, match="has no option 'colums'; did you mean columns"):
        function(*[torch.zeros(9, 2)] * arguments, colums=["x0"])
    shown = inspect.signature(function).parameters
    assert {"columns", "delimiter", "sheet", "level", "seed"} <= set(shown)
    assert shown["exclude"].default == ()
    assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())


def test_a_comparison_says_how_far_it_is():
    told = []
    result = km.compare(
        normal(60, 2, seed=0), normal(60, 2, seed=1), permutations=19,
        progress=lambda name, share: told.append((name, share)),
    )  # fmt: skip
    assert told == [("reading", 0.0)]
    assert result.verdict.different is False
    assert [name for name, _ in told] == ["reading", "testing", "telling rows apart",
                                          "what changed"]  # fmt: skip
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] < 1
