"""Settings that have new names: old ones are read, accepted with a warning, and never silent."""

import inspect
import json
import shutil
import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import kermix as km
from kermix.cli.app import app
from kermix.cli.old_options import _with_new_options
from kermix.errors import OptionError, RunError
from kermix.models import ConditionalMixtureNetwork, HybridPrior, MixtureNetwork, MixtureTable
from kermix.renamed import RENAMED, current_names
from kermix.runs.kinds import open_run
from kermix.training import settings as settings_module
from kermix.training.classifier_settings import ClassifierSettings
from kermix.training.conditional import (
    ConditionalSettings,
    fit_conditional,
    load_conditional,
)
from kermix.training.image_settings import ImageSettings
from kermix.training.settings import FitSettings
from kermix.training.tabular import TableSettings

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1"
VALUES = {
    "polish": 3, "polish_batch": 40, "finish": "closed form", "batch": 12, "rate": 0.25,
    "variances": "diagonal", "spread": (1.0, 3.0),
}  # fmt: skip
KINDS = {
    FitSettings: set(RENAMED),
    ConditionalSettings: set(RENAMED) - {"spread"},
    ImageSettings: set(RENAMED) - {"finish", "polish_batch"},
    ClassifierSettings: {"batch", "rate"},
    TableSettings: {"batch", "rate"},
}
CASES = [(kind, old) for kind, names in KINDS.items() for old in sorted(names)]
MIXTURE = {ImageSettings: {"model": "mixture"}}


def value_of(kind, old):
    """Another value than the default one."""
    return "isotropic" if (kind, old) == (ImageSettings, "variances") else VALUES[old]


def kermix(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def old_names(content):
    """Settings as version 0.1 wrote them."""
    before = {new: old for old, new in RENAMED.items()}
    return {before.get(name, name): value for name, value in content.items()}


def test_every_case_has_a_value():
    assert set(VALUES) == set(RENAMED)
    assert len(set(RENAMED.values())) == len(RENAMED)
    assert not set(RENAMED) & set(RENAMED.values())
    for kind, names in KINDS.items():
        assert {RENAMED[old] for old in names} <= {field.name for field in fields(kind)}
        assert not set(RENAMED) & {field.name for field in fields(kind)}


@pytest.mark.parametrize(("kind", "old"), CASES)
def test_an_old_keyword_is_the_new_one_with_a_warning(kind, old):
    new, value, others = RENAMED[old], value_of(kind, old), MIXTURE.get(kind, {})
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}") as caught:
        settings = kind(**others, **{old: value})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert settings == kind(**others, **{new: value})
    assert getattr(settings, new) == value != getattr(kind(**others), new)


@pytest.mark.parametrize(("kind", "old"), CASES)
def test_both_names_together_are_refused(kind, old):
    new, value = RENAMED[old], VALUES[old]
    with pytest.raises(OptionError, match=f"{old} is the old name of {new}"):
        kind(**{old: value, new: value})


@pytest.mark.parametrize(("kind", "old"), CASES)
def test_an_old_attribute_is_the_new_one_with_a_warning(kind, old):
    settings = kind(**MIXTURE.get(kind, {}), **{RENAMED[old]: VALUES[old]})
    with pytest.warns(DeprecationWarning, match=RENAMED[old]):
        assert getattr(settings, old) == VALUES[old]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_never_a_name_is_none(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'baker'"):
        kind(baker=1)
    with pytest.raises(AttributeError, match="baker"):
        _ = kind().baker
    absent = set(RENAMED) - KINDS[kind] - {"finish"}  # which images have as a property
    for name in absent:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            kind(**{name: VALUES[name]})
        assert not hasattr(kind(), name)
    assert list(inspect.signature(kind).parameters) == [field.name for field in fields(kind)]


@pytest.mark.parametrize("kind", [FitSettings, ImageSettings, ClassifierSettings])
def test_settings_are_read_from_old_json_without_a_word(kind):
    names = {RENAMED[old]: VALUES[old] for old in KINDS[kind]}
    settings = kind(**MIXTURE.get(kind, {}), **names)
    content = json.loads(json.dumps(settings.as_json()))
    assert not set(content) & set(RENAMED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kind.from_json(old_names(content)) == settings == kind.from_json(content)
    with pytest.raises(OptionError, match="rate is the old name of learning_rate"):
        kind.from_json({**content, "rate": 0.5})


def test_replacing_by_an_old_name_says_what_to_write():
    with pytest.raises(OptionError, match="polish is the old name of refine_steps"):
        replace(FitSettings(), polish=3)


@pytest.mark.parametrize(
    ("old", "new"), [("Settings", "FitSettings"), ("FinishName", "RefineName")]
)
def test_old_names_of_types(old, new):
    with pytest.warns(DeprecationWarning, match=f"{old} is now kermix.training.settings.{new};"):
        assert getattr(settings_module, old) is getattr(settings_module, new)
    with pytest.raises(AttributeError, match="Baker"):
        _ = settings_module.Baker


def test_an_unknown_old_name_is_reported_as_it_was_written():
    with pytest.raises(OptionError, match="Unknown settings: spread"):
        ClassifierSettings.from_json({"spread": [1.0]})


def test_names_keep_their_order_and_their_values():
    content = {"steps": 1, "batch": None, "cost": "svd", "rate": 0}
    assert list(current_names(content).items()) == [
        ("steps", 1), ("batch_size", None), ("cost", "svd"), ("learning_rate", 0)
    ]  # fmt: skip
    assert content == {"steps": 1, "batch": None, "cost": "svd", "rate": 0}
    assert current_names(content, ["learning_rate"])["batch"] is None


@pytest.mark.parametrize("name", ["rows", "classify", "images"])
def test_an_old_run_shows_new_names_everywhere(name, tmp_path):
    before = json.loads((OLD / name / "config.json").read_text())["settings"]
    assert set(before) & set(RENAMED)  # else nothing is tested
    run = open_run(OLD / name)
    assert run.config["settings"] == current_names(before)
    assert not set(run.config["settings"]) & set(RENAMED)
    for old, new in RENAMED.items():
        assert f"--{old.replace('_', '-')} " not in run.command() + " "
        if old in before:
            found = getattr(run.settings, new)
            assert found == (tuple(before[old]) if old == "spread" else before[old])
    both = Path(shutil.copytree(OLD / name, tmp_path / name))
    config = json.loads((both / "config.json").read_text())
    config["settings"]["learning_rate"] = 0.1
    (both / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="rate is the old name of learning_rate"):
        open_run(both)


def test_a_conditional_fit_goes_on_from_an_old_checkpoint(tmp_path):
    path = tmp_path / "fit.safetensors"
    shutil.copy(OLD / "conditional.safetensors", path)
    context = torch.linspace(-1, 1, 80, dtype=torch.float64)[:, None]
    settings = ConditionalSettings(
        components=3, width=8, steps=6, refine_steps=6, batch_size=32, refine_batch_size=32,
    )  # fmt: skip
    model = fit_conditional(context, context**2, settings, device="cpu", checkpoint=path)
    expected = load_conditional(OLD / "conditional.safetensors")
    torch.testing.assert_close(model(context).means, expected(context).means)
    other = replace(settings, refine_steps=7)
    with pytest.raises(RunError, match="other settings"):
        fit_conditional(context, context**2, other, device="cpu", checkpoint=path)


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: MixtureTable(2, 3, **options),
        lambda **options: MixtureNetwork(2, HybridPrior(2, 3), 3, **options),
        lambda **options: ConditionalMixtureNetwork(1, 2, 3, **options),
    ],
)
def test_models_take_the_old_name_of_their_covariance_type(make):
    generator = torch.Generator().manual_seed(0)
    with pytest.warns(DeprecationWarning, match="variances is now called covariance_type"):
        model = make(variances="diagonal", generator=generator)
    other = make(covariance_type="diagonal", generator=torch.Generator().manual_seed(0))
    for found, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(OptionError, match="old name of covariance_type"):
        make(variances="diagonal", covariance_type="diagonal", generator=generator)


SMALL = {"rows": 60, "steps": 2, "components": 2}


@pytest.mark.usefixtures("undrawn")
def test_fit_takes_old_keywords(tmp_path):
    old = {"polish": 2, "batch": 8, "polish_batch": 9, "finish": "closed form", "rate": 0.03,
           "variances": "diagonal", "spread": (1.0, 2.0)}  # fmt: skip
    with pytest.warns(DeprecationWarning, match="is now called") as caught:
        run = km.fit("moons", out=tmp_path / "old", **SMALL, **old)
    assert len(caught) == len(old)
    assert {warning.filename for warning in caught} == {__file__}
    new = km.fit("moons", out=tmp_path / "new", **SMALL, **current_names(old))
    assert run.settings == new.settings
    assert torch.equal(run.sample(5, 0), new.sample(5, 0))
    with pytest.raises(OptionError, match="polish is the old name of refine_steps"):
        km.fit("moons", out=tmp_path / "both", **SMALL, polish=2, refine_steps=2)
    assert not (tmp_path / "both").exists()
    with pytest.raises(OptionError, match="no setting 'baker'"):
        km.fit("moons", out=tmp_path / "none", baker=1)


OPTIONS = {
    "polish": 2, "batch": 8, "polish-batch": 9, "finish": "closed form", "rate": 0.03,
    "variances": "diagonal", "spread": "1,2",
}  # fmt: skip


def new_option(old):
    return RENAMED[old.replace("-", "_")].replace("_", "-")


@pytest.mark.usefixtures("undrawn")
def test_old_options_of_fit_still_work_with_one_note(tmp_path):
    common = ["fit", "moons", "--rows", 60, "--steps", 2, "--components", 2, "--device", "cpu"]
    runs = []
    for kind in (str, new_option):
        words = [w for name, value in OPTIONS.items() for w in (f"--{kind(name)}", value)]
        folder = tmp_path / kind.__name__
        result = kermix(*common, *words, "--out", folder)
        assert result.exit_code == 0, result.output
        runs.append(open_run(folder))
        said = " ".join(result.stderr.split())
        assert said.count("note:") == (kind is str)
        assert "note:" not in result.stdout
        for old in OPTIONS:
            assert (f"--{old} is now called --{new_option(old)}" in said) == (kind is str)
    old, new = runs
    assert old.settings == new.settings
    metrics = [(run.folder / "metrics.csv").read_text() for run in runs]
    assert metrics[0] == metrics[1]
    assert old.settings.variance_factors == (1.0, 2.0)


def test_an_option_may_be_joined_to_its_value(capsys):
    known = {"--refine-steps", "--batch-size"}
    args = ["x", "--polish=3", "--batch", "4", "--rate", "1", "--", "--batch"]
    expected = ["x", "--refine-steps=3", "--batch-size", "4", "--rate", "1", "--", "--batch"]
    assert _with_new_options(args, known) == expected
    assert _with_new_options(["--batch", "4"], {*known, "--batch"}) == ["--batch", "4"]
    assert capsys.readouterr().err.count("note:") == 1


def test_old_and_new_options_together_are_refused(tmp_path):
    for name, value in OPTIONS.items():
        words = [f"--{new_option(name)}={value}", f"--{name}", value]
        result = kermix("fit", "moons", *words, "--out", tmp_path / "run")
        assert isinstance(result.exception, OptionError)
        assert f"--{name} is the old name of --{new_option(name)}" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_help_has_new_options_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for command, names in (("fit", OPTIONS), ("classify", ("batch", "rate"))):
        shown = kermix(command, "--help").output.split()
        for name in names:
            assert f"--{new_option(name)}" in shown
            assert f"--{name}" not in shown


def test_other_options_are_as_unknown_as_before():
    result = kermix("classify", "--spread", "1")
    assert result.exit_code == 2
    assert "No such option" in result.output
    assert "note:" not in result.output
    assert kermix("sample", "--batch", "1").exit_code == 2


DIGITS = ["classify", "digits", "--width", 4, "--depth", 1, "--epochs", 1, "--set",
          "output_width=4", "--device", "cpu", "--no-augment"]  # fmt: skip


@pytest.mark.usefixtures("undrawn")
def test_old_options_and_settings_of_classify(tmp_path):
    cases = {
        "new": ["--batch-size", 700, "--learning-rate", 0.01],
        "old": ["--batch", 700, "--set", "rate=0.01"],
    }
    settings = {}
    for name, options in cases.items():
        result = kermix(*DIGITS, *options, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        settings[name] = open_run(tmp_path / name).settings
        said = " ".join(result.stderr.split())
        assert ("note: --batch is now called --batch-size." in said) == (name == "old")
        assert ("note: rate is now called learning_rate." in said) == (name == "old")
    assert settings["new"] == settings["old"]
    assert (settings["new"].batch_size, settings["new"].learning_rate) == (700, 0.01)


@pytest.mark.parametrize(
    "options",
    [
        ["--batch", 8, "--batch-size", 8],
        ["--set", "batch=8", "--batch-size", 8],
        ["--set", "batch=8", "--set", "batch_size=8"],
    ],
)
def test_a_classifier_is_refused_both_names(options, tmp_path):
    result = kermix(*DIGITS, *options, "--out", tmp_path / "run")
    assert isinstance(result.exception, OptionError)
    assert "batch is the old name of" in str(result.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::kermix.errors.PoorFitWarning")
def test_an_estimator_takes_the_old_name():
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).numpy()
    common = {"n_components": 2, "steps": 3, "random_state": 0, "device": "cpu"}
    new = km.KernelMixture(**common, refine_steps=4).fit(rows)
    old = km.KernelMixture(**common, polish=4)
    assert old.get_params()["polish"] == 4
    with pytest.warns(DeprecationWarning, match="polish is now called refine_steps") as caught:
        old.fit(rows)
    assert caught[0].filename == __file__
    assert (old.n_iter_, new.n_iter_) == (7, 7)
    assert (old.means_ == new.means_).all()
    with pytest.warns(DeprecationWarning, match="polish"):
        assert km.KernelMixture(**common, cost="likelihood", polish=None).fit(rows).n_iter_ == 3
    with pytest.raises(OptionError, match="polish is the old name of refine_steps"):
        km.KernelMixture(**common, polish=4, refine_steps=4).fit(rows)
