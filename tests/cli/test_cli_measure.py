"""The compare and spectrum commands: tables, pure JSON, report pages, one-line errors."""

import json
import math
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from cases import normal
from internals import TITLES, app, main, print_json
from kermix import errors
from kermix.errors import KermixError

FAST = ["--permutations", "9", "--jackknife-groups", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    np.save(path / "a.npy", normal(60, 2, seed=0).numpy())
    np.save(path / "b.npy", normal(50, 2, seed=1).numpy() + 1)
    np.save(path / "line.npy", normal(50, 1, seed=2).numpy())
    header = "u,v,w\n"
    for name, seed in (("a", 3), ("b", 4)):
        rows = "\n".join(",".join(f"{n:.4f}" for n in row) for row in normal(40, 3, seed=seed))
        (path / f"{name}.csv").write_text(header + rows + "\n")
    (path / "other.csv").write_text("u,v\n1,2\n3,4\n")
    np.save(path / "images.npy", np.abs(normal(40, 9, seed=5).numpy()))
    return path


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


MANY = ["--permutations", "39", "--jackknife-groups", "2"]


def test_compare_begins_with_the_answer_and_ends_with_the_place_of_the_report(folder, tmp_path):
    page = tmp_path / "page.html"
    output = invoke("compare", folder / "a.npy", folder / "b.npy", *MANY, "--report", page)
    assert output.startswith("They differ (p = 0.025): a classifier tells their rows apart with")
    assert "SVD cost" not in output
    assert output.strip().splitlines()[-1].startswith("Report: ")
    text = page.read_text()
    assert text.index("They differ") < text.index("Columns, the most different first")
    assert text.count("<svg") == 1 + 2 + 1 + 1  # AUC, columns, the pair, scores
    assert "Typical of a.npy" in text
    assert "<img" not in text
    assert not list(tmp_path.glob("*.part"))


def test_details_are_printed_and_folded_on_the_page(folder, tmp_path):
    page = tmp_path / "page.html"
    output = invoke("compare", folder / "a.npy", folder / "b.npy", *MANY, "--report", page,
                    "--details")  # fmt: skip
    assert output.index("They differ") < output.index("SVD cost")
    text = page.read_text()
    folded = text.partition("<details>")[2]
    assert folded.count("<svg") == 3
    for name in ("normalized cost", "The samples, without", "Witness of the SVD cost"):
        assert name in folded


def test_the_status_says_whether_they_differ(folder):
    a, b = str(folder / "a.npy"), str(folder / "b.npy")
    for other, level, status in ((b, "0.05", 3), (b, "0.01", 1), (a, "0.05", 0)):
        result = CliRunner().invoke(
            app, ["compare", a, other, *MANY, "--fail-if-different", "--level", level]
        )
        assert result.exit_code == status, (other, level, result.output)
        if status == 1:  # no verdict is no pass
            assert "99 or more are needed" in str(result.exception)
    result = CliRunner().invoke(app, ["compare", a, b, *MANY])
    assert result.exit_code == 0


def test_json_has_the_verdict_first(folder):
    content = json.loads(invoke("compare", folder / "a.npy", folder / "b.npy", *MANY, "--json"))
    assert next(iter(content)) == "verdict"
    verdict = content["verdict"]
    assert verdict["different"] is True
    assert verdict["sentence"].startswith("They differ")
    assert 0.5 < verdict["interval"][0] < verdict["effect"] < verdict["interval"][1] < 1
    assert {c["column"] for c in verdict["columns"]} == {"x0", "x1"}
    assert all(c["short"] == "higher" for c in verdict["columns"])
    assert "measures" not in content


def test_compare_on_a_line_with_one_variance(folder, tmp_path):
    page = tmp_path / "page.html"
    invoke("compare", folder / "line.npy", folder / "line.npy", "-v", "0.1", *FAST,
           "--report", page, "--details")  # fmt: skip
    assert page.read_text().partition("<details>")[2].count("<svg") == 2


def test_json_is_pure(folder, tmp_path):
    output = invoke("compare", folder / "a.npy", folder / "b.npy", "-v", "0.1,1", *FAST, "--json",
                    "--details")  # fmt: skip
    content = json.loads(output)
    assert content["variances"] == [0.1, 1.0]
    page = tmp_path / "page.html"
    output = invoke("spectrum", folder / "a.npy", "--json", "--report", page)
    assert len(json.loads(output)["singular_values"]) == 6
    assert page.is_file()


def test_json_has_null_for_what_is_no_number(folder, capsys):
    none = ["--permutations", "0", "--jackknife-groups", "0"]
    content = json.loads(invoke("compare", folder / "a.csv", folder / "b.csv", *none, "--json"))
    assert {m["pvalue"] for m in content["measures"]} == {None}
    words = invoke("compare", folder / "a.csv", folder / "b.csv", *none).split()
    assert not {"nan", "+-", "p"} & set(words)  # columns without numbers are not shown
    print_json({"a": [math.inf, 1.0], "b": (math.nan, "nan")})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.0], "b": [None, "nan"]}


@pytest.mark.parametrize("files", [("a.npy",), ("a.npy", "b.npy"), ("line.npy",), ("a.csv",)])
def test_spectrum_writes_a_page(files, folder, tmp_path):
    page = tmp_path / "page.html"
    output = invoke("spectrum", *(folder / f for f in files), "-k", "3", "--report", page)
    assert output.strip().splitlines()[-1].startswith("Report: ")
    assert page.read_text().count("<svg") == 1 + 2 * 3 * len(files)  # two forms of three functions


def test_spectrum_of_images_shows_images(folder, tmp_path):
    page = tmp_path / "page.html"
    invoke("spectrum", folder / "images.npy", "-k", "2", "--images", "--report", page)
    text = page.read_text()
    assert "mean image" in text
    assert text.count("Mean image of function") == 2 * 2  # a title and a label each


def test_tables_break_no_word_in_80_columns(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = "temperature,pressure_in_pascal,altitude_above_ground"
    for name in ("a", "b"):
        rows = (folder / f"{name}.csv").read_text().partition("\n")[2]
        (tmp_path / f"{name}.csv").write_text(f"{names}\n{rows}")
    output = invoke("compare", tmp_path / "a.csv", tmp_path / "b.csv", "--permutations", "200",
                    "--details")  # fmt: skip
    words = output.split()
    for word in (*names.split(","), *TITLES["cauchy_schwarz"].split(), "variance", "distance"):
        assert word in words
    numbers = [line.split()[-6:] for line in output.splitlines() if line.startswith("SVD cost")]
    assert len(numbers) == 4
    assert all(float(number) > 0 for line in numbers for number in line)


def test_a_set_is_at_distance_zero_of_itself(folder):
    output = invoke("compare", folder / "a.csv", folder / "a.csv", *FAST, "--details")
    line = next(line for line in output.splitlines() if line.startswith("energy distance"))
    assert line.split()[2] == "0"
    assert "-0" not in output.split()


def test_pages_are_never_replaced(folder, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("mine")
    a, b = folder / "a.npy", folder / "b.npy"
    for command in (("compare", a, b), ("compare", tmp_path), ("spectrum", a)):
        for place, message in ((page, "will not be overwritten"), (tmp_path, "is a folder"),
                               (page / "x.html", "cannot be written"),
                               (tmp_path / "page.csv", "must end in .html")):  # fmt: skip
            result = CliRunner().invoke(app, [*map(str, command), "--report", str(place)])
            assert isinstance(result.exception, KermixError)
            assert message in str(result.exception)
    assert page.read_text() == "mine"
    monkeypatch.chdir(tmp_path)
    for name in ("spectrum.html", "spectrum-2.html"):
        output = invoke("spectrum", folder / "a.npy", "-k", "1")
        assert output.strip().splitlines()[-1] == f"Report: {name}"
        assert (tmp_path / name).is_file()
    invoke("spectrum", folder / "a.npy", "-k", "1", "--report", "new/folder/page.html")
    assert (tmp_path / "new" / "folder" / "page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "a.csv", "other.csv", "--strict"), "only a.csv has w"),
        (("compare", "a.npy", "missing.npy"), "no such file"),
        (
            ("compare", "a.npy", "b.npy", "--jackknife-groups", "1"),
            "2 or more, or 0 for no error bars",
        ),
        (
            ("compare", "a.npy", "b.npy", "--jackknife-groups", "-1"),
            "2 or more, or 0 for no error bars",
        ),
        (("compare", "a.npy", "b.npy", "--permutations", "-1"), "or 0 for no p-values"),
        (("compare", "a.npy", "b.npy", "--columns", " ,"), "name at least one column"),
        (("spectrum", "a.npy", "--max-points", "0"), "--max-points 0: must be at least 1"),
        (("spectrum", "a.npy", "line.npy"), "2 columns of numbers and line.npy has 1"),
    ],
)
def test_errors_are_one_line(arguments, message, folder, monkeypatch, capsys):
    words = [str(folder / a) if a.endswith(("npy", "csv")) else a for a in arguments]
    monkeypatch.setattr(sys, "argv", ["kermix", *words])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "command", [("compare", "one.npy", "one.npy", "--details"), ("spectrum", "one.npy")]
)
def test_warnings_are_notes(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", np.ones((5, 2)))
    monkeypatch.setattr(sys, "argv", ["kermix", *command, "--report", "page.html"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("note: All ")
    assert "Warning" not in said  # nor any of Matplotlib's about an empty range
    assert ".py" not in said


def test_the_page_is_there_before_the_answer_is_printed(folder, tmp_path, monkeypatch):
    """Whoever reads the first lines alone closes the output."""

    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr("internals.options_module.print_json", closed)
    found = CliRunner().invoke(
        app, ["compare", str(folder / "a.npy"), str(folder / "a.npy"), "--json", "--report",
              str(tmp_path / "early.html"), "--permutations", "19", "--jackknife-groups", "0"],
    )  # fmt: skip
    assert isinstance(found.exception, BrokenPipeError)
    assert (tmp_path / "early.html").is_file()


@pytest.mark.parametrize("name", ["DegenerateDataWarning", "InconsistentGivenWarning"])
def test_our_warnings_name_no_line_of_code(name, monkeypatch, capsys):
    """Seen before: given cells that break a relation were told with a path and a line."""
    category = getattr(errors, name)
    monkeypatch.setattr("kermix.cli.app.app", lambda: warnings.warn("Look.", category, 2))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main()
    assert capsys.readouterr().err.strip() == "note: Look."
