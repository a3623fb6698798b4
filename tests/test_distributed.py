"""One cost over many processes: values and gradients of one process with the whole batch."""

import time

import pytest

import rank_checks
from kermix.distributed import launch
from kermix.errors import OptionError, RankError, SampleError


@pytest.fixture(scope="module", params=[1, 2, 4], ids="{} ranks".format)
def found(request):
    return request.param, launch(
        rank_checks.with_group, rank_checks.everything, devices=request.param
    )


def test_losses_of_all_ranks_are_those_of_one_process(found):
    ranks, answers = found
    errors = answers["gradients"]
    combinations = 6 * len(rank_checks.STRATEGIES)
    assert len(errors) == combinations * len(rank_checks.SPLITS[ranks]) * (5 if ranks == 4 else 8)
    wrong = {name: error for name, error in errors.items() if not error < 1e-6}
    assert not wrong
    assert max(answers["polar"].values()) < 1e-6


def test_the_mean_over_ranks_is_the_gradient_of_one_process(found):
    _, answers = found
    assert set(answers["parameters"]) == {"gather", "shard"}
    assert max(answers["parameters"].values()) < 1e-6


def test_batch_norm_over_ranks_is_that_of_the_whole_batch(found):
    _, answers = found
    assert len(answers["batch norm"]) == 6
    assert max(answers["batch norm"].values()) < 1e-12


def test_what_is_sent_is_what_was_planned(found):
    ranks, answers = found
    for name, (counted, planned) in answers["traffic"].items():
        assert counted == planned, name
        assert (counted == 0) == (ranks == 1)


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
        assert "not the same dimension on all ranks: [2, 3" in said["dimension"]
        assert "not the same dtype" in said["dtype"]
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


def test_numbers_of_ranks_that_cannot_be(monkeypatch):
    with pytest.raises(OptionError, match="devices=0"):
        launch(print, devices=0)
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="MASTER_ADDR, MASTER_PORT, NODE_RANK is not set"):
        launch(print, devices=1, nodes=2)
