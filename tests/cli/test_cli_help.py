"""What `--help` says: every command explains itself, in lines as long as the terminal allows."""

import re
from itertools import pairwise

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from internals import (
    COMMANDS,
    PACKED,
    READABLE,
    WRITABLE,
    app,
    first_sentence,
    function_of,
)

WIDTH = 80


def _help(monkeypatch, *command, short=False):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    words = [*command, "--help" if short else "--help-all"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_a_screen_and_names_every_option(name, monkeypatch):
    output = _help(monkeypatch, *filter(None, [name]), short=True)
    assert len(output.splitlines()) <= 40
    assert max(map(len, output.splitlines())) <= WIDTH
    if name is not None:
        for parameter in get_command(app).commands[name].params:
            shown = [*parameter.opts[:1]] if parameter.param_type_name == "option" else []
            if name not in ("fit", "classify"):  # settings of other models have a help of theirs
                assert all(option in output for option in shown)


def test_the_short_help_of_a_model_has_its_settings(monkeypatch):
    output = _help(monkeypatch, "fit", "--model", "table", short=True)
    assert "--dropout" in output
    assert "--cost" not in output
    assert "Every option in full: " in output


@pytest.mark.parametrize(
    ("text", "first"),
    [("Random seed; the same seed. By default 0.", "Random seed."),
     ("Table model: column to predict.", "Column to predict."),
     ("quick, or a time such as 2m: it ends then.", "quick, or a time such as 2m."),
     ("Dropout rate of 0.5 to 1 (of a block).", "Dropout rate of 0.5 to 1."), ("", "")],
)  # fmt: skip
def test_the_first_sentence_of_an_option(text, first):
    assert first_sentence(text) == first


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_of_help_are_full(name, monkeypatch):
    text = _help(monkeypatch, name).partition("╭")[0]
    lines = [line.strip() for line in text.splitlines()][1:]
    assert lines[0].startswith("Usage: ")
    assert "[[" not in lines[0]
    assert any(lines[1:])
    for line, following in pairwise(lines[1:]):
        if line and following:  # else a paragraph ends here
            assert len(line) + 1 + len(following.split()[0]) > WIDTH - 2


def test_the_first_help_names_every_command_and_a_way_to_begin(monkeypatch):
    output = _help(monkeypatch, short=True)
    assert "To start: kermix fit moons --quick" in output
    for name in COMMANDS:
        assert f"\n│ {name} " in output


def _options(text):
    """The options of each panel of a help."""
    panels, panel = {}, None
    for line in text.splitlines():
        if line.startswith("╭─ "):
            panel = line.strip("╭─╮ ")
        elif found := re.match(r"│\W*(--[\w-]+)", line):
            panels.setdefault(panel, []).append(found[1])
    return panels


def test_the_help_of_fit_shows_what_all_models_have(monkeypatch):
    panels = _options(_help(monkeypatch, "fit"))
    assert list(panels) == ["What", "Model", "Training", "Output", "How tables are read",
                            "Where it runs"]  # fmt: skip
    assert panels["Model"] == ["--model", "--components"]
    assert {"--steps", "--seed", "--quick", "--set"} < set(panels["Training"])


@pytest.mark.parametrize(
    ("model", "shown", "hidden"),
    [("table", "--dropout", "--cost"), ("mixture", "--cost", "--dropout"),
     ("codes", "--spaces", "--refine-with"), ("small-conv", "--kernel-variance", "--spaces")],
)  # fmt: skip
def test_the_help_of_a_model_shows_its_own_settings(model, shown, hidden, monkeypatch):
    for words in (["--model", model], [f"--model={model}"]):
        text = _help(monkeypatch, "fit", *words)
        assert shown in text
        assert hidden not in _options(text)["Model"] + _options(text)["Training"]
    assert "Mixtures:" not in text
    assert "By default 12." in _help(monkeypatch, "fit", "--model", "table")


def test_the_help_of_classify_is_about_images_or_a_target(monkeypatch):
    images = _options(_help(monkeypatch, "classify"))
    target = _options(_help(monkeypatch, "classify", "--target", "y"))
    assert "--patch" in images["Model"]
    assert "--blocks" not in images["Model"]
    assert "--blocks" in target["Model"]
    assert "--patch" not in target["Model"]


@pytest.mark.parametrize("name", ["fit", "classify"])
def test_an_option_for_each_setting_that_is_not_rare(name):
    command = get_command(app).commands[name]
    options = {option for parameter in command.params for option in parameter.opts}
    for part in function_of(name).groups["settings"].parts:
        common = {s.name for s in part.settings if not s.about.rare}
        assert {f"--{setting.replace('_', '-')}" for setting in common} <= options


@pytest.mark.parametrize(
    "name", ["compare", "drift", "evaluate", "explore", "fit", "schema", "sketch", "spectrum"]
)
def test_helps_name_every_format_that_is_read(name, monkeypatch):
    shown = set(re.findall(r"\.[a-z]\w+", _help(monkeypatch, name)))
    assert {*READABLE, *PACKED} <= shown


def test_the_help_of_sample_names_every_format_that_is_written(monkeypatch):
    shown = set(re.findall(r"\.[a-z]\w+(?:\.\w+)?", _help(monkeypatch, "sample")))
    assert {*WRITABLE} <= shown


def test_choices_are_listed_where_one_is_wrong():
    for option, choice in (("--cost", "sinkhorn"), ("--model", "code-mixture"),
                           ("--refine-with", "closed form")):  # fmt: skip
        result = CliRunner().invoke(app, ["fit", option, "quux"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert f"'{choice}'" in result.output
