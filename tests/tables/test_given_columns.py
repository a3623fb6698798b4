"""Columns given others in the report of a table: which pairs, and whether shares are right."""

import numpy as np
import pandas as pd
import pytest

import kermix as km
from internals import (
    ColumnDistribution,
    as_frame,
    conditional_cards,
    conditionals_of,
    strongest_pairs,
)


def table(rows=900):
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m"], rows, p=[0.7, 0.3])
    size = rng.normal(np.where(sex == "m", 180, 165), 5)
    return pd.DataFrame({
        "sex": sex, "luck": rng.normal(size=rows), "size": size.round(1),
        "weight": (size - 100 + rng.normal(0, 6, rows)).round(1),
        "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(rows) % 50, "D"),
        "late": np.where(np.arange(rows) % 50 < 25, "no", "yes"),
    })  # fmt: skip


class Truth:
    """Answers as a model would that knows the size given the sex, and nothing else."""

    def __init__(self, schema, female=165.0, male=180.0):
        self.schema, self.asked, self.means = schema, [], (female, male)

    def conditional(self, column, given, *, unseen="error"):
        assert unseen == "unknown"
        self.asked.append((column, tuple(given.columns), given.rows))
        found = self.schema[column]
        name = next(iter(given.columns))
        if column == "size" and name == "sex":
            cells = np.array(given.columns["sex"].to_pylist())
            values = np.where(cells == "m", self.means[1], self.means[0])
            spread = (found.map(values + 5) - found.map(values - 5)) / 2
        else:
            values, spread = np.full(given.rows, 175.0), np.full(given.rows, 0.5)
        one = np.ones((given.rows, 1))
        if not hasattr(found, "map"):
            return ColumnDistribution(found, np.tile([[0.25, 0.75]], (given.rows, 1)))
        return ColumnDistribution(found, one, one, found.map(values)[:, None], spread[:, None])


def test_the_pairs_that_depend_most_and_no_times():
    data = table()
    schema = km.Schema.infer(data)
    pairs = strongest_pairs(schema, schema.encode(data))
    assert {frozenset(p) for p in pairs[:2]} == {frozenset({"sex", "size"}),
                                                frozenset({"size", "weight"})}  # fmt: skip
    assert ("sex", "size") in pairs
    assert not any("day" in pair for pair in pairs)


def test_shares_of_the_model_lie_on_those_of_the_data_if_it_is_right():
    data = table()
    schema = km.Schema.infer(data)
    model = Truth(schema)
    found = conditionals_of(model, schema, as_frame(data), schema.encode(data))
    by_sex = next(row for row in found if row[0].given.startswith("sex") and
                  row[0].column == "size")  # fmt: skip
    assert [panel.given for panel in by_sex] == ["sex = f", "sex = m"]
    for panel in by_sex:
        assert panel.data.sum() == pytest.approx(1)
        assert panel.model.sum() == pytest.approx(1)
        assert np.abs(panel.data - panel.model).sum() / 2 < 0.2  # of 30 intervals
        own = data["size"][data["sex"] == panel.given[-1]]
        middle = panel.bins.edges.mean()
        assert abs(middle - own.mean()) < 4
    # A model that takes one for the other would be seen.
    wrong = conditionals_of(Truth(schema, 180.0, 165.0), schema, as_frame(data),
                            schema.encode(data))  # fmt: skip
    for panel in next(row for row in wrong if row[0].column == "size" and
                      row[0].given.startswith("sex")):  # fmt: skip
        assert np.abs(panel.data - panel.model).sum() / 2 > 0.5
    assert all(rows <= 200 for _, _, rows in model.asked)
    (card,) = conditional_cards(by_sex[:1])
    assert card.name == "size where sex = f"
    assert "area one" in card.chart
    assert "line two" in card.chart


def test_thirds_of_a_number_are_named_by_their_ends():
    data = table()
    schema = km.Schema.infer(data[["size", "weight"]])
    frame = as_frame(data[["size", "weight"]])
    (row,) = conditionals_of(Truth(schema), schema, frame, schema.encode(frame))
    assert len(row) == 3
    ends = [tuple(map(float, p.given.partition(" = ")[2].split(" to "))) for p in row]
    assert ends[0][1] <= ends[1][0] <= ends[1][1] <= ends[2][0]
    assert ends[0][0] == data["size"].min()
