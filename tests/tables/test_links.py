"""Columns that are often equal: found, learned, and equal again in what is drawn."""

import numpy as np
import pytest
import torch

import kermix as km
from internals import (
    TableLayout,
    TableNetwork,
    as_frame,
    chain_log_density,
    find_links,
    implied,
    link_codes,
    link_notes,
    linked,
    orders_of,
)
from internals import sampling_complete as complete
from kermix import Schema

pd = pytest.importorskip("pandas")


def accounts(rows: int = 1500, seed: int = 0) -> "pd.DataFrame":
    """A bill, what was paid of it (all, nothing or a part), and a third that repeats a payment."""
    rng = np.random.default_rng(seed)
    bill = rng.lognormal(6, 1, rows).round(2)
    kind = rng.random(rows)
    part = (bill * rng.random(rows)).round(2)
    paid = np.where(kind < 0.3, bill, np.where(kind < 0.5, 0.0, part))
    third = np.where(rng.random(rows) < 0.2, paid, rng.lognormal(5, 1, rows).round(2))
    return pd.DataFrame({"third": third, "bill": bill, "paid": paid})


def links_of(table):
    frame = as_frame(table, "table")
    schema = Schema.infer(frame)
    return find_links(schema, frame, schema.encode(frame).codes)


def test_equal_columns_are_found_as_a_forest():
    assert sorted(map(sorted, links_of(accounts()))) == [["bill", "paid"], ["paid", "third"]]


@pytest.mark.parametrize("seed", range(3))
def test_columns_that_are_equal_by_chance_are_not_linked(seed):
    """Whole numbers of some hundred values coincide now and then; a sorted table does not help."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({f"c{k}": rng.integers(0, 400, 3000) for k in range(6)})
    assert links_of(table) == ()
    assert links_of(table.sort_values("c0")) == ()


def test_equal_atoms_and_gaps_are_no_links():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1000))
    both = rng.random(1000) < 0.3
    a[both], b[both] = 0.0, 0.0
    none = rng.random(1000) < 0.3
    a[none], b[none] = np.nan, np.nan
    assert links_of(pd.DataFrame({"a": a, "b": b})) == ()


def test_links_in_thousands_of_columns_beyond_the_rows_looked_at():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 600))
    table[:, 577] = np.where(rng.random(300) < 0.3, table[:, 3], table[:, 577])
    assert links_of(pd.DataFrame(table)) == (("3", "577"),)
    long = rng.normal(size=(50_000, 2))
    long[25_000:, 1] = np.where(rng.random(25_000) < 0.04, long[25_000:, 0], long[25_000:, 1])
    assert links_of(pd.DataFrame(long)) == (("0", "1"),)


def test_codes_of_links_say_when_a_cell_is_not_known():
    table = accounts()
    schema = Schema.infer(table)
    links = linked(schema, [("bill", "paid")])
    some = pd.DataFrame({"third": [1.5] * 4, "bill": [9.25, 9.25, 9.25, 9.25],
                         "paid": [9.25, 9.26, 0.0, 1.0]})  # fmt: skip
    codes = schema.encode(some).codes
    frame = as_frame(some, "some")
    assert link_codes(schema, links, frame, codes)[:, 0].tolist() == [1, 0, 0, 0]
    bill, paid = 1, 2
    codes[0, bill] = codes[1, paid] = codes[2, bill] = -1
    # In row 2 an atom was paid, which equals no bill whatever that is.
    assert link_codes(schema, links, frame, codes)[:, 0].tolist() == [-1, -1, 0, 0]
    assert (
        "bill and paid (25.0% of the rows)"
        in link_notes(schema, links, np.array([[1], [0], [0], [0]]))[0]
    )


def test_what_is_implied_spreads_over_the_whole_tree():
    """A chain of four columns, in every place where one may be seen."""
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 4)), columns=list("abcd"))
    links = linked(Schema.infer(table), [("a", "b"), ("b", "c"), ("c", "d")])
    codes = torch.zeros(1, 7, dtype=torch.long)
    codes[:, 4:] = torch.tensor([1, 1, 0])
    for place, expected in ((0, "abc"), (1, "abc"), (2, "abc"), (3, "d")):
        seen = torch.zeros(1, 7, dtype=torch.bool)
        seen[:, 4:] = True
        seen[0, place] = True
        found = implied(links, codes, seen)[0, :4]
        assert "".join(n for n, s in zip("abcd", found, strict=True) if s) == expected
    seen = torch.tensor([[True, True, False, False, False, False, False]])
    assert implied(links, codes, seen)[0, 4:].tolist() == [True, False, False]


@torch.no_grad()
def test_the_density_on_and_off_the_diagonal_integrates_to_one():
    """Two linked numbers, the second with an atom: a plane, a line of atoms, and the diagonal."""
    table = pd.DataFrame({"a": np.random.default_rng(0).normal(size=200)})
    table["b"] = table["a"]
    own = linked(Schema.infer(table), [("a", "b")])
    layout = TableLayout((1, 2, 2), (0, 1), (0.0, 0.0, 0.4, 0.0, 0.0), own)
    torch.manual_seed(1)
    network = TableNetwork(layout, width=8, blocks=1)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.eval()
    grid = torch.linspace(-12, 12, 201)
    step = float(grid[1] - grid[0])
    rows, values, volumes = [], [], []
    for a in grid.tolist():
        rows += [[0, 0, 0]] * len(grid) + [[0, 1, 0], [0, 0, 1]]
        values += [[a, b] for b in grid.tolist()] + [[a, 0.0], [a, a]]
        volumes += [step * step] * len(grid) + [step, step]
    orders = torch.tensor([[2, 0, 1], [2, 1, 0]])
    logs = chain_log_density(network, torch.tensor(rows), torch.tensor(values), orders)
    sums = (logs.exp() * torch.tensor(volumes, dtype=torch.float64)).sum(1)
    assert torch.allclose(sums, torch.ones(2, dtype=torch.float64), atol=2e-3)


def test_links_come_first_in_every_order():
    table = accounts(200)
    layout = TableLayout.of(Schema.infer(table), [("bill", "paid"), ("paid", "third")])
    orders = orders_of(layout, 20, torch.Generator().manual_seed(0))
    assert (orders[:, :2] >= 3).all()
    assert torch.equal(orders.sort(1).values, torch.arange(5).expand(20, 5))


@pytest.fixture(scope="module")
def model():
    return km.TableModel(width=48, blocks=1, steps=200, random_state=0).fit(accounts())


def test_samples_are_equal_as_often_as_the_data(model):
    table, drawn = accounts(), model.sample(3000, random_state=1)
    for a, b in (("bill", "paid"), ("paid", "third"), ("bill", "third")):
        in_data, in_samples = ((t[a] == t[b]) & (t[a] != 0) for t in (table, drawn))
        assert in_samples.mean() == pytest.approx(in_data.mean(), abs=0.035), (a, b)
    assert (drawn["bill"] >= table["bill"].min()).all()
    plain = km.TableModel(width=16, blocks=1, steps=30, equal_columns=False, random_state=0)
    smooth = plain.fit(table).sample(1000, random_state=1)
    assert ((smooth["bill"] == smooth["paid"]) & (smooth["bill"] != 0)).mean() < 0.01


def test_what_is_given_is_copied_to_the_last_digit(model):
    drawn = model.sample(300, given={"bill": 300.57}, random_state=0)
    assert (drawn["bill"] == 300.57).all()
    assert 0.1 < (drawn["paid"] == 300.57).mean() < 0.5
    drawn = model.sample(300, given={"bill": 300.57, "paid": 0.0}, random_state=0)
    assert (drawn["paid"] == 0).all()


def test_gaps_are_filled_by_equal_numbers_and_filled_cells_stay():
    table = accounts()
    table.loc[::3, "paid"] = np.nan
    model = km.TableModel(width=48, blocks=1, steps=120, random_state=0).fit(table)
    filled = model.impute(table, draws=1, random_state=0)[0]
    gaps = table["paid"].isna()
    assert not filled["paid"].isna().any()
    pd.testing.assert_frame_equal(filled[~gaps], table[~gaps])
    pd.testing.assert_series_equal(filled["bill"], table["bill"])
    assert (filled["paid"] == filled["bill"])[gaps].mean() == pytest.approx(0.3, abs=0.12)


def test_a_model_with_links_is_saved_and_read(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    again = km.TableModel.load(tmp_path / "model.safetensors")
    table = accounts(100, seed=1)
    np.testing.assert_array_equal(again.score_samples(table), model.score_samples(table))


def test_given_values_of_the_column_itself_do_not_count(model):
    """Neither they nor what links say about them."""
    open_ = model.conditional("paid", {"bill": 300.57})
    with_own = model.conditional("paid", {"bill": 300.57, "paid": 300.57})
    np.testing.assert_array_equal(open_.probabilities, with_own.probabilities)


def test_completing_draws_the_other_number_from_its_own_scale():
    """Columns of different maps: the score of one is carried over to that of the other."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"a": rng.normal(100, 1, 400).round(3), "b": rng.normal(90, 30, 400).round(3)}
    )
    schema = Schema.infer(table)
    layout = TableLayout.of(schema, [("a", "b")])
    torch.manual_seed(0)
    network = TableNetwork(layout, width=8, blocks=1).eval()
    encoded = schema.encode(table)
    codes = torch.cat([torch.from_numpy(encoded.codes), torch.ones(400, 1, dtype=torch.long)], 1)
    seen = torch.tensor([[True, False, True]]).expand(400, 3)
    values = torch.from_numpy(encoded.values).float()
    _, found = complete(network, codes, values, seen, torch.Generator().manual_seed(0))
    numbers = schema.numbers[1].map.inverse(found[:, 1].double().numpy())
    np.testing.assert_allclose(numbers, table["a"], atol=0.05)


def test_columns_of_single_precision_are_copied_too():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=400).astype("float32")})
    table["b"] = np.where(rng.random(400) < 0.5, table["a"], rng.normal(size=400)).astype(
        "float32"
    )
    model = km.TableModel(width=16, blocks=1, steps=40, random_state=0).fit(table)
    drawn = model.sample(400, random_state=0)
    assert (drawn["a"] == drawn["b"]).mean() > 0.3
    assert drawn["b"].dtype == np.float32


def test_a_value_outside_the_range_of_the_other_column_is_not_equal():
    table = pd.DataFrame(
        {"a": np.linspace(0.01, 3, 300).round(4), "b": np.linspace(0.01, 1, 300).round(4)}
    )
    schema = Schema.infer(table)
    links = linked(schema, [("a", "b")])
    some = pd.DataFrame({"a": [0.5003, 2.5003], "b": [0.2003, 0.2003]})
    codes = schema.encode(some).codes
    codes[:, 1] = -1
    assert link_codes(schema, links, as_frame(some, "some"), codes)[:, 0].tolist() == [-1, 0]
