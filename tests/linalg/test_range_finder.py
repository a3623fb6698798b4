"""Matrices of low numerical rank: a bound that holds for any spectrum, and the SVD's gradient."""

import math

import numpy as np
import pytest
import torch

import kermix as km
from internals import range_finder_module as range_finder

SIZES = (260, 300)
TOLERANCES = (1e-4, 1e-3, 1e-2)


def spectrum(draw, count):
    """Singular values that fall in one of many ways, from 1 on, in any unit."""
    place = np.arange(count) / count
    kind = draw.integers(6)
    if kind == 0:
        values = 10.0 ** (-draw.uniform(2, 60) * place)
    elif kind == 1:
        values = (1 + np.arange(count)) ** -draw.uniform(0.5, 6)
    elif kind == 2:  # a plateau, then a cliff
        values = np.where(place < draw.uniform(0, 0.4), 1.0, 10 ** -draw.uniform(2, 8))
    elif kind == 3:  # falls fast at first, and then stays where it is
        values = 10.0 ** (-40 * place) + 10 ** -draw.uniform(3, 9)
    elif kind == 4:  # few, of which one is far above
        values = np.where(np.arange(count) < draw.integers(1, 30), 1.0, 0.0)
        values[0] = 10 ** draw.uniform(0, 5)
    else:  # falls slowly at first, and then fast
        values = np.exp(-((place * draw.uniform(3, 30)) ** 2))
    return np.sort(values)[::-1] * 10 ** draw.uniform(-8, 8)


def test_the_bound_holds_over_500_random_spectra():
    draw = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
        for n in SIZES
    )
    found = 0
    for number in range(500):
        values = torch.from_numpy(spectrum(draw, SIZES[0]).copy())
        matrix = ((left * values) @ right[: SIZES[0]])[torch.randperm(SIZES[0])].float()
        matrix = matrix.mT.contiguous() if number % 2 else matrix
        tolerance = TOLERANCES[number % 3]
        answer = range_finder.low_rank_polar(matrix, tolerance, seed=number)
        if answer is None:
            continue
        found += 1
        polar, rank = answer
        truth, value = float(values.sum()), float(polar.value)
        # Rounding to float32 moved the truth itself by some of its singular values.
        slack = 3e-7 * float(values[0]) * math.sqrt(SIZES[0])
        assert 1 <= rank <= SIZES[0]
        assert value <= truth + slack, number
        assert truth <= value + float(polar.error_bound) + slack, number
        assert float(polar.error_bound) <= tolerance * value, number
        if number % 10 == 0:
            assert float(torch.linalg.matrix_norm(polar.factor, 2)) < 1.001, number
    assert found > 200


@pytest.mark.parametrize(("rows", "columns"), [(600, 600), (700, 610), (620, 900)])
@pytest.mark.parametrize("variance", [0.01, 0.03, 5.0])
def test_value_and_gradient_are_those_of_an_svd_in_double_precision(rows, columns, variance):
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(n, 2, generator=generator) for n in (columns, rows))
    fast, exact = y.clone().requires_grad_(), y.double().requires_grad_()
    value, info = km.svd_cost(x, fast, variance, return_info=True)
    truth = km.svd_cost(x.double(), exact, variance, method="svd")
    assert info.method == "range"
    assert info.rank < 0.65 * min(rows, columns)
    value.backward()
    truth.backward()
    off = abs(float(value.detach()) - float(truth.detach()))
    assert off <= float(info.error_bound) <= 1e-4 * float(truth.detach())
    error = (fast.grad - exact.grad).norm() / exact.grad.norm()
    assert error < 0.01


@pytest.mark.parametrize("tolerance", [1e-4, 1e-2])
def test_single_rows_that_no_sum_had_are_found(tolerance):
    """Seen before: most centres in one place, a few far from it, and an SVD for a rank of 79."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(800, 2, generator=generator)
    y = 0.5 + 0.07 * torch.randn(800, 2, generator=generator)
    y[::40] = torch.rand(20, 2, generator=generator)
    for centres, data in ((y, x), (x, y)):
        value, info = km.svd_cost(data, centres, 1e-3, tolerance=tolerance, return_info=True)
        truth = km.svd_cost(data.double(), centres.double(), 1e-3, method="svd")
        assert info.method == "range"
        assert info.rank < 200
        assert abs(float(value) - float(truth)) <= float(info.error_bound)


@pytest.mark.parametrize("variance", [0.01, 0.1])
def test_a_loose_tolerance_leaves_the_gradient_of_a_low_rank_as_it_is(variance):
    """The gradient of equal distributions lies in what adds next to nothing to the norm."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(600, 2, generator=generator) for _ in range(2))
    fast, exact = y.clone().requires_grad_(), y.double().requires_grad_()
    km.svd_cost(x, fast, variance, tolerance=1e-2).backward()
    km.svd_cost(x.double(), exact, variance, method="svd").backward()
    assert (fast.grad - exact.grad).norm() < 0.01 * exact.grad.norm()


def cliff(rows, columns, count=60, least=1e-4):
    """Singular values of 1, and then of `least`: about half of the sum lies below the cliff."""
    generator = torch.Generator().manual_seed(rows * columns)
    smaller = min(rows, columns)
    left, right = (
        torch.linalg.qr(torch.randn(n, smaller, generator=generator, dtype=torch.float64)).Q
        for n in (rows, columns)
    )
    values = torch.full((smaller,), least, dtype=torch.float64)
    values[:count] = 1.0
    return (left * values) @ right.mT


@pytest.fixture(scope="module")
def matrices():
    """Spectra of which a range finder holds all, next to nothing or most, at a unit scale."""
    points = torch.rand(610, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one = torch.zeros(600, 600, dtype=torch.float64)
    one[17, 400] = -0.75
    return {
        "cliff": cliff(600, 600),
        "low cliff": cliff(600, 610, 20, 1e-6),
        "kernel": km.gram(points[:600], points, 0.02),
        "rank one": torch.outer(points[:600, 0], points[:, 1]),
        "one entry": one,
    }


@pytest.mark.parametrize("kind", ["cliff", "low cliff", "kernel", "rank one", "one entry"])
def test_the_answer_does_not_depend_on_the_unit(matrices, kind):
    """Seen before at 1e-20: a residual of 0, as its squares underflowed; at 1e-33: NaN."""
    found = {}
    for unit in (1.0, 2.0**-66, 2.0**-90, 2.0**-118, 2.0**66, 2.0**110):
        matrix = (matrices[kind].float() * unit).requires_grad_()
        value, info = km.nuclear_norm(matrix, return_info=True)
        (gradient,) = torch.autograd.grad(value, matrix)
        bound = 0.0 if info.error_bound is None else float(info.error_bound)
        found[unit] = (
            info.method,
            info.rank,
            float(value.detach()) / unit,
            bound / unit,
            gradient,
        )
    truth = float(torch.linalg.svdvals(matrices[kind].float().double()).sum())
    rounding = 2e-6 * truth + 1e-30
    method, rank, value, bound, gradient = found.pop(1.0)
    tiny = found.pop(2.0**-118)  # most entries are subnormal, and lose digits
    assert abs(tiny[2] - truth) <= tiny[3] + rounding + 600 * 2.0**-31
    assert tiny[4].isfinite().all()
    assert abs(value - truth) <= bound + rounding
    for unit, other in found.items():
        assert other[:3] == (method, rank, value), unit
        assert other[3] == pytest.approx(bound, rel=1e-3), unit
        assert other[4].equal(gradient), unit


@pytest.mark.parametrize("unit", [1.0, 1e-20, 1e-36, 1e34])
def test_views_have_the_answer_of_what_they_show(matrices, unit):
    large = torch.zeros(1300, 700)
    large[::2, 10:620][:600] = (matrices["kernel"] * unit).float()
    view = large[::2, 10:620][:600]
    whole = view.contiguous()
    assert not view.is_contiguous()
    expected, info = km.nuclear_norm(whole, return_info=True)
    assert info.method == "range"
    for matrix in (view, whole.mT, whole.mT.contiguous(), -whole, whole.flip(0)):
        value, info = km.nuclear_norm(matrix, return_info=True)
        assert info.method == "range"
        assert abs(float(value) - float(expected)) <= 1e-4 * float(expected)


@pytest.mark.parametrize(
    "shape",
    [
        (199, 199),
        (200, 200),
        (201, 201),
        (199, 600),
        (599, 599),
        (600, 601),
        (600, 900),
        (900, 600),
    ],
)
@pytest.mark.parametrize("unit", [1.0, 1e-20, 1e-35, 1e35])
def test_the_bound_holds_at_the_smallest_sizes_in_any_unit(shape, unit):
    rows, columns = shape
    generator = torch.Generator().manual_seed(rows + columns)
    x, y = (torch.rand(n, 2, generator=generator, dtype=torch.float64) for n in (rows, columns))
    matrix = (km.gram(x, y, 0.05) * unit).float()
    value, info = km.nuclear_norm(matrix, return_info=True)
    truth = float(torch.linalg.svdvals(matrix.double() / unit).sum())
    assert info.method == ("svd" if min(shape) < 200 else "range")
    bound = 3e-6 * truth if info.error_bound is None else float(info.error_bound) / unit
    assert abs(float(value) / unit - truth) <= bound <= 1e-4 * truth


def test_orthonormal_columns_by_cholesky_factors(monkeypatch):
    """The way of a GPU, for columns whose singular values fall over seven orders."""
    generator = torch.Generator().manual_seed(6)
    left, right = (torch.linalg.qr(torch.randn(n, 40, generator=generator)).Q for n in (300, 40))
    columns = (left * torch.logspace(0, -7, 40)) @ right.mT
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    basis, triangle = range_finder._orthonormal(columns)
    monkeypatch.undo()
    torch.testing.assert_close(basis.mT @ basis, torch.eye(40), rtol=0, atol=1e-5)
    torch.testing.assert_close((basis.double() @ triangle).float(), columns, rtol=0, atol=1e-6)
    assert triangle.tril(-1).abs().max() < 1e-12


def test_threads_are_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        range_finder.low_rank_polar(torch.ones(300, 300), 1e-4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_core_by_products_is_that_by_eigenvectors():
    points = torch.rand(60, 1, generator=torch.Generator().manual_seed(7))
    rest = km.gram(points[:20], points, 0.01)
    exact, fast = range_finder._by_eigenvectors(rest, 1e-4), range_finder._by_products(rest, 1e-4)
    assert abs(float(exact[0] - fast[0])) <= float(exact[2] + fast[2]) + 1e-5
    assert float(fast[2]) <= 1e-4 * float(fast[0])


def test_the_factor_is_a_contraction():
    points = torch.rand(400, 2, generator=torch.Generator().manual_seed(2))
    polar, _ = range_finder.low_rank_polar(km.gram(points, points, 0.01), 1e-4)
    assert float(torch.linalg.matrix_norm(polar.factor, 2)) <= 1 + 1e-4


def graded(kind, seed):
    """Of low rank, with single rows or entries that are far larger, or rows of single entries."""
    draw = np.random.default_rng(seed)
    bases = [np.linalg.qr(draw.normal(size=(side, 60)))[0] for side in SIZES]
    matrix = bases[0] * 0.8 ** np.arange(60) @ bases[1].T
    if kind == "a huge row":
        matrix[draw.integers(len(matrix))] = 100 * draw.normal(size=SIZES[1])
    elif kind == "a huge entry":
        matrix[draw.integers(len(matrix)), 7] = 1e5
    else:
        alone = draw.choice(len(matrix), 30, replace=False)
        matrix = np.outer(draw.integers(1, 3, SIZES[0]), draw.integers(1, 3, SIZES[1])) / 100
        matrix[alone], matrix[:, alone] = 0, 0
        matrix[alone, alone] = 0.1 * 10 ** -draw.uniform(0, 2, 30)
    return torch.tensor(matrix, dtype=torch.float32)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-2])
@pytest.mark.parametrize("kind", ["a huge row", "a huge entry", "rows of single entries"])
def test_the_gradient_of_a_graded_matrix_is_a_polar_factor(kind, tolerance):
    """Seen before: norms up to 1.65, and products with the matrix off by 77 tolerances."""
    by_range = 0
    for seed in range(6):
        matrix = graded(kind, seed)
        found = range_finder.low_rank_polar(matrix, tolerance, seed)
        if found is None:
            continue
        by_range += 1
        factor, value = found[0].factor.double(), float(found[0].value)
        assert float(torch.linalg.matrix_norm(factor, 2)) <= 1.02
        assert float((factor * matrix).sum()) == pytest.approx(value, rel=tolerance)
    assert by_range >= 3


@pytest.mark.parametrize(("rows", "tolerance"), [(200, 1e-6), (1000, 5e-6), (200, 1e-4)])
def test_nothing_left_of_a_matrix_but_rounding(rows, tolerance):
    """Seen before: an error of torch about a distribution, from a residual of zeros."""
    matrix = torch.zeros(rows, 200)
    matrix[:, 0] = 1
    value = km.nuclear_norm(matrix, tolerance=tolerance)
    assert float(value) == pytest.approx(math.sqrt(rows), rel=max(tolerance, 1e-5))


def test_what_is_beside_a_basis_has_nothing_of_it():
    """Columns that are nearly within the basis: their rest is mostly rounding."""
    generator = torch.Generator().manual_seed(5)
    basis = torch.linalg.qr(torch.randn(200, 40, generator=generator)).Q
    inside = basis @ torch.randn(40, 12, generator=generator)
    columns = torch.cat([inside, inside + 1e-3 * torch.randn(200, 12, generator=generator)], 1)
    new = range_finder._beside(basis, columns)
    both = torch.cat([basis, new], 1).double()
    assert 12 <= new.shape[1] < 24
    torch.testing.assert_close(
        both.mT @ both, torch.eye(both.shape[1], dtype=torch.double), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        (torch.eye(600), "the rank is full"),
        (torch.ones(199, 700), "too small"),
        (torch.ones(600, 600).double(), "double precision is for exact answers"),
        (torch.ones(2, 600, 600), "several matrices"),
        (torch.zeros(600, 600), "nothing there"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_matrices_have_an_svd(matrix, why):
    assert min(matrix.shape[-2:]) >= range_finder.FINDERS["cpu"].least_side - 1
    value, info = km.nuclear_norm(matrix, return_info=True)
    assert info.method == "svd", why
    exact = torch.linalg.svdvals(matrix.double()).sum(-1)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-4)


def test_a_method_that_is_named_is_the_one_that_is_used():
    points = torch.rand(600, 1, generator=torch.Generator().manual_seed(3))
    for method in ("svd", "polar"):
        assert (
            km.svd_cost(points, points, 0.1, method=method, return_info=True)[1].method == method
        )


def test_the_same_matrix_has_the_same_answer():
    points = torch.rand(600, 2, generator=torch.Generator().manual_seed(4))
    first, second = (km.svd_cost(points, points.flip(0), 0.05) for _ in range(2))
    assert first.equal(second)


def test_a_second_derivative_is_there():
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.rand(600, 1, generator=generator) for _ in range(2))
    shift = torch.zeros((), requires_grad=True)
    value = km.svd_cost(x, y + shift, 0.1)
    (slope,) = torch.autograd.grad(value, shift, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, shift)
    assert math.isfinite(float(curvature))


def test_no_answer_whose_bound_is_above_the_tolerance(monkeypatch):
    """The core may leave out more than it was given room for; the other ways take over then."""
    points = torch.linspace(0, 1, 300)
    matrix = (-(points[:, None] - points).square()).exp()
    core_of = range_finder._by_eigenvectors
    assert range_finder.low_rank_polar(matrix, 1e-4) is not None

    def rough(rest, tolerance):
        value, core, bound = core_of(rest, tolerance)
        return value, core, bound + 1.01 * tolerance * value

    monkeypatch.setattr(range_finder, "_by_eigenvectors", rough)
    assert range_finder.low_rank_polar(matrix, 1e-4) is None
