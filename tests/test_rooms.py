"""The rooms of the house: each has its layer in the contract, and its row in the changelog."""

import configparser
from pathlib import Path

import pytest
from scripts import rooms

import kermix

ROOT = Path(__file__).parents[1]


def test_every_room_has_its_layer():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    contract = contracts["importlinter:contract:rooms"]
    layers = {name for line in contract["layers"].split("\n") for name in line.split("|")}
    package = Path(kermix.__file__).parent
    there = {p.stem for p in package.glob("*.py")} | {
        p.parent.name for p in package.glob("*/*.py")
    }
    assert {name.strip() for name in layers} - {""} == there - {"__init__"}
    # Without this a new module would be in no layer, and could import anything.
    assert contract.getboolean("exhaustive")


def test_the_table_of_rooms_is_near_the_tree():
    """Within three percent: it need not be written for each commit."""
    page, sizes = rooms.PAGE.read_text(), rooms.counted()
    shown = {
        row[0]: [int(c.replace(",", "")) for c in row[-2:]] for row in rooms.table_of(page)[2:]
    }
    assert set(shown) == set(sizes)
    for name in (rooms.WHEEL, *rooms.BESIDE):
        assert shown[name] == pytest.approx(sizes[name], rel=0.03), "run: python scripts/rooms.py"
    assert (
        sum(lines for name, (_, lines) in shown.items() if name[0] == "`") == shown[rooms.WHEEL][1]
    )


def test_the_table_keeps_what_it_says_of_earlier_commits():
    page = rooms.PAGE.read_text()
    sizes = rooms.counted() | {"`new`": rooms.Size(2, 1300)}
    before, after = rooms.table_of(page), rooms.table_of(rooms.written(page, sizes))
    assert ["`new`", *["-"] * 4, "2", "1,300"] in after
    assert [row[:5] for row in after if row[0] != "`new`"] == [row[:5] for row in before]
