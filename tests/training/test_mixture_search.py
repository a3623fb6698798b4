"""The closed-form mixture that chooses itself: against scikit-learn, and what it must not do."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.mixture import GaussianMixture as Reference

import kermix as km
from cases import normal
from internals import (
    KINDS,
    PASSES,
    EMRows,
    MixtureColumnScale,
    choose_mixture,
    clearly_better,
    em,
    gaussian_log_densities,
    kmeans_start,
)
from kermix import errors


def blobs(count=4, rows=400, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = 6 * torch.randn(count, d, generator=generator, dtype=torch.float64)
    turn = torch.randn(count, d, d, generator=generator, dtype=torch.float64)
    label = torch.randint(count, (rows,), generator=generator)
    noise = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    return centres[label] + (turn[label] @ noise.unsqueeze(2)).squeeze(2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fit_by_em(rows, components, kind, seed=0):
    """So many components from a start at data, without a search."""
    told = EMRows(rows, kind)
    start = kmeans_start(told, components, seeded(seed))
    return em(told, start, PASSES, restarting=8)[0].mixture()


@pytest.mark.parametrize("kind", KINDS)
def test_one_component_is_the_maximum_of_the_likelihood(kind):
    """In closed form; the ridge is 1e-6."""
    rows = normal(500, 5, seed=1) @ normal(5, 5, seed=2)
    found = fit_by_em(rows, 1, kind)
    covariance = torch.cov(rows.T, correction=0)
    assert torch.allclose(found.means[0], rows.mean(0))
    expected = covariance + 1e-6 * torch.eye(5, dtype=torch.float64)
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
        ours = max(float(fit_by_em(rows, 6, kind, s).log_prob(rows).mean()) for s in range(3))
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
    assert one.chosen.components == 1
    assert not one.clearly_better


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
    with pytest.warns(errors.PoorFitWarning, match="not clearly better"):
        model = km.KernelMixture(4, steps=5, refine_steps=2, random_state=0).fit(rows)
    assert not model.clearly_better_
    assert model.one_gaussian_ > model.score(rows)
    assert model.n_iter_ == 7


def gaussian_reference(rows, judged):
    """Mean log-density under the likeliest Gaussian."""
    law = multivariate_normal(rows.mean(0), np.cov(rows.T, bias=True), allow_singular=True)
    return law.logpdf(judged).mean()


@pytest.mark.parametrize(("d", "n"), [(1, 60), (1, 300), (3, 60), (3, 1001)])
def test_normal_rows_are_one_gaussian(d, n):
    for seed in range(2 if n < 1000 else 1):
        rng = np.random.default_rng(seed)
        rows, new = rng.normal(size=(n, d)), rng.normal(size=(4000, d))
        model = km.KernelMixture(random_state=seed).fit(rows)
        assert len(model.weights_) == 1
        assert not model.clearly_better_
        assert model.score(new) > gaussian_reference(rows, new) - 0.02


@pytest.mark.parametrize(
    ("n", "d"), [(2, 1), (2, 2), (3, 5), (4, 1), (5, 10), (6, 5), (8, 10), (19, 10), (20, 10)]
)
def test_few_rows_are_as_dense_as_independent_columns(d, n):
    """New rows, of several seeds: never a covariance that is nearly singular."""
    ours, theirs = [], []
    for seed in range(10 if n < 10 else 2):
        rng = np.random.default_rng(100 * seed + n)
        rows, new = rng.normal(size=(n, d)), rng.normal(size=(500, d))
        ours.append(km.KernelMixture(random_state=0).fit(rows).score(new))
        theirs.append(norm(rows.mean(0), rows.std(0)).logpdf(new).sum(1).mean())
    truth = -0.5 * d * (1 + np.log(2 * np.pi))
    assert np.mean(ours) > np.mean(theirs) - 0.1 * d
    if n >= 4:
        assert min(ours) > 2 * truth - 1


@pytest.mark.parametrize("gap", [3.0, 8.0])
def test_two_groups_of_few_rows_are_found(gap):
    rng = np.random.default_rng(0)
    rows = np.r_[rng.normal(size=(60, 2)), rng.normal(gap, 1, (60, 2))]
    model = km.KernelMixture(random_state=0).fit(rows)
    assert model.clearly_better_
    assert model.score(rows) > gaussian_reference(rows, rows) + 0.1


@pytest.mark.parametrize("origin", [0.0, 1e3, 1e6, 1.7e9])
@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_the_spread_is_that_of_the_column_wherever_it_is(origin, spread):
    rows = origin + spread * np.random.default_rng(0).normal(size=(300, 1))
    model = km.KernelMixture(random_state=0).fit(rows)
    assert np.sqrt(model.variances_[0, 0]) == pytest.approx(rows.std(), rel=0.01)
    assert model.score(rows) == pytest.approx(gaussian_reference(rows, rows), abs=1e-3)


@pytest.mark.parametrize(("value", "width"), [(5.0, 5e-6), (-1e9, 1e3), (1e-6, 1e-12), (0, 1e-6)])
def test_constants_have_a_width_of_their_own_size(value, width):
    rows = np.c_[np.full(50, value), np.random.default_rng(0).normal(size=50)]
    model = km.KernelMixture(random_state=0).fit(rows)
    assert np.sqrt(model.variances_[0, 0]) == pytest.approx(width)


@pytest.mark.parametrize("far", [1e2, 1e4, 1e6, 1e9])
def test_one_far_row_gets_a_component_of_its_own(far):
    rng = np.random.default_rng(0)
    rows, new = np.r_[rng.normal(size=(499, 1)), [[far]]], rng.normal(size=(1000, 1))
    model = km.KernelMixture(random_state=0).fit(rows)
    assert model.score(new) > norm.logpdf(new).mean() - 0.02
    assert model.score_samples(rows)[-1] > -20


def test_far_rows_do_not_set_the_scale():
    bulk = normal(500, 1, seed=0)
    plain = MixtureColumnScale.of(bulk)
    assert torch.allclose(plain.scale, bulk.std(0, correction=0))
    with_far = MixtureColumnScale.of(torch.cat([bulk, torch.tensor([[1e6]], dtype=torch.float64)]))
    assert float(with_far.scale) == pytest.approx(1, rel=0.1)
    mostly_zero = torch.cat([torch.zeros(450, 1), torch.rand(50, 1)]).double()
    assert 0.05 < float(MixtureColumnScale.of(mostly_zero).scale) < 0.5


@pytest.mark.parametrize("size", [1e300, 1e-200, 1e307])
def test_columns_whose_squares_are_no_numbers_are_named(size):
    rows = np.random.default_rng(0).normal(size=(50, 2)) * [1, size]
    with pytest.raises(errors.SampleError, match="Column 1"):
        km.KernelMixture(random_state=0).fit(rows)


@pytest.mark.parametrize("size", [1e140, 1e-140])
def test_large_and_small_units_are_fitted(size):
    rows = np.random.default_rng(0).normal(size=(60, 2)) * [1, size]
    model = km.KernelMixture(random_state=0).fit(rows)
    assert np.sqrt(model.variances_[0, 1]) == pytest.approx(rows[:, 1].std(), rel=0.1)


def test_a_mixture_that_was_asked_for_is_compared_with_one_gaussian():
    rows = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.warns(errors.PoorFitWarning, match="one Gaussian") as caught:
        model = km.KernelMixture(4, random_state=0).fit(rows)
    assert caught[0].filename == __file__
    assert len(model.weights_) == 4
    assert not model.clearly_better_
    apart = blobs(4, 400).numpy()
    assert km.KernelMixture(4, random_state=0).fit(apart).clearly_better_


def test_several_components_have_a_background_of_all_rows():
    """A row far from all others keeps a density; the moments stay those of the rows."""
    rows = blobs(4, 1200).numpy()
    model = km.KernelMixture(random_state=0).fit(rows)
    assert model.weights_[-2:].sum() == pytest.approx(1 / 1201)
    assert model.weights_.sum() == pytest.approx(1)
    assert np.allclose(model.covariances_[-2], np.diag(rows.var(0) * 1201 / 1197), rtol=1e-4)
    assert np.allclose(model.mixture_.mean, rows.mean(0), atol=1e-2)
    assert np.allclose(model.mixture_.covariance_matrix, np.cov(rows.T), rtol=0.02, atol=0.02)


def test_correlations_of_a_single_gaussian_lean_where_rows_are_few():
    rng = np.random.default_rng(0)
    many = rng.normal(size=(2000, 6)) @ rng.normal(size=(6, 6))
    assert km.KernelMixture(random_state=0).fit(many).trials_[0].shrinkage == 0
    few = km.KernelMixture(random_state=0).fit(rng.normal(size=(15, 6)))
    assert few.trials_[0].shrinkage > 1


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize(
    ("rows", "count", "d"), [(1, 1, 1), (2, 2, 4), (3, 1, 1), (5, 5, 1), (5, 5, 4), (30, 4, 4)]
)
@pytest.mark.filterwarnings("ignore::kermix.errors.PoorFitWarning")
def test_every_number_and_kind_that_was_asked_for_is_kept(kind, rows, count, d):
    values = np.random.default_rng(0).normal(size=(rows, d))
    model = km.KernelMixture(count, covariance_type=kind, random_state=0).fit(values)
    assert len(model.weights_) == count
    assert np.isfinite(model.score_samples(values)).all()
    if kind is not None:
        assert model.covariances_.ndim == (3 if kind in ("low-rank", "full") else 2)


def test_a_gain_is_clear_if_it_is_not_that_of_one_row():
    assert clearly_better(torch.full((50,), 0.1))
    assert not clearly_better(torch.zeros(50))
    assert not clearly_better(torch.tensor([5.0]))
    one_row = torch.cat([torch.full((99,), -0.2), torch.tensor([1e6])])
    assert not clearly_better(one_row)
    assert clearly_better(torch.cat([torch.full((99,), 0.2), torch.tensor([1e6])]))


def test_the_reference_is_the_likeliest_gaussian_of_many_rows():
    rows = normal(3000, 3, seed=1) + normal(3000, 1, seed=2)
    found = gaussian_log_densities(rows, rows[:7])
    law = multivariate_normal(rows.mean(0).numpy(), np.cov(rows.numpy().T, bias=True))
    assert np.allclose(found, law.logpdf(rows[:7].numpy()), atol=0.02)
