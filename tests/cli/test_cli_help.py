"""What `--help` says: every command explains itself, in lines as long as the terminal allows."""

from itertools import pairwise

import pytest
from typer.testing import CliRunner

from internals import COMMANDS, app

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
