"""The drift monitor: run lengths, alarms, what is saved, and monitors that are merged."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.drift_monitor import first_alarms

import kermix as km
from internals import Memories, _mean_run_length, _threshold
from internals import run_length_combined as combined
from kermix.errors import OptionError, RunError, SampleError, SchemaError, ShapeError


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A calibrated monitor of three columns, which tests load."""
    monitor = km.DriftMonitor(normal(600, 3), expected_run_length=20, batch_size=15)
    assert monitor.threshold > 0
    return monitor.save(tmp_path_factory.mktemp("monitor") / "quiet.monitor")


@pytest.fixture(scope="module")
def table():
    generator = np.random.default_rng(0)
    return pd.DataFrame({
        "size": generator.lognormal(size=500), "shop": generator.choice(["a", "b", "c"], 500),
        "count": generator.poisson(1.0, 500), "same": 1.0,
    })  # fmt: skip


@pytest.fixture(scope="module")
def of_table(table, tmp_path_factory):
    monitor = km.DriftMonitor(table, expected_run_length=20, batch_size=25)
    monitor.update(table.iloc[:25])
    monitor.reset()
    return monitor.save(tmp_path_factory.mktemp("monitor") / "table.monitor")


@pytest.mark.parametrize("steps", [200, 60, 25])
def test_the_threshold_of_independent_batches_is_a_quantile(steps):
    # An alarm at each step with probability 1 - h: the mean run length is 1 / (1 - h). Streams
    # that are cut go on at their rate.
    numbers = torch.rand(steps, 4000, generator=torch.Generator().manual_seed(1))
    threshold, found = _threshold(numbers.cummax(0).values, 20.0)
    assert threshold == pytest.approx(0.95, abs=0.003)
    assert found == pytest.approx(20, rel=0.01)
    assert _mean_run_length(numbers.cummax(0).values, 0.9) == pytest.approx(10, rel=0.06)


def test_sums_forget_and_have_the_covariance_of_one_row():
    rows, sizes = 40, (3, 5, 2)
    batches = [normal(2, seed=k) for k in range(3)]
    state = Memories.empty((1, 4), (2,), rows)
    for batch, size in zip(batches, sizes, strict=True):
        state.add(batch, size)
    for place, keep in enumerate((0.0, 0.75)):
        weights = [keep**2, keep, 1.0]
        total = sum(w * b for w, b in zip(weights, batches, strict=True))
        variance = sum(w * w * n for w, n in zip(weights, sizes, strict=True))
        variance += sum(w * n for w, n in zip(weights, sizes, strict=True)) ** 2 / rows
        assert torch.allclose(state.differences()[place], total / math.sqrt(variance))


def test_the_combined_statistic_is_ruled_by_its_largest_score():
    scores = torch.zeros(2, 5)
    assert float(combined(scores, 3)) == pytest.approx(0, abs=1e-6)
    for place in ((0, 0), (1, 4)):
        one = scores.clone()
        one[place] = 6.0
        share = 0.5 / (6 if place[1] < 3 else 4)
        assert float(combined(one, 3)) == pytest.approx(math.log(share * math.exp(18) + 1), 1e-3)


def test_run_lengths_without_drift_are_as_asked():
    lengths = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)

        def draw(start, steps, count, generator=generator):
            return torch.randn(count * steps * 10, 2, generator=generator).exp().double()

        reference = torch.randn(500, 2, generator=generator).exp()
        monitor = km.DriftMonitor(reference, expected_run_length=20, batch_size=10, seed=seed)
        found = first_alarms(monitor, draw, 100, 1000)
        assert (found > 0).all()
        lengths += found.tolist()
    assert 16 < np.mean(lengths) < 25


def test_many_streams_at_once_are_as_one(saved):
    monitor = km.DriftMonitor.load(saved)
    rows = normal(3, 60, 15, 3, seed=3) + 0.3

    def draw(start, steps, count):
        assert count == 3 or start > 0
        return rows[:, start : start + steps].flatten(0, 2)

    found = first_alarms(monitor, draw, 3, 32)
    for stream, at in zip(rows, found.tolist(), strict=True):
        monitor.reset()
        alarms = [monitor.update(batch).alarm for batch in stream[:32]]
        assert alarms.index(True) + 1 == at


def test_a_shift_and_a_spread_are_found_and_named(saved):
    monitor = km.DriftMonitor.load(saved)
    for k in range(6):
        rows = normal(15, 3, seed=10 + k)
        if k > 1:
            rows[:, 1] += 1.5
        last = monitor.update(rows)
    assert last.alarm
    assert last.batch == 6
    assert last.statistic > last.threshold == monitor.threshold
    first = monitor.first_alarm
    assert first.batch in (3, 4)
    assert first.began == 3
    assert first.columns[0].column == "x1"
    assert first.columns[0].pvalue < 0.01
    assert first.columns[0].short == "higher"
    assert monitor.report().startswith(f"Alarm at batch {first.batch}")
    assert "x1 (higher: median" in monitor.report()
    monitor.reset()
    assert monitor.report() == (
        "No alarm in 0 batches of 0 rows; one false alarm in 20 batches is expected."
    )
    for k in range(12):
        monitor.update(normal(15, 3, seed=30 + k) * torch.tensor([1.0, 1.0, 2.5]))
    assert monitor.first_alarm.columns[0].column == "x2"


def test_columns_together_are_seen_though_none_moves(saved):
    monitor = km.DriftMonitor.load(saved)
    for k in range(15):
        rows = normal(15, 3, seed=50 + k)
        rows[:, 2] = rows[:, 0]
        last = monitor.update(rows)
    assert last.alarm


def test_a_monitor_resumes_exactly(saved, tmp_path):
    one, batches = km.DriftMonitor.load(saved), normal(12, 15, 3, seed=4) + 0.2
    for batch in batches[:5]:
        one.update(batch)
    other = km.DriftMonitor.load(one.save(tmp_path / "half.monitor"))
    assert other.batches == 5
    for batch in batches[5:]:
        assert one.update(batch) == other.update(batch)
    assert one.first_alarm is not None
    again = km.DriftMonitor.load(one.save(tmp_path / "end.monitor"))
    assert again.report() == one.report()
    assert again.first_alarm == one.first_alarm


def test_a_monitor_is_the_same_whether_it_was_saved_before_it_was_calibrated(tmp_path):
    monitor = km.DriftMonitor(normal(300, 1), expected_run_length=10)
    with pytest.raises(OptionError, match="batch_size"):
        _ = monitor.threshold
    other = km.DriftMonitor.load(monitor.save(tmp_path / "new.monitor"))
    batch = normal(12, 1, seed=1)
    assert monitor.update(batch) == other.update(batch)
    assert other.batch_size == 12


def test_merged_monitors_are_one_that_has_seen_all_rows(saved):
    a, b, both = (km.DriftMonitor.load(saved) for _ in range(3))
    for k in range(8):
        rows = normal(15, 3, seed=60 + k) + 0.6
        a.update(rows[:6])
        b.update(rows[6:])
        last = both.update(rows)
    merged = a + b
    assert merged.batches == 8
    assert merged.first_alarm.batch == both.first_alarm.batch
    assert merged.first_alarm.statistic == pytest.approx(both.first_alarm.statistic, rel=1e-12)
    more = normal(15, 3, seed=99)
    assert merged.update(more).statistic == pytest.approx(both.update(more).statistic, rel=1e-12)
    assert last.rows == 15
    assert a.batches == 8
    with pytest.raises(OptionError, match="8 batches and the other 9"):
        a.merge(both)
    with pytest.raises(OptionError, match="different references"):
        a.merge(km.DriftMonitor(normal(600, 3, seed=1), expected_run_length=20, batch_size=15))


def quiet(table, seed):
    return table.sample(25, random_state=seed, replace=True)


def test_tables_with_categories_are_watched(of_table, table, tmp_path):
    monitor = km.DriftMonitor.load(of_table)
    assert monitor.columns == ("size", "shop", "count")
    for seed in range(8):
        monitor.update(quiet(table, seed).assign(shop="a"))
    assert monitor.first_alarm.columns[0].column == "shop"
    assert monitor.first_alarm.columns[0].short == "no more c and b"
    monitor.reset()
    path = tmp_path / "batch.csv"
    quiet(table, 1).to_csv(path, index=False)
    from_file = monitor.update(path)
    monitor.reset()
    assert monitor.update(quiet(table, 1)).statistic == pytest.approx(from_file.statistic)


@pytest.mark.parametrize(
    ("column", "value"), [("shop", "new"), ("size", np.nan), ("shop", None), ("count", 50)]
)
def test_what_the_reference_never_had_is_seen(of_table, table, column, value):
    monitor = km.DriftMonitor.load(of_table)
    for seed in range(6):
        found = monitor.update(quiet(table, seed).assign(**{column: value}))
    assert found.alarm
    assert found.columns[0].column == column


def test_a_constant_that_changes_is_seen():
    rows = torch.cat([normal(200, 1), torch.ones(200, 1).double()], 1)
    monitor = km.DriftMonitor(rows, expected_run_length=10, batch_size=10)
    batch = rows[rows[:, 0].argsort()[10::20]].clone()
    assert not monitor.update(batch).alarm
    batch[:, 1] = 2
    found = monitor.update(batch)
    assert found.alarm
    assert found.columns[0].column == "x1"


def test_large_references_are_drawn_down_and_it_is_said():
    monitor = km.DriftMonitor(normal(20_001, 1), expected_run_length=10)
    assert monitor.notes == ("20,000 of 20,001 rows of the reference are kept, drawn at random.",)


def test_bad_input_is_refused_by_name(saved, of_table, table, tmp_path):
    with pytest.raises(OptionError, match="expected_run_length=1"):
        km.DriftMonitor(normal(100, 1), expected_run_length=1)
    with pytest.raises(SampleError, match="has 9 rows"):
        km.DriftMonitor(normal(9, 1))
    monitor = km.DriftMonitor.load(saved)
    with pytest.raises(ShapeError, match="2 columns, but the reference has 3"):
        monitor.update(normal(15, 2))
    with pytest.raises(SampleError, match="NaN"):
        monitor.update(normal(15, 3) * math.nan)
    with pytest.raises(SampleError, match="both as arrays"):
        monitor.update(table)
    with pytest.raises(SampleError):
        monitor.update(normal(0, 3))
    assert monitor.batches == 0
    with pytest.raises(SchemaError, match="no column shop"):
        km.DriftMonitor.load(of_table).update(table.drop(columns="shop"))
    broken = tmp_path / "broken.monitor"
    broken.write_bytes(saved.read_bytes()[:2000])
    with pytest.raises(RunError, match="damaged"):
        km.DriftMonitor.load(broken)
    np.savez(tmp_path / "other.npz", header=np.array("{}"))
    with pytest.raises(RunError, match="not a drift monitor"):
        km.DriftMonitor.load(tmp_path / "other.npz")
    with pytest.raises(RunError, match="no such file"):
        km.DriftMonitor.load(tmp_path / "none")


def test_batches_that_are_smaller_than_the_threshold_is_for_are_said():
    rows = normal(400, 2)
    monitor = km.DriftMonitor(rows, expected_run_length=20, batch_size=20)
    monitor.update(rows[:5])
    assert "5 rows on average" in monitor.report()
    assert "Give batch_size=5" in monitor.report()
    monitor.reset()
    monitor.update(rows[:18])
    assert "batch_size" not in monitor.report()
