"""Classifier and regressor on tables: scikit-learn's contract, quality, early stopping."""

import json
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_wine, make_friedman1
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import kermix as km
from benchmarks import tabular
from internals import check_sizes
from kermix.errors import OptionError, SampleError

SMALL = {"n_terms": 16, "width": 8, "n_members": 1, "max_epochs": 20, "batch_size": 64,
         "learning_rate": 0.03, "random_state": 0}  # fmt: skip
# Just enough to learn what the contract wants to be learned.
SHORT = {**SMALL, "max_epochs": 8, "batch_size": 128, "learning_rate": 0.06}
LONGER = {**SHORT, "max_epochs": 16, "batch_size": 64}


# Rows are drawn by their weights: the same in the mean, not with the same seed.
DRAWN = {"check_sample_weight_equivalence_on_dense_data": "batches are random"}


@parametrize_with_checks(
    [km.ProductClassifier(**SHORT), km.ProductRegressor(**LONGER)],
    expected_failed_checks=lambda estimator: DRAWN,
)
def test_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def friedman():
    return train_test_split(*make_friedman1(500, noise=1.0, random_state=3), random_state=0)


def test_wine_is_learned():
    rows, test, labels, truth = train_test_split(*load_wine(return_X_y=True), random_state=0)
    model = km.ProductClassifier(max_epochs=15, n_members=2, random_state=0)
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


def noise_table(count=120):
    """Targets that can only be learned by heart."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 4)), rng.normal(size=count)


def test_members_stop_in_time_and_keep_their_best():
    rows, target = noise_table()
    options = {**SMALL, "n_members": 3, "max_epochs": 200, "n_iter_no_change": 5}
    model = km.ProductRegressor(**options).fit(rows, target)
    assert model.n_iter_ < 200
    assert len(model.best_epochs_) == 3
    assert max(model.best_epochs_) == model.n_iter_ - 6
    assert len(model.validation_curve_) == len(model.loss_curve_) == model.n_iter_
    whole = km.ProductRegressor(**{**options, "validation_fraction": 0, "max_epochs": 8})
    assert whole.fit(rows, target).n_iter_ == 8
    assert whole.validation_curve_ == []


def test_best_weights_are_those_of_the_best_epoch():
    rows, target = noise_table()
    long = km.ProductRegressor(**SMALL).fit(rows, target)
    again = km.ProductRegressor(**{**SMALL, "n_iter_no_change": 1}).fit(rows, target)
    if long.best_epochs_ == again.best_epochs_:
        np.testing.assert_array_equal(long.predict(rows), again.predict(rows))
    assert again.n_iter_ <= long.n_iter_
    assert min(long.validation_curve_) == long.validation_curve_[long.best_epochs_[0] - 1]


def test_a_classifier_goes_back_only_to_an_epoch_that_was_clearly_better():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 20))
    labels = rng.random(2000) < 1 / (1 + np.exp(-0.35 * rows.sum(1)))
    overfit = km.ProductClassifier(n_members=2, random_state=0).fit(rows, labels)
    assert len(set(overfit.best_epochs_)) == 1  # one for all
    assert overfit.best_epochs_[0] < 20
    clear = km.ProductClassifier(**{**SMALL, "n_members": 2}).fit(rows[:, :2], rows[:, 0] > 0)
    assert clear.best_epochs_ == [20, 20]


@pytest.mark.parametrize(("classes", "terms", "epochs"), [(2, 32, 30), (3, 64, 50)])
def test_terms_and_epochs_by_the_number_of_classes(classes, terms, epochs):
    rows, labels = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % classes
    options = {"n_members": 1, "batch_size": 30, "random_state": 0, "validation_fraction": 0}
    model = km.ProductClassifier(**options).fit(rows, labels)
    assert model.network_.anchors.shape[1] == terms
    assert model.n_iter_ == epochs
    few = km.ProductClassifier(8, max_epochs=2, **options).fit(rows, labels)
    assert few.network_.anchors.shape[1] == 8
    assert few.n_iter_ == 2


@pytest.mark.parametrize("form", ["variational", "product", "signed"])
def test_columns_whose_scale_says_little_are_learned_by_their_ranks(form):
    generator = np.random.default_rng(0)
    ranks = generator.uniform(-1, 1, (900, 2))
    labels = (ranks[:, 0] * ranks[:, 1] > 0).astype(int)
    rows = np.sign(ranks) * np.exp(12 * np.abs(ranks))  # over five orders of magnitude
    options = {**SMALL, "max_epochs": 40, "n_members": 2}
    model = km.ProductClassifier(**options, form=form).fit(rows[:600], labels[:600])
    assert model.score(rows[600:], labels[600:]) > 0.93


def test_answers_are_for_numbers_as_they_are_not_for_their_bins():
    rows = np.random.default_rng(0).normal(size=(2000, 1))
    model = km.ProductClassifier(**{**SMALL, "max_epochs": 3}).fit(rows, rows[:, 0] > 0)
    near = np.linspace(0.1, 0.11, 9)[:, None]  # a bin is about 0.04 wide
    assert (np.diff(model.predict_proba(near)[:, 1]) > 0).all()


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
    [({"form": "sum"}, "form='sum'"), ({"max_epochs": 0}, "max_epochs=0 must be a whole"),
     ({"n_members": 0}, "n_members=0"), ({"n_members": 2.5}, "n_members=2.5 must be a whole"),
     ({"n_members": "2"}, "n_members='2' must be a whole"), ({"n_terms": 4.0}, "n_terms=4.0"),
     ({"n_members": True}, "n_members=True"), ({"n_terms": None}, "n_terms=None must be a whole"),
     ({"batch_size": "8"}, "batch_size='8'"), ({"n_iter_no_change": 0}, "n_iter_no_change=0"),
     ({"learning_rate": -1}, "learning_rate=-1"), ({"learning_rate": "1"}, "learning_rate='1'"),
     ({"weight_decay": float("nan")}, "weight_decay=nan"),
     ({"validation_fraction": 1.5}, "validation_fraction=1.5"),
     ({"validation_fraction": None}, "validation_fraction=None")],
)  # fmt: skip
def test_bad_options(options, expected):
    with pytest.raises(OptionError, match=f"^{expected}"):
        km.ProductRegressor(**{**SMALL, **options}).fit(np.eye(30), np.arange(30))


def test_numbers_of_numpy_are_numbers():
    rows, labels = load_wine(return_X_y=True)
    short = km.ProductClassifier(**{**SMALL, "max_epochs": np.int32(2)})
    grid = {"n_terms": np.arange(4, 9, 4), "n_members": np.array([2], dtype=np.uint8)}
    search = GridSearchCV(short, grid, cv=2, error_score="raise").fit(rows, labels)
    assert search.best_params_["n_terms"] in (4, 8)
    every = {name: np.int64(2) for name in ("width", "depth", "batch_size", "n_iter_no_change")}
    rates = {name: np.float32(0.1) for name in ("learning_rate", "validation_fraction")}
    clone(short).set_params(**every, **rates, weight_decay=np.int64(0)).fit(rows, labels)
    check_sizes(width=np.int64(3), positions=None)
    with pytest.raises(OptionError, match=r"width=2\.0 must be a whole number"):
        check_sizes(width=2.0)
    with pytest.raises(OptionError, match="width=0 must be a whole number, at least 1"):
        check_sizes(width=0)


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_generators_of_numpy_give_the_seed(make):
    rows, labels = load_wine(return_X_y=True)

    def chances(random_state):
        options = {**SMALL, "max_epochs": 2, "random_state": random_state}
        return km.ProductClassifier(**options).fit(rows, labels).predict_proba(rows)

    generator = make(5)
    first, second = chances(generator), chances(generator)
    assert not np.array_equal(first, second)  # it moves on
    np.testing.assert_array_equal(first, chances(make(5)))


@pytest.mark.parametrize("offset", [1.7e9, 1e15])
def test_a_narrow_column_far_from_zero_is_learned(offset):
    seconds = np.random.default_rng(0).integers(0, 1200, 400).astype(float)[:, None]
    labels = np.sin(seconds[:, 0] / 100) > 0
    near, far = (
        km.ProductClassifier(**SMALL).fit(rows[:300], labels[:300]).score(rows[300:], labels[300:])
        for rows in (seconds, seconds + offset)
    )
    assert near > 0.95
    assert far > 0.95


@pytest.mark.parametrize("factor", [1e-300, 1e200, 1e305])
def test_units_of_any_size_give_the_same_fit(factor):
    rows = np.random.default_rng(0).uniform(0, 1000, (60, 2))
    values = rows[:, 0] * rows[:, 1] / 1e3
    options = {**SMALL, "max_epochs": 3}
    plain = km.ProductRegressor(**options).fit(rows, values).predict(rows)
    other = km.ProductRegressor(**options).fit(rows * factor, values * factor)
    np.testing.assert_allclose(other.predict(rows * factor) / factor, plain, rtol=1e-3)


def test_a_column_wider_than_float64_is_refused():
    rows = np.c_[np.arange(30.0), np.repeat([-1.7e308, 1.7e308], 15)]
    with pytest.raises(SampleError, match=r"Column 1 goes from -1\.7e\+308 to 1\.7e\+308"):
        km.ProductRegressor(**SMALL).fit(rows, np.arange(30))


def test_float32_tables_are_judged_by_float32():
    noise = np.random.default_rng(0).integers(0, 3, 40).astype(np.float32)
    rows = np.c_[np.linspace(0, 1, 40, dtype=np.float32), 1 + noise * np.finfo(np.float32).eps]
    fitted = km.ProductRegressor(**{**SMALL, "max_epochs": 1}).fit(rows, np.arange(40))
    assert fitted.scaler_.scale[0, 1] == 1  # not magnified
    wide = km.ProductRegressor(**{**SMALL, "max_epochs": 1}).fit(rows.astype(float), np.arange(40))
    assert wide.scaler_.scale[0, 1] < 1e-6


def test_benchmark_writes_its_file(tmp_path):
    path = tabular.main(["--quick", "--data", "wine,diabetes", "--out", str(tmp_path / "t.json")])
    record = json.loads(path.read_text())
    rows = record["tables"]["tabular"]
    peers = {"gradient boosting", "MLP", "MLP, early stopping"}
    assert {row["method"] for row in rows} == {"gaussian product", *peers}
    assert {row["data"] for row in rows} == {"wine", "diabetes"}
    assert sum(row["best"] for row in rows) >= 2
    with pytest.raises(OptionError, match="no data set"):
        tabular.run(True, data=["iris"])


@pytest.mark.parametrize("classes", [False, True])
def test_benchmark_gives_the_peers_their_defaults(classes):
    estimators = tabular._estimators(classes, quick=False)
    changed = {"random_state": tabular.SEED, "max_iter": 1000}
    for name, more in [
        ("MLP", {}),
        ("MLP, early stopping", {"early_stopping": True, "n_iter_no_change": 20}),
    ]:
        network = estimators[name][-1]
        assert network.get_params() == type(network)().get_params() | changed | more
    trees = estimators["gradient boosting"]
    assert trees.get_params() == type(trees)(random_state=tabular.SEED).get_params()


@pytest.mark.parametrize("far", [1e8, 1e38, 1e300])
def test_a_row_far_away_does_not_end_a_fit(far):
    """Seen before: advice to lower the learning rate, for a number that float32 cannot hold."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 2))
    labels = (rows[:, 0] > 0).astype(int)
    rows[3, 1] = far
    model = km.ProductClassifier(4, max_epochs=2, n_members=1, random_state=0).fit(rows, labels)
    assert np.isfinite(model.predict_proba(rows)).all()
    assert np.isfinite(model.loss_curve_).all()


def test_a_target_far_away_is_named():
    rng = np.random.default_rng(0)
    rows, target = rng.normal(size=(60, 2)), rng.normal(size=60)
    target[7] = -1e20
    with pytest.raises(SampleError, match=r"row 7 \(from 0\) is -1e\+20"):
        km.ProductRegressor(4, max_epochs=2, n_members=1).fit(rows, target)


def sparse_table(count, rng):
    """Two columns that are zero in most rows."""
    rows = (rng.random((count, 2)) < 0.05) * rng.normal(3, 1, (count, 2))
    return rows, np.sin(rows[:, 0]) + rows[:, 1] + 0.3 * rng.normal(size=count)


@pytest.mark.parametrize("count", [20, 250])
def test_answers_for_sparse_columns_are_of_the_size_of_the_targets(count):
    """Seen before: an R squared of -1e32 with 20 rows, and -1122 with 250."""
    rng = np.random.default_rng(100)
    rows, target = sparse_table(count, rng)
    test, truth = sparse_table(5000, rng)
    model = km.ProductRegressor(random_state=0).fit(rows, target)
    assert np.abs(model.predict(test)).max() < 2 * np.abs(truth).max()
    assert model.score(test, truth) > 0.3


def test_small_batches_leave_no_wild_answer():
    """Seen before: an error of 585 on a training row, of targets within 4."""
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    target = np.sin(rows[:, 0]) + rows[:, 1]
    options = {"batch_size": 16, "validation_fraction": 0, "max_epochs": 15}
    model = km.ProductRegressor(random_state=1, **options).fit(rows, target)
    assert np.abs(model.predict(rows) - target).max() < 3


def test_a_column_that_is_mostly_zero_is_seen_by_the_classifier():
    """Seen before: one bin for all of it, since its quantiles were zero."""
    rng = np.random.default_rng(0)
    there = rng.random((3000, 4)) < 0.05
    rows = there * rng.integers(1, 10**5, (3000, 4)).astype(float)
    labels = there.any(1)
    model = km.ProductClassifier(**{**SMALL, "max_epochs": 10}).fit(rows[:2000], labels[:2000])
    assert model.score(rows[2000:], labels[2000:]) > 0.97 > 1 - labels.mean() + 0.1


def test_far_tails_are_answered_as_their_last_value_was_learned():
    """Seen before: probabilities of 0.25 for training rows that are all of the class."""
    rng = np.random.default_rng(0)
    rows = rng.standard_cauchy((3000, 2))
    labels = rng.random(3000) < 1 / (1 + np.exp(-np.arcsinh(rows[:, 0])))
    model = km.ProductClassifier(**{**SMALL, "n_members": 4}, depth=3).fit(rows, labels)
    far = np.array([[200.0, 0.0], [1e3, 0.0], [1e9, 0.0]])
    chances = model.predict_proba(far)[:, 1]
    np.testing.assert_allclose(chances, chances[0])
    assert chances[0] > 0.9


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_the_base_rate_where_there_is_nothing_to_learn(classes):
    """Seen before: a log-loss of 1.0 beside 0.69 of the base rate."""
    rng = np.random.default_rng(4)
    rows, labels = rng.normal(size=(400, 15)), rng.integers(0, classes, 400)
    test, truth = rng.normal(size=(2000, 15)), rng.integers(0, classes, 2000)
    model = km.ProductClassifier(random_state=0).fit(rows, labels)
    assert log_loss(truth, model.predict_proba(test)) < np.log(classes) + 0.03


def test_probabilities_are_not_too_sure_of_rows_that_were_not_seen():
    """Seen before: 0.837, more than the base rate of 0.693; as good as can be is 0.53."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(4000, 20))
    labels = rng.random(4000) < 1 / (1 + np.exp(-1.5 * rows.sum(1) / np.sqrt(20)))
    model = km.ProductClassifier(random_state=0).fit(rows[:2000], labels[:2000])
    assert log_loss(labels[2000:], model.predict_proba(rows[2000:])) < 0.62


def test_far_inputs_are_answered_as_the_farthest_of_the_training():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2))
    model = km.ProductRegressor(**SMALL).fit(rows, rows.sum(1))
    edge, far = np.array([[rows[:, 0].max(), 0.0]]), np.array([[1e6, 0.0]])
    np.testing.assert_allclose(model.predict(far), model.predict(edge))
    inside = np.array([[rows[:, 0].max() - 0.1, 0.0]])
    assert model.predict(edge) != model.predict(inside)


@pytest.mark.parametrize("estimator", [km.ProductClassifier, km.ProductRegressor])
def test_a_batch_of_one_row_is_refused(estimator):
    """Seen before: nothing was learned, and nothing said."""
    with pytest.raises(OptionError, match="batch_size=1 must be a whole number, at least 2"):
        estimator(batch_size=1).fit(np.eye(30), np.arange(30) % 2)


@pytest.mark.parametrize("estimator", [km.ProductClassifier, km.ProductRegressor])
def test_arrays_that_go_backwards_are_taken(estimator):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    labels = (rows[:, 0] > 0).astype(int)
    model = estimator(**{**SMALL, "max_epochs": 2})
    found = model.fit(rows[::-1, ::-1], labels[::-1]).predict(rows[::-1, ::-1])
    wanted = model.fit(rows[::-1, ::-1].copy(), labels[::-1].copy()).predict(rows[:, ::-1])
    np.testing.assert_array_equal(found, wanted[::-1])


@pytest.mark.parametrize("estimator", [km.ProductClassifier, km.ProductRegressor])
def test_a_fit_that_fails_leaves_the_model_as_it_was(estimator, monkeypatch):
    """Seen before: the scale of the new rows with the networks of the old."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    labels = (rows[:, 0] > 0).astype(int)
    model = estimator(**{**SMALL, "max_epochs": 2}).fit(rows, labels)
    wanted = model.predict(rows)

    def stopped(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("internals.product_module.fit_table", stopped)
    with pytest.raises(KeyboardInterrupt):
        model.fit(100 + rows[:, :2], 3 + labels)
    np.testing.assert_array_equal(model.predict(rows), wanted)


@pytest.mark.parametrize("estimator", [km.ProductClassifier, km.ProductRegressor])
def test_torchs_default_precision_may_be_another(estimator):
    rows = np.random.default_rng(0).normal(size=(300, 3))
    labels = (rows[:, 0] > 0).astype(int)
    torch.set_default_dtype(torch.float64)
    try:
        for batch_size in (16, 150):
            options = {**SMALL, "batch_size": batch_size, "validation_fraction": 0.1}
            assert estimator(**options).fit(rows, labels).score(rows, labels) > 0.7
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("estimator", [km.ProductClassifier, km.ProductRegressor])
def test_holding_out_all_but_one_row_is_refused(estimator):
    """Seen before: an error of scikit-learn about train_size."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    model = estimator(**{**SMALL, "validation_fraction": 0.99, "max_epochs": 1})
    with pytest.raises(OptionError, match=r"validation_fraction=0\.99 leaves one of 60 rows"):
        model.fit(rows, np.arange(60) % 3)
    model.set_params(validation_fraction=0.96).fit(rows, np.arange(60) % 3)  # three rows


@pytest.mark.parametrize(
    ("count", "share", "held"), [(300, None, 30), (9000, None, 250), (300, 0.2, 60)]
)
def test_rows_that_a_classifier_holds_out(count, share, held):
    model = km.ProductClassifier(validation_fraction=share)
    splits = model._splits(torch.arange(count) % 2, 0)
    assert [len(unseen) for _, unseen in splits] == [held] * 4
    assert len({tuple(unseen.tolist()) for _, unseen in splits}) == 4


def test_rows_of_weight_zero_are_left_out():
    rows, target = noise_table(200)
    kept = np.arange(200) % 3 > 0
    weights = kept * 2.5
    for estimator, y in ((km.ProductRegressor, target), (km.ProductClassifier, target > 0)):
        model = estimator(**{**SMALL, "max_epochs": 3})
        found = model.fit(rows, y, sample_weight=weights).predict(rows)
        wanted = model.fit(rows[kept], y[kept], sample_weight=np.ones(kept.sum())).predict(rows)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("batch_size", [16, 200])  # by rows, and by values
def test_a_row_of_weight_three_counts_as_three(batch_size):
    """Where rows contradict each other, the answer is the mean that their weights give."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.integers(0, 4, (100, 1)), 4, axis=0).astype(float)
    labels = np.tile([1, 0, 0, 0], 100)
    weights = np.where(labels == 1, 9.0, 1.0)  # three of four, not one
    options = {**SMALL, "batch_size": batch_size, "validation_fraction": 0.1}
    chances = km.ProductClassifier(**options).fit(rows, labels, weights).predict_proba(rows)
    np.testing.assert_allclose(chances[:, 1], 0.75, atol=0.08)
    values = km.ProductRegressor(**options).fit(rows, labels, weights).predict(rows)
    np.testing.assert_allclose(values, 0.75, atol=0.12)


@pytest.mark.parametrize("weights", [[1.0], -np.ones(30), np.full(30, np.nan), np.zeros(30)])
def test_bad_weights(weights):
    with pytest.raises(OptionError, match="sample_weight must be 30 finite, non-negative"):
        km.ProductRegressor(**SMALL).fit(np.eye(30), np.arange(30), sample_weight=weights)
