"""Rows that keep away from others: no copies, no row nearer than asked, what cannot be."""

import numpy as np
import pandas as pd
import pytest

import kermix as km
from internals import closest_distances, copies
from kermix import errors

TINY = {"width": 16, "blocks": 1, "steps": 60, "learning_rate": 0.01, "random_state": 0,
        "device": "cpu"}  # fmt: skip


def cards(rows=400):
    """Three categories and whole numbers: most rows are there several times."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "suit": rng.choice(list("abcd"), rows),
            "face": rng.choice(list("uvwxyz"), rows),
            "hand": rng.choice(["left", "right"], rows),
            "count": rng.poisson(60, rows),
        }
    )


@pytest.fixture(scope="module")
def model():
    return km.TableModel(**TINY).fit(cards())


def common(first, second):
    """How many rows of the first table are in the second, by pandas."""
    return len(first.merge(second.drop_duplicates(), on=list(first)))


def test_copies_are_drawn_again(model):
    data, free = cards(), model.sample(800, random_state=1)
    assert common(free, data) > 10, "or there is nothing to see"
    drawn = model.sample(800, random_state=1, against=data, deduplicate=True)
    assert len(drawn) == 800
    assert common(drawn, data) == 0
    kept = ~free.apply(tuple, 1).isin(set(data.apply(tuple, 1)))
    assert drawn[kept].equals(free[kept]), "rows that are no copies stay as they are"
    again = model.sample(800, random_state=1, against=data, deduplicate=True)
    assert again.equals(drawn)


def explicit_distances(schema, first, second):
    """All distances, one by one, in float64."""
    places = [schema.positions(schema.encode(t))[:, 0] for t in (first, second)]
    words = ["suit", "face", "hand"]
    found = np.empty((len(first), len(second)))
    for i, a in enumerate(first[words].to_numpy()):
        for j, b in enumerate(second[words].to_numpy()):
            found[i, j] = ((a != b).sum() + abs(places[0][i] - places[1][j])) / 4
    return found


@pytest.mark.parametrize("block", [1, 64, 2**23])
def test_distances_to_the_closest_row(model, block):
    schema, data = model.schema_, cards()
    first, second = (schema.encode(t) for t in (data[:9], data[20:53]))
    expected = explicit_distances(schema, data[:9], data[20:53]).min(1)
    found = closest_distances(schema, first, second, pairs_at_once=block)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert closest_distances(schema, first[:0], second).shape == (0,)
    assert copies(schema.encode(data[:30]), second).tolist() == [
        common(data[k : k + 1], data[20:53]) > 0 for k in range(30)
    ]


def test_no_row_is_nearer_than_asked(model):
    data = cards()[:60]
    free = explicit_distances(model.schema_, model.sample(200, random_state=2), data).min(1)
    assert (free < 0.2).mean() > 0.1
    drawn = model.sample(200, random_state=2, against=data, min_distance=0.2)
    assert explicit_distances(model.schema_, drawn, data).min(1).min() >= 0.2 - 1e-6


def test_what_is_given_stays_given_row_by_row(model):
    given = pd.DataFrame({"suit": list("ab") * 200})
    drawn = model.sample(400, given=given, random_state=0, against=cards(), deduplicate=True)
    assert drawn["suit"].tolist() == given["suit"].tolist()
    assert common(drawn, cards()) == 0


def test_rows_that_are_left_keep_their_proportions(model):
    many = model.sample(6000, random_state=3)
    drawn = model.sample(6000, random_state=4, against=cards(), deduplicate=True)
    known = set(cards().apply(tuple, 1))
    free = many[~many.apply(tuple, 1).isin(known)]
    for column in ("suit", "face"):
        shares = [t[column].value_counts(normalize=True).sort_index() for t in (free, drawn)]
        np.testing.assert_allclose(*shares, atol=0.035)


def test_what_cannot_be_is_refused(model):
    data = cards()
    with pytest.raises(errors.OptionError, match="against=table"):
        model.sample(3, deduplicate=True)
    for bad in (0, -1.0, np.nan, np.inf, True, "far"):
        with pytest.raises(errors.OptionError, match="min_distance"):
            model.sample(3, against=data, min_distance=bad)
    with pytest.raises(errors.OptionError, match=r"50 rounds 5 of 5 rows are still nearer"):
        model.sample(5, against=data, min_distance=50.0)
    with pytest.raises(errors.SchemaError, match="hand"):
        model.sample(3, against=data.drop(columns="hand"), deduplicate=True)
    strange = data.assign(suit="never seen")
    assert len(model.sample(3, random_state=0, against=strange, deduplicate=True)) == 3
    assert len(model.sample(0, against=data, deduplicate=True)) == 0
