"""Levels in small, and that the judgement of levels can fail.

Each cell has few repetitions with fixed seeds. A test of level 0.05 rejects more than `most` times
with a probability below one in 10,000; what these cells were chosen for rejected half of the time
or always.
"""

import json
import math
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from benchmarks.__main__ import MOST_COLUMNS
from benchmarks.catalogue import BENCHMARKS, run_benchmark
from benchmarks.levels import Part, Tally, judged, measured, parts_of, tables, worked
from benchmarks.levels_cells import CELLS, QUICK, Cell
from benchmarks.levels_data import GROUPINGS, SOURCES, WEIGHTINGS, draw
from benchmarks.levels_questions import compared, sketches, two_samples
from benchmarks.quality import begun_record
from benchmarks.verdict_levels import CELLS as VERDICT_CELLS

import kermix as km
from benchmarks import levels
from processes import PRELOADED

MEANS = two_samples(0.5, costs=("vector", "scalar", "mmd"))


@pytest.mark.parametrize(
    ("cell", "repetitions", "most"),
    [
        (Cell("compare", (6000, 1500), 20, (compared(),), permutations=19), 2, 1),
        (Cell("switch", (300, 1001), 3, (compared(0.5),), permutations=19), 4, 2),
        (Cell("constant", (40, 30), 2, (two_samples(1.0),), "constant"), 5, 0),
        (Cell("outlier", (30, 25), 3, (compared(1.0),), "normal, one row at 1e10"), 20, 6),
        (Cell("weights", (60, 80), 2, (MEANS,), weights="of the row's values"), 30, 8),
        (Cell("one-sided", (20, 200), 2, (MEANS,), weights="of one side only"), 60, 11),
        (Cell("groups", (10, 12), 2, (MEANS,), groups="of 5"), 30, 8),
        (Cell("own landmarks", (3000, 30), 10, (sketches("y", 0.5),)), 15, 6),
        (Cell("other landmarks", (400, 300), 2, (sketches("third", 0.5),)), 15, 6),
    ],
    ids=lambda value: value.name if isinstance(value, Cell) else "",
)
def test_levels(cell, repetitions, most):
    tallies, done, _ = measured(Part(cell, 0, 1, repetitions, math.inf))
    assert done == repetitions
    for name, tally in tallies.items():
        assert not tally.errors, f"{name}: {tally.errors[0]}"
        assert tally.rejected <= most, f"{name}: {tally.rejected} of {tally.given}"


def test_a_wrong_level_is_found():
    """Of fake tests, the one with level 0.15 is judged too high, the one with 0.01 low."""

    def fake(data, permutations, seed):
        uniform = torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
        return {"right": uniform, "high": uniform / 3, "low": min(1.0, 5 * uniform)}

    cell = Cell("fake", (2, 2), 1, (fake,), budget=5.0)
    result = list(worked([cell], processes=1))[-1][0]
    found = {name: judged(tally) for name, tally in result.tallies.items()}
    assert found == {"right": "right", "high": "too high", "low": "low"}
    assert judged(result.tallies["low"], "ties") == "low, allowed"
    wrong = tables([result])["wrong"]
    assert {row["statistic"] for row in wrong} == {"high", "low"}
    shown = [name for name in result.row() if not name.startswith("raw")]
    assert len(shown) <= MOST_COLUMNS, "more columns are shown on their side: one for each cell"
    assert result.row()["judged"] == "too high"


@pytest.mark.parametrize(
    ("rejected", "given", "judgement"),
    [(70, 1000, "right"), (71, 1000, "too high"), (30, 1000, "right"), (29, 1000, "low"),
     (0, 170, "right"), (0, 180, "low"), (3, 20, "right"), (4, 20, "too high"),
     (1, 1, "too few"), (3, 3, "too high"), (0, 0, "refused")],
)  # fmt: skip
def test_judgement_at_three_standard_errors(rejected, given, judgement):
    assert judged(Tally(rejected, given)) == judgement


def test_answers_that_are_no_pvalues():
    tally = Tally()
    for answer in (None, 0.05, float(torch.tensor(0.05)), 0.06, 1.0):
        tally.add(answer)
    assert (tally.rejected, tally.given, tally.refused, judged(tally)) == (2, 4, 1, "too few")
    for answer in (float("nan"), 0.0, 1.5, "ValueError: no"):
        tally.add(answer)
    assert len(tally.errors) == 4
    assert judged(tally) == "error"


def test_a_rate_in_doubt_is_measured_again():
    """With other data; one that is far off is not."""
    asked = []

    def fake(data, permutations, seed):
        asked.append(seed)
        first = seed < levels.FRESH
        return {"doubtful": 0.01 if first and seed % 100 < 9 else 0.5}

    cell = Cell("fake", (2, 2), 1, (fake,), repetitions=500, budget=5.0)
    result = list(worked([cell], processes=1))[-1][0]
    assert (result.repetitions, len(set(asked)), result.rounds) == (1000, 1000, 2)
    assert judged(result.tallies["doubtful"]) == "right"

    clear = Cell("clear", (2, 2), 1, (lambda *_: {"all": 0.01},), repetitions=500, budget=5.0)
    assert list(worked([clear], processes=1))[-1][0].repetitions == 500


def test_a_run_is_continued_with_other_data(tmp_path):
    asked = []

    def fake(data, permutations, seed):
        asked.append(seed)
        return {"one": 0.01 if seed % 20 == 0 else 0.5, "refusing": None}

    cell = Cell("fake", (2, 2), 1, (fake,), repetitions=100, budget=5.0)
    first = list(worked([cell], processes=1))[-1]
    path = tmp_path / "levels.json"
    record = {"commit": "a", "tables": tables(first), "machine": {}, "command": "levels.py"}
    path.write_text(json.dumps(record))
    none = tmp_path / "none.json"
    assert begun_record(path, "b") == begun_record(none, "a") == {}
    assert begun_record(none, "b", path)["begun"] == {
        "commit": "a", "machine": {}, "command": "levels.py"
    }  # fmt: skip
    assert begun_record(path, "a", none) == record
    begun = begun_record(path, "a")["tables"]["cells"]
    (result,) = list(worked([replace(cell, repetitions=180)], 1, begun))[-1]
    assert (result.repetitions, len(set(asked)), len(asked)) == (180, 180, 180)
    tally = result.tallies["one"]
    assert (tally.given, result.tallies["refusing"].refused) == (180, 180)
    assert tally.rejected == sum(seed % 20 == 0 for seed in asked)
    assert list(worked([cell], 1, begun)) == []  # nothing is left to do


def test_measures_without_a_test_have_the_pvalues_of_one():
    """Which is why the benchmark leaves them out."""
    x, y = torch.randn(2, 40, 2, generator=torch.Generator().manual_seed(0))
    found = km.compare(x, y, permutations=19, jackknife_groups=0)
    assert {m.name for m in found.measures} - set(found.tests) == {"bures", "cauchy_schwarz"}
    for variance in found.variances:
        for name, same in (("bures", "svd"), ("cauchy_schwarz", "scalar")):
            assert found.measure(name, variance).pvalue == found.measure(same, variance).pvalue


def test_parts_are_the_whole_and_end_with_their_seconds():
    cell = Cell("fake", (2, 2), 1, (lambda *_: {"all": 0.5},), repetitions=101, budget=200.0)
    parts = parts_of(cell)
    assert len(parts) == 3
    assert sorted(r for p in parts for r in range(p.first, p.stop, p.step)) == list(range(101))
    assert measured(parts[0]._replace(seconds=0.0))[1] == 1


def test_the_file_is_written_as_results_come(tmp_path, monkeypatch):
    """By another process; a run that is cut keeps what it has."""
    server = get_context("forkserver")  # whose copies need not read torch
    server.set_forkserver_preload(PRELOADED)
    monkeypatch.setattr(levels.multiprocessing, "get_context", lambda method: server)
    cells = [replace(c, repetitions=1) for c in CELLS if c.name == "4 v 4 groups"]
    steps = worked(cells, processes=2)

    def cut(quick):
        for results in steps:
            yield tables(results)
            raise KeyboardInterrupt

    monkeypatch.setattr(levels, "run", cut)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark("levels", tmp_path)
    record = json.loads(next(tmp_path.glob("levels-*.json")).read_text())
    assert record["benchmark"] == "levels"
    assert record["tables"]["cells"][0]["repetitions"] == 1


def test_cells_cover_what_they_should():
    assert "levels" in BENCHMARKS
    assert len({cell.name for cell in CELLS}) == len(CELLS) >= 40
    assert set(QUICK) <= {cell.name for cell in CELLS}
    assert {cell.source for cell in (*CELLS, *VERDICT_CELLS)} == set(SOURCES)
    assert {cell.weights for cell in CELLS} == {"", *WEIGHTINGS}
    assert {cell.groups for cell in CELLS} == {"", *GROUPINGS}


@pytest.mark.parametrize("source", SOURCES)
def test_sides_are_exchangeable_by_construction(source):
    """Rows of the two sides have equal laws: here, equal shares above the pooled median."""
    generator = torch.Generator().manual_seed(0)
    d = 6 if source == "four numbers and two codes" else 2
    data = draw(source, (4000, 1000), d, generator)
    assert (data.x.shape, data.y.shape, data.more(3).shape) == ((4000, d), (1000, d), (3, d))
    median = torch.cat([data.x, data.y])[:, 0].median()
    shares = [(side[:, 0] > median).double().mean() for side in (data.x, data.y)]
    assert abs(shares[0] - shares[1]) < 4 * 0.5 * (1 / 4000 + 1 / 1000) ** 0.5


def test_what_belongs_to_rows_goes_with_them():
    generator = torch.Generator().manual_seed(0)
    data = draw("normal", (6, 4), 2, generator, weights="of the row's values", in_order=True)
    assert torch.equal(data.weights[0], data.x[:, 0].exp())
    assert (data.x[1:, 0] >= data.x[:-1, 0]).all()
    grouped = draw("normal", (6, 4), 2, generator, groups="of 1 to 9")
    assert [len(side.unique()) for side in grouped.groups] == [6, 4]
    assert [len(side) for side in grouped.groups] == [len(grouped.x), len(grouped.y)]
