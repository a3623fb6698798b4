"""The table model: densities are densities, conditions hold, gaps are filled, runs repeat."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from internals import (
    Link,
    TableLayout,
    TableModelSettings,
    TableModelTask,
    TableNetwork,
    TableRows,
    Trainer,
    chain_log_density,
    ordered_questions,
    orders_of,
    random_questions,
)
from kermix import errors

SMALL = {
    "width": 32,
    "blocks": 1,
    "steps": 400,
    "learning_rate": 0.005,
    "random_state": 1,
    "device": "cpu",
}


def people(rows=600, seed=0):
    """Size depends on sex; a third of the incomes of men is missing; pets are few numbers."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], rows, p=[0.7, 0.3])
    size = np.round(rng.normal(np.where(sex == "m", 185, 160), 4), 1)
    income = np.where(rng.random(rows) < 0.3, 0.0, np.round(rng.lognormal(7, 1, rows), 2))
    income = np.where((sex == "m") & (rng.random(rows) < 1 / 3), np.nan, income)
    return pd.DataFrame(
        {"sex": sex, "size": size, "income": income, "pets": rng.integers(0, 4, rows)}
    )


@pytest.fixture(scope="module")
def model():
    return km.TableModel("sex", **SMALL).fit(people())


def random_network(layout, seed=0):
    torch.manual_seed(seed)
    network = TableNetwork(layout, width=16, blocks=2).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


@torch.no_grad()
def test_the_sum_over_all_code_combinations_is_one():
    layout = TableLayout((2, 3, 4), (), (0.0,) * 9)
    network = random_network(layout)
    rows = torch.tensor(list(itertools.product(range(2), range(3), range(4))))
    orders = torch.tensor(list(itertools.permutations(range(3))))
    logs = chain_log_density(network, rows, torch.zeros(len(rows), 0), orders)
    assert torch.allclose(logs.exp().sum(1), torch.ones(6, dtype=torch.float64), atol=1e-6)


@torch.no_grad()
def test_the_integral_over_numbers_and_codes_is_one():
    """Two numbers, one with an atom, and a category: on a grid, in two orders."""
    layout = TableLayout((1, 2, 2), (0, 1), (0.0, 0.0, 0.4, 0.0, 0.0))
    network = random_network(layout)
    grid = torch.linspace(-12, 12, 161)
    step = float(grid[1] - grid[0])
    rows, values, volumes = [], [], []
    for category in range(2):
        for a in grid.tolist():
            rows += [[0, 0, category]] * len(grid) + [[0, 1, category]]
            values += [[a, b] for b in grid.tolist()] + [[a, 0.0]]
            volumes += [step * step] * len(grid) + [step]
    logs = chain_log_density(
        network, torch.tensor(rows), torch.tensor(values), torch.tensor([[0, 1, 2], [2, 1, 0]])
    )
    sums = (logs.exp() * torch.tensor(volumes, dtype=torch.float64)).sum(1)
    assert torch.allclose(sums, torch.ones(2, dtype=torch.float64), atol=2e-3)


def test_subsets_are_uniform_in_size_and_leave_one_column_unseen():
    layout = TableLayout((2,) * 5, (), (0.0,) * 10)
    seen = random_questions(20_000, layout, torch.Generator().manual_seed(0)).seen
    sizes = torch.bincount(seen.sum(1), minlength=6)
    assert int(sizes[5]) == 0
    assert sizes[:5].double().std() < 4 * math.sqrt(20_000 / 5)
    assert seen.double().mean(0) == pytest.approx(0.4 * np.ones(5), abs=0.02)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_loss_is_a_mean_over_orders_without_bias(share):
    """Against the chain rule over all orders of three columns, and over that of the table."""
    layout = TableLayout((2, 3, 2), (2,), (0.0,) * 7)
    rows = TableRows(torch.tensor([[1, 2, 0]]).expand(4000, 3), torch.full((4000, 1), 0.3))
    settings = TableModelSettings(
        width=16,
        blocks=1,
        validation_fraction=0.0,
        batch_size=4000,
        dropout=0.0,
        order_share=share,
    )
    task = TableModelTask(layout, rows, settings)
    trainer = Trainer(task, device="cpu")
    network = task.model
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=1.0, generator=generator)
    orders = torch.tensor(list(itertools.permutations(range(3))))
    logs = chain_log_density(network, rows.codes[:1], rows.values[:1], orders)
    wanted = share * float(logs[0]) + (1 - share) * float(logs.mean())
    assert abs(float(logs[0] - logs.mean())) > 0.2  # so that one order is not as good as all
    loss = task.loss(network, task.batch(0), 0)
    assert trainer.total == settings.steps
    assert float(loss.detach()) == pytest.approx(-wanted, rel=0.03)


def test_rows_are_asked_in_the_order_in_which_they_are_drawn():
    """Links first, then the columns of the table; what comes next counts alone."""
    layout = TableLayout((2, 2, 2, 2), (), (0.0,) * 8, links=(Link(0, 1, (), ()),))
    asked = ordered_questions(400, layout, torch.Generator().manual_seed(0))
    found = {tuple(seen) for seen in asked.seen.int().tolist()}
    assert found == {(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 1), (1, 1, 0, 1)}
    drawn = orders_of(layout, 3, torch.Generator().manual_seed(0))
    assert drawn[0].tolist() == [3, 0, 1, 2]
    following = asked.seen.sum(1)
    assert (asked.factors.argmax(1) == drawn[0][following]).all()
    assert (asked.factors.sum(1) == 4).all()
    assert drawn[1].tolist() == [3, 2, 1, 0]
    others = orders_of(layout, 64, torch.Generator().manual_seed(0))
    assert len(others.unique(dim=0)) == 6


def test_samples_look_like_the_table(model):
    table, drawn = people(), model.sample(2000, random_state=1)
    assert list(drawn.columns) == list(table.columns)
    assert (drawn.dtypes == table.dtypes).all()
    assert set(drawn["sex"]) == {"f", "m"}
    assert set(drawn["pets"]) <= {0, 1, 2, 3}
    assert drawn["size"].between(table["size"].min(), table["size"].max()).all()
    assert ((drawn["size"] * 10).round(6) % 1 == 0).all()
    assert (drawn["sex"] == "m").mean() == pytest.approx(0.3, abs=0.06)
    sizes = drawn.groupby("sex")["size"].mean()
    assert sizes["m"] - sizes["f"] == pytest.approx(25, abs=4)
    gaps = drawn["income"].isna().groupby(drawn["sex"]).mean()
    assert gaps["m"] == pytest.approx(1 / 3, abs=0.1)
    assert gaps["f"] < 0.05


def test_samples_given_columns_keep_them(model):
    drawn = model.sample(300, given={"sex": "m", "pets": 2}, random_state=0)
    assert set(drawn["sex"]) == {"m"}
    assert set(drawn["pets"]) == {2}
    assert drawn["size"].mean() == pytest.approx(185, abs=3)
    each = model.sample(2, given=pd.DataFrame({"sex": ["m", "f"]}), random_state=0)
    assert each["sex"].tolist() == ["m", "f"]


def test_a_seed_repeats_and_another_does_not(model):
    first, again, other = (model.sample(50, random_state=s) for s in (3, 3, 4))
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)


def test_densities_are_in_the_units_of_the_columns():
    """The same table in other units: log-densities differ by the logarithm of the factor."""
    short = {**SMALL, "steps": 150}
    table = people(300)[["sex", "size"]]
    scaled = table.assign(size=table["size"] * 10)
    first = km.TableModel(**short).fit(table).score_samples(table)
    second = km.TableModel(**short).fit(scaled).score_samples(scaled)
    assert np.mean(first - second) == pytest.approx(math.log(10), abs=0.05)


def test_the_density_of_a_normal_column_is_near_its_entropy():
    rows = np.random.default_rng(0).normal(5, 3, (2000, 1))
    model = km.TableModel(**{**SMALL, "steps": 300}).fit(rows)
    expected = -0.5 * math.log(2 * math.pi * math.e * 9)
    assert model.score(rows) == pytest.approx(expected, abs=0.05)


def test_conditionals_are_distributions(model):
    size = model.conditional("size", {"sex": "f"})
    assert size.is_number
    low, middle, high = (float(size.quantile(q)[0]) for q in (0.05, 0.5, 0.95))
    assert low < middle < high
    assert middle == pytest.approx(160, abs=2.5)
    assert high - low == pytest.approx(2 * 1.645 * 4, rel=0.35)
    assert float(size.cdf(middle)[0]) == pytest.approx(0.5, abs=0.03)
    grid = np.linspace(120, 220, 4001)
    shares = np.array([float(size.cdf(g)[0]) for g in grid[::40]])
    assert (np.diff(shares) >= -1e-12).all()
    sex = model.conditional("sex", {"size": 186.0})
    assert sex.probabilities.sum() == pytest.approx(1)
    assert sex.names == ("f", "m")
    assert sex.probabilities[0, 1] > 0.9


def test_an_atom_is_a_jump_of_the_distribution(model):
    income = model.conditional("income", {"sex": "f"})
    assert float(income.cdf(-1e-9)[0]) < 0.02
    assert float(income.cdf(0.0)[0]) == pytest.approx(0.3, abs=0.08)
    assert float(income.quantile(0.1)[0]) == 0.0


def test_gaps_are_filled_and_nothing_else(model):
    table = people(80, seed=5)
    table.loc[:9, "sex"] = None
    table.loc[5:14, "size"] = np.nan
    filled = model.impute(table, random_state=0)
    assert not filled.isna().any().any()
    kept = table.notna()
    for name in table:
        assert (filled[name][kept[name]] == table[name][kept[name]]).all()
    several = model.impute(table, draws=3, random_state=0)
    assert len(several) == 3
    assert not several[0]["size"].equals(several[1]["size"])


def test_predictions(model):
    table = people(200, seed=9)
    found = model.predict(table.drop(columns="sex"))
    assert (found == table["sex"]).mean() > 0.95
    shares = model.predict_proba(table)
    assert shares.shape == (200, 2)
    assert shares.sum(1) == pytest.approx(np.ones(200))
    assert model.classes().tolist() == ["f", "m"]
    sizes = model.predict(table, "size").astype(float)
    assert np.corrcoef(sizes, table["size"])[0, 1] > 0.8


def test_weights_count_as_copies_do():
    table = people(200)
    weights = (table["sex"] == "m").to_numpy() * 9.0 + 1
    model = km.TableModel(**{**SMALL, "steps": 250}).fit(table, sample_weight=weights)
    share = weights[table["sex"] == "m"].sum() / weights.sum()
    assert model.conditional("sex").probabilities[0, 1] == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("factor", [1e-300, 1e300])
def test_the_unit_of_weights_does_not_matter(factor):
    table = people(60)
    weights = np.random.default_rng(0).random(60) + 0.5
    few = {**SMALL, "steps": 20}
    expected = km.TableModel(**few).fit(table, sample_weight=weights / 2).score_samples(table)
    found = km.TableModel(**few).fit(table, sample_weight=weights * factor).score_samples(table)
    assert np.allclose(found, expected, atol=1e-4)


def test_rows_without_weight_are_not_seen():
    table, far = people(80), people(40, seed=1)
    far = far.assign(sex="other", size=far["size"] + 1e4)
    weights = np.r_[np.ones(80), np.zeros(40)]
    few = {**SMALL, "steps": 20}
    model = km.TableModel(**few).fit(pd.concat([table, far]), sample_weight=weights)
    alone = km.TableModel(**few).fit(table, sample_weight=np.ones(80))
    assert "other" not in model.classes("sex")
    assert np.array_equal(model.score_samples(table), alone.score_samples(table))


def test_one_row_with_a_weight_is_one_row():
    table = people(30)
    weights = np.r_[1.0, np.zeros(29)]
    with pytest.raises(errors.SchemaError, match="Left out as constants"):
        km.TableModel(**SMALL).fit(table, sample_weight=weights)
    weights[1:3] = 1.0
    model = km.TableModel(**{**SMALL, "steps": 5})
    with pytest.warns(errors.PoorFitWarning, match="3 rows are too few to hold some out"):
        model.fit(table, sample_weight=weights)
    assert np.isfinite(model.score_samples(table[:3])).all()


@pytest.mark.parametrize(
    "weights",
    [["a"] * 30, [None] * 30, np.ones(29), np.ones((30, 1)), -np.ones(30), np.zeros(30),
     np.full(30, np.nan), np.full(30, np.inf), "weights", 1.0],
    ids=["text", "none", "short", "two axes", "negative", "zero", "nan", "inf", "word", "number"],
)  # fmt: skip
def test_bad_weights_are_named(weights):
    with pytest.raises(
        errors.OptionError, match="sample_weight must be 30 finite, non-negative numbers"
    ):
        km.TableModel(**SMALL).fit(people(30), sample_weight=weights)


def test_a_saved_model_is_the_same(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    loaded = km.TableModel.load(tmp_path / "model.safetensors")
    table = people(40, seed=2)
    assert np.array_equal(loaded.score_samples(table), model.score_samples(table))
    pd.testing.assert_frame_equal(
        loaded.sample(20, random_state=0), model.sample(20, random_state=0)
    )


@pytest.mark.parametrize("stop", [7, 20])
def test_a_stopped_training_ends_with_the_same_weights(tmp_path, stop):
    schema = km.Schema.infer(people())
    codes, values = schema.encode(people()).tensors()
    settings = TableModelSettings(width=8, blocks=1, steps=30, batch_size=64)

    def trainer():
        rows = TableRows(codes, values)
        return Trainer(TableModelTask(TableLayout.of(schema), rows, settings), device="cpu")

    whole = trainer()
    assert whole.run()
    first = trainer()
    assert not first.run(folder=tmp_path, should_stop=lambda: first.step >= stop)
    second = trainer()
    second.load(tmp_path / "last.safetensors")
    assert second.run(folder=tmp_path)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert whole.history == second.history


def test_orders_agree_up_to_their_spread(model):
    table = people(100, seed=3)
    spread = model.order_spread(table, orders=6)
    one, many = model.score_samples(table), model.score_samples(table, orders=6)
    assert 0 < spread < 0.5
    assert np.abs(one - many).mean() < 2 * spread


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m: m.sample(2, given={"shoe": 3}), errors.SchemaError, "shoe"),
        (lambda m: m.sample(2, given={"sex": "x"}), errors.SchemaError, "sex"),
        (lambda m: m.sample(-1), errors.OptionError, "n_samples"),
        (lambda m: m.sample(3, given=pd.DataFrame({"sex": ["f", "m"]})), errors.OptionError, "2"),
        (lambda m: m.conditional("shoe"), errors.OptionError, "shoe"),
        (lambda m: m.conditional("sex").quantile(0.5), errors.OptionError, "sex"),
        (lambda m: m.conditional("size").quantile(1.5), errors.OptionError, "1.5"),
        (lambda m: m.predict_proba(people(5), "size"), errors.OptionError, "size"),
        (lambda m: m.score_samples(people(5).drop(columns="size")), errors.SchemaError, "size"),
        (lambda m: m.score_samples(people(5), orders=0), errors.OptionError, "orders"),
        (lambda m: m.impute(people(5), draws=0), errors.OptionError, "draws"),
    ],
)
def test_bad_calls_say_what_is_wrong(model, call, error, says):
    with pytest.raises(error, match=says):
        call(model)


def test_orders_are_permutations():
    orders = orders_of(TableLayout((1,) * 6, (), (0.0,) * 6), 50, torch.Generator().manual_seed(0))
    assert torch.equal(orders.sort(1).values, torch.arange(6).expand(50, 6))


@torch.no_grad()
def test_cells_that_are_not_known_do_not_count():
    layout = TableLayout((3, 2, 4), (2,), (0.0,) * 9)
    network = random_network(layout)
    codes = torch.tensor([[0, 1, 0], [2, 0, 3], [1, 1, 0]])
    values = torch.tensor([[0.3], [0.0], [-1.2]])
    known = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
    orders = orders_of(layout, 4, torch.Generator().manual_seed(0))
    found = chain_log_density(network, codes, values, orders, known=known)
    other, moved = codes.clone(), values.clone()
    other[~known] = 0
    moved[1] = 5.0
    again = chain_log_density(network, other, moved, orders, known=known)
    assert torch.equal(found, again)
    whole = chain_log_density(network, codes, values, orders)
    assert torch.equal(found[:, 2], whole[:, 2])
    # One known cell alone: its probability, whatever the order.
    alone = torch.tensor([[True, False, False]])
    one = chain_log_density(network, codes[:1], values[:1], orders, known=alone)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    parts = network(codes[:1], values[:1], nothing)
    expected = network.column_log_likelihood(parts, codes[:1], values[:1], nothing)[0, 0]
    assert torch.allclose(one, expected.double().expand_as(one))
