"""How sure answers may be: what makes labels that were not seen most likely."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import kermix as km
from internals import fit_inverse_temperature, hold_out_rare, shrink_to_rates


def cases(factor: float, count: int = 400, classes: int = 3):
    """Scores that are too large by a factor, and labels of the right size."""
    draws = torch.Generator().manual_seed(0)
    scores = torch.randn(count, classes, generator=draws).double()
    labels = scores.softmax(1).multinomial(1, generator=draws).squeeze(1)
    return scores * factor, labels, labels.bincount(minlength=classes) / count


@pytest.mark.parametrize("factor", [1.5, 4.0, 40.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_least_of_the_loss(factor, weighted):
    scores, labels, rates = cases(factor)
    weights = torch.linspace(0.1, 2, len(labels)).double() if weighted else None

    def loss(inverse_temperature):
        found = torch.nn.functional.cross_entropy(
            shrink_to_rates(scores, inverse_temperature, rates), labels, reduction="none"
        )
        return float((found if weights is None else found * weights).sum())

    wanted = minimize_scalar(loss, bounds=(0, 1), method="bounded").x
    found = float(fit_inverse_temperature(scores, labels, weights, rates))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_the_ends_are_reached():
    _, labels, rates = cases(1.0)
    right = 3 * torch.nn.functional.one_hot(labels, 3).double()
    assert float(fit_inverse_temperature(right, labels, None, rates)) == 1
    assert float(fit_inverse_temperature(-right, labels, None, rates)) == 0


def test_base_rates_and_scores_themselves():
    scores, _, rates = cases(2.0)
    torch.testing.assert_close(
        shrink_to_rates(scores, 0.0, rates).softmax(1), rates.expand_as(scores).double()
    )
    torch.testing.assert_close(shrink_to_rates(scores, 1.0, rates), scores)


def noise(counts, seed=0):
    """Columns that say nothing about classes of so many rows."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(size=(len(labels), 3)), rng.permutation(labels)


@pytest.mark.parametrize(
    ("counts", "weights"),
    [((498, 2), (1.0, 1.0)), ((496, 4), (1.0, 2.0)), ((296, 200, 4), (1.0, 1.0, 1.0))],
)
def test_a_rare_class_has_its_share_where_columns_say_nothing(counts, weights):
    """Seen before: a probability of 1e-6 for 2 rows in 500, of which none was held out."""
    rows, labels = noise(counts)
    each = np.array(weights)[labels]
    shares = np.bincount(labels, each) / each.sum()
    model = km.ProductClassifier(max_epochs=20, n_members=2, random_state=0)
    model.fit(rows, labels, None if len(set(weights)) == 1 else each)
    answers = model.predict_proba(np.random.default_rng(1).normal(size=(500, 3)))
    assert 0.4 * shares[-1] < answers[:, -1].mean() < 2.5 * shares[-1]
    loss = -(shares * np.log(answers)).sum(1).mean()
    assert loss < 1.1 * -(shares * np.log(shares)).sum()


@pytest.mark.parametrize(("counts", "holders"), [((498, 2), 2), ((300, 199, 1), 1)])
def test_a_row_of_each_rare_class_is_held_out_by_some_members(counts, holders):
    labels = np.repeat(np.arange(len(counts)), counts)
    for seed in range(5):
        orders = [np.random.default_rng([seed, m]).permutation(500) for m in range(4)]
        parts = [(order[:450], order[450:]) for order in orders]
        hold_out_rare(parts, labels, np.random.default_rng(seed))
        held = [int((labels[held] == len(counts) - 1).sum()) for _, held in parts]
        assert sorted(held) == [0] * (4 - holders) + [1] * holders
        for train, held in parts:
            assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(500))
