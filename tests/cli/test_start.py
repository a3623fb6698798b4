"""The command line answers at once: what needs no numbers does not import PyTorch."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from internals import COMMANDS, app
from kermix.errors import MissingExtraError

# A program that ends once PyTorch has been imported, and else prints how each command ended.
PROGRAM = """
import contextlib, io, json, sys
from kermix.cli import main
ends = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
    heavy = {"torch", "numpy", "pandas", "pyarrow"} & set(sys.modules)
    if heavy:
        sys.exit(f"{arguments}: {heavy} imported")
    ends.append((status, told.getvalue()))
print(json.dumps(ends))
"""
WRONG = [
    (["fit", "--stpes", "3"], "No such option"),
    (["compare", "a.csv", "b.csv"], "a.csv: there is no such file"),
    (["drift", "a.parquet", "--by", "month"], "a.parquet: there is no such file"),
    (["fit", "orders.csv"], "orders.csv: there is no such file"),
    (["sketch", "a.csv.gz", "-o", "a.sketch"], "a.csv.gz: there is no such file"),
    (["spectrum", "a.npy"], "a.npy: there is no such file"),
    (["schema", "a.xlsx"], "a.xlsx: there is no such file"),
    (["sample", "runs/none", "-o", "b.csv"], "runs/none: there is no such folder"),
    (["score", "runs/none", "a.csv"], "runs/none: there is no such folder"),
    (["impute", "runs/none", "a.csv", "-o", "b.csv"], "runs/none: there is no such folder"),
    (["predict", "runs/none", "a.csv"], "runs/none: there is no such folder"),
    (["resume", "runs/none"], "runs/none: there is no such folder"),
    (["explore", "a.csv"], "a.csv: there is no such file"),
    (["explore", "runs/none"], "runs/none: there is no such run folder or table"),
]


def ends_of(commands, folder):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=folder, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return json.loads(found.stdout)


def test_help_needs_no_torch(tmp_path):
    ends = ends_of([["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], tmp_path)
    assert [status for status, _ in ends] == [0] * (2 + len(COMMANDS))
    assert all(name in ends[0][1] for name in COMMANDS)


def test_what_is_wrong_at_first_sight_needs_no_torch(tmp_path):
    ends = ends_of([arguments for arguments, _ in WRONG], tmp_path)
    for (status, said), (arguments, told) in zip(ends, WRONG, strict=True):
        assert status == 2, arguments
        assert told in " ".join(said.split()), arguments


def test_all_that_is_missing_is_named_before_the_work(monkeypatch, tmp_path):
    for name in ("lightning", "sklearn", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    table = tmp_path / "a.csv"
    table.write_text("a,b\n1,2\n")
    for command in (["fit", str(table)], ["classify"], ["reproduce"]):
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, MissingExtraError)
        assert str(error) == (
            f"kermix {command[0]} needs matplotlib, lightning, scikit-learn: "
            "pip install 'kermix[cli]'."
        )
    assert CliRunner().invoke(app, ["schema", str(table)]).exit_code == 0
    assert list(tmp_path.iterdir()) == [table]


def test_importing_the_package_imports_nothing_else():
    script = "import sys, kermix; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
