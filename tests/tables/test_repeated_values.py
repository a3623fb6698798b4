"""Values that repeat: masses, densities, draws and what is given, where thousands have a code."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

import kermix as km
from internals import RepeatedValues

SETTINGS = {"width": 32, "blocks": 1, "learning_rate": 3e-3, "random_state": 0, "device": "cpu"}


def made(rows, seed=0):
    """Clustered coordinates of two decimals, dates, half hours, prices in 9, grades, a lattice."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(12, 2)) * [2, 3] + [37, -120]
    kind = rng.choice(12, rows, p=rng.dirichlet(np.ones(12)))
    places = (centres[kind] + rng.normal(size=(rows, 2)) * 0.08).round(2)
    day = np.floor(500 * rng.beta(2, 1.3, rows)).astype(int)
    day -= ((day % 7) >= 5) & (rng.random(rows) < 0.8)
    price = np.exp(rng.normal(4 + 0.3 * (kind % 3), 0.5, rows)).round() * 10
    grade = np.clip(rng.normal(60 + day / 25, 8, rows), 0, 100)
    return pd.DataFrame({
        "lat": places[:, 0], "lon": places[:, 1],
        "date": pd.Timestamp("2020-01-01") + pd.to_timedelta(day, "D"),
        "half": rng.normal(15 + 5 * (kind % 2), 3, rows).clip(0, 23.5).round() / 2 + 0.0,
        "price": np.where(rng.random(rows) < 0.8, price - 1, price).astype(int),
        "grade": np.where(rng.random(rows) < 0.5, (grade / 5).round() * 5, grade.round()),
        "mass": ((rng.normal(3500 + 300 * (kind % 4), 400, rows) / 25).round() * 25).astype(int),
    })  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return made(5000)


@pytest.fixture(scope="module")
def model(table):
    return km.TableModel(steps=250, **SETTINGS).fit(table)


def test_every_value_of_numbers_that_repeat_has_a_code(model, table):
    coded = {model.schema_.modelled[own.column].name for own in model.network_.layout.repeated}
    assert {"lat", "lon", "date", "price", "grade", "mass"} <= coded
    for name in coded:
        assert len(model.schema_[name].atoms) == table[name].nunique()


def test_a_classifier_cannot_tell_samples_by_these_columns(model, table):
    drawn = model.sample(len(table), random_state=0)
    both = pd.concat([table, drawn], ignore_index=True)
    both["date"] = both["date"].astype("int64")
    fake = np.repeat([0, 1], len(table))
    for names in ([c] for c in table):
        trees = HistGradientBoostingClassifier(max_iter=60, max_depth=4)
        folds = StratifiedKFold(3, shuffle=True, random_state=0)
        told = cross_val_predict(trees, both[names], fake, cv=folds, method="predict_proba")
        assert roc_auc_score(fake, told[:, 1]) <= 0.55, names


def test_masses_and_densities_sum_to_one(model):
    found = model.conditional("lat", {"grade": 70.0})
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-6)
    column = model.schema_["lat"]
    # Over values: masses divided by their step. Between them: a density on the scale of scores.
    codes = np.arange(1, len(column.atoms) + 1)
    each = found.repeated(len(codes))
    masses = np.exp(each.log_density(codes, np.zeros(len(codes)))) * 0.01
    scores = np.linspace(-9, 9, 4001)
    many = found.repeated(len(scores))
    density = np.exp(many.log_density(np.zeros(len(scores), int), scores))
    between = np.trapezoid(density, column.map.inverse(scores))
    assert masses.sum() + between == pytest.approx(1, abs=1e-3)


def test_values_never_seen_have_a_density_and_can_be_given(model, table):
    new = table.head(3).copy()
    unseen = sorted(set(np.arange(3000, 4000) / 100) - set(table["lat"]))
    inside = [v for v in unseen if table["lat"].min() < v < table["lat"].max()][:3]
    new["lat"] = inside
    assert np.isfinite(model.score_samples(new)).all()
    assert (model.sample(3, given=new[["lat"]], random_state=0)["lat"] == inside).all()
    seen = model.score_samples(table.head(200)).mean()
    assert model.score_samples(new).mean() < seen


def test_distribution_of_a_value_agrees_with_samples(model, table):
    given = table.drop(columns="half").iloc[0].to_dict()
    found = model.conditional("half", given)
    edges = np.array([0.0, 6.0, 8.0, 10.0, 12.0])
    drawn = model.sample(4000, given=given, random_state=1)["half"]
    upto = np.array([found.cdf(edge)[0] for edge in edges])
    assert upto == pytest.approx([(drawn <= edge).mean() for edge in edges], abs=0.04)
    for share in (0.1, 0.5, 0.9):
        value = found.quantile(share)[0]
        assert value in set(table["half"])
        assert found.cdf(value)[0] >= share - 1e-9
    assert found.shares(np.array([0.0, 7.25, 9.25, 24.0])).sum() == pytest.approx(1)


def test_gaps_are_filled_with_values_that_there_are(table):
    rng = np.random.default_rng(1)
    holes = table.copy()
    holes.loc[rng.random(len(holes)) < 0.1, "price"] = np.nan
    model = km.TableModel(steps=60, **SETTINGS).fit(holes)
    filled = model.impute(holes.head(300), draws=1, random_state=0)[0]
    assert filled["price"].notna().all()
    known = set(table["price"])
    gone = holes["price"].head(300).isna()
    assert np.mean([v in known for v in filled["price"][gone]]) > 0.9
    assert model.impute(holes.head(300))["price"].notna().all()


def test_saved_models_answer_alike(model, table, tmp_path):
    model.save(tmp_path / "model")
    again = km.TableModel.load(tmp_path / "model")
    assert (again.score_samples(table.head(50)) == model.score_samples(table.head(50))).all()
    drawn = [m.sample(50, random_state=3) for m in (model, again)]
    pd.testing.assert_frame_equal(*drawn)


def test_predictions_of_many_rows_come_block_by_block(model, table, monkeypatch):
    whole = model.predict(table.head(120), "date")
    answers = "kermix.tables.model.table_answers.network_rows_at_once"
    monkeypatch.setattr(answers, lambda network: 50)
    assert (model.predict(table.head(120), "date") == whole).all()


def test_several_networks_have_a_mean_density(table):
    model = km.TableModel(
        "grade", target_share=0.5, members=3, steps=20, calibrate=True, **SETTINGS
    ).fit(table.head(600))
    found = model.conditional("grade", table.head(5).drop(columns="grade"))
    assert found.probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    assert np.isfinite(model.score_samples(table.head(5))).all()


@pytest.mark.parametrize("rows", [100, 300, 1000])
def test_small_tables_are_sound(rows):
    table = made(rows, seed=2)
    model = km.TableModel(steps=60, **SETTINGS).fit(table)
    drawn = model.sample(rows, random_state=0)
    assert list(drawn) == list(table)
    assert (drawn["mass"] % 25 == 0).mean() >= 0.98  # a lattice
    assert np.isfinite(model.score_samples(made(50, seed=3).assign(date=table["date"][:50]))).all()


def test_cells_hold_about_as_many_rows_and_all_values():
    counts = np.concatenate([np.full(500, 1), [5000], np.full(900, 20)])
    values = RepeatedValues(0, 0, counts)
    assert values.sizes.sum() == 1401
    assert values.sizes.max() <= 24
    assert values.sizes[values.cells[500]] == 1  # what a fifth of the rows has
    assert (np.diff(values.ranks) > 0).all()
    torch.testing.assert_close(torch.tensor(values.cell_shares.sum()), torch.tensor(1.0).double())
