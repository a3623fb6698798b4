"""Chains that cannot be read, as in a CUDA graph, with products that leave what is done alone."""

import pytest
import torch

from cases import normal
from internals import Products
from internals import polar_module as polar


class Skipping(Products):
    """What the kernels of a GPU do, in plain products."""

    can_skip = True

    def __init__(self):
        self.done, self.steps, self.begun = None, 0, 0

    def skip(self, idle):
        self.done = idle
        self.begun += int(idle.any())  # steps that some matrix did not need

    def step(self, x, gram, a, b):
        after = super().step(x, gram, a, b)
        if self.done is None or not self.done.any():
            self.steps += 1
            return after
        return torch.where(self.done[:, None, None], x, after)


def spectra(side, *values):
    """Matrices with given singular values."""
    bases = [torch.linalg.qr(normal(side, side, seed=seed))[0] for seed in (1, 2)]
    return torch.stack([(bases[0] * v) @ bases[1] for v in values]).float()


@pytest.fixture
def products(monkeypatch):
    made = Skipping()
    monkeypatch.setattr(polar, "products_for", lambda *_: made)
    monkeypatch.setattr(polar, "can_sync", lambda _: False)
    return made


# Of 83 rows the finest singular value is not what two divisions in float64 make of it.
@pytest.mark.parametrize("side", [64, 83])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_values_and_bounds_of_what_is_done_early_and_late(products, side, tolerance):
    k = torch.arange(side, dtype=torch.float64)
    values = [torch.where(k < 1, 1.0, share * tolerance) for share in (0.01, 0.02)]
    values += [0.9**k, torch.zeros_like(k), torch.ones_like(k)]
    matrices = spectra(side, *values)
    found = polar.polar_factor(matrices, tolerance)
    assert False in products.done[:2].tolist()  # a second look was needed
    assert products.done[2:].all()
    exact = torch.stack([v.sum() for v in values])
    missed = exact - found.value.double()
    assert (missed.abs() <= found.error_bound).all()
    assert (found.error_bound <= (1.01 * tolerance + 1e-6) * exact).all()
    inner = (found.factor * matrices).sum((-2, -1))
    torch.testing.assert_close(inner, found.value, rtol=1e-5, atol=0)
    assert (torch.linalg.matrix_norm(found.factor, 2) <= 1 + 1e-5).all()


def test_the_same_as_where_it_can_be_read(products, monkeypatch):
    matrices = spectra(100, 0.9 ** torch.arange(100))
    skipped = polar.polar_factor(matrices, 1e-4)
    early = products.steps
    monkeypatch.undo()
    read = polar.polar_factor(matrices, 1e-4)
    torch.testing.assert_close(skipped.value, read.value, rtol=1e-4, atol=0)
    torch.testing.assert_close(skipped.factor, read.factor, rtol=0, atol=0.05)
    assert early < 18  # a chain for any matrix of this size has more
    assert products.begun > 0


def test_chains_start_where_most_end():
    """One look at the bound of a kernel matrix: a second one takes a few steps more."""
    x = normal(300, 2, seed=3).float()
    looks = []
    matrix = torch.exp(-(x[:, None] - x[:100]).square().sum(-1) * 20)
    unresolved = polar._unresolved

    def counted(gram, scale):
        looks.append(scale)
        return unresolved(gram, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polar, "_unresolved", counted)
        polar.polar_factor(matrix, 1e-4)
    assert len(looks) == 1


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_a_planned_chain_resolves_as_much_as_its_steps_can(tolerance):
    """Less would not be within the spread after as many steps; the wanted one needs as many."""

    def steps_of(resolved):
        interval, steps = polar._Interval(resolved, resolved), 0
        while steps == 0 or interval.spread > polar.SHARE_OF_SPREAD * tolerance:
            interval.step()
            steps += 1
        return steps

    for wanted in (1.0, 0.3, 0.06, 0.005):
        reached = polar._reached(wanted * tolerance, tolerance)
        assert reached <= wanted * tolerance
        assert steps_of(reached) == steps_of(wanted * tolerance)
        assert steps_of(reached / 1.02) > steps_of(reached)
