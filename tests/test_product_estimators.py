"""Classifier and regressor on tables: scikit-learn's contract, quality, early stopping."""

import json
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine, make_friedman1
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import kermix as km
from kermix.bench import tabular
from kermix.errors import OptionError

SMALL = {"n_terms": 16, "width": 8, "n_members": 1, "max_epochs": 20, "batch_size": 64,
         "learning_rate": 0.03, "random_state": 0}  # fmt: skip


@parametrize_with_checks([km.ProductClassifier(**SMALL), km.ProductRegressor(**SMALL)])
def test_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def friedman():
    return train_test_split(*make_friedman1(500, noise=1.0, random_state=3), random_state=0)


def test_wine_is_learned():
    rows, test, labels, truth = train_test_split(*load_wine(return_X_y=True), random_state=0)
    model = km.ProductClassifier(max_epochs=40, learning_rate=0.01, random_state=0)
    names = np.array(["barolo", "grignolino", "barbera"])
    model.fit(rows, names[labels])
    assert model.score(test, names[truth]) >= 0.93
    chances = model.predict_proba(test)
    np.testing.assert_allclose(chances.sum(1), 1.0)
    assert list(model.classes_) == sorted(names)


@pytest.mark.parametrize(
    ("form", "least"), [("variational", 0.8), ("product", 0.8), ("signed", 0.6)]
)
def test_every_form_learns_friedmans_function(form, least, friedman):
    rows, test, values, truth = friedman
    options = {**SMALL, "max_epochs": 30, "n_members": 2}
    model = km.ProductRegressor(**options, form=form).fit(rows, 1e4 + values)
    assert model.score(test, 1e4 + truth) > least


def test_several_targets(friedman):
    rows, test, values, truth = friedman
    model = km.ProductRegressor(**SMALL).fit(rows, np.c_[values, -1e-3 * values])
    found = model.predict(test)
    assert found.shape == (len(test), 2)
    assert model.score(test, np.c_[truth, -1e-3 * truth]) > 0.6


def test_members_stop_in_time_and_keep_their_best():
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(120, 4)), generator.integers(2, size=120)
    options = {**SMALL, "n_members": 3, "max_epochs": 200, "n_iter_no_change": 5}
    model = km.ProductClassifier(**options).fit(rows, labels)  # pure noise: it can only overfit
    assert model.n_iter_ < 200
    assert len(model.best_epochs_) == 3
    assert max(model.best_epochs_) == model.n_iter_ - 6
    assert len(model.validation_curve_) == len(model.loss_curve_) == model.n_iter_
    whole = km.ProductClassifier(**{**options, "validation_fraction": 0, "max_epochs": 8})
    assert whole.fit(rows, labels).n_iter_ == 8
    assert whole.validation_curve_ == []


def test_best_weights_are_those_of_the_best_epoch():
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(120, 3)), generator.integers(2, size=120)
    long = km.ProductClassifier(**SMALL).fit(rows, labels)
    again = km.ProductClassifier(**{**SMALL, "n_iter_no_change": 1}).fit(rows, labels)
    if long.best_epochs_ == again.best_epochs_:
        np.testing.assert_array_equal(long.predict_proba(rows), again.predict_proba(rows))
    assert again.n_iter_ <= long.n_iter_
    assert min(long.validation_curve_) == long.validation_curve_[long.best_epochs_[0] - 1]


def test_same_random_state_same_fit():
    rows, labels = load_wine(return_X_y=True)
    options = {**SMALL, "max_epochs": 3}
    first, second, other = (
        km.ProductClassifier(**{**options, "random_state": s}).fit(rows, labels) for s in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.predict_proba(rows), second.predict_proba(rows))
    assert not np.array_equal(first.predict_proba(rows), other.predict_proba(rows))


def test_pipeline_grid_search_clone_and_pickle():
    rows, labels = load_wine(return_X_y=True)
    short = km.ProductClassifier(**{**SMALL, "max_epochs": 15})
    search = GridSearchCV(short, {"n_terms": [4, 16], "form": ["variational"]}, cv=2)
    pipeline = make_pipeline(QuantileTransformer(n_quantiles=20), search).fit(rows, labels)
    assert search.best_params_["n_terms"] in (4, 16)
    assert pipeline.score(rows, labels) > 0.6
    model = clone(short).fit(rows, labels)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))


@pytest.mark.parametrize(
    "rows",
    [
        np.full((30, 2), 7.0),
        np.c_[np.linspace(0, 1, 40), np.full(40, 3.0)],
        np.c_[np.linspace(0, 1, 40), 1e8 + np.arange(40) * 1e-3],
        np.random.default_rng(0).standard_cauchy((40, 3)) * 1e6,
        np.eye(3),
    ],
    ids=["constant", "constant column", "far away", "outliers", "three rows"],
)
def test_odd_tables_give_finite_predictions(rows):
    model = km.ProductRegressor(**{**SMALL, "max_epochs": 3}).fit(rows, np.arange(len(rows)))
    assert np.isfinite(model.predict(rows)).all()
    labels = np.r_[np.zeros(len(rows) - 1), 1]  # one row of the second class
    chances = km.ProductClassifier(**{**SMALL, "max_epochs": 3}).fit(rows, labels)
    assert np.isfinite(chances.predict_proba(rows)).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"form": "sum"}, "form='sum'"), ({"max_epochs": 0}, "epochs=0"), ({"n_members": 0}, "n_mem"),
     ({"learning_rate": -1}, "rate=-1"), ({"validation_fraction": 1.5}, "validation_fraction")],
)  # fmt: skip
def test_bad_options(options, expected):
    with pytest.raises(OptionError, match=expected):
        km.ProductRegressor(**{**SMALL, **options}).fit(np.eye(30), np.arange(30))


def test_benchmark_writes_its_file(tmp_path):
    path = tabular.main(["--quick", "--data", "wine,diabetes", "--out", str(tmp_path / "t.json")])
    record = json.loads(path.read_text())
    rows = record["tables"]["tabular"]
    assert {row["method"] for row in rows} == {"gaussian product", "gradient boosting", "MLP"}
    assert {row["data"] for row in rows} == {"wine", "diabetes"}
    assert sum(row["best"] for row in rows) >= 2
    with pytest.raises(OptionError, match="no data set"):
        tabular.run(True, data=["iris"])
