"""`python -m benchmarks`: what it lists and what it refuses before hours of work."""

import pytest
from benchmarks.__main__ import app
from benchmarks.catalogue import BENCHMARKS
from typer.testing import CliRunner

from kermix.errors import OptionError


def test_the_list_has_a_line_for_each_name(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(app, []).output.splitlines()
    assert [line.split()[0] for line in lines if line[:1].strip()][:-1] == list(BENCHMARKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["density", "--out", "file"], "file is a file; name a folder"),
        (["--page", "page.md", "--out", "empty"], "empty holds no result files"),
        (["hurry"], "no benchmark 'hurry'; there are svd"),
    ],
)
def test_refusals(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, OptionError)
    assert message in str(error)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file"]
