"""`kermix fit --budget`: how much is done, in a word or as a time, by every way to fit."""

import json
import shlex
import time

import numpy as np
import pandas as pd
import pytest

import kermix as km
from commands import kermix
from internals import begin_fit, open_run
from kermix.errors import OptionError


def table(rows=200):
    rng = np.random.default_rng(0)
    kind = rng.choice(["oak", "ash"], rows)
    return pd.DataFrame({"kind": kind, "size": rng.normal(3 + (kind == "oak"), 0.5).round(2)})


@pytest.fixture
def trees(tmp_path):
    table().to_csv(tmp_path / "trees.csv", index=False)
    return tmp_path / "trees.csv"


def test_quick_is_a_name_of_a_budget(trees, tmp_path):
    runs = [begin_fit(trees, out=tmp_path / name, **said)[0]
            for name, said in (("a", {"quick": True}), ("b", {"budget": "quick"}))]  # fmt: skip
    assert runs[0].config["settings"] == runs[1].config["settings"]
    assert runs[0].settings.budget == "quick"
    assert "--budget quick" in shlex.join(runs[0].command().split())
    usual = begin_fit(trees, out=tmp_path / "c", budget="default")[0].settings
    best = begin_fit(trees, out=tmp_path / "d", budget="best")[0].settings
    assert runs[0].settings.steps < usual.steps < best.steps
    assert runs[0].settings.width < usual.width < best.width


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"budget": "soon"}, "budget='soon' must be quick, default, best, or a time such as 90s"),
        ({"budget": "2m", "steps": 5}, "steps=5: a budget of 2m says how long to train"),
        ({"budget": "2m", "quick": True}, "quick is budget='quick', but budget='2m'"),
        ({"budget": "2m", "model": "mixture"}, "budget='2m' is for the table model"),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_kept_is_refused(said, told, trees, tmp_path):
    with pytest.raises(OptionError, match=told):
        begin_fit(trees, out=tmp_path / "run", **said)
    assert not (tmp_path / "run").exists()


def test_a_budget_of_rows_is_quick_or_default(tmp_path):
    with pytest.raises(OptionError, match="a fit of rows or images is quick or default"):
        begin_fit("moons", out=tmp_path / "run", budget="10s")


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A fit in a time, by the command; seconds that it took."""
    folder = tmp_path_factory.mktemp("timed")
    table().to_csv(folder / "trees.csv", index=False)
    began = time.monotonic()
    result = kermix("fit", folder / "trees.csv", "--budget", "4s", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return open_run(folder / "run"), result.output, time.monotonic() - began


def test_a_fit_takes_its_time_and_says_so(timed):
    run, output, seconds = timed
    assert 1 < seconds < 40  # 4 s of a machine that does nothing else
    assert " of the 4s for the whole fit" in output
    plan = run.config["course"]
    assert 0 < plan["seconds"] <= 4
    assert run.settings.steps >= 1
    last = json.loads((run.folder / "config.json").read_text())["settings"]
    assert last["budget"] == "4s"


def test_a_run_with_a_time_goes_on_and_is_asked_as_any(timed, tmp_path):
    run, _, _ = timed
    again = km.resume(run.folder)
    assert len(again.sample(5)) == 5
    model = again.model()
    assert model.budget is None  # fitted again, it takes as many steps
    assert model.steps == run.settings.steps


def test_the_estimator_ends_in_its_time():
    began = time.monotonic()
    model = km.TableModel(budget="2s", random_state=0).fit(table())
    assert time.monotonic() - began < 20
    assert len(model.sample(4)) == 4
    with pytest.raises(OptionError, match="says how long to train"):
        km.TableModel(budget="2s", steps=3).fit(table())


def test_a_budget_is_refused_by_the_estimator_too():
    with pytest.raises(OptionError, match="quick, default, best"):
        km.TableModel(budget="later").fit(table())
