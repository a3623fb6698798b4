"""What a run keeps of how it was started: where its data are, its options, its command."""

import inspect
import json
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import kermix as km
from commands import kermix
from kermix.errors import OptionError, RunError
from kermix.fitting.fit import begin_fit, open_run
from kermix.runs.folder import lasting_source
from kermix.runs.train import Stopped, complete

SHORT = {"steps": 6, "refine_steps": 4, "components": 3, "device": "cpu"}
TINY = {"width": 16, "blocks": 1, "steps": 20, "device": "cpu"}


def numbers(rows=80):
    return np.random.default_rng(0).normal(size=(rows, 2))


def mixed(rows=60):
    values = numbers(rows)
    return pd.DataFrame({"a": values[:, 0], "kind": np.where(values[:, 1] > 0, "x", "y")})


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of data, given by relative names, and another one to go on from."""
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "two.npz", a=numbers(), b=numbers() + 1)
    for part in ("1", "2"):
        mixed().to_parquet(data / f"mixed-{part}.parquet")
        pd.DataFrame(numbers(), columns=["u", "v"]).to_parquet(data / f"plain-{part}.parquet")
    monkeypatch.chdir(data)
    return data


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("source", "settings"),
    [("two.npz:b", SHORT), ("mixed-*.parquet", TINY), ("plain-*.parquet", SHORT)],
)
def test_a_run_is_continued_from_any_folder(source, settings, here, tmp_path, monkeypatch):
    run, _ = begin_fit(source, out=tmp_path / "run", **settings)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = km.resume(run.folder, devices=1)
    assert again.settings.steps == settings["steps"]
    assert (run.folder / "report.html").exists()


def test_addresses_that_hold_from_any_folder(here):
    assert lasting_source("two.npz:b", ()) == f"{here.resolve()}/two.npz:b"
    assert lasting_source("mixed-*.parquet", ()) == f"{here.resolve()}/mixed-*.parquet"
    assert lasting_source("mixed-1.parquet", ()) == f"{here.resolve()}/mixed-1.parquet"
    for kept in ("moons", "s3://bucket/part-*.parquet", "celeba:Smiling", "not-there.csv"):
        assert lasting_source(kept, ("moons", "celeba")) == kept


@pytest.mark.usefixtures("undrawn")
def test_the_command_gives_the_same_kind_of_run(here, tmp_path):
    path = here / "plain-1.parquet"
    run = km.fit(path, out=tmp_path / "run", model="mixture", precision="bf16-mixed", **SHORT)
    words = shlex.split(run.command())
    assert words[words.index("--model") + 1] == "mixture"
    assert words[words.index("--device") + 1] == "cpu"
    assert words[words.index("--precision") + 1] == "bf16-mixed"
    kermix(*words[1:], "--out", tmp_path / "again")
    assert open_run(tmp_path / "again").kind == run.kind == "fit"
    assert open_run(tmp_path / "again").config["settings"] == run.config["settings"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("settings", [{}, {"members": 2}, {"order_share": 0.5, "dropout": 0.2}])
def test_the_command_of_a_quick_table_begins_the_same_run(settings, here, tmp_path):
    path = here / "plain-1.parquet"
    run, _ = begin_fit(path, out=tmp_path / "run", quick=True, steps=8, **settings)
    begun = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kermix.cli.options.train_and_finish", lambda r, _: begun.update(run=r))
        kermix(*shlex.split(run.command())[1:], "--out", tmp_path / "again")
    again = begun["run"]
    for name in ("kind", "contest", "quick", "settings"):
        assert again.config[name] == run.config[name], name
    assert again.config["contest"] == (not settings)


def test_every_setting_of_the_table_model_can_be_given_to_the_command():
    from dataclasses import fields

    from kermix.cli.fit_command import fit
    from kermix.tables.model.table_settings import TableModelSettings
    from kermix.tables.runs.table_fit import TABLE_SETTINGS
    from kermix.tables.runs.table_run import WITHOUT_OPTION

    options = set(inspect.signature(fit).parameters)
    assert TABLE_SETTINGS - set(WITHOUT_OPTION) <= options
    assert {*WITHOUT_OPTION} <= {field.name for field in fields(TableModelSettings)} - options


def test_the_command_names_processes_and_only_what_is_unusual(tmp_path):
    table, _ = begin_fit(mixed(), out=tmp_path / "table", **TINY)
    assert table.command().endswith("--device cpu")
    several = table.with_ranks(devices=2, strategy="shard").command()
    assert several.endswith("--device cpu --devices 2 --strategy shard")
    rows, _ = begin_fit(numbers(), out=tmp_path / "rows", steps=5, strategy="shard")
    assert rows.ranks == (1, 1, "shard")
    assert rows.command().endswith("--steps 5 --strategy shard")


def test_options_that_do_not_apply_are_refused(here, tmp_path):
    (here / "images").mkdir()
    for k in range(4):
        Image.fromarray(np.full((16, 16, 3), 60 * k, np.uint8)).save(here / f"images/{k}.png")
    out = tmp_path / "refused"
    for given in ({"devices": 2}, {"strategy": "shard"}):
        with pytest.raises(OptionError, match="images are trained by one process"):
            begin_fit(here / "images", out=out, **given)
    for data in (mixed(), "mixed-1.parquet", "mixed-*.parquet"):
        for given in ({"size": 16}, {"data_root": here}):
            with pytest.raises(OptionError, match=f"is a table; {next(iter(given))} is only for"):
                begin_fit(data, out=out, **given)
    assert not out.exists()


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    return km.fit(mixed(), out=tmp_path_factory.mktemp("table") / "run", target="kind", **TINY)


def test_a_table_is_asked_on_the_device_that_is_named(table_run, tmp_path):
    mixed(5).to_csv(tmp_path / "new.csv", index=False)
    kermix("predict", table_run.folder, tmp_path / "new.csv", "--device", "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="cuda"):
            kermix("predict", table_run.folder, tmp_path / "new.csv", "--device", "cuda")


def test_a_config_that_lacks_a_fact_is_refused_in_one_sentence(table_run, tmp_path):
    rows, _ = begin_fit(numbers(), out=tmp_path / "rows", **SHORT)
    for run in (table_run, rows):
        file = run.folder / "config.json"
        whole = json.loads(file.read_text())
        always = ("kind", "data", "options", "settings", "device", "precision", "fingerprint")
        for name in (*always, *run.facts):
            file.write_text(json.dumps({k: v for k, v in whole.items() if k != name}))
            with pytest.raises(RunError, match=f"damaged, or from another version.*{name}"):
                open_run(run.folder)
        file.write_text(json.dumps({**whole, "kind": "dream"}))
        with pytest.raises(RunError, match=r"of kind 'dream', .* newer version"):
            open_run(run.folder)
        file.write_text(json.dumps(whole))


def test_one_function_completes_a_run_or_says_where_it_stopped(tmp_path, monkeypatch):
    run, data = begin_fit(numbers(), out=tmp_path / "run", **SHORT)
    monkeypatch.setattr(type(run), "train", lambda self, trainer, **_: False)
    with pytest.raises(Stopped, match=r"Stopped at step 0; saved.*km.resume"):
        complete(run, data)
