"""The estimators and scikit-learn: their contract, pipelines, the quality of a small fit.

The contract of the product networks is in `test_product_estimators.py`.
"""

import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import kermix as km
from kermix.errors import KermixError

# Twenty steps do not reach one Gaussian; that this is said is tested in test_mixture_search.
pytestmark = pytest.mark.filterwarnings("ignore::kermix.errors.PoorFitWarning")


def small(**options):
    return km.KernelMixture(8, **{"steps": 20, "refine_steps": 5, "batch_size": 32, **options})


def two_blobs(n=600):
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [100.0, 1.0]])
    return centres[generator.integers(2, size=n)] + generator.normal(size=(n, 2)) * [10.0, 0.1]


@parametrize_with_checks(
    [small(steps=5, refine_steps=2, random_state=0), km.KernelMixture(random_state=0)]
)
def test_contract(estimator, check):
    check(estimator)


def table_model(target=None):
    return km.TableModel(
        target, width=8, blocks=1, steps=2, batch_size=16, device="cpu", random_state=0
    )


# Of `predict`, which scikit-learn calls without naming a column.
NO_TARGET = dict.fromkeys(
    ("check_n_features_in_after_fitting", "check_estimators_dtypes", "check_dtype_object",
     "check_estimators_pickle", "check_f_contiguous_array_estimator", "check_dict_unchanged",
     "check_methods_sample_order_invariance", "check_methods_subset_invariance",
     "check_fit_idempotent", "check_sample_weight_equivalence_on_dense_data"),
    "a model of whole rows must be told which column to predict",
)  # fmt: skip
WITH_TARGET = {
    "check_sample_weights_pandas_series": "that frame has no column of the target's name",
    "check_sample_weight_equivalence_on_dense_data": "a number has no probabilities of classes, "
    "and rows are drawn by their weights: the same in the mean, not with the same seed",
}


@parametrize_with_checks(
    [table_model("x0"), table_model()],
    expected_failed_checks=lambda estimator: WITH_TARGET if estimator.target else NO_TARGET,
)
def test_contract_of_the_table_model(estimator, check):
    check(estimator)


def test_the_table_model_takes_arrays_as_scikit_learn_does():
    rows = np.random.default_rng(0).normal(size=(60, 3))
    model = table_model("x2").fit(rows.astype(object))
    assert model.predict(rows[:4, :2]).shape == (4,)  # without the target's column, the last
    assert model.predict(rows[:4]).shape == (4,)
    tensor = torch.tensor(rows[:4], requires_grad=True)
    np.testing.assert_array_equal(model.predict(tensor), model.predict(rows[:4]))
    for wrong in (rows[:4, :1], np.hstack([rows, rows])[:4]):
        with pytest.raises(KermixError, match="expecting 3 features"):
            model.predict(wrong)
    with pytest.raises(KermixError, match="expecting 3 features"):
        model.score_samples(rows[:, :2])
    for wrong, said in (
        (csr_array(rows), "sparse"), (rows[0], "Reshape your data"), (rows * 1j, "Complex"),
        (rows[:, :0], "minimum of 1"), (np.full((9, 2), "a", dtype=object), "give a data frame"),
        (rows[:1], "1 sample"),
    ):  # fmt: skip
        with pytest.raises(KermixError, match=said):
            table_model().fit(wrong)


def test_density_of_two_blobs_is_close_to_its_entropy():
    rows = two_blobs(2000)
    model = km.KernelMixture(8, steps=100, refine_steps=50, random_state=0).fit(rows[:1500])
    entropy = np.log(2) + np.log(2 * np.pi * np.e) + np.log(10 * 0.1)
    assert abs(-model.score(rows[1500:]) - entropy) < 0.15


def test_same_random_state_same_fit():
    rows = two_blobs(200)
    first, second, other = (small(random_state=s).fit(rows) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.means_, second.means_)
    np.testing.assert_array_equal(first.sample(5), second.sample(5))
    assert not np.array_equal(first.means_, other.means_)
    assert not np.array_equal(first.sample(5, random_state=1), first.sample(5, random_state=2))


def test_pipeline_grid_search_clone_and_pickle():
    rows = two_blobs(150)
    search = GridSearchCV(small(random_state=0), {"n_components": [2, 4]}, cv=2)
    pipeline = make_pipeline(StandardScaler(), search).fit(rows)
    assert search.best_params_["n_components"] in (2, 4)
    model = clone(small(random_state=1)).fit(rows)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(rows), model.score_samples(rows))
    assert np.isfinite(pipeline.score(rows))


@pytest.mark.parametrize(
    "rows",
    [
        np.full((30, 2), 7.0),
        np.c_[np.linspace(0, 1, 40), np.full(40, 3.0)],
        np.repeat(np.eye(2), 20, axis=0),
        np.array([[1.0, 2.0]]),
        np.linspace(-1e8, 1e8, 50)[:, None],
        np.random.default_rng(0).normal(size=(40, 12)),
    ],
    ids=["constant", "constant column", "duplicates", "one row", "large line", "12 dimensions"],
)
def test_odd_data_give_a_finite_density(rows):
    model = small(random_state=0).fit(rows)
    assert np.isfinite(model.score_samples(rows)).all()
    assert np.isfinite(model.sample(10)).all()


def test_importing_kermix_needs_neither_scikit_learn_nor_lightning():
    import subprocess
    import sys

    code = (
        "import sys, kermix\n"
        "heavy = {'sklearn', 'lightning', 'matplotlib', 'pandas', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_generators_of_both_kinds_are_taken():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    for make in (np.random.default_rng, np.random.RandomState):
        first, second = (small(random_state=make(5)).fit(rows) for _ in range(2))
        np.testing.assert_array_equal(first.means_, second.means_)
        assert first.sample(3, random_state=make(1)).shape == (3, 2)


@pytest.mark.parametrize("far", [1e3, 1e6])
def test_one_outlier_does_not_set_the_scale_of_the_rest(far):
    generator = np.random.default_rng(0)
    rows, new = generator.normal(size=(300, 1)), generator.normal(size=(1000, 1))
    rows[5] = far
    model = km.KernelMixture(8, steps=60, refine_steps=60, random_state=0).fit(rows)
    assert np.isfinite(model.score_samples(rows)).all()
    assert abs(-model.score(new) - 0.5 * np.log(2 * np.pi * np.e)) < 0.15
