"""The rooms of the house: each module at the top has its place in the contract of layers."""

import configparser
from pathlib import Path

import kermix

ROOT = Path(__file__).parents[1]


def test_every_room_has_its_layer():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    rooms = contracts["importlinter:contract:rooms"]
    layers = {name for line in rooms["layers"].split("\n") for name in line.split("|")}
    package = Path(kermix.__file__).parent
    there = {p.stem for p in package.glob("*.py")} | {
        p.parent.name for p in package.glob("*/*.py")
    }
    assert {name.strip() for name in layers} - {""} == there - {"__init__"}
    # Without this a new module would be in no layer, and could import anything.
    assert rooms.getboolean("exhaustive")
