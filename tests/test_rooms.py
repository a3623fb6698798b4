"""The rooms of the house: each has its layer in the contract."""

import configparser
from pathlib import Path

import kermix

ROOT = Path(__file__).parents[1]


def test_every_room_has_its_layer():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    contract = contracts["importlinter:contract:layers"]
    layers = {name for line in contract["layers"].split("\n") for name in line.split("|")}
    package = Path(kermix.__file__).parent
    there = {p.stem for p in package.glob("*.py")} | {
        p.parent.name for p in package.glob("*/*.py")
    }
    assert {name.strip() for name in layers} - {""} == there - {"__init__"}
    # Without this a new module would be in no layer, and could import anything.
    assert contract.getboolean("exhaustive")
