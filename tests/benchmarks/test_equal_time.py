"""The same CPU time for each loss: rows for all of them, and means that are means."""

import time

import torch

from benchmarks import equal_time


def test_each_loss_has_its_seconds_and_the_same_start(monkeypatch):
    monkeypatch.setattr(equal_time, "N", 50)
    monkeypatch.setattr(equal_time, "DATA", 500)
    monkeypatch.setattr(equal_time, "HELD_OUT", 300)
    monkeypatch.setattr(equal_time, "SAMPLES", 100)
    starts = []

    def first_step(x, y, share):
        if not starts or share < starts[-1][0]:
            starts.append((share, x.clone(), y.detach().clone()))
        return (x.mean(0) - y.mean(0)).square().sum()

    monkeypatch.setattr(equal_time, "_losses", lambda data: {"a": first_step, "b": first_step})
    before = time.process_time()
    rows = equal_time._trained("ring8", 0, 0.1)
    assert 0.2 <= time.process_time() - before < 2
    assert [row["method"] for row in rows] == ["a", "b", "the data themselves"]
    assert all(row["steps"] > 1 for row in rows[:2])
    assert rows[2]["energy_distance"] < 0.2 * rows[0]["energy_distance"]
    assert (rows[2]["modes"], rows[2]["high_quality"] > 0.95) == (8, True)
    for first, second in zip(starts[0][1:], starts[-1][1:], strict=True):
        assert torch.equal(first, second)


def test_means_are_over_seeds():
    rows = [
        {"set": "ring8", "method": "a", "steps": s, "modes": 8, "high_quality": s / 10,
         "energy_distance": 0.5}
        for s in (1, 3)
    ]  # fmt: skip
    (line,) = equal_time._means(rows)
    assert (line["seeds"], line["steps"], line["high_quality"]) == (2, 2, 0.2)
