"""Polar factors by products of ten bits, as a GPU forms them, and of parts of a matrix."""

import threading
from functools import partial

import pytest
import torch

from kermix.linalg import polar
from kermix.linalg.nuclear import nuclear_norm
from kermix.linalg.polar import ROUNDING_BESIDE_PROBES, Products, probing_signs


def short(x):
    """Round to nearest with ten bits of mantissa."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Short(Products):
    """What TF32 does, in float32."""

    is_short, rounding = True, ROUNDING_BESIDE_PROBES

    def first(self, matrix, gram=None):
        return super().first(matrix, self.gram(matrix) if gram is None else gram)

    def gram(self, x):
        return torch.bmm(short(x), short(x).mT)

    def step(self, x, gram, a, b):
        return torch.baddbmm(x, short(gram), short(x), beta=a, alpha=-b)


def excess(matrices):
    """The largest error over its bound."""
    found = polar.polar_factor(matrices, 1e-4)
    exact = torch.linalg.svdvals(matrices.double()).sum(-1)
    return ((found.value.double() - exact).abs() / found.error_bound).max()


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(polar, "products_for", lambda *_: Short())


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("copies", [1, 64])
def test_rank_one_of_two_different_rows(copies):
    """Their rounding turns singular vectors, if they are made short on the way."""
    u = torch.rand(3000 // copies, 2, 1, generator=torch.Generator().manual_seed(5)) + 0.05
    matrices = u.repeat_interleave(copies, 1).expand(-1, -1, 2 * copies).contiguous()
    assert excess(matrices) <= 1


@pytest.mark.usefixtures("_short")
def test_rounding_of_entries_that_repeat_is_measured():
    """Of an identity all entries are off alike, by several times what noise would leave."""
    k = torch.arange(60)
    same = (k[:, None] % 7 == k % 7).float()
    matrices = torch.stack([torch.eye(60), 0.7 * torch.eye(60), same, torch.ones(60, 60)])
    assert excess(matrices) <= 0.5


class Shared:
    """Two threads in place of processes."""

    def __init__(self, count):
        self.parts, self.barrier = [None] * count, threading.Barrier(count, timeout=10)

    def over(self, rank):
        def reduced(tensor, how):
            self.parts[rank] = tensor
            self.barrier.wait()
            found = how(torch.stack(self.parts))
            self.barrier.wait()
            return found

        class Over:
            def sum(self, tensor):
                return reduced(tensor, lambda all_: all_.sum(0))

            def max(self, tensor):
                return reduced(tensor, lambda all_: all_.amax(0))

        return Over()


def test_a_process_without_columns():
    parts, shared, found = [torch.eye(4, 6), torch.zeros(4, 0)], Shared(2), {}

    def run(rank):
        try:
            found[rank] = polar.polar_factor(parts[rank], 1e-4, shared.over(rank)).value
        except RuntimeError as error:
            found[rank] = error
            shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(value, torch.Tensor) for value in found.values()), found
    assert [float(value) for value in found.values()] == pytest.approx([4, 4])


@pytest.mark.parametrize("probes", [1, 16])
def test_signs_have_no_pattern(probes):
    signs = probing_signs(6000, probes, torch.zeros(1))
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    spectrum = torch.fft.rfft(signs.double(), dim=0).abs() / 6000**0.5
    assert spectrum.max() < 5  # of noise it is near 3
    products = torch.fft.irfft(torch.fft.rfft(signs.double(), 12000, dim=0).abs().square(), dim=0)
    assert products[1:6000].abs().max() < 6 * 6000**0.5


def test_the_compiler_is_given_no_symbols():
    """It thought about coefficients that depend on the number of rows, and did not come back."""
    torch.compiler.reset()
    norm = torch.compile(partial(nuclear_norm, method="polar"), backend="eager")
    for rows in (20, 21):
        matrix = torch.eye(rows, 30)
        assert float(norm(matrix)) == pytest.approx(rows, rel=1e-4)
