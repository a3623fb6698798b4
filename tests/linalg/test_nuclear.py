"""The nuclear norm: certified by matrix products, exact by an SVD, with the same gradient."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.func import vmap
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import DTYPES, normal, uniform, whole_graphs
from internals import binary_unit, chosen_method, polar_factor
from kermix import errors

METHODS = ("svd", "polar")
TOLERANCES = {
    torch.float32: (1e-2, 1e-4, 1e-6),
    torch.float64: (1e-2, 1e-4, 1e-6, 1e-8, 1e-10),
}
every_method = pytest.mark.parametrize("method", METHODS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
asked = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(dtype, t) for dtype, ts in TOLERANCES.items() for t in ts]
)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rounding(matrix):
    """Relative rounding of a sum of that many singular values: about ten units."""
    return 10 * torch.finfo(matrix.dtype).eps * math.sqrt(max(matrix.shape[-2:]))


def with_spectrum(spectrum, m, n, seed):
    """A matrix (m, n) with these singular values and random singular vectors."""
    u = torch.linalg.qr(normal(m, len(spectrum), seed=seed))[0]
    v = torch.linalg.qr(normal(n, len(spectrum), seed=seed + 1))[0]
    return (u * spectrum) @ v.mT


def spectrum(kind, r, seed):
    match kind:
        case "uniform":
            return uniform(r, seed=seed)
        case "many scales":
            return 10 ** (-12 * uniform(r, seed=seed))
        case "geometric":
            return torch.linspace(0, -30, r, dtype=torch.float64).exp()
        case "rank deficient":
            return (torch.arange(r) <= r // 3).double()
        case "one large":
            return torch.where(torch.arange(r) == 0, 1.0, 1e-5).double()


def random_matrix(seed):
    """One of many kinds of spectrum, size and scale; every other one is a Gram matrix."""
    m, n = (int(79 * uniform((), seed=seed + i)) + 1 for i in (1000, 2000))
    if seed % 2:
        v = 10 ** (4 * float(uniform((), seed=seed + 3000)) - 3)
        return km.gram(
            normal(m, 1 + seed % 3, seed=seed), normal(n, 1 + seed % 3, seed=seed + 1), v
        )
    kinds = ("uniform", "many scales", "geometric", "rank deficient", "one large")
    values = spectrum(kinds[seed // 2 % 5], min(m, n), seed)
    return 10.0 ** (seed % 14 - 7) * with_spectrum(values, m, n, seed)


def singular_sum(matrix):
    return torch.linalg.svdvals(matrix.double()).sum(-1)


@asked
def test_polar_is_a_lower_bound_within_its_tolerance(dtype, tolerance):
    for seed in range(100):
        matrix = random_matrix(seed).to(dtype)
        truth = singular_sum(matrix)
        value, info = km.nuclear_norm(
            matrix, method="polar", tolerance=tolerance, return_info=True
        )
        slack = rounding(matrix) * truth
        assert value.dtype == dtype
        assert info.error_bound.shape == value.shape
        assert truth - value <= tolerance * truth + slack, f"seed {seed}"
        assert value <= truth + slack, f"seed {seed}"
        assert truth <= value + info.error_bound + slack, f"seed {seed}"
        assert 0 <= info.error_bound <= tolerance * value + 100 * slack, f"seed {seed}"


@every_dtype
@every_method
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (5, 40), (40, 5)])
def test_sizes(shape, method, dtype):
    matrix = normal(*shape, seed=4, dtype=dtype)
    found = km.nuclear_norm(matrix, method=method, tolerance=1e-6)
    assert_close(found.double(), singular_sum(matrix), rtol=2e-6, atol=0)
    turned = km.nuclear_norm(matrix.mT, method=method, tolerance=1e-6)
    assert_close(turned, found, **tolerances.same(dtype))


@every_method
def test_known_values(method):
    matrix = torch.tensor([[3.0, 0.0], [0.0, -4.0]], dtype=torch.float64)
    options = {"method": method, "tolerance": 1e-12}
    assert_close(km.nuclear_norm(matrix, **options).item(), 7.0, rtol=1e-11, atol=0)
    rotation = torch.linalg.qr(normal(6, 6, seed=1))[0]
    assert_close(km.nuclear_norm(rotation, **options).item(), 6.0, rtol=1e-11, atol=0)


@every_dtype
@every_method
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 5), (2, 3, 4)])
def test_zero_matrix(shape, method, dtype):
    matrix = torch.zeros(shape, dtype=dtype, requires_grad=True)
    value, info = km.nuclear_norm(matrix, method=method, return_info=True)
    assert (value == 0).all()
    assert info.error_bound is None or (info.error_bound == 0).all()
    (gradient,) = grad(value.sum(), matrix)
    assert (gradient == 0).all()


@every_method
def test_empty_matrix(method):
    assert km.nuclear_norm(torch.ones(2, 0, 3), method=method).equal(torch.zeros(2))


@every_dtype
@every_method
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_large_and_small_entries(scale, method, dtype):
    matrix = normal(6, 9, seed=1, dtype=dtype) * scale
    found = km.nuclear_norm(matrix, method=method, tolerance=1e-6)
    assert_close(found.double(), singular_sum(matrix), rtol=2e-6, atol=0)


@every_dtype
@every_method
def test_entries_at_the_ends_of_the_range(method, dtype):
    """Seen before: products below the smallest normal number, which some machines call zero."""
    finfo = torch.finfo(dtype)
    matrix = uniform(54, 37, seed=1, dtype=dtype) + 0.2
    truth = singular_sum(matrix)
    _, info = km.nuclear_norm(matrix, method=method, tolerance=1e-5, return_info=True)
    bound = 2e-6 * truth if info.error_bound is None else info.error_bound.double()
    for unit in (2 * finfo.tiny, 64 * finfo.tiny, 2.0**-100, 2.0**100, finfo.max / 2**12):
        work = (matrix * unit).requires_grad_()
        value = km.nuclear_norm(work, method=method, tolerance=1e-5)
        (gradient,) = grad(value, work)
        lost = 50 * finfo.eps * finfo.tiny / unit  # by entries and a value that are subnormal
        assert abs(value.detach().double() / unit - truth) <= bound + 40 * lost
        assert_close(gradient.norm().item(), 37**0.5, rtol=2e-2, atol=0)


@every_dtype
@every_method
def test_where_subnormal_numbers_are_flushed_to_zero(method, dtype):
    """Some libraries say so for the whole process as they are loaded. Seen before: 5% of it."""
    unit = 2 * torch.finfo(dtype).tiny
    matrix = uniform(54, 37, seed=1, dtype=dtype) + 1
    truth = singular_sum(matrix).item()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    try:
        value, info = km.nuclear_norm(
            matrix * unit, method=method, tolerance=1e-2, return_info=True
        )
        value = (value.double() / unit).item()
        bound = 2e-6 * truth if method == "svd" else (info.error_bound.double() / unit).item()
    finally:
        torch.set_flush_denormal(False)
    assert abs(value - truth) <= bound <= 3e-2 * truth


@every_dtype
def test_a_unit_of_a_matrix_is_a_power_of_two_by_its_largest_entry(dtype):
    finfo = torch.finfo(dtype)
    for number in (1.0, 1.5, -3.0, 1e-30, 7e30, finfo.tiny, finfo.max, 2 * finfo.smallest_normal):
        unit = binary_unit(torch.tensor([[0.0, number]], dtype=dtype))
        assert math.frexp(unit.item())[0] == 0.5
        assert 1 <= abs(number) / unit.item() <= 8
    assert binary_unit(torch.zeros(2, 3, dtype=dtype)).item() == 1
    assert binary_unit(torch.full((1, 1), finfo.tiny * finfo.eps, dtype=dtype)) == finfo.tiny


@every_method
@every_dtype
def test_batch_items_are_independent(dtype, method):
    """Items of very different scale and rank, one of them zero."""
    matrices = torch.stack(
        [
            normal(6, 8, seed=1),
            1e6 * with_spectrum(spectrum("geometric", 6, 1), 6, 8, 2),
            torch.zeros(6, 8, dtype=torch.float64),
            torch.ones(6, 8, dtype=torch.float64),
        ]
    ).reshape(2, 2, 6, 8)
    matrices = matrices.to(dtype).requires_grad_()
    values, info = km.nuclear_norm(matrices, method=method, tolerance=1e-6, return_info=True)
    (gradients,) = grad(values.sum(), matrices)
    assert values.shape == (2, 2)
    for i in (0, 1):
        for j in (0, 1):
            item = matrices[i, j].detach().requires_grad_()
            alone, _ = km.nuclear_norm(item, method=method, tolerance=1e-6, return_info=True)
            assert_close(values[i, j], alone, rtol=3e-6, atol=0)
            if method == "polar":
                assert info.error_bound[i, j] <= 2e-6 * alone
            if (i, j) != (0, 1):  # the small singular values of that one are not resolved
                (truth,) = grad(alone, item)
                assert_close(gradients[i, j], truth, rtol=0, atol=1e-4)


def test_a_bad_batch_item_leaves_the_others_alone():
    matrices = normal(3, 5, 5, seed=1)
    matrices[1, 2, 2] = torch.nan
    # On an accelerator values are not looked at beforehand.
    values = polar_factor(matrices, 1e-4).value
    assert_close(values[[0, 2]], singular_sum(matrices[[0, 2]]), rtol=1e-4, atol=0)


@asked
def test_gradient_is_the_polar_factor(dtype, tolerance):
    matrix = with_spectrum(0.2 + uniform(9, seed=1), 9, 14, 2).to(dtype).requires_grad_()
    (found,) = grad(km.nuclear_norm(matrix, method="polar", tolerance=tolerance), matrix)
    u, _, vh = torch.linalg.svd(matrix.detach().double(), full_matrices=False)
    # A relative error t of the norm is one of t in each singular value of the factor.
    atol = 9 * tolerance + 100 * torch.finfo(dtype).eps
    assert_close(found.double(), u @ vh, rtol=0, atol=atol)
    assert torch.linalg.matrix_norm(found.double(), 2) <= 1 + rounding(found)
    (exact,) = grad(km.nuclear_norm(matrix, method="svd"), matrix)
    assert_close(exact.double(), u @ vh, rtol=0, atol=100 * torch.finfo(dtype).eps)


@every_dtype
@every_method
def test_gradient_without_full_rank_is_finite(method, dtype):
    matrix = with_spectrum(torch.tensor([1.0, 1.0, 1.0]).double(), 8, 6, 1)
    matrix = matrix.to(dtype).requires_grad_()
    (found,) = grad(km.nuclear_norm(matrix, method=method, tolerance=1e-6), matrix)
    assert torch.isfinite(found).all()
    # On the space of the singular vectors, which is all that the matrix shows of its gradient.
    assert_close(
        found.double() @ matrix.mT.double(), (matrix @ matrix.mT).double(), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 3, 4)])
def test_gradcheck(shape):
    matrix = normal(*shape, seed=3).requires_grad_()
    norm = lambda p: km.nuclear_norm(p, method="svd")  # noqa: E731
    assert gradcheck(norm, matrix)
    assert gradgradcheck(norm, matrix)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_polar_can_be_differentiated_twice(shape):
    matrix, direction = normal(*shape, seed=3).requires_grad_(), normal(*shape, seed=4)
    seconds = []
    for method in METHODS:
        value = km.nuclear_norm(matrix, method=method, tolerance=1e-12)
        (first,) = grad(value, matrix, create_graph=True)
        seconds.append(grad((first * direction).sum(), matrix)[0])
    assert_close(*seconds, **tolerances.value(torch.float64))
    assert seconds[0].abs().max() > 1e-3


@every_method
def test_vmap(method):
    matrices = normal(3, 4, 6, seed=1)

    def norm(matrix):
        return km.nuclear_norm(matrix, method=method, tolerance=1e-10)

    assert_close(vmap(norm)(matrices), norm(matrices), rtol=2e-10, atol=0)
    leaf = matrices.clone().requires_grad_()
    (truth,) = grad(norm(leaf).sum(), leaf)
    assert_close(vmap(torch.func.grad(norm))(matrices), truth, rtol=0, atol=1e-8)


@whole_graphs
@every_method
def test_compile(method):
    def norm(matrix):
        return km.nuclear_norm(matrix, method=method, tolerance=1e-10)

    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for seed in (1, 2):
        leaf = normal(2, 4, 6, seed=seed).requires_grad_()
        found, truth = compiled(leaf), norm(leaf)
        assert_close(found, truth, rtol=2e-10, atol=0)
        assert_close(grad(found.sum(), leaf), grad(truth.sum(), leaf), rtol=0, atol=1e-8)


def test_autocast_and_half_precision():
    matrix = normal(5, 6, seed=1, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = km.nuclear_norm(matrix, method="polar")
        wide = km.nuclear_norm(matrix.float(), method="polar")
    assert found.dtype == torch.bfloat16
    assert wide.dtype == torch.float32
    assert_close(wide.double(), singular_sum(matrix), rtol=2e-4, atol=0)
    assert_close(found.double(), singular_sum(matrix), rtol=1e-2, atol=0)


@pytest.mark.parametrize("bad", [0.0, -1e-3, 1.0, 2.0, torch.nan, 1e-9])
def test_tolerance(bad):
    with pytest.raises(errors.OptionError, match="tolerance"):
        km.nuclear_norm(torch.ones(2, 2), method="polar", tolerance=bad)


def test_finer_tolerance_in_float64():
    km.nuclear_norm(torch.ones(2, 2).double(), method="polar", tolerance=1e-9)
    with pytest.raises(errors.OptionError, match=r"tolerance.*svd"):
        km.nuclear_norm(torch.ones(2, 2).double(), method="polar", tolerance=1e-16)


@pytest.mark.parametrize("bad", [torch.ones(2, 2).long(), torch.ones(3), [[1.0]], None])
def test_matrix(bad):
    with pytest.raises(errors.ShapeError, match="matrix"):
        km.nuclear_norm(bad)


def test_method():
    matrix = normal(3, 4, seed=1)
    with pytest.raises(errors.OptionError, match=r"method.*polar"):
        km.nuclear_norm(matrix, method="newton")
    for method in METHODS:
        value, info = km.nuclear_norm(matrix, method=method, return_info=True)
        assert info.method == method
        assert (info.error_bound is None) == (method == "svd")
        assert value == km.nuclear_norm(matrix, method=method)
    assert km.nuclear_norm(matrix, return_info=True)[1].method == chosen_method(matrix)


def test_auto():
    assert chosen_method(torch.ones(4, 4)) == "svd"
    assert chosen_method(torch.ones(4, 4).double()) == "svd"
    for dtype, shape, method in (
        (torch.float32, (4, 4), "polar"),
        (torch.float64, (4, 4), "svd"),
        (torch.float32, (1, 4), "svd"),
    ):
        matrix = SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=shape)
        assert chosen_method(matrix) == method


def test_rounding_of_a_thousand_singular_values_does_not_add_up():
    """Of a float32 matrix of rank one; their plain sum is 2e-4 too large on some machines."""
    x = torch.linspace(-1, 1, 1023, dtype=torch.float64)
    matrix = torch.exp(-1e-9 * (x[:, None] - x).square())
    # The matrix has no negative eigenvalues: they add up to its trace.
    assert km.nuclear_norm(matrix.float()).item() == pytest.approx(1023, rel=3e-6)


@pytest.mark.parametrize(("points", "dimension", "v"), [(256, 784, 1.0), (300, 3, 150.0)])
def test_gradient_in_single_precision_keeps_singular_values_of_a_few_units(points, dimension, v):
    """A few hundred of them, each far below the largest one times the size times the unit."""
    x, y = normal(2, points, dimension, seed=1).float()
    gradients = []
    for dtype in DTYPES:
        centres = y.to(dtype).requires_grad_()
        (found,) = grad(km.svd_cost(x.to(dtype), centres, v, method="svd"), centres)
        gradients.append(found.double())
    single, double = gradients
    assert (single - double).norm() <= 0.02 * double.norm()


@every_dtype
def test_gradient_of_repeated_rows_has_nothing_beside_their_space(dtype):
    rows = torch.exp(-uniform(5, 400, seed=2)).to(dtype)
    matrix = rows.repeat(80, 1).requires_grad_()
    (found,) = grad(km.nuclear_norm(matrix, method="svd"), matrix)
    ones = torch.linalg.svdvals(found.double())
    assert_close(ones[:5], torch.ones_like(ones[:5]), rtol=0, atol=1e-4)
    assert ones[5:].max() <= 1e-4


def of_rank(rank, spectrum):
    """Moves matrices (6, 5) of one rank along a path: the same rank all the way."""
    left, right = normal(6, rank, seed=1) * spectrum[:rank], normal(5, rank, seed=2)
    a, b = normal(6, rank, seed=3) * spectrum[:rank], normal(5, rank, seed=4)
    return lambda t: (left + t * a) @ (right + t * b).mT


def points_on(a_line, seed):
    """Points that move along straight lines, (8, 3); or so many of them, each of them twice."""
    x, move = normal(2, 8, 3, seed=seed)
    x, move = (torch.cat([p[:4], p[:4]]) for p in (x, move)) if not a_line else (x, move)
    return lambda t: x + t * move


def cost_on(path_x, path_y, **options):
    return lambda t: km.svd_cost(path_x(t), path_y(t), method="svd", **options)


def second_difference(function, t=1e-3):
    """Without a derivative, to four digits or more."""
    at = [function(torch.tensor(p, dtype=torch.float64)).item() for p in (-t, 0.0, t)]
    return (at[0] - 2 * at[1] + at[2]) / t**2


def second_derivative(function, dtype=torch.float64):
    t = torch.zeros((), dtype=dtype, requires_grad=True)
    (first,) = grad(function(t), t, create_graph=True)
    return grad(first, t)[0].item()


@every_dtype
@pytest.mark.parametrize("rank", [1, 2, 4, 5])
def test_second_derivative_along_matrices_of_one_rank(rank, dtype):
    """Seen before: 0 for rank one, where it is positive."""
    for values in (torch.ones(5), 10.0 ** -torch.arange(5.0)):
        path = of_rank(rank, values.double())
        truth = second_difference(lambda t, path=path: singular_sum(path(t)))
        for turned in (False, True):
            norm = lambda t, p=path, m=turned: km.nuclear_norm(  # noqa: E731
                (p(t.double()).mT if m else p(t.double())).to(dtype), method="svd"
            )
            found = second_derivative(norm)
            assert found == pytest.approx(truth, rel=1e-4 if dtype == torch.float64 else 1e-3)


def test_second_derivatives_in_a_batch_are_those_of_each():
    paths = [of_rank(r, torch.ones(5).double()) for r in (1, 3, 5)]
    for method in METHODS:
        norms = lambda t, m=method: km.nuclear_norm(  # noqa: E731
            torch.stack([p(t) for p in paths]), method=m, tolerance=1e-10
        ).sum()
        each = sum(second_difference(lambda t, p=p: singular_sum(p(t))) for p in paths)
        assert second_derivative(norms) == pytest.approx(each, rel=1e-4)


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("cosine", {"kernel": km.CosineKernel()}),
        ("repeated", {"v": 1.0}),
        ("weights", {"v": 1.0}),
        ("one side", {"v": 40.0}),
        ("many scales", {"v": 40.0}),
    ],
)
def test_second_derivative_of_a_cost_without_full_rank(case, options):
    """Seen before: -.45 instead of -.015 for a kernel of three features."""
    apart, again = points_on(True, 5), points_on(case != "repeated", 7)
    if case == "weights":
        weights = torch.tensor([0.0, 1, 2, 0, 3, 1, 1, 2], dtype=torch.float64)
        options = {**options, "weights_x": weights, "weights_y": weights.flip(0)}
    if case == "one side":
        apart = lambda t: points_on(True, 5)(0 * t)  # noqa: E731
    cost = cost_on(apart, again, **options)
    assert second_derivative(cost) == pytest.approx(second_difference(cost), rel=1e-3, abs=1e-6)


@every_dtype
def test_second_derivatives_that_do_not_exist_are_refused(dtype):
    """The norm has a kink where a singular value leaves zero."""
    flat = torch.diag(torch.tensor([2.0, 1.0, 0.0])).to(dtype)
    twice = torch.cat([normal(4, 3, seed=1)] * 2).to(dtype)
    apart, others = normal(2, 8, 3, seed=2).to(dtype)
    for kink in (
        lambda t: km.nuclear_norm(flat + t * torch.eye(3, dtype=dtype), method="svd"),
        lambda t: km.nuclear_norm(t * flat, method="svd"),
        lambda t: km.svd_cost(twice + t * apart, others, 1.0, method="svd"),
    ):
        with pytest.raises(errors.SampleError, match="no second derivative"):
            second_derivative(kink, dtype)


def test_second_derivatives_in_transforms_are_not_numbers_where_there_are_none():
    flat = torch.diag(torch.tensor([2.0, 1.0, 0.0])).double()
    slope = torch.func.grad(lambda p: km.nuclear_norm(p, method="svd"))
    exists = torch.func.jacrev(slope)(flat).flatten(2).isfinite().all(-1)
    assert not exists[2, 2]
    assert exists.sum() == 8
