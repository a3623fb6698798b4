"""Seeded results of every command and function are what they were: tests/golden/golden.json.

To one part in a million; where another machine wrote them to one in a hundred thousand, and in
trainings to a thousandth, or to ten times what rounding on other processors was seen to change of
them; bit for bit with KERMIX_GOLDEN_EXACT=1. After a change that is meant, write them again:
python tests/golden_numbers.py --write.
"""

import copy
import json
import os

import pytest

from golden_numbers import FIXTURE, SECTIONS, compute, differences, kept, machine, tolerance

GOLDEN = json.loads(FIXTURE.read_text())
EXACT = os.environ.get("KERMIX_GOLDEN_EXACT") == "1"


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.filterwarnings("ignore::kermix.errors.PoorFitWarning")  # a few steps
def test_numbers_are_what_they_were(section):
    allowed = 0.0 if EXACT else tolerance(section, GOLDEN)
    differ = differences(compute(section), GOLDEN[section]["numbers"], allowed, section)
    assert not differ, "\n".join([f"{len(differ)} differ by more than rounding:", *differ[:20]])


def test_the_fixture_has_all_sections_and_is_small():
    assert list(GOLDEN) == list(SECTIONS)
    assert FIXTURE.stat().st_size < 500_000


@pytest.mark.parametrize("section", SECTIONS)
def test_a_number_that_is_off_is_seen(section):
    golden = GOLDEN[section]["numbers"]
    assert differences(golden, golden, 0.0) == []
    changed = copy.deepcopy(golden)
    numbers = _places(changed)
    assert len(numbers) > 5
    for holder, key in numbers[:: max(1, len(numbers) // 50)]:
        before = holder[key]
        holder[key] = before * 1.01 + 0.01
        assert differences(changed, golden, 1e-6), f"{key} of {holder}"
        holder[key] = before
    assert differences(changed, golden, 0.0) == []


def test_another_machine_rounds_otherwise_but_not_from_the_first_step():
    changed = {"fit/digits/loss": [[6, 1e-3], [9, 0.5]], "fit/digits/drawn": [[0, 0.01]]}
    golden = {s: {"machine": {}, "rounding": changed} for s in ("fit", "costs")}
    allowed = tolerance("fit", golden)
    assert [allowed(f"fit/digits/loss/{i}") for i in (0, 5, 6, 9)] == [1e-3, 1e-3, 1e-2, 5.0]
    assert allowed("fit/digits/drawn/values/3") == allowed("fit/digits/drawn/sum") == 0.1
    assert allowed("fit/moons/loss/9") == allowed("fit/digits/metric/9") == 1e-3
    assert tolerance("costs", golden)("costs/svd/value") == 1e-5
    here = {"fit": {"machine": machine(), "rounding": changed}}
    assert tolerance("fit", here)("fit/digits/loss/9") == 1e-6


def _places(value):
    """Where numbers are, as (container, key)."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            found += _places(item)
        elif isinstance(item, float):
            found.append((value, key))
    return found


def test_what_is_kept_of_an_array_sees_any_change():
    import torch

    x = torch.arange(30.0, dtype=torch.float64).reshape(5, 6)
    for change in (x + 1e-4, x.float(), x.reshape(6, 5), x[:4], x * (1 + 1e-12)):
        assert differences(kept(change), kept(x), 0.0)
    for place in range(30):
        y = x.clone()
        y.view(-1)[place] += 1e-3
        assert differences(kept(y), kept(x), 1e-6)
        assert not differences(kept(x + 1e-12), kept(x), 1e-6)
    assert kept(float("nan")) == "nan"
    assert differences({"a": None}, {"a": 1.0}, 1.0)
    assert differences({"a": [1]}, {"a": [1, 2]}, 1.0)
    assert differences({"b": 1}, {"a": 1}, 1.0)
