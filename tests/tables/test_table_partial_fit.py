"""Going on with a fitted table model: other rows of the same columns."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from kermix import errors

TINY = {"width": 16, "blocks": 1, "steps": 120, "learning_rate": 0.01, "random_state": 0,
        "device": "cpu"}  # fmt: skip


def people(rows=400, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], rows)
    size = rng.normal(np.where(sex == "m", 180 + shift, 165 - shift), 5)
    return pd.DataFrame({"sex": sex, "size": size.clip(130, 220).round(1)})


@pytest.fixture(scope="module")
def fitted():
    # The ends are there, so that all rows below are inside the range.
    first = pd.concat([people(), pd.DataFrame({"sex": ["f", "m"], "size": [130.0, 220.0]})])
    return km.TableModel(**TINY).fit(first.reset_index(drop=True))


@pytest.fixture
def model(fitted):
    return copy.deepcopy(fitted)


def test_new_rows_are_learned_from_the_present_weights(model):
    new, test = people(shift=10.0, seed=1), people(shift=10.0, seed=2)
    before, schema = model.score(test), model.schema_
    assert model.adapt(new) is model
    assert model.schema_ is schema
    assert model.score(test) > before + 0.3
    assert 0 < model.n_iter_ <= 120
    gap = (model.conditional("size", {"sex": "m"}).quantile(0.5)
           - model.conditional("size", {"sex": "f"}).quantile(0.5))  # fmt: skip
    assert float(np.squeeze(gap)) == pytest.approx(35, abs=6), "15 before"


def test_it_begins_where_the_model_is(model, fitted):
    # Steps so small that they change nothing: a new network would be far from the fitted one.
    model.set_params(steps=2, learning_rate=1e-9, validation_fraction=0.0).adapt(people(seed=3))
    for old, new in zip(fitted.network_.parameters(), model.network_.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=1e-5)


def test_steps_that_make_it_worse_are_not_kept(model, fitted):
    model.set_params(learning_rate=3.0, steps=40).adapt(people(seed=4))
    assert model.n_iter_ == 0
    for old, new in zip(fitted.network_.parameters(), model.network_.parameters(), strict=True):
        assert torch.equal(old, new)


def test_the_first_time_it_is_fit():
    one = km.TableModel(**{**TINY, "steps": 5}).adapt(people())
    two = km.TableModel(**{**TINY, "steps": 5}).fit(people())
    np.testing.assert_array_equal(one.score_samples(people()), two.score_samples(people()))


def test_weights_count(model):
    both = pd.concat([people(shift=10.0, seed=1), people(shift=-20.0, seed=2)])
    both = both.reset_index(drop=True)
    model.set_params(steps=30)
    light = copy.deepcopy(model).adapt(both, sample_weight=np.r_[np.ones(400), np.zeros(400)])
    alone = copy.deepcopy(model).adapt(both[:400])
    np.testing.assert_array_equal(light.score_samples(both), alone.score_samples(both))


def test_a_model_that_was_saved_goes_on(model, tmp_path):
    model.set_params(steps=30).save(tmp_path / "model")
    again = km.TableModel.load(tmp_path / "model").set_params(random_state=0)
    new = people(shift=10.0, seed=1)
    np.testing.assert_allclose(
        again.adapt(new).score_samples(new), model.adapt(new).score_samples(new),
        atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind", "expected"),
    [
        (lambda t: t.assign(sex="x"), errors.SchemaError, "column sex.*'x'"),
        (lambda t: t.assign(size=np.where(np.arange(len(t)) == 7, np.nan, t["size"])),
         errors.SchemaError, "column size"),
        (lambda t: t.drop(columns="sex"), errors.SchemaError, "sex"),
        (lambda t: t[:0], errors.KermixError, "no rows"),
    ],
)  # fmt: skip
def test_rows_of_another_kind_are_refused_and_change_nothing(model, change, kind, expected):
    before = model.score_samples(people())
    with pytest.raises(kind, match=expected):
        model.adapt(change(people(seed=5)))
    np.testing.assert_array_equal(model.score_samples(people()), before)


def test_numbers_outside_the_range_are_learned_from(model):
    far = people(seed=6).assign(size=lambda t: t["size"] + 100)
    before = model.score(far)
    model.adapt(far)
    assert model.score(far) > before + 5
    assert model.sample(200, random_state=0)["size"].max() <= 220
