"""How sure answers may be: what makes labels that were not seen most likely."""

import pytest
import torch
from scipy.optimize import minimize_scalar

from kermix.networks.product_binned import draw_in, likeliest_sureness


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

    def loss(sureness):
        found = torch.nn.functional.cross_entropy(
            draw_in(scores, sureness, rates), labels, reduction="none"
        )
        return float((found if weights is None else found * weights).sum())

    wanted = minimize_scalar(loss, bounds=(0, 1), method="bounded").x
    found = float(likeliest_sureness(scores, labels, weights, rates))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_the_ends_are_reached():
    _, labels, rates = cases(1.0)
    right = 3 * torch.nn.functional.one_hot(labels, 3).double()
    assert float(likeliest_sureness(right, labels, None, rates)) == 1
    assert float(likeliest_sureness(-right, labels, None, rates)) == 0


def test_base_rates_and_scores_themselves():
    scores, _, rates = cases(2.0)
    torch.testing.assert_close(
        draw_in(scores, 0.0, rates).softmax(1), rates.expand_as(scores).double()
    )
    torch.testing.assert_close(draw_in(scores, 1.0, rates), scores)
