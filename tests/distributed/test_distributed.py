"""One cost over many processes: values and gradients of one process with the whole batch."""

import time

import pytest
import torch

import kermix as km
import rank_checks
from cases import normal
from internals import DistributedLoss, energy_distance, launch
from internals import functions_module as costs
from kermix.errors import OptionError, RankError, SampleError


@pytest.fixture(scope="module", params=[1, 2, 4], ids="{} ranks".format)
def found(request):
    return request.param, launch(
        rank_checks.with_group, rank_checks.everything, devices=request.param
    )


def test_losses_of_all_ranks_are_those_of_one_process(found):
    ranks, answers = found
    errors = answers["gradients"]
    combinations = 6 if ranks == 4 else 6 * len(rank_checks.STRATEGIES)
    assert len(errors) == combinations * len(rank_checks.SPLITS[ranks]) * (5 if ranks == 4 else 8)
    wrong = {name: error for name, error in errors.items() if not error < 1e-6}
    assert not wrong
    assert max(answers["polar"].values()) < 1e-6


def test_mixed_rows_of_all_ranks_are_those_of_one_process(found):
    ranks, answers = found
    assert len(answers["mixed"]) == (6 if ranks == 4 else 6 * len(rank_checks.STRATEGIES))
    assert max(answers["mixed"].values()) < 1e-8, answers["mixed"]


def test_the_mean_over_ranks_is_the_gradient_of_one_process(found):
    _, answers = found
    assert set(answers["parameters"]) == {"gather", "shard"}
    assert max(answers["parameters"].values()) < 1e-6


def test_moments_send_the_same_whatever_the_batch(found):
    ranks, answers = found
    for name, (few, many) in answers["traffic"].items():
        assert (few == 0) == (ranks == 1)
        assert (many == few) == (ranks == 1 or name.endswith("moments")), name


def test_auto_chooses_by_size(found):
    ranks, answers = found
    chosen = answers["auto"]
    assert chosen["few"] == "gather"
    assert chosen["many"] == ("gather" if ranks == 1 else "shard")
    assert chosen["sketch"] == "moments"
    assert chosen["sketch error"] < 1e-12
    assert chosen["bound holds"]


def test_ranks_that_do_not_agree_all_say_so(found):
    ranks, answers = found
    said = answers["errors"]
    assert "x is empty on all ranks" in said["empty"]
    assert "NaN or infinite values on ranks [0]" in said["NaN"]
    if ranks > 1:
        assert "not have the same dimension on all ranks: [2, 3" in said["dimension"]
        assert "not have the same dtype" in said["dtype"]
        assert "weights_x is given on some ranks only" in said["weights"]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("raise", RankError, "Rank 1 failed with ValueError: the seventh seal"),
        ("kermix", SampleError, "Rank 1: x has NaN"),
        ("kill", RankError, "Rank 1 was killed by SIGKILL"),
    ],
)
def test_one_rank_that_fails_ends_all_within_seconds(how, error, text):
    start = time.monotonic()
    with pytest.raises(error, match=text):
        launch(rank_checks.fail_on, 1, how, devices=2)
    # Ten seconds of work were left; a hang would end at the group's timeout of half an hour.
    assert time.monotonic() - start < 60


def test_many_points_take_moments_if_these_are_certified(monkeypatch):
    monkeypatch.setitem(costs.SKETCH_ABOVE, "cpu", 50)
    x, y = normal(90, 2, seed=1), normal(80, 2, seed=2) + 0.2
    value, info = DistributedLoss(km.SVDLoss(1.0))(x, y, return_info=True)
    assert info.strategy == "moments"
    assert info.rank < 80
    exact = km.SVDLoss(1.0, method="svd")(x, y)
    assert abs(float(value - exact)) < 1e-4
    value, info = DistributedLoss(km.SVDLoss(1e-4), rank=16)(x, y, return_info=True)
    assert info.strategy == "shard"
    torch.testing.assert_close(value, km.SVDLoss(1e-4, method="svd")(x, y))


def test_any_module_can_be_gathered_for_but_not_sharded():
    class Distance(torch.nn.Module):
        def forward(self, x, y, weights_x=None, weights_y=None):
            return energy_distance(x, y, weights_y=weights_y)

    x, y = normal(9, 2, seed=1), normal(8, 2, seed=2)
    value, info = DistributedLoss(Distance())(x, y, return_info=True)
    assert info.strategy == "gather"
    assert value == energy_distance(x, y)
    with pytest.raises(OptionError, match="needs a kermix loss"):
        DistributedLoss(Distance(), "shard")


def test_options_that_contradict_each_other():
    x = normal(9, 2, seed=1)
    features = km.nystrom_features(x, 0.5, rank=4)
    sketch = km.Sketch(features).update(x)
    with pytest.raises(OptionError, match="strategy='magic'"):
        DistributedLoss(km.SVDLoss(0.5), "magic")
    with pytest.raises(OptionError, match="needs samples"):
        DistributedLoss(km.SVDLoss(), "shard")(sketch, x)
    with pytest.raises(OptionError, match="omit the loss's v"):
        DistributedLoss(km.SVDLoss(0.5))(sketch, x)
    with pytest.raises(OptionError, match="no variance"):
        DistributedLoss(km.SVDLoss(), "shard")(x, x)
    with pytest.raises(OptionError, match="weights_x is given for a sketch"):
        DistributedLoss(km.SVDLoss())(sketch, x, weights_x=x[:, 0])


def test_numbers_of_ranks_that_cannot_be(monkeypatch):
    with pytest.raises(OptionError, match="devices=0"):
        launch(print, devices=0)
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="MASTER_ADDR, MASTER_PORT, NODE_RANK is not set"):
        launch(print, devices=1, nodes=2)
