"""A table model that is trained about one target: what its steps see, and what it learns."""

import numpy as np
import pandas as pd
import pytest
import torch

import kermix as km
from internals import TableLayout, TableModelSettings, TableModelTask, TableRows, Trainer
from kermix import errors


def trainer(share, columns=4, rows=400):
    layout = TableLayout((2,) * columns, (), (0.0,) * (2 * columns))
    codes = torch.randint(2, (rows, columns), generator=torch.Generator().manual_seed(0))
    settings = TableModelSettings(
        width=8,
        blocks=1,
        steps=2,
        batch_size=320,
        target=2,
        target_share=share,
        order_share=0.0,
    )
    task = TableModelTask(layout, TableRows(codes, torch.zeros(rows, 0)), settings)
    return Trainer(task, device="cpu")


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_of_rows_that_see_all_but_the_target(share):
    task = trainer(share).task
    seen = task.batch(0)[1].seen
    wanted = torch.tensor([True, True, False, True])
    found = float((seen == wanted).all(1).float().mean())
    by_chance = 1 / 16  # three of four columns are seen by a quarter of the other rows
    assert found == pytest.approx(share + (1 - share) * by_chance, abs=0.08)


def test_held_out_rows_are_judged_by_the_target_alone():
    judged = trainer(0.5).task._judging.seen
    assert (judged == torch.tensor([True, True, False, True])).all()
    assert trainer(0.0).task._judging.seen.sum(-1).unique().tolist() == [0, 1, 2, 3]


def test_a_link_to_the_target_is_not_seen():
    rng = np.random.default_rng(0)
    bill = rng.lognormal(3, 1, 300)
    paid = np.where(rng.random(300) < 0.5, bill, rng.lognormal(3, 1, 300))
    table = pd.DataFrame({"bill": bill, "paid": paid, "x": rng.normal(size=300)})
    given = {"width": 8, "blocks": 1, "steps": 4, "random_state": 0, "device": "cpu"}
    model = km.TableModel("paid", target_share=1.0, **given).fit(table)
    layout = model.network_.layout
    assert len(layout.links) == 1
    settings = TableModelSettings(target=1, target_share=1.0)
    rows = TableRows(torch.zeros(20, layout.columns, dtype=torch.long), torch.zeros(20, 3))
    asked = TableModelTask(layout, rows, settings)._questions(3, torch.Generator())
    assert asked.seen.tolist() == [[True, False, True, False]] * 3


def test_a_conditional_density_is_near_the_truth():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 3000)
    table = pd.DataFrame(
        {"x": x, "y": np.sin(2 * x) + (0.1 + 0.1 * (x > 0)) * rng.normal(size=3000)}
    )
    model = km.TableModel("y", target_share=1.0, width=32, blocks=1, steps=300,
                          learning_rate=5e-3, random_state=0, device="cpu").fit(table)  # fmt: skip
    at = np.array([-1.2, -0.4, 0.4, 1.2])
    low, high = model.conditional("y", {"x": at}).interval(0.6827)
    assert (low + high) / 2 == pytest.approx(np.sin(2 * at), abs=0.08)
    assert (high - low) / 2 == pytest.approx(np.where(at > 0, 0.2, 0.1), rel=0.35)


def test_a_share_needs_a_target():
    with pytest.raises(errors.OptionError, match=r"target_share=0\.5"):
        TableModelSettings(target_share=0.5)
    with pytest.raises(errors.OptionError, match=r"target_share=1\.5"):
        TableModelSettings(target=0, target_share=1.5)
    with pytest.raises(errors.OptionError, match="target_share"):
        km.TableModel(target_share=1.0).fit(pd.DataFrame({"x": np.arange(50) ** 0.5}))


@pytest.mark.parametrize("seed", [0, 2])
def test_a_rare_value_of_the_target_has_its_share_where_columns_say_nothing(seed):
    """Seen before: .001 for a share of .01, of which no row was held out to calibrate by."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(600, 3)), columns=list("abc"))
    table["y"] = np.where(rng.permutation(600) < 6, "rare", "usual")
    model = km.TableModel("y", target_share=1.0, width=32, blocks=1, steps=200, random_state=seed)
    answers = model.fit(table).conditional("y", table.drop(columns="y").head(200))
    share = np.asarray(answers.probabilities)[:, 0].mean()
    assert 0.005 < share < 0.02
