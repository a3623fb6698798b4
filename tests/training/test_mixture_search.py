"""The closed-form mixture that chooses itself: against scikit-learn, and what it must not do."""

import math

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture as Reference

import kermix as km
from cases import normal
from kermix import errors
from kermix.training.mixture_search import KINDS, choose_mixture, fit_by_em


def blobs(count=4, rows=400, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = 6 * torch.randn(count, d, generator=generator, dtype=torch.float64)
    turn = torch.randn(count, d, d, generator=generator, dtype=torch.float64)
    label = torch.randint(count, (rows,), generator=generator)
    noise = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    return centres[label] + (turn[label] @ noise.unsqueeze(2)).squeeze(2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_one_component_is_the_maximum_of_the_likelihood(kind):
    """In closed form; the ridge is 1e-4."""
    rows = normal(500, 5, seed=1) @ normal(5, 5, seed=2)
    found = fit_by_em(rows, 1, kind, generator=seeded())
    covariance = torch.cov(rows.T, correction=0)
    assert torch.allclose(found.means[0], rows.mean(0))
    expected = covariance + 1e-4 * torch.eye(5, dtype=torch.float64)
    if kind == "isotropic":
        assert float(found.covariances[0]) == pytest.approx(float(expected.diagonal().mean()))
    elif kind == "diagonal":
        assert torch.allclose(found.covariances[0], expected.diagonal())
    elif kind == "full":
        assert torch.allclose(found.covariances[0], expected)
    else:
        values, vectors = torch.linalg.eigh(expected)
        rest = values[:3].mean()
        rebuilt = vectors @ torch.diag(torch.cat([rest.expand(3), values[3:]])) @ vectors.T
        assert torch.allclose(found.covariances[0], rebuilt)


def test_a_fit_is_as_likely_as_that_of_scikit_learn():
    rows = blobs(6, 900)
    for kind, name in (("full", "full"), ("diagonal", "diag"), ("isotropic", "spherical")):
        ours = max(
            float(fit_by_em(rows, 6, kind, generator=seeded(s)).log_prob(rows).mean())
            for s in range(3)
        )
        theirs = Reference(6, covariance_type=name, n_init=3, random_state=0).fit(rows.numpy())
        assert ours > theirs.score(rows.numpy()) - 0.05


def test_chosen_mixtures_are_at_least_as_good_as_one_gaussian():
    for rows in (blobs(1), normal(60, 8, seed=3), normal(400, 2, seed=4).exp()):
        found = choose_mixture(rows, generator=seeded())
        assert found.chosen.held_out >= found.one_gaussian - 1e-9
        assert found.chosen in found.trials


def test_the_number_of_separate_blobs_is_found():
    found = choose_mixture(blobs(4, 800), generator=seeded())
    assert found.chosen.components in (4, 8)
    one = choose_mixture(normal(800, 3, seed=5), generator=seeded())
    assert one.chosen.components <= 2


def test_densities_follow_units_and_offsets():
    rows = blobs(3, 300)
    scale = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    first = choose_mixture(rows, generator=seeded())
    second = choose_mixture(rows * scale + 1e3 * scale, generator=seeded())
    expected = first.mixture.log_prob(rows)
    assert torch.allclose(second.mixture.log_prob(rows * scale + 1e3 * scale), expected, atol=1e-5)
    assert second.chosen.components == first.chosen.components


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_for_is_not_changed(kind):
    found = choose_mixture(blobs(3, 200), 5, kind, generator=seeded())
    assert len(found.mixture.weights) == 5
    assert found.chosen.covariance_type == kind


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(30, 2),
        torch.tensor([[1.0, 2.0]]),
        torch.cat([torch.zeros(40, 2), torch.full((1, 2), 1e9)]),
        torch.arange(3.0).unsqueeze(1),
        torch.cat([normal(50, 1), torch.ones(50, 1)], 1),
    ],
)
def test_odd_rows_have_finite_densities(rows):
    rows = rows.double()
    found = choose_mixture(rows, generator=seeded())
    assert torch.isfinite(found.mixture.log_prob(rows)).all()


def test_bad_arguments_are_named():
    with pytest.raises(errors.OptionError, match="components"):
        choose_mixture(normal(5, 2), 9, generator=seeded())
    with pytest.raises(errors.OptionError, match="covariance_type"):
        choose_mixture(normal(50, 2), covariance_type="round", generator=seeded())
    with pytest.raises(errors.SampleError):
        choose_mixture(torch.tensor([[math.nan]]), generator=seeded())


def test_the_estimator_chooses_and_has_closed_forms():
    rows = blobs(4, 600).numpy()
    model = km.KernelMixture(random_state=0).fit(rows)
    assert model.score(rows) > model.one_gaussian_
    assert model.covariances_.ndim in (2, 3)
    assert model.variances_.shape == model.means_.shape
    assert float(model.mixture_.cauchy_schwarz(model.mixture_)) == pytest.approx(0, abs=1e-9)
    assert np.isfinite(model.sample(50)).all()
    again = km.KernelMixture(random_state=0).fit(rows)
    assert np.array_equal(model.means_, again.means_)
    kinds = {t.covariance_type for t in model.trials_}
    assert kinds >= {"diagonal", "full"}


def test_settings_of_training_train():
    rows = blobs(2, 100).numpy()
    model = km.KernelMixture(4, steps=5, refine_steps=2, random_state=0).fit(rows)
    assert model.one_gaussian_ is None
    assert model.n_iter_ == 7
