"""`kermix impute`: what is filled, what stays and why, and what is not touched at all."""

import gzip
import re

import numpy as np
import pytest

from commands import kermix
from kermix.errors import OptionError

TINY = ["--width", "8", "--blocks", "1", "--steps", "2"]
NAMES = ["name", "year", "status", "category", "wind", "ocean", "remark", "void"]
GAPS = ("", "NA", '""')  # as people write them


def messy(rows=500, seed=0):
    """Lines of storms, written as no program would write them again; categories of hurricanes."""
    rng = np.random.default_rng(seed)
    lines = []
    for k in range(rows):
        hurricane = rng.random() < 0.25
        wind = 5 * int(rng.integers(13, 31) if hurricane else rng.integers(2, 13))
        gap = GAPS[k % 3]
        cells = {
            "name": ['"Ana"', "Bob", '"Cleo, II"', '"Do""ra"'][rng.integers(4)],
            "year": f"{rng.integers(1975, 2022)}",
            "status": "hurricane" if hurricane else rng.choice(["storm", '"other low"', "wave"]),
            "category": f"{min(5, max(1, (wind - 50) // 15))}" if hurricane else gap,
            "wind": f"{wind}.0" if rng.random() < 0.9 else gap,
            "ocean": "Atlantic",
            "remark": gap if k % 2 else f'"seen {k} times,\nby ship"',
            "void": "",
        }
        if hurricane and rng.random() < 0.15:
            cells["category"] = gap
        lines.append(",".join(cells.values()))
    return lines


def cells_of(line):
    """The cells of a line as they are written."""
    return re.findall(r'(?:^|,)("(?:[^"]|"")*"|[^,]*)', line)


def write(path, lines, end="\n"):
    text = end.join([",".join(NAMES), *lines])
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("storms")
    write(place / "storms.csv", messy())
    kermix("fit", place / "storms.csv", *TINY, "--kind", "remark=text", "--out", place / "run")
    return place


def said(result):
    """What is told to people, as one line each."""
    return [line for line in result.stderr.splitlines() if "%" not in line]


def counts(lines):
    rows = [dict(zip(NAMES, cells_of(line), strict=True)) for line in lines]
    none = sum(r["category"] in GAPS and r["status"] != "hurricane" for r in rows)
    asked = sum(r["category"] in GAPS and r["status"] == "hurricane" for r in rows)
    return rows, none, asked, sum(r["wind"] in GAPS for r in rows)


def test_storms_that_are_no_hurricanes_get_no_category(folder, tmp_path):
    lines = messy(200, seed=1)
    path = write(tmp_path / "new.csv", lines, "\r\n")
    result = kermix("impute", folder / "run", path, "-o", tmp_path / "full.csv")
    rows, none, asked, wind = counts(lines)
    assert none > 100
    assert said(result) == [
        f"Filled {asked + wind} gaps; left {none + 100 + 200} empty: category is empty unless "
        f"status is hurricane ({none}); remark is free text (100); void is empty in all rows that "
        "the model was fitted to (200). To fill category too, use --fill-all.",
        f"200 rows in {tmp_path / 'full.csv'}",
    ]
    written = (tmp_path / "full.csv").read_bytes().decode().split("\r\n")
    assert len(written) == 201, "and nothing after the last row, as before"
    for row, before, after in zip(rows, lines, written[1:], strict=True):
        new = dict(zip(NAMES, cells_of(after), strict=True))
        filled = {"wind"} if row["wind"] in GAPS else set()
        if row["status"] == "hurricane" and row["category"] in GAPS:
            filled.add("category")
        assert {n for n in NAMES if new[n] != row[n]} == filled
        assert not any(new[n] in GAPS for n in filled)
        assert filled or after == before


def test_a_file_without_gaps_to_fill_is_the_same_to_the_last_byte(folder, tmp_path):
    lines = [line for line in messy(60, seed=2) if cells_of(line)[2] != "hurricane"]
    lines = [line for line in lines if cells_of(line)[4] not in GAPS]
    for name in ("new.csv", "new.csv.gz"):
        path = write(tmp_path / name, [*lines[:5], "", *lines[5:]])
        result = kermix("impute", folder / "run", path, "-o", tmp_path / f"full-{name}")
        assert said(result)[0].startswith("Filled 0 gaps; left ")
        before, after = ((tmp_path / n).read_bytes() for n in (name, f"full-{name}"))
        if name.endswith(".gz"):
            before, after = gzip.decompress(before), gzip.decompress(after)
        assert after == before


def test_a_table_is_not_written_to_standard_output(folder):
    with pytest.raises(OptionError, match="-o -: a table is written to a file"):
        kermix("sample", folder / "run", "-o", "-")


def test_options_fill_some_columns_or_all_cells(folder, tmp_path):
    lines = messy(150, seed=3)
    path = write(tmp_path / "new.csv", lines)
    _, none, asked, wind = counts(lines)
    run = folder / "run"
    result = kermix("impute", run, path, "-o", tmp_path / "1.csv", "--columns", "category, wind")
    assert said(result)[0] == (
        f"Filled {asked + wind} gaps; left {none} empty: category is empty unless status is "
        "hurricane. To fill category too, use --fill-all."
    )
    result = kermix("impute", run, path, "-o", tmp_path / "2.csv", "--columns", "wind")
    assert said(result)[0] == f"Filled {wind} gaps."
    result = kermix("impute", run, path, "-o", tmp_path / "3.csv", "--fill-all", "--columns",
                    "category")  # fmt: skip
    assert said(result)[0] == f"Filled {asked + none} gaps."
    result = kermix("impute", run, path, "-o", tmp_path / "4.csv", "--columns", "category",
                    "--draws", 2)  # fmt: skip
    assert said(result)[0].startswith(f"Filled {asked} gaps; left {none} empty: category is")
    for name, told in (("remark", "is free text"), ("void", "was always empty"),
                       ("size", "is not a column")):  # fmt: skip
        with pytest.raises(OptionError, match=f"columns: {name} {told}.*year, status, category"):
            kermix("impute", run, path, "-o", tmp_path / "5.csv", "--columns", name)
    assert not (tmp_path / "5.csv").exists()


def test_gaps_of_constants_are_filled_or_it_is_said_why_not(folder, tmp_path):
    whole = messy(40, seed=4)
    lines = [*whole[:3], whole[3].replace("Atlantic", "NA"), *whole[4:]]
    options = ["--columns", "ocean"]
    path = write(tmp_path / "new.csv", lines)
    result = kermix("impute", folder / "run", path, "-o", tmp_path / "1.csv", *options)
    assert said(result)[0] == "Filled 1 gap."
    assert (tmp_path / "1.csv").read_bytes() == write(tmp_path / "w.csv", whole).read_bytes()
    path = write(tmp_path / "other.csv", [line.replace("Atlantic", "Pacific") for line in lines])
    result = kermix("impute", folder / "run", path, "-o", tmp_path / "2.csv", *options)
    assert said(result)[0] == (
        "Filled 0 gaps; left 1 empty: ocean is always 'Atlantic' in the rows that the model was "
        "fitted to, but not here."
    )
    assert (tmp_path / "2.csv").read_bytes() == path.read_bytes()


def test_another_kind_of_file_has_empty_cells_where_they_were(folder, tmp_path):
    lines = [line for line in messy(60, seed=5) if "ship" not in line]
    path = write(tmp_path / "new.csv", lines)
    kermix("impute", folder / "run", path, "-o", tmp_path / "full.tsv")
    written = (tmp_path / "full.tsv").read_text()
    assert written.startswith("\t".join(NAMES))
    assert not re.search(r'(?m)(^|\t)""(\t|$)', written)
    assert all(line.endswith("\t") for line in written.splitlines()[1:])
