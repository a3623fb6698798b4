"""What a run keeps of how it was started: where its data are, its options, its command."""

import html
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
from internals import Stopped, begin_fit, lasting_source, load_checkpoint, open_run, schema_of
from internals import train_complete as complete
from kermix.errors import OptionError, RunError

SHORT = {"steps": 6, "refine_steps": 4, "components": 3, "device": "cpu"}
TINY = {"width": 16, "blocks": 1, "steps": 20, "device": "cpu"}


def numbers(rows=80):
    return np.random.default_rng(0).normal(size=(rows, 2))


def mixed(rows=60):
    values = numbers(rows)
    return pd.DataFrame({"a": values[:, 0], "kind": np.where(values[:, 1] > 0, "x", "y")})


def write_squares(folder):
    """Two classes of small images."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("bright", "dark")):
        (folder / name).mkdir(parents=True)
        for k in range(12):
            pixels = rng.integers(100 * number, 100 * number + 80, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k:02}.png")


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
    monkeypatch.setenv("KERMIX_CACHE", str(tmp_path / "cache"))
    return data


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


@pytest.mark.parametrize("settings", [{}, {"members": 2}, {"order_share": 0.5, "dropout": 0.2}])
def test_the_command_of_a_quick_table_begins_the_same_run(settings, here, tmp_path):
    path = here / "plain-1.parquet"
    run, _ = begin_fit(path, out=tmp_path / "run", quick=True, steps=8, **settings)
    begun = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "internals.fit_command_module.train_and_finish", lambda r, _: begun.update(run=r)
        )
        kermix(*shlex.split(run.command())[1:], "--out", tmp_path / "again")
    again = begun["run"]
    for name in ("kind", "compare_models", "settings"):
        assert again.config[name] == run.config[name], name
    assert again.config["compare_models"] == (not settings)


def test_every_setting_that_is_not_rare_has_an_option():
    from internals import IMAGES, ROWS, FitSettings, fit

    options = set(inspect.signature(fit).parameters)
    for family in (ROWS, IMAGES):
        for setting in FitSettings.part(family).settings:
            assert setting.name in options or setting.about.rare, setting.name


def test_the_command_of_a_call_says_what_was_given(tmp_path):
    table, _ = begin_fit(mixed(), out=tmp_path / "table", columns=["a", "kind"], rows=50, **TINY)
    kept = tmp_path / "table" / "data.parquet"
    settings = "--steps 20 --device cpu --set width=16 --set blocks=1"
    assert table.command() == f"kermix fit {kept} {settings}"
    assert open_run(table.folder).command() == table.command()
    rows, _ = begin_fit(numbers(), out=tmp_path / "rows", steps=5, strategy="shard")
    assert rows.ranks == (1, 1, "shard")
    assert rows.command().endswith("rows/data.npy --steps 5 --strategy shard")


def weights(run):
    names = [path.name for path in sorted(run.checkpoints.glob("*.safetensors"))]
    return {(name, key): tensor for name in names
            for key, tensor in load_checkpoint(run.checkpoints / name)[0].items()}  # fmt: skip


def repeated(run, folder):
    """The run that the printed command of a run gives, in another folder."""
    kermix(*shlex.split(run.command())[1:], "--out", folder)
    return open_run(folder)


def check_repeats(run, folder):
    again = repeated(run, folder)
    assert again.kind == run.kind
    assert again.config["settings"] == run.config["settings"]
    first, second = weights(run), weights(again)
    assert first
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())


SQUARES = ["--quick", "--encoder-steps", 4, "--steps", 4, "--batch-size", 12, "--code", 3]
SHORT_WORDS = ["--steps", 6, "--refine-steps", 4, "--components", 3]
TYPED = {
    "samples": ["fit", "plain-1.parquet", "--model", "mixture", *SHORT_WORDS],
    "several files": ["fit", "plain-*.parquet", "--columns", "u", *SHORT_WORDS],
    "a set": ["fit", "moons", "--rows", 90, *SHORT_WORDS],
    "images": ["fit", "two kinds", "--size", 16, *SQUARES],
    "a classifier": ["classify", "two kinds", "--patch", 1, "--width", 8, "--depth", 1,
                     "--set", "output_width=8", "--epochs", 1],
    "a table": ["fit", "mixed-1.parquet", "--set", "members=2", "--width", 16, "--blocks", 1,
                "--steps", 12, "--target", "kind"],
    "compared models": ["fit", "plain-1.parquet", "--width", 16, "--blocks", 1, "--steps", 12],
    "a target": ["classify", "mixed-1.parquet", "--target", "kind", "--width", 16,
                 "--set", "blocks=1", "--set", "steps=12", "--set", "calibrate=False"],
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPED)
def test_the_command_is_printed_to_the_letter_and_gives_the_same_weights(kind, here, tmp_path):
    write_squares(here / "two kinds")
    words = [str(word) for word in [*TYPED[kind], "--device", "cpu", "--out", tmp_path / "it is"]]
    kermix(*words)
    run = open_run(tmp_path / "it is")
    assert shlex.split(run.command()) == ["kermix", *words]
    page = html.unescape((run.folder / "report.html").read_text())
    assert f"<pre>{run.command()}</pre>" in page
    check_repeats(run, tmp_path / "again")


@pytest.mark.parametrize("kind", ["array", "frame", "numbers", "mixed", "file", "images"])
def test_the_command_of_a_run_begun_in_python_gives_the_same_weights(kind, here, tmp_path):
    if kind == "images":
        write_squares(here / "two kinds")
    frame = mixed().assign(size=np.arange(60) % 7 + 1, code=[f"{k % 5:02}" for k in range(60)])
    data, options = {
        "array": (numbers(), {**SHORT, "variance_factors": (1.0, 4.0)}),
        "frame": (pd.DataFrame(numbers(), columns=["u", "v w"]),
                  {**SHORT, "cost": "matrix", "form": "logdet"}),
        "numbers": (pd.DataFrame(numbers(), columns=["u", "v w"]), {**TINY, "seed": 3}),
        "mixed": (frame, {**TINY, "exclude": ["a"], "kinds": {"size": "category"}, "rows": 50}),
        "file": (here / "mixed-1.parquet", {**TINY, "order_share": 0.5, "target": "kind"}),
        "images": ("two kinds", {"quick": True, "size": 16, "code": 3, "steps": 4,
                   "encoder_steps": 4, "batch_size": 12, "spaces": ("pixels", "codes")}),
    }[kind]  # fmt: skip
    run = km.fit(data, out=tmp_path / "run", **options)
    check_repeats(run, tmp_path / "again")


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
        for name in (*always, *run.kind.facts):
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


@pytest.mark.parametrize("kind", ["rows", "table"])
def test_settings_schema_and_model_are_read_once_until_training_goes_on(kind, here, tmp_path):
    data, options = (numbers(), SHORT) if kind == "rows" else (mixed(), TINY)
    run = open_run(km.fit(data, out=tmp_path / "run", **options).folder)
    ask = (lambda: run.score(data)) if kind == "rows" else (lambda: run.score(data, orders=1))
    first = np.asarray(ask())
    assert run.settings is run.settings
    assert kind == "rows" or schema_of(run) is schema_of(run)
    assert run.trained_model() is run.trained_model()
    assert run.model() is not run.model(), "a copy is the caller's own"
    other = km.fit(data, out=tmp_path / "other", **{**options, "seed": 5})
    for path in other.checkpoints.glob("*.safetensors"):
        path.replace(run.checkpoints / path.name)
    assert (np.asarray(ask()) != first).any()


def homes(rows=120):
    """Codes of places: padded numbers, of which many rows have a longer form."""
    rng = np.random.default_rng(0)
    codes = [f"{k}" for k in rng.integers(1, 30, rows)]
    codes[::5] = ["98102-5783"] * len(codes[::5])
    padded = [f"{k:03}" for k in rng.integers(0, 9, rows)]
    return pd.DataFrame({"zip_code": codes, "padded": padded, "number": rng.integers(1, 9, rows),
                         "price": rng.normal(size=rows).round(3)})  # fmt: skip


KINDS = {"zip_code": "category", "padded": "category", "number": "category"}


def test_kinds_that_a_fit_was_told_hold_for_all_that_is_asked_of_it(tmp_path):
    path, run = tmp_path / "homes.csv", tmp_path / "run"
    homes().to_csv(path, index=False)
    said = [word for name, kind in KINDS.items() for word in ("--kind", f"{name}={kind}")]
    words = ["--width", 16, "--blocks", 1, "--steps", 20, "--device", "cpu", "--out"]
    kermix("fit", path, *said, *words, run)
    schema = schema_of(open_run(run))
    assert {name: schema[name].kind for name in KINDS} == KINDS
    kermix("resume", run)
    kermix("score", run, path, "-o", tmp_path / "s.npy")
    kermix("impute", run, path, "-o", tmp_path / "i.csv")
    kermix("predict", run, path, "--target", "zip_code", "-o", tmp_path / "p.csv")
    kermix("sample", run, "-n", 30, "-o", tmp_path / "drawn.csv")
    kermix("score", run, tmp_path / "drawn.csv", "-o", tmp_path / "d.npy")
    drawn = pd.read_csv(tmp_path / "drawn.csv", dtype=str)
    assert set(drawn["padded"]) <= set(homes()["padded"])
    scores = np.load(tmp_path / "s.npy")
    np.testing.assert_allclose(open_run(run).score(homes()), scores[:, 0], rtol=1e-6)
    kermix("classify", path, "--target", "zip_code", *said, *("--set", "steps=20"), "--device",
           "cpu", "--width", 16, "--out", tmp_path / "target")  # fmt: skip
    kermix("resume", tmp_path / "target")
    kermix("predict", tmp_path / "target", path, "-o", tmp_path / "t.csv")


def test_kinds_that_a_model_was_told_hold_for_its_table():
    model = km.TableModel(kinds=KINDS, width=16, blocks=1, steps=5, random_state=0, device="cpu")
    assert model.fit(homes()).score_samples(homes()).shape == (120,)
