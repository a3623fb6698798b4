"""What `--help` says: every command explains itself, in lines as long as the terminal allows."""

import re
from itertools import pairwise

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from internals import COMMANDS, PACKED, READABLE, WRITABLE, app, function_of

WIDTH = 80


def _help(monkeypatch, *command):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    return result.output


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
    output = _help(monkeypatch)
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
