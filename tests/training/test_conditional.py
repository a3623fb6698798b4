"""Conditional mixtures: consistency of the loss, a learned relation, errors."""

import math

import pytest
import torch

from internals import (
    ConditionalTask,
    FitSettings,
    Trainer,
    fit_conditional,
    load_checkpoint,
    load_conditional,
    spherical_loss,
)
from kermix import GaussianMixture
from kermix.errors import OptionError, RunError, ShapeError


def two_branches(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    c = torch.rand(n, 1, generator=generator)
    side = 2.0 * torch.randint(2, (n, 1), generator=generator) - 1
    noise = 0.1 * torch.randn(n, 1, generator=generator)
    return 100 * c, 5 + side * (1 + c) + noise


def small(**options):
    given = {
        "components": 4,
        "width": 32,
        "steps": 60,
        "refine_steps": 300,
        "refine_batch_size": 256,
    }
    return FitSettings(model="conditional", **{**given, **options})


def test_spherical_loss_is_least_at_the_density_itself():
    points = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)).double()

    def loss(mean, variance):
        shape = (len(points), 1)
        q = GaussianMixture(
            torch.ones(shape).double(),
            torch.full((*shape, 1), mean).double(),
            torch.full(shape, variance).double(),
        )
        return float(spherical_loss(q, points))

    assert loss(0.0, 1.0) < min(loss(0.1, 1.0), loss(0.0, 0.85), loss(0.0, 1.18))


@pytest.mark.parametrize("options", [{}, {"refine_with": "likelihood"}, {"cost": "likelihood"}])
def test_both_branches_are_found(options):
    model = fit_conditional(*two_branches(4000), **small(**options).as_json(), device="cpu")
    c, x = two_branches(2000, seed=1)
    entropy = math.log(2) + 0.5 * math.log(2 * math.pi * math.e * 0.1**2)
    with torch.no_grad():
        gap = -float(model(c).log_prob(x.double()).mean()) - entropy
    assert gap < 0.3


def test_same_seed_same_network():
    data = two_branches(200)
    first, second, other = (
        fit_conditional(*data, **small(steps=5, refine_steps=5, seed=s).as_json(), device="cpu")
        for s in (1, 1, 2)
    )
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert a.equal(b)
    assert not all(a.equal(b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_errors():
    c, x = two_branches(10)
    with pytest.raises(ShapeError, match="context has 10 rows but target has 9"):
        fit_conditional(c, x[:9])
    with pytest.raises(OptionError, match="nothing to train"):
        FitSettings(model="conditional", steps=0, refine_steps=0)


@pytest.mark.parametrize(
    ("cost", "stop"), [("svd", 5), ("svd", 8), ("svd", 11), ("likelihood", 8)]
)
def test_a_stopped_fit_ends_with_the_same_weights(tmp_path, stop, cost):
    settings, path = small(cost=cost, steps=8, refine_steps=20), tmp_path / "fit"
    data = two_branches(300)
    whole = fit_conditional(*data, **settings.as_json(), device="cpu")
    stop += 0 if cost == "svd" else settings.steps
    first = Trainer(ConditionalTask(*data, settings), device="cpu", last="fit")
    assert not first.run(folder=tmp_path, should_stop=lambda: first.step == stop)
    assert load_checkpoint(path)[1]["step"] == stop
    resumed = fit_conditional(*data, **settings.as_json(), device="cpu", checkpoint=path)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert a.equal(b)
    read = load_conditional(path)
    where = data[0][:5]
    assert (
        read(where)
        .log_prob(data[1][:5].double())
        .equal(whole(where).log_prob(data[1][:5].double()))
    )


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    data, settings, path = two_branches(100), small(steps=2, refine_steps=2), tmp_path / "fit"
    fit_conditional(*data, **settings.as_json(), device="cpu", checkpoint=path)
    with pytest.raises(RunError, match="other settings or data"):
        fit_conditional(
            *data, **small(steps=2, refine_steps=3).as_json(), device="cpu", checkpoint=path
        )
    with pytest.raises(RunError, match="other settings or data"):
        fit_conditional(data[0] * 2, data[1], **settings.as_json(), device="cpu", checkpoint=path)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(RunError, match="not a checkpoint"):
        load_conditional(path)
