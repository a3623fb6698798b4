"""Every command that reads a table has the options of reading, and follows them."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.main import get_command

import kermix as km
from commands import kermix
from internals import COMMANDS, Reading, app, open_files, plain, read_frame, split_names
from kermix.errors import KermixError, OptionError, TableError

READ_TABLES = {
    "classify", "compare", "drift", "evaluate", "explore", "fit", "impute", "predict", "schema",
    "score", "sketch", "spectrum",
}  # fmt: skip
OPTIONS = {
    "--columns",
    "--exclude",
    "--kind",
    "--delimiter",
    "--decimal",
    "--encoding",
    "--header",
    "--missing",
    "--sheet",
}
# Nothing in it is as one would guess it.
ODD = {"sep": ":", "decimal": ",", "encoding": "cp1252", "header": False}
SAID = ["--delimiter", ":", "--decimal", ",", "--encoding", "cp1252", "--no-header"]
TINY = ["--width", "16", "--blocks", "1", "--steps", "4"]


def table(seed=0, n=80):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "x0": rng.normal(size=n).round(2),
        "x1": rng.choice(["5 €", "7 €", "Ä"], n),
        "x2": rng.integers(0, 90, n),
    })  # fmt: skip


@pytest.fixture
def odd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        table(seed).to_csv(f"{seed}.csv", index=False, **ODD)
        table(seed).to_parquet(f"{seed}.parquet")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_read_tables_have_all_options(name):
    command = get_command(app).commands[name]
    given = {option for parameter in command.params for option in parameter.opts}
    assert given >= OPTIONS or not OPTIONS & given
    assert (name in READ_TABLES) == (given >= OPTIONS)


def test_what_is_said_is_followed_by_schema_compare_and_spectrum(odd):
    schema = json.loads(kermix("schema", "0.csv", "--json", *SAID).stdout)
    assert [c["name"] for c in schema["columns"]] == ["x0", "x1", "x2"]
    assert schema["columns"][1]["values"] == ["5 €", "7 €", "Ä"]
    few = ["--permutations", 0, "--jackknife-groups", 0, "--json"]
    found = json.loads(kermix("compare", "0.csv", "1.csv", *SAID, *few).stdout)
    wanted = json.loads(kermix("compare", "0.parquet", "1.parquet", *few).stdout)
    assert found["rows"] == [80, 80]
    assert [m["value"] for m in found["measures"]] == pytest.approx(
        [m["value"] for m in wanted["measures"]]
    )
    page = ["--report", "s.html", "--json", "-k", 2]
    spectrum = json.loads(kermix("spectrum", "0.csv", *SAID, *page).stdout)
    (odd / "s.html").unlink()
    wanted = json.loads(kermix("spectrum", "0.parquet", *page).stdout)
    assert spectrum["singular_values"] == pytest.approx(wanted["singular_values"])


def test_what_is_said_is_followed_beside_an_array(odd):
    """An array is read another way than tables, and so was what it is compared with."""
    rng = np.random.default_rng(0)
    np.save("a.npy", rng.normal(size=(50, 2)))
    pd.DataFrame(rng.normal(size=(50, 2)).round(3)).to_csv("b.csv", index=False, **ODD)
    few = ["--permutations", 0, "--jackknife-groups", 0, "--json"]
    found = json.loads(kermix("compare", "a.npy", "b.csv", *SAID, *few).stdout)
    assert found["rows"] == [50, 50]
    assert found["columns"] == ["x0", "x1"]


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_sketch_follows_what_is_said(odd, packed):
    name = f"0.csv{packed}"
    content = (odd / "0.csv").read_bytes()
    with pa.output_stream(name, compression="detect") as stream:
        stream.write(content)
    kermix("sketch", "0.parquet", "-o", "a.sketch", "--rank", 20)
    kermix("sketch", name, "-o", "b.sketch", "--landmarks-from", "a.sketch", *SAID)
    first, second = (km.Sketch.load(f"{n}.sketch") for n in "ab")
    assert first.sums.first.tolist() == pytest.approx(second.sums.first.tolist())
    result = kermix("sketch", name, "-o", "c.sketch", *SAID, "--exclude", "x0", "--kind",
                    "x2=number", "--rank", 5)  # fmt: skip
    assert "x1, x2" in result.stdout
    with pytest.raises(OptionError, match="come from the sketch"):
        kermix("sketch", name, "-o", "d.sketch", "--landmarks-from", "a.sketch", "--exclude", "x0")


def test_sketch_says_what_it_found(odd):
    pd.DataFrame({"id": [f"k{i}" for i in range(80)], "ort": table()["x1"], "x": table()["x0"]}
                 ).to_csv("t.csv.gz", index=False, sep=";", decimal=",", encoding="latin-1",
                          errors="replace")  # fmt: skip
    shown = " ".join(kermix("sketch", "t.csv.gz", "-o", "t.sketch", "--rank", 5).stdout.split())
    assert "decimal comma" in shown
    assert "read as Latin-1" in shown
    assert "Left out as keys: id." in shown
    assert "non-numeric" not in shown
    assert "columns ort, x; 0 rows" in shown


def test_options_of_reading_are_refused_where_nothing_is_read(odd):
    kermix("sketch", "0.parquet", "-o", "a.sketch", "--rank", 5)
    kermix("sketch", "1.parquet", "-o", "b.sketch", "--landmarks-from", "a.sketch")
    kermix("compare", "a.sketch", "b.sketch")
    with pytest.raises(OptionError, match="exclude: only for tables"):
        kermix("compare", "a.sketch", "b.sketch", "--exclude", "x0")
    with pytest.raises(OptionError, match="decimal: these options are for tables"):
        kermix("compare", ".", "--decimal", ",")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of the table model, and one of a mixture."""
    place = tmp_path_factory.mktemp("runs")
    table().to_csv(place / "0.csv", index=False, **ODD)
    kermix("fit", place / "0.csv", *SAID, *TINY, "--target", "x1", "--out", place / "table")
    kermix("fit", place / "0.csv", *SAID, "--columns", "x0,x2", "--cost", "mmd", "--steps", 2,
           "--refine-steps", 2, "--out", place / "mixture")  # fmt: skip
    return place


def lines(result):
    return [row.split(",") for row in result.stdout.splitlines()]


def test_a_run_reads_as_it_was_fitted_unless_something_else_is_said(runs, tmp_path):
    again = kermix("score", runs / "table", runs / "0.csv").stdout
    plain_table = tmp_path / "t.csv"
    table().to_csv(plain_table, index=False)
    plainly = ["--delimiter", ",", "--decimal", ".", "--encoding", "utf-8", "--header"]
    assert kermix("score", runs / "table", plain_table, *plainly).stdout == again
    predicted = kermix("predict", runs / "table", plain_table, *plainly, "--exclude", "x0")
    assert len(lines(predicted)) == 81
    assert predicted.stdout != kermix("predict", runs / "table", plain_table, *plainly).stdout
    kermix("impute", runs / "table", plain_table, *plainly, "-o", tmp_path / "full.csv")
    assert len(pd.read_csv(tmp_path / "full.csv")) == 80
    with pytest.raises(KermixError, match="x1"):
        kermix("score", runs / "table", plain_table, *plainly, "--exclude", "x1")
    with pytest.raises(OptionError, match=r"x1=number: in the run .* it is a category"):
        kermix("score", runs / "table", plain_table, *plainly, "--kind", "x1=number")


def test_a_mixture_scores_a_table_by_the_names_of_its_columns(runs, tmp_path):
    """Other columns, their order, and how the file is written do not matter; rows have names."""
    plainly = table()[["x0", "x2"]]
    plainly.to_csv(tmp_path / "plain.csv", index=False)
    wanted = [float(row[0]) for row in lines(kermix("score", runs / "mixture",
                                                    tmp_path / "plain.csv"))]  # fmt: skip
    more = table()[["x1", "x2", "x0"]].assign(id=[f"row {k}" for k in range(80)], extra=1.5)
    more.to_csv(tmp_path / "more.csv", index=False, sep=";", decimal=",")
    found = lines(kermix("score", runs / "mixture", tmp_path / "more.csv", "--id", "id"))
    assert found[0] == ["id", "log_density"]
    assert [row[0] for row in found[1:]] == more["id"].tolist()
    assert [float(row[1]) for row in found[1:]] == pytest.approx(wanted)
    rare = lines(kermix("score", runs / "mixture", tmp_path / "more.csv", "--sort"))[1:]
    assert [float(row[1]) for row in rare] == sorted(wanted)
    out = tmp_path / "scores.parquet"
    kermix("score", runs / "mixture", tmp_path / "more.csv", "--id", "id", "-o", out)
    assert pd.read_parquet(out)["log_density"].tolist() == pytest.approx(wanted, abs=1e-5)
    plainly.loc[3, "x0"] = np.nan
    plainly.to_csv(tmp_path / "gap.csv", index=False)
    with pytest.raises(TableError, match=r"1 of 80 rows have missing values"):
        kermix("score", runs / "mixture", tmp_path / "gap.csv")
    for options in (["--id", "x0"], ["--decimal", ","]):
        with pytest.raises(OptionError, match="for tables with columns"):
            kermix("score", runs / "mixture", "moons", *options)
    with pytest.raises(OptionError, match="--orders"):
        kermix("score", runs / "mixture", tmp_path / "plain.csv", "--orders", 2)


HOSTILE = [
    "=cmd|' /C calc'!A0",
    "[/]",
    "[bold red]x[/]",
    "a,b",
    "\x1b[2J\x1b]0;mine\x07",
    "💥",
    "; rm -rf ~",
]


def test_hostile_names_neither_steer_the_terminal_nor_break_the_command(tmp_path):
    rng = np.random.default_rng(0)
    pd.DataFrame({n: rng.choice(["u", "[/]", "\x1b[31m"], 60) for n in HOSTILE}).to_csv(
        tmp_path / "t.csv", index=False
    )
    for command in (["schema", "t.csv"], ["compare", "t.csv", "t.csv", "--permutations", 19,
                                          "--jackknife-groups", 0],
                    ["sketch", "t.csv", "-o", tmp_path / "t.sketch", "--rank", 5]):  # fmt: skip
        words = [tmp_path / w if w == "t.csv" else w for w in command]
        shown = kermix(*words).stdout
        assert "\x1b" not in shown
        assert "[bold red]x[/]" in " ".join(shown.split()) or "sketch" in command
    with pytest.raises(TableError, match="no column") as caught:
        kermix("schema", tmp_path / "t.csv", "--columns", '"a,b",[/],\x1b[2J')
    assert "a,b" not in str(caught.value).partition("; it has")[0]
    kept = json.loads(
        kermix("schema", tmp_path / "t.csv", "--columns", '"a,b",[/]', "--json").stdout
    )
    assert [c["name"] for c in kept["columns"]] == ["a,b", "[/]"]


def test_text_is_made_plain():
    assert plain("a\x1b[2Jb\x9b\r\tc\nd") == "a\\x1b[2Jb\\x9b\\x0d\tc\nd"
    assert split_names('a, "b,c" ,d') == ["a", "b,c", "d"]
    assert plain("Ä € 💥") == "Ä € 💥"


def test_a_name_with_a_star_is_several_files(odd):
    whole = pd.concat([table(k) for k in (2, 3)])
    for k in (2, 3):
        table(k).to_parquet(f"part-{k}.parquet")
    whole.to_parquet("whole.parquet")
    few = ["--permutations", 0, "--jackknife-groups", 0, "--json"]
    found = json.loads(kermix("compare", "part-*.parquet", "0.parquet", *few).stdout)
    wanted = json.loads(kermix("compare", "whole.parquet", "0.parquet", *few).stdout)
    assert found["rows"] == [160, 80]
    assert found["measures"] == wanted["measures"]
    kermix("fit", "part-*.parquet", *TINY, "--out", "run")
    assert json.loads((odd / "run" / "config.json").read_text())["shape"] == [160, 3]
    kermix("sample", "run", "-n", 5, "-o", "more")
    assert len(pd.read_parquet("more.parquet")) == 5
    assert len(kermix("score", "run", "part-*.parquet").stdout.splitlines()) == 160
    kermix("fit", "part-*.parquet", "--columns", "x0", "--cost", "mmd", "--steps", 2,
           "--refine-steps", 2, "--out", "rows")  # fmt: skip
    assert json.loads((odd / "rows" / "config.json").read_text())["shape"] == [160, 1]
    with pytest.raises(TableError, match="no file matches this name"):
        kermix("schema", "none-*.parquet")


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl", ".xlsx", ".feather"])
def test_cells_that_are_called_missing_are_so_in_every_kind_of_file(ending, tmp_path):
    cells = [f"{k}.5" if k % 5 else "unknown" for k in range(60)]
    table = pd.DataFrame({"price": cells, "code": [k % 7 - 999 * (k % 3 == 0) for k in range(60)]})
    path = tmp_path / f"t{ending}"
    write = {".csv": table.to_csv, ".xlsx": table.to_excel, ".parquet": table.to_parquet,
             ".feather": table.to_feather}.get(ending)  # fmt: skip
    if write is None:
        table.to_json(path, orient="records", lines=True)
    else:
        write(path, **({"index": False} if ending in (".csv", ".xlsx") else {}))
    shown = kermix("schema", path, "--missing", "unknown", "--missing", "-999").output
    rows = {line.split()[0]: line for line in shown.splitlines() if line.split()}
    assert "20 %" in rows["price"]
    reading = Reading(missing=("unknown",))
    whole, _ = read_frame(path, reading)
    parts = [t for part in open_files([str(path)], typed=True, reading=reading).parts
             for t, _ in part.tables()]  # fmt: skip
    assert pa.concat_tables(parts).column("price").null_count == 12
    assert whole.columns["price"].null_count == 12


def test_a_sheet_is_named_or_the_largest(tmp_path):
    path = tmp_path / "book.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"small": [1, 2]}).to_excel(book, sheet_name="first", index=False)
        pd.DataFrame({"large": range(30)}).to_excel(book, sheet_name="second", index=False)
    shown = kermix("schema", path).output
    assert "large" in shown
    assert "'second' is read, which has most cells" in " ".join(shown.split())
    assert "small" in kermix("schema", path, "--sheet", "first").output
    with pytest.raises(TableError, match="has no sheet 'third'; it has first, second"):
        read_frame(path, Reading(sheet="third"))
