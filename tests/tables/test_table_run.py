"""Runs of the table model: folders, samples, conditions, gaps, resuming, what is refused."""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

import kermix as km
from internals import (
    form_of,
    judge_samples,
    load_checkpoint,
    open_run,
    why_table_model,
)
from kermix import errors

TINY = {"width": 16, "blocks": 1, "steps": 40, "learning_rate": 0.01, "device": "cpu"}


def shop(rows=400, seed=0):
    """Every kind of column: a key, days, towns, prices, counts with many zeros, gaps."""
    rng = np.random.default_rng(seed)
    town = rng.choice(["Köln", "Bonn", "Aachen"], rows, p=[0.5, 0.3, 0.2])
    price = np.round(20 * rng.lognormal(0, 0.8, rows) + 30 * (town == "Bonn"), 2)
    return pd.DataFrame(
        {
            "order": [f"A-{k:05d}" for k in range(rows)],
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, rows), "D"),
            "town": town,
            "price": price,
            "stock": rng.integers(100, 900, rows),
            "discount": np.where(rng.random(rows) < 0.7, 0, rng.integers(1, 40, rows)),
            "rating": np.where(rng.random(rows) < 0.3, np.nan, rng.integers(1, 6, rows)),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return km.fit(shop(), out=tmp_path_factory.mktemp("runs") / "shop", **TINY)


def test_a_table_with_categories_goes_to_the_table_model(run):
    assert run.kind.name == "table"
    names = {p.name for p in run.folder.iterdir()}
    assert names == {
        "config.json", "metrics.csv", "checkpoint", "schema.json", "data.parquet", "result.json",
        "samples.parquet", "report.html",
    }  # fmt: skip
    assert (run.checkpoints / "model.safetensors").exists()
    assert run.notes(None) == [
        "The table model was chosen because order is a key.",
        "Left out as keys: order.",
    ]
    assert open_run(run.folder).kind.name == "table"
    assert "--set width=16 --set blocks=1" in run.command()
    lines = (run.folder / "metrics.csv").read_text().splitlines()
    assert lines[0] == "step,loss,metric"
    assert int(lines[-1].partition(",")[0]) <= 40


def test_samples_are_valid(run):
    data, drawn = shop(), run.sample(2000, seed=1)
    assert list(drawn) == list(data)
    assert (drawn.dtypes == data.dtypes).all()
    assert set(drawn["town"]) <= set(data["town"])
    for name in ("price", "stock", "discount", "day"):
        assert drawn[name].between(data[name].min(), data[name].max()).all(), name
    assert (drawn["price"] == drawn["price"].round(2)).all()
    assert abs(drawn["rating"].isna().mean() - data["rating"].isna().mean()) < 0.08
    assert set(drawn["rating"].dropna()) <= set(data["rating"].dropna())
    assert drawn["order"].is_unique
    assert run.sample(50, seed=1).equals(run.sample(50, seed=1))
    assert not run.sample(50, seed=1).equals(run.sample(50, seed=2))


def test_rows_that_are_streamed_are_the_same(run, monkeypatch):
    for module in ("sampling_module", "table_run_module"):
        monkeypatch.setattr(f"internals.{module}.network_rows_at_once", lambda network: 16)
    monkeypatch.setattr("internals.table_run_module.BLOCKS_AT_ONCE", 2)
    parts = list(run.sample_parts(70, seed=3))
    assert [len(p) for p in parts] == [32, 32, 6]
    whole = run.sample(70, seed=3).drop(columns="order")
    streamed = pd.concat([p.to_pandas() for p in parts], ignore_index=True)
    assert streamed["price"].tolist() == whole["price"].tolist()
    assert streamed["town"].tolist() == whole["town"].tolist()


def test_what_is_given_is_kept(run):
    drawn = run.sample(40, seed=0, given={"town": "Bonn", "price": 33.25, "rating": None})
    assert set(drawn["town"]) == {"Bonn"}
    assert set(drawn["price"]) == {33.25}
    assert drawn["rating"].isna().all()
    assert drawn["stock"].nunique() > 20
    with pytest.raises(errors.OptionError, match=r"price=1000000.* is outside the range"):
        run.sample(2, given={"price": 1e6})
    with pytest.raises(errors.SchemaError, match="town is never 'Rome'"):
        run.sample(2, given={"town": "Rome"})


def test_impute_fills_gaps_and_nothing_else(run):
    table = shop(60, seed=5)
    table.loc[3, "price"] = np.nan
    table.loc[4, "town"] = None
    table.loc[5, "price"] = 99999.25  # outside of what was seen, and no gap
    table["remark"] = "kept"
    filled = run.impute(table)
    assert not filled.drop(columns="order").isna().any().any()
    was = table.notna()
    for name in table:
        assert filled[name][was[name]].tolist() == table[name][was[name]].tolist(), name
    assert filled["town"][4] in {"Köln", "Bonn", "Aachen"}
    draws = run.impute(table, draws=3)
    assert len(draws) == 3
    assert len({t["price"][3] for t in draws}) > 1


def test_scores_are_one_for_each_row_in_order(run):
    table = shop(50, seed=7)
    scores = run.score(table)
    assert scores.shape == (50,)
    assert np.isfinite(scores).all()
    order = np.random.default_rng(0).permutation(50)
    turned = run.score(table.iloc[order])
    assert turned.index.tolist() == order.tolist(), "the caller's index"
    assert np.allclose(turned, scores.to_numpy()[order], atol=1e-4)
    assert isinstance(run.score(table.to_dict("list")), np.ndarray)
    # A gap where there never was one leaves the cell open, and no other row changes.
    gap = table.assign(stock=table["stock"].astype(float))
    gap.loc[2, "stock"] = np.nan
    again = run.score(gap)
    assert again[2] > scores[2]
    assert np.allclose(np.delete(again, 2), np.delete(scores, 2), atol=1e-4)
    strange = table.assign(town=["Rome", "Oslo", *table["town"][2:]])
    told = "2 of 50 rows have density zero, .* row 0, column town: the model has never seen"
    with pytest.warns(errors.ZeroDensityWarning, match=told):
        found = run.score(strange)
    assert (found[:2] == -np.inf).all()
    assert np.allclose(found[2:], scores[2:], atol=1e-4)


def test_predict_needs_neither_the_target_nor_all_columns(run):
    table = shop(30, seed=8)
    found = run.predict(table, "town")
    assert set(found) <= {"Köln", "Bonn", "Aachen"}
    assert (found == run.predict(table.drop(columns="town"), "town")).all()
    assert len(run.predict(table[["price", "rating"]].assign(new=1), "stock")) == 30
    with pytest.raises(errors.OptionError, match="Name the column"):
        run.predict(table)
    with pytest.raises(errors.OptionError, match="'order' is not modelled"):
        run.predict(table, "order")
    with pytest.raises(errors.SchemaError, match="none of the columns"):
        run.predict(table[["order"]], "town")


def test_the_estimator_of_a_run_is_that_of_its_weights(run):
    model = run.model()
    assert isinstance(model, km.TableModel)
    assert model.width == 16
    table = shop(20, seed=9)
    assert np.allclose(model.score_samples(table), run.score(table))


def test_a_run_moves_with_its_rows_and_says_if_they_change(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run.folder, moved)
    again = open_run(moved)
    assert (again.dataset().encoded.codes == run.dataset().encoded.codes).all()
    shop(400, seed=1).to_parquet(moved / "data.parquet")
    with pytest.raises(errors.RunError, match="has changed"):
        again.dataset()


def test_interrupted_and_resumed_is_the_same(run, tmp_path, monkeypatch):
    asked = []

    @contextmanager
    def interruptions():
        yield lambda: asked.append(1) or len(asked) == 7

    with monkeypatch.context() as patch:
        patch.setattr("internals.train_module.interruptions", interruptions)
        with pytest.raises(KeyboardInterrupt, match="Stopped at step 7"):
            km.fit(shop(), out=tmp_path / "stopped", **TINY)
    with pytest.raises(errors.RunError, match="training is not finished"):
        open_run(tmp_path / "stopped").sample(3)
    km.resume(tmp_path / "stopped")
    for name in ("last", "model"):
        first, _ = load_checkpoint(run.checkpoints / f"{name}.safetensors")
        second, _ = load_checkpoint(tmp_path / "stopped" / "checkpoint" / f"{name}.safetensors")
        assert set(first) == set(second)
        assert all(first[k].equal(second[k]) for k in first)
    whole = (run.folder / "metrics.csv").read_text()
    assert (tmp_path / "stopped" / "metrics.csv").read_text() == whole


def test_quality_tells_good_samples_from_bad_ones():
    table = shop(1200)
    schema = km.Schema.infer(table)
    data, other = schema.encode(table), schema.encode(shop(1200, seed=1))
    bad = shop(1200, seed=2)
    bad["price"] = bad["price"].sample(frac=1, random_state=0).to_numpy()
    shuffled = schema.encode(bad)
    train, held = np.arange(1000), np.arange(1000, 1200)
    scores = np.zeros(200)
    good = judge_samples((table, shop(1200, seed=1)), schema, data, other, train, held, scores)
    copied = judge_samples((table, table[:1000]), schema, data, data[train], train, held, scores)
    worse = judge_samples((table, bad), schema, data, shuffled, train, held, scores)
    assert good.auc == km.compare(table, shop(1200, seed=1)).verdict.effect
    assert good.interval[0] < 0.5 < good.interval[1]
    assert worse.interval[0] > 0.55
    assert good.copies == 0
    assert copied.copies == 1
    assert 0.8 < good.privacy.samples[0] / good.privacy.held_out[0] < 1.25
    assert copied.privacy.samples == (0, 0)
    assert {worse.pairs[0].first, worse.pairs[0].second} == {"town", "price"}
    assert worse.pairs[0].difference > 2 * worse.pair_floor
    # The density of independent columns is one: its mean is near that of the data's own entropy.
    assert np.isfinite(good.references[0][1])


def test_one_gaussian_is_a_reference_for_plain_numbers():
    rng = np.random.default_rng(0)
    values = rng.multivariate_normal([1, 2], [[4, 1.5], [1.5, 1]], 3000)
    table = pd.DataFrame(values, columns=["a", "b"])
    schema = km.Schema.infer(table)
    data = schema.encode(table)
    train, held = np.arange(2000), np.arange(2000, 3000)
    found = dict(
        judge_samples((table, table), schema, data, data, train, held, np.zeros(1000)).references
    )
    # Entropy of the law: 1 + log(2 pi) + log(det) / 2, and of its two margins.
    assert found["one Gaussian"] == pytest.approx(-(1 + np.log(2 * np.pi) + np.log(1.75) / 2),
                                                  abs=0.08)  # fmt: skip
    assert found["independent columns"] == pytest.approx(
        -(1 + np.log(2 * np.pi) + np.log(4) / 2), abs=0.1
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"b": ["x", "y"] * 30}, "b is a category"),
        ({"b": [None, *np.linspace(0, 1.3, 59)]}, "b has gaps"),
        ({"b": pd.date_range("2024-01-01", periods=60, freq="7h")}, "b is a time"),
        (
            {"b": np.r_[np.zeros(40), np.linspace(0.1, 1, 20)]},
            "b has a few values shared by most rows",
        ),
        (
            {"b": np.r_[np.zeros(12), np.linspace(0.1, 1.7, 48)]},
            "b has values shared by many rows",
        ),
        ({"b": np.random.default_rng(0).integers(0, 1000, 60)}, "b has integers"),
        ({"b": 1.5}, None),
    ],
)
def test_which_tables_a_mixture_cannot_stand_for(change, why):
    table = pd.DataFrame({"a": np.random.default_rng(1).normal(size=60)}).assign(**change)
    found = why_table_model(km.Schema.infer(table), 60)
    assert found is None if why is None else found.startswith(why)


def test_numbers_stay_with_the_mixture_unless_asked(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 2)), columns=["a", "b"])
    short = {"steps": 4, "refine_steps": 2, "components": 4, "device": "cpu"}
    assert km.fit(table, out=tmp_path / "1", **short).kind.name == "fit"
    chosen = km.fit(table, out=tmp_path / "2", columns=["a"], **short)
    assert chosen.config["columns"] == ["a"]
    asked = km.fit(table.to_numpy(), out=tmp_path / "3", model="table", **TINY)
    assert asked.sample(3).shape == (3, 2)
    assert isinstance(asked.sample(3), np.ndarray)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model": "table", "cost": "svd"}, "cost does not apply to the table model"),
        ({"model": "mixture", "width": 8}, "width is a setting of the table model"),
        ({"target": "nothing"}, "'nothing' is not modelled"),
        ({"columns": ["nothing"]}, "has no column nothing"),
        ({"kinds": {"price": "nonsense"}}, "nonsense"),
        ({"devices": 0}, "devices=0"),
        ({"width": 0}, "width"),
        ({"exclude": list(shop(1))}, "no column is left"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(options, expected, tmp_path):
    with pytest.raises(errors.KermixError, match=expected):
        km.fit(shop(50), out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


ODD = {
    "five rows": lambda rng: pd.DataFrame({"a": list("xyxyx"), "b": [1.5, 2, 3, np.nan, 9]}),
    "one column": lambda rng: pd.DataFrame({"a": list("xyz") * 30}),
    "all gaps": lambda rng: pd.DataFrame({"a": list("xyz") * 30, "b": [np.nan] * 90}),
    "several types": lambda rng: pd.DataFrame({"a": [1, "x", 2.5] * 30, "b": rng.normal(size=90)}),
    "hostile names": lambda rng: pd.DataFrame(
        {"$a^$": ["$x_", "<script>", "y"] * 30, "[red]b": rng.integers(0, 500, 90)}
    ),
    "labels": lambda rng: pd.DataFrame({0: list("xyz") * 30, 1: rng.integers(0, 500, 90)}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_tables_have_runs_too(case, tmp_path):
    table = ODD[case](np.random.default_rng(0))
    run = km.fit(table, out=tmp_path / "run", model="table", **{**TINY, "steps": 3})
    drawn = run.sample(4)
    assert list(drawn) == list(table)
    assert (drawn.dtypes == table.dtypes).all()
    assert np.isfinite(run.score(table)).all()
    assert (run.dataset().encoded.codes >= 0).all()
    assert "<script>" not in (run.folder / "report.html").read_text()


def test_tables_are_asked_for_where_there_is_one(tmp_path):
    with pytest.raises(errors.OptionError, match="which moons is not"):
        km.fit("moons", out=tmp_path / "run", model="table")


def test_forms_of_samples_follow_the_input():
    assert form_of("/a/b.CSV.gz") == ".csv.gz"
    assert form_of("x.feather") == ".feather"
    assert form_of("x.xlsx") == ".csv"


def test_the_report_says_what_matters(run):
    page = (run.folder / "report.html").read_text()
    for words in ("independent columns", "Privacy", "differential privacy", "kermix impute",
                  "Columns, the most different first", "Can a classifier tell"):  # fmt: skip
        assert words in page
    result = json.loads((run.folder / "result.json").read_text())
    assert 0 <= result["interval"][0] <= result["auc"] <= result["interval"][1] <= 1
    assert result["copies"] == 0
