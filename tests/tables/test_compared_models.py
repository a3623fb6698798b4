"""Tables of numbers: a mixture or the table model, as held-out rows have it."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal, norm

import kermix as km
from internals import (
    TableMixture,
    TableModelSettings,
    closest_distances,
    has_densities,
    open_run,
    schema_of,
    table_split,
)
from kermix import errors

SHORT = {"steps": 20, "device": "cpu"}
MEAN, COVARIANCE = np.array([1.0, 200.0]), np.array([[4.0, 15.0], [15.0, 100.0]])


@pytest.fixture(scope="module", autouse=True)
def _small():
    """A narrow network by default, because a named width would ask for the table model."""
    made = TableModelSettings.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "__defaults__", (16, 1, *made.__defaults__[2:]))
        yield


def normal(rows=400):
    values = np.random.default_rng(0).multivariate_normal(MEAN, COVARIANCE, rows)
    return pd.DataFrame({"a": values[:, 0], "c": 3.5, "b": values[:, 1].round(2)})


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory):
    return km.fit(normal(), out=tmp_path_factory.mktemp("runs") / "normal", **SHORT)


def test_a_gaussian_table_ends_no_worse_than_one_gaussian(gaussian):
    assert gaussian.kind.name == "table"
    assert isinstance(gaussian.model(), TableMixture)
    table = normal()
    held, train = table_split(400, gaussian.settings)
    rows = table[["a", "b"]].to_numpy()
    law = multivariate_normal(rows[train].mean(0), np.cov(rows[train].T, bias=True))
    reference = float(law.logpdf(rows[held]).mean())
    result = json.loads((gaussian.folder / "result.json").read_text())
    assert result["models"]["one Gaussian"] == pytest.approx(reference, abs=5e-3)
    assert result["log_density"] == max(result["models"].values()) >= reference - 5e-3
    assert result["models"][result["model"]] == result["log_density"]
    assert result["models"]["table model"] < reference, "20 steps are too few for a network"
    # In the units of the columns, row by row.
    truth = multivariate_normal(MEAN, COVARIANCE).logpdf(rows)
    np.testing.assert_allclose(gaussian.score(table).to_numpy().mean(), truth.mean(), atol=0.05)


def test_what_is_said_of_compared_models(gaussian):
    assert "All columns are numbers" in gaussian.notes(None)[0]
    page = (gaussian.folder / "report.html").read_text()
    assert "chosen by the log-density of 60 held-out rows" in page
    assert "table model" in page
    assert "kermix impute" not in page
    assert "--model" not in gaussian.command()


def test_samples_of_the_mixture_have_the_form_and_law_of_the_data(gaussian):
    drawn = gaussian.sample(4000, seed=1)
    assert list(drawn) == ["a", "c", "b"]
    assert set(drawn["c"]) == {3.5}
    assert (drawn["b"] == drawn["b"].round(2)).all()
    values = drawn[["a", "b"]].to_numpy()
    np.testing.assert_allclose(values.mean(0), MEAN, atol=1.5)
    np.testing.assert_allclose(np.cov(values.T) / COVARIANCE, 1, atol=0.25)
    assert values[:, 0].max() > normal()["a"].max(), "tails are not cut off"
    again = open_run(gaussian.folder).sample(4000, seed=1)
    assert again.equals(drawn)
    parts = pd.concat([p.to_pandas() for p in gaussian.sample_parts(4000, seed=1)])
    assert parts["a"].tolist() == drawn["a"].tolist()


def test_samples_of_the_mixture_keep_away_from_the_data(gaussian):
    table = normal()
    encoded = schema_of(gaussian).encode(table)

    def nearest(drawn):
        return closest_distances(schema_of(gaussian), schema_of(gaussian).encode(drawn), encoded)

    free = nearest(gaussian.sample(300, seed=2))
    assert (free < 0.02).mean() > 0.05
    away = nearest(gaussian.sample(300, seed=2, min_distance=0.02))
    assert away.min() >= 0.02
    assert len(gaussian.sample(20, deduplicate=True)) == 20


def test_what_the_mixture_does_not_do_is_refused_by_name(gaussian):
    with pytest.raises(errors.RunError, match="--model table"):
        gaussian.impute(normal(5))
    with pytest.raises(errors.OptionError, match="given has 2 rows"):
        gaussian.sample(2, given={"a": [1.0, 2.0]})
    with pytest.raises(errors.OptionError, match="'d' is not modelled"):
        gaussian.predict(normal(5), "d")
    with pytest.raises(errors.SchemaError, match="no column d"):
        gaussian.sample(2, given={"d": 1.0})
    gaps = normal(5)
    gaps.loc[2, "a"] = np.nan
    with pytest.raises(errors.OptionError, match="column a: 1 cells are empty"):
        gaussian.score(gaps)


def test_the_mixture_answers_about_columns_given_others(gaussian):
    """One normal law: the mean and the deviation of b given a are known in closed form."""
    model = gaussian.model()
    rows = normal()[["a", "b"]].to_numpy()
    _, train = table_split(400, gaussian.settings)
    mean, spread = rows[train].mean(0), np.cov(rows[train].T, bias=True)
    at = np.array([-2.0, 1.0, 5.0])
    centre = mean[1] + spread[0, 1] / spread[0, 0] * (at - mean[0])
    deviation = np.sqrt(spread[1, 1] - spread[0, 1] ** 2 / spread[0, 0])
    found = model.conditional("b", pd.DataFrame({"a": at}))
    if len(model.mixture_.weights) == 1:
        np.testing.assert_allclose(found.mean(), centre, rtol=1e-2)
        np.testing.assert_allclose(found.quantile(0.9), centre + 1.2816 * deviation, rtol=1e-2)
    np.testing.assert_allclose(found.mean(), centre, atol=0.5 * deviation)
    logs = found.log_density(np.zeros(3, np.int64), found.column.map(centre))
    joint = model.score_samples(pd.DataFrame({"a": at, "b": centre}))
    law = model.conditional("a")
    alone = law.log_density(np.zeros(1, np.int64), law.column.map(at[:1]))
    assert logs[0] + alone[0] == pytest.approx(joint[0], rel=1e-9), "p(b|a) p(a) = p(a, b)"
    np.testing.assert_allclose(gaussian.predict(pd.DataFrame({"a": at}), "b"), found.quantile(0.5))
    edges = np.linspace(150, 250, 30)
    inside = np.diff([found.cdf(e) for e in edges], axis=0)[1:-1].T
    np.testing.assert_allclose(found.shares(edges)[:, 1:-1], inside, atol=2e-3)
    assert found.shares(edges).sum(1) == pytest.approx(1)


def test_draws_of_the_mixture_with_given_values_have_its_conditional_law(gaussian):
    model = gaussian.model()
    drawn = gaussian.sample(4000, seed=3, given={"a": 4.0})
    assert set(drawn["a"]) == {4.0}
    assert set(drawn["c"]) == {3.5}
    law = model.conditional("b", {"a": 4.0})
    for share in (0.1, 0.5, 0.9):
        below = (drawn["b"] <= law.quantile(share)[0]).mean()
        assert below == pytest.approx(share, abs=0.03)
    every = model.conditionals({"a": 4.0})
    np.testing.assert_allclose(every["b"].mean(), law.mean())
    np.testing.assert_allclose(every["a"].mean(), model.conditional("a").mean())
    row = model.most_likely({"a": 4.0})
    assert (row["a"][0], row["c"][0]) == (4.0, 3.5)
    assert row["b"][0] == pytest.approx(law.quantile(0.5)[0], abs=4)
    both = {"a": 4.0, "b": 210.0}
    assert gaussian.sample(2, given=both)["b"].tolist() == [210.0, 210.0]


def test_the_table_model_is_kept_where_held_out_rows_prefer_it(tmp_path, monkeypatch):
    def poor(rows, size=None, kind="auto", **_):
        wide = km.GaussianMixture(torch.ones(1).double(), rows.mean(0)[None] + 1e3 * rows.std(0),
                                  rows.var(0)[None])  # fmt: skip
        return type("Chosen", (), {"mixture": wide})

    monkeypatch.setattr("internals.table_mixture_module.choose_mixture", poor)
    run = km.fit(normal(), out=tmp_path / "run", **SHORT)
    assert isinstance(run.model(), km.TableModel)
    assert run.sample(3, given={"a": 1.0}).shape == (3, 3)
    result = json.loads((run.folder / "result.json").read_text())
    assert result["model"] == "table model"
    assert result["models"]["table model"] == result["log_density"]


@pytest.mark.parametrize("scale", [1e200, 1e-170])
def test_numbers_without_variances_are_left_to_the_table_model(scale, tmp_path):
    values = np.random.default_rng(0).normal(size=(80, 2)) * [scale, 1]
    run = km.fit(pd.DataFrame(values, columns=["a", "b"]), out=tmp_path / "run", **SHORT)
    assert isinstance(run.model(), km.TableModel)
    result = json.loads((run.folder / "result.json").read_text())
    assert list(result["models"]) == ["table model"]


def test_who_says_which_model_gets_it(tmp_path):
    asked = km.fit(normal(), out=tmp_path / "1", model="table", **SHORT)
    assert isinstance(asked.model(), km.TableModel)
    mixture = km.fit(normal(), out=tmp_path / "2", model="mixture", refine_steps=2, components=4,
                     **SHORT)  # fmt: skip
    assert mixture.kind.name == "fit"


def test_values_that_many_rows_share_have_a_density_by_their_step(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=400), "b": rng.normal(100, 10, 400).round(0)})
    run = km.fit(table, out=tmp_path / "run", **SHORT)
    assert len(schema_of(run)["b"].atoms) > 5
    assert schema_of(run)["b"].decimals == 0
    assert isinstance(run.model(), TableMixture)
    # Whole numbers are intervals of width 1, tenths of width 1/10.
    truth = norm.logpdf(table["a"]) + norm(100, 10).logpdf(table["b"])
    assert run.score(table).mean() == pytest.approx(truth.mean(), abs=0.05)
    fine = table.assign(b=table["b"] / 10)
    other = km.fit(fine, out=tmp_path / "fine", **SHORT)
    assert len(schema_of(other)["b"].atoms) > 5
    assert other.score(fine).mean() == pytest.approx(truth.mean() + np.log(10), abs=0.05)
    assert (other.sample(50)["b"].round(1) == other.sample(50)["b"]).all()


@pytest.mark.parametrize(
    ("column", "good"),
    [
        (np.linspace(0, 1, 60) ** 2, True),
        (np.r_[np.zeros(20), np.linspace(0.1, 1, 40).round(3)], True),
        (np.r_[np.zeros(20), np.sqrt(np.arange(2, 42))], False),
        (np.r_[np.nan, np.linspace(0.1, 1, 59)], False),
        (["x", "y"] * 30, False),
        (pd.date_range("2024-01-01", periods=60, freq="7h"), False),
    ],
)
def test_densities_are_compared_where_both_are_of_the_same_kind(column, good):
    table = pd.DataFrame({"a": np.random.default_rng(1).normal(size=60), "b": column})
    assert has_densities(km.Schema.infer(table)) is good


def test_a_fit_without_held_out_rows_says_nothing_of_them(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=40), "g": rng.choice(["a", "b"], 40)})
    km.fit(table, out=tmp_path / "run", quick=True, steps=2)
    told = (tmp_path / "run" / "report.html").read_text()
    assert "of the samples; no rows were held out" in told
    assert "A classifier cannot tell them apart: AUC" in told
