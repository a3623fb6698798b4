"""`kermix fit`, `sample`, `impute`, `score` and `predict` of a table as it comes."""

import csv
import io
import json
import re
import signal

import numpy as np
import pandas as pd
import pytest

from commands import kermix
from internals import closest_distances, load_checkpoint, open_run, schema_of
from kermix.errors import (
    KermixError,
    OptionError,
    RunError,
    SchemaError,
    TableError,
    ZeroDensityWarning,
)
from processes import command

TINY = ["--width", "16", "--blocks", "1", "--steps", "40", "--learning-rate", "0.01"]
QUICK_MIXTURE = ["--steps", "2", "--refine-steps", "2"]


def people(rows=300, seed=0):
    """Ids, a category, whole numbers, fractions, a column with gaps, words like formulas."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["Female", "Male"], rows)
    return pd.DataFrame(
        {
            "id": [f"p{k:04d}" for k in range(rows)],
            "sex": sex,
            "age": rng.integers(18, 90, rows),
            "size": np.round(rng.normal(np.where(sex == "Male", 180, 165), 6), 1),
            "kids": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(0, 4, rows)),
            "plan": rng.choice(["=A1", "+B", "plain"], rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table and a run."""
    place = tmp_path_factory.mktemp("tables")
    people().to_csv(place / "people.csv.gz", index=False)
    people(40, seed=1).to_csv(place / "new.csv", index=False)
    result = kermix("fit", place / "people.csv.gz", *TINY, "--target", "size", "--out",
                    place / "run")  # fmt: skip
    (place / "said.txt").write_text(result.stdout)
    return place


def read(text):
    return list(csv.reader(io.StringIO(text)))


def test_fit_says_why_and_what_came_of_it(folder):
    said = (folder / "said.txt").read_text()
    assert "because id is a key" in said
    assert "Left out as keys: id." in said
    assert "held-out log-density" in said
    assert "report:" in said
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["kind"] == "table"
    assert config["shape"] == [300, 6], "no row is left out for a gap"
    assert (folder / "run" / "samples.csv.gz").exists()


def test_a_table_chooses_its_model(folder, tmp_path):
    result = kermix("fit", folder / "new.csv", "--steps", 2, "--width", 8, "--blocks", 1,
                    "--out", tmp_path / "run")  # fmt: skip
    assert "The table model was chosen because id is a key." in result.stdout
    kermix("fit", folder / "new.csv", "--columns", "size", "--cost", "mmd", *QUICK_MIXTURE,
           "--out", tmp_path / "mixture")  # fmt: skip
    with pytest.raises(RunError, match="this needs a fit of the table model"):
        kermix("impute", tmp_path / "mixture", folder / "new.csv", "-o", tmp_path / "x.csv")


def test_plain_numbers_go_to_a_mixture_and_that_is_said(tmp_path):
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"]).to_csv(
        tmp_path / "t.csv", index=False
    )
    result = kermix("fit", tmp_path / "t.csv", *QUICK_MIXTURE, "--out", tmp_path / "run")
    assert "A mixture was chosen because refine_steps is a setting of it" in result.stdout
    few = pd.read_csv(tmp_path / "t.csv").head(6)
    few.to_csv(tmp_path / "few.csv", index=False)
    result = kermix("fit", tmp_path / "few.csv", "--steps", 4, "--out", tmp_path / "few")
    assert "A mixture was chosen because all columns are plain numbers" in result.stdout
    assert "because all columns are plain numbers" in (tmp_path / "few/report.html").read_text()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config.get("kind") == "fit"


def test_samples_keep_away_from_the_data(folder, tmp_path):
    options = ("sample", folder / "run", "-n", 60, "-o")
    kermix(*options, tmp_path / "away.csv", "--deduplicate", "--min-distance", "0.1")
    run = open_run(folder / "run")
    drawn = schema_of(run).encode(tmp_path / "away.csv", extra=True)
    assert closest_distances(schema_of(run), drawn, run.dataset().encoded).min() >= 0.1 - 1e-4
    with pytest.raises(OptionError, match="min_distance=0"):
        kermix(*options, tmp_path / "none.csv", "--min-distance", "0")
    with pytest.raises(OptionError, match="still nearer than min_distance=40"):
        kermix(*options, tmp_path / "none.csv", "--min-distance", "40")
    assert not (tmp_path / "none.csv").exists()


def test_samples_have_the_form_of_the_input(folder, tmp_path):
    kermix("sample", folder / "run", "-n", 500, "-o", tmp_path / "more", "--seed", 3)
    drawn = pd.read_csv(tmp_path / "more.csv.gz")
    data = people()
    assert list(drawn) == list(data)
    assert len(drawn) == 500
    assert set(drawn["sex"]) <= {"Female", "Male"}
    assert drawn["age"].dtype == np.int64
    assert drawn["age"].between(data["age"].min(), data["age"].max()).all()
    assert abs(drawn["kids"].isna().mean() - 0.2) < 0.12
    kermix("sample", folder / "run", "-n", 20, "-o", tmp_path / "x.parquet")
    assert pd.read_parquet(tmp_path / "x.parquet").shape == (20, 6)


def test_given_values_are_kept_and_formulas_escaped(folder, tmp_path):
    out = tmp_path / "some.csv"
    kermix("sample", folder / "run", "-n", 30, "-o", out, "--given", "sex=Female", "--given",
           "age=40", "--given", "kids=", "--spreadsheet-safe")  # fmt: skip
    drawn = pd.read_csv(out)
    assert set(drawn["sex"]) == {"Female"}
    assert set(drawn["age"]) == {40}
    assert drawn["kids"].isna().all()
    assert not drawn["plan"].str.startswith(("=", "+")).any()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sex", "write COLUMN=VALUE"),
        ("height=3", "there is no column height; there are id, sex"),
        ("sxe=Female", r"there is no column sxe; did you mean sex\?"),
        ("sex=Robot", "sex is never 'Robot' .*; there are Female, Male"),
        ("sex=female", r"did you mean Female"),
        ("age=old", "'old' is not a number"),
        ("age=400", "outside the range"),
        ("age=", "without missing values"),
        ("id=p1", "id is a key, which is not modelled"),
    ],
)
def test_bad_conditions_are_refused(folder, tmp_path, given, expected):
    with pytest.raises(KermixError, match=expected):
        kermix("sample", folder / "run", "-o", tmp_path / "s.csv", "--given", given)
    assert not list(tmp_path.iterdir())


def test_impute_fills_gaps_alone(folder, tmp_path):
    before = pd.read_csv(folder / "new.csv")
    kermix("impute", folder / "run", folder / "new.csv", "-o", tmp_path / "full.csv")
    after = pd.read_csv(tmp_path / "full.csv")
    assert list(after) == list(before)
    assert before["kids"].isna().any()
    assert not after.isna().any().any()
    kept = before.notna()
    assert (after[kept].fillna(0) == before.fillna(0).where(kept, 0)).all().all()
    kermix("impute", folder / "run", folder / "new.csv", "-o", tmp_path / "d.csv", "--draws", 2)
    first, second = (pd.read_csv(tmp_path / f"d-{k}.csv") for k in (1, 2))
    assert not first["kids"].equals(second["kids"])
    assert first["size"].equals(second["size"])


def test_scores_keep_the_order_and_are_sorted_by_rarity(folder, tmp_path):
    plain = kermix("score", folder / "run", folder / "new.csv").stdout.splitlines()
    assert len(plain) == 40
    named = read(kermix("score", folder / "run", folder / "new.csv", "--id", "id").stdout)
    assert named[0] == ["id", "log_density"]
    assert [row[0] for row in named[1:]] == [f"p{k:04d}" for k in range(40)]
    assert [row[1] for row in named[1:]] == plain
    rare = read(kermix("score", folder / "run", folder / "new.csv", "--sort").stdout)[1:]
    values = [float(row[1]) for row in rare]
    assert values == sorted(values)
    lines = (folder / "new.csv").read_text().splitlines()
    first = lines[int(rare[0][0]) - 1].split(",")[0]
    assert first == min(named[1:], key=lambda row: float(row[1]))[0], "rows are lines of the file"
    out = tmp_path / "scores.csv"
    kermix("score", folder / "run", folder / "new.csv", "--id", "id", "-o", out)
    assert pd.read_csv(out)["log_density"].to_numpy() == pytest.approx(
        np.array(plain, float), abs=1e-5
    )


def test_predictions_are_probabilities_or_quantiles(folder, tmp_path):
    table = pd.read_csv(folder / "new.csv").drop(columns=["sex", "size"])
    table.to_csv(tmp_path / "t.csv", index=False)
    rows = read(kermix("predict", folder / "run", tmp_path / "t.csv", "--target", "sex").stdout)
    assert rows[0] == ["row", "sex", "probability", "p(Female)", "p(Male)"]
    for row in rows[1:]:
        assert float(row[3]) + float(row[4]) == pytest.approx(1, abs=1e-5)
        assert row[1] == ("Female" if float(row[3]) >= float(row[4]) else "Male")
    out = tmp_path / "p.csv"
    kermix("predict", folder / "run", tmp_path / "t.csv", "-o", out, "--id", "id")
    found = pd.read_csv(out)
    assert list(found) == [
        "id",
        "size",
        "size mean",
        "size 5%",
        "size 25%",
        "size 50%",
        "size 75%",
        "size 95%",
    ]
    assert (found["size 5%"] < found["size 95%"]).all()
    assert (found["size"] == found["size 50%"]).all()


def test_killed_and_resumed_ends_with_the_same_weights(folder, tmp_path):
    killed, whole = tmp_path / "killed", folder / "run"
    fit = ["fit", folder / "people.csv.gz", *TINY, "--target", "size"]
    with command(*fit, "--out", killed) as process:
        process.wait_for((killed / "checkpoint" / "last.safetensors").exists)
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    _, content = load_checkpoint(killed / "checkpoint" / "last.safetensors")
    assert content["step"] < 40
    assert not (killed / "report.html").exists()
    kermix("resume", killed)
    for name in ("last", "model"):
        first, _ = load_checkpoint(whole / "checkpoint" / f"{name}.safetensors")
        second, _ = load_checkpoint(killed / "checkpoint" / f"{name}.safetensors")
        assert set(first) == set(second)
        assert all(first[k].equal(second[k]) for k in first)
    assert (whole / "metrics.csv").read_text() == (killed / "metrics.csv").read_text()


BAD = {
    "gone": (lambda t: t.drop(columns="age"), SchemaError, "there is no column age"),
    "text": (lambda t: t.assign(age="x"), SchemaError, r"bad\.csv, column age"),
    "id": (lambda t: t.drop(columns="id"), TableError, "has no column id"),
}


@pytest.mark.parametrize("case", BAD)
def test_rows_that_do_not_match_are_named(folder, tmp_path, case):
    change, error, expected = BAD[case]
    change(people(20, seed=2)).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(error, match=expected):
        kermix("score", folder / "run", tmp_path / "bad.csv", "--id", "id")


def test_rows_of_values_never_seen_have_density_zero_and_others_are_scored(folder, tmp_path):
    rows = people(20, seed=2)
    rows.loc[3, "sex"] = "Robot"
    rows.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(ZeroDensityWarning, match=r"1 of 20 rows has .* row 5, column sex: .*Robot"):
        said = kermix("score", folder / "run", tmp_path / "new.csv", "--sort").output
    assert "\n5,-inf\n" in said
    assert "over 19 rows (without 1 row of -inf)" in said


def test_files_are_never_overwritten_and_kinds_are_known(folder, tmp_path):
    (tmp_path / "here.csv").write_text("mine")
    with pytest.raises(RunError, match="will not be overwritten"):
        kermix("impute", folder / "run", folder / "new.csv", "-o", tmp_path / "here.csv")
    with pytest.raises(OptionError, match="must end in one of"):
        kermix("sample", folder / "run", "-o", tmp_path / "s.docx")
    with pytest.raises(OptionError, match="must be at least 1"):
        kermix("impute", folder / "run", folder / "new.csv", "-o", tmp_path / "d", "--draws", 0)
    assert (tmp_path / "here.csv").read_text() == "mine"


def test_options_of_tables_are_refused_elsewhere(folder, tmp_path):
    with pytest.raises(OptionError, match="which moons is not"):
        kermix("fit", "moons", "--columns", "x0", "--out", tmp_path / "run")
    with pytest.raises(OptionError, match="for the table model"):
        kermix("fit", folder / "new.csv", "--model", "mixture", "--target", "size", "--out",
               tmp_path / "run")  # fmt: skip


def test_text_files_keep_their_form(tmp_path):
    """What a German spreadsheet writes comes back as such, and filled cells to the letter."""
    rng = np.random.default_rng(0)
    lines = ["Stadt;PLZ;Preis;Tag"]
    for k in range(120):
        town = ["Köln", '"Aachen; Süd"'][k % 2]
        price = "" if k % 5 == 0 else f"{rng.lognormal(3, 0.5):.2f}0".replace(".", ",")
        lines.append(f"{town};{rng.integers(0, 9):05d};{price};{k % 28 + 1:02d}.03.2024")
    (tmp_path / "t.csv").write_bytes("\r\n".join([*lines, ""]).encode("latin-1"))
    kermix("fit", tmp_path / "t.csv", *TINY, "--out", tmp_path / "run")
    kermix("impute", tmp_path / "run", tmp_path / "t.csv", "-o", tmp_path / "full.csv")
    written = (tmp_path / "full.csv").read_bytes().decode("latin-1").split("\r\n")
    assert len(written) == len(lines) + 1
    for k, (before, after) in enumerate(zip(lines, written[:-1], strict=True)):
        if k % 5 != 1:
            assert after == before
        else:
            old, new = (row.rsplit(";", 2) for row in (before, after))
            assert (new[0], new[2]) == (old[0], old[2])
            assert float(new[1].replace(",", ".")) > 0
            assert "." not in new[1]
    kermix("sample", tmp_path / "run", "-n", 50, "-o", tmp_path / "more.csv")
    for path in (tmp_path / "more.csv", tmp_path / "run" / "samples.csv"):
        drawn = path.read_bytes().decode("latin-1").split("\r\n")
        assert drawn[0] == lines[0]
        assert any("Köln" in row for row in drawn)
        assert all(len(row.split(";")[-3]) == 5 for row in drawn[1:-1]), "zeros are kept"
        prices = [row.split(";")[-2] for row in drawn[1:-1]]
        assert any("," in p for p in prices)
        assert not any("." in p for p in prices)
    kermix("sample", tmp_path / "run", "-n", 5, "-o", tmp_path / "more.tsv")
    assert (tmp_path / "more.tsv").read_text("latin-1").startswith("Stadt\tPLZ\t")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["csv"]  # as in runs of before
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    kermix("sample", tmp_path / "run", "-n", 5, "-o", tmp_path / "old.csv")
    assert (tmp_path / "old.csv").read_text().startswith("Stadt,PLZ,")


def test_one_row_is_one_row(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=60), "k": rng.choice(["x", "y"], 60)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.head(1).to_csv(tmp_path / "one.csv", index=False)
    run = tmp_path / "run"
    kermix("fit", tmp_path / "rows.csv", "--model", "table", "--quick", "--steps", 2, "--out", run)
    for words, told in (
        (("score", run, tmp_path / "one.csv"), "over 1 row"),
        (("sample", run, "-n", 1, "-o", tmp_path / "new.csv"), "1 sample in"),
        (("impute", run, tmp_path / "one.csv", "-o", tmp_path / "full.csv"), "1 row in "),
        (("schema", tmp_path / "one.csv"), "one.csv: 1 row, 2 columns"),
    ):
        shown = " ".join(kermix(*words).output.split())
        assert told in shown, shown
        assert not re.search(r"\b1 (rows|samples|columns|gaps)\b", shown), shown


def test_a_table_of_one_row_is_refused_as_what_it_is(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a,k,when\n0.125,x,2023-01-01\n")
    for options in ((), ("--model", "table")):
        with pytest.raises(TableError, match=r"no column can be modelled.*constants: a, k, when"):
            kermix("fit", path, "--steps", 2, "--out", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()
