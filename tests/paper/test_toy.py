"""Figure 1 in its authors' setting: their data, cells in files, claims over seeds."""

import copy
import json

import numpy as np
import pytest
import torch

from internals import toy_module as toy
from kermix.errors import RunError

SMALL = toy.ToyTraining(seeds=2, steps=2, batch_size=16, width=8, samples=100, compared=60)


def test_data_are_those_of_the_authors():
    """The generator of their notebook, in NumPy: the order of the draws is part of the data."""
    rng = np.random.default_rng(42)
    weights = rng.dirichlet(np.ones(10))
    means = rng.uniform(-5.0, 5.0, size=(10, 2))
    variances = rng.uniform(0.05, 1.0, size=10)
    component = rng.choice(10, size=20_000, p=weights)
    rows = np.empty((20_000, 2))
    for k in range(10):
        chosen = np.where(component == k)[0]
        rows[chosen] = rng.multivariate_normal(
            mean=means[k], cov=variances[k] * np.eye(2), size=chosen.size
        )
    rows = rows - rows.min()
    largest = rows.max()
    data, mixture = toy.authors_mixture(42, 20_000)
    np.testing.assert_array_equal(data.numpy(), rows / largest)
    np.testing.assert_allclose(mixture.covariances.numpy(), variances / largest**2)
    np.testing.assert_allclose(mixture.weights.numpy(), weights)
    # The rows are samples of the mixture that is judged by.
    assert float((data.mean(0) - mixture.mean).abs().max()) < 0.01
    assert float((data.var(0) - mixture.variance).abs().max()) < 0.005


def test_true_samples_are_as_good_as_data():
    _, mixture = toy.authors_mixture(42, 1000)
    generator = torch.Generator().manual_seed(0)
    held_out, other = (mixture.sample((4000,), generator=generator) for _ in range(2))
    found = toy._measured(other, held_out, mixture)
    assert found["share of modes"] == 1
    assert found["good samples"] > 0.98
    assert found["error of mode shares"] < 0.04
    blob = toy._measured(torch.full_like(other, 0.5), held_out, mixture)
    assert blob["share of modes"] < 0.5
    assert blob["nll"] > found["nll"] + 1


def test_cells_are_kept_and_taken(tmp_path, capsys, monkeypatch):
    made = toy.run(cells=tmp_path, training=SMALL, device="cpu")
    assert len(list(tmp_path.iterdir())) == 2 * len(toy.COSTS)
    monkeypatch.setattr(toy, "train_cell", None)  # nothing is trained again
    again = toy.run(cells=tmp_path, training=SMALL)
    assert again.tables == made.tables
    with pytest.raises(RunError, match="remove it"):
        toy.run(cells=tmp_path, training=toy.ToyTraining.quick())
    (tmp_path / "toy-svd-42.json").write_text("{}")
    with pytest.raises(RunError, match="not a cell"):
        toy.run(cells=tmp_path, training=SMALL)


def test_the_command_trains_what_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(toy.ToyTraining, "quick", lambda: SMALL)
    arguments = ["--cells", str(tmp_path), "--cost", "svd", "--seeds", "42", "--device", "cpu"]
    arguments += ["--quick"]
    toy.main(arguments)
    assert "toy-svd-42.json" in capsys.readouterr().out
    assert json.loads((tmp_path / "toy-svd-42.json").read_text())["numbers"]["nll"]
    toy.main(arguments)
    assert not capsys.readouterr().out


NUMBERS = {
    cost: {
        "share of modes": 1.0, "nll": 0.1 + 0.1 * i, "good samples": 0.95 - 0.01 * i,
        "error of mode shares": 0.05 + 0.01 * i, "energy distance": 0.01 + 0.01 * i,
    }
    for i, cost in enumerate(toy.COSTS)
}  # fmt: skip
OF_DATA = {"nll": 0.0, "good samples": 0.99, "error of mode shares": 0.01, "energy distance": 0.0}


def rows_of(numbers, data=OF_DATA, seeds=5):
    return [
        {"cost": cost, "seed": seed, **own, **{f"{key} of data": v for key, v in data.items()}}
        for cost, own in numbers.items()
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("cost", "key", "value", "failing"),
    [
        ("vector", "share of modes", 0.8, [0]),
        ("scalar", "nll", 0.05, [1, 5]),
        ("matrix", "good samples", 0.97, [2]),
        ("vector", "error of mode shares", 0.01, [3]),
        ("scalar", "energy distance", 0.005, [4]),
        ("matrix", "nll", 0.45, [5]),
    ],
)
def test_claims_can_fail(cost, key, value, failing):
    assert all(claim.holds for claim in toy.claims(rows_of(NUMBERS)))
    changed = copy.deepcopy(NUMBERS)
    changed[cost][key] = value
    found = toy.claims(rows_of(changed))
    assert [i for i, claim in enumerate(found) if not claim.holds] == failing


def test_measures_by_which_real_data_lose_are_not_counted():
    found = toy.claims(rows_of(NUMBERS, {**OF_DATA, "good samples": 0.9}))
    assert [claim.state for claim in found] == ["judged"] * 2 + ["not counted"] + ["judged"] * 3
    assert found[2].verdict == "Not counted"


def test_collapsed_costs_are_not_compared_with():
    changed = copy.deepcopy(NUMBERS)
    changed["vector"] |= {"share of modes": 0.2, "good samples": 0.985}
    found = toy.claims(rows_of(changed))
    assert found[2].holds
    assert "vector collapsed" in found[2].why
    assert (found[5].state, found[5].why) == ("not counted", "vector collapsed")
    changed["svd"]["share of modes"] = 0.2
    assert toy.claims(rows_of(changed))[1].state == "not counted"


def test_one_seed_decides_nothing():
    assert {claim.state for claim in toy.claims(rows_of(NUMBERS, seeds=1))} == {"tie"}
