"""Distances and pulls against explicit differences: far points, far clusters, far everything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import kermix as km
from cases import DTYPES, normal
from kermix.kernels.distances import squared_distances

FAR = [1e2, 1e4, 1e6, 1e8, 1e10, 1e15]
# Of one squared distance; a rounding of d terms and of the output.
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-6}


def truth_of(a, b):
    return (a.double().unsqueeze(-2) - b.double().unsqueeze(-3)).square().sum(-1)


def assert_right(a, b, same=False):
    found = squared_distances(a, b, same)
    assert found.dtype == a.dtype
    largest = torch.finfo(a.dtype).max * 2.0**-20
    truth = truth_of(a, b).clamp(max=largest)
    if same:
        assert (found.diagonal(dim1=-2, dim2=-1) == 0).all()
    tiny = torch.finfo(a.dtype).tiny
    assert_close(found.double(), truth, rtol=RELATIVE[a.dtype], atol=tiny)


def with_outlier(far, n, d, dtype, seed=1):
    x = normal(n, d, seed=seed, dtype=dtype)
    x[n // 3] = far
    return x


def clusters(far, n, d, dtype, seed=1, count=2):
    """Points of unit scale around places that are `far` apart."""
    places = far * normal(count, d, seed=100, dtype=dtype)
    return places[torch.arange(n) % count] + normal(n, d, seed=seed, dtype=dtype)


LAYOUTS = {
    "outlier": with_outlier,
    "clusters": clusters,
    "offset": lambda far, n, d, dtype, seed=1: far + normal(n, d, seed=seed, dtype=dtype),
    "many places": lambda *args, **keys: clusters(*args, count=11, **keys),
    "scales": lambda far, n, d, dtype, seed=1: (
        normal(n, d, seed=seed, dtype=dtype)
        * torch.logspace(0, 10, n, dtype=torch.float64).to(dtype)[:, None]
    ),
}


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("d", [1, 8, 9, 30])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_distance_is_right(layout, d, far):
    make = LAYOUTS[layout]
    # Precisions in turns: each with every pair of the others.
    dtype = DTYPES[([*LAYOUTS].index(layout) + FAR.index(far) + (d in (8, 30))) % 2]
    x, y = make(far, 60, d, dtype), make(far, 50, d, dtype, seed=2)
    assert_right(x, y)
    assert_right(x, x, same=True)
    assert_right(x, x.clone())


@pytest.mark.parametrize("d", [9, 20])
@pytest.mark.parametrize("size", [1e20, 1e150, 1e200, 1e300, 1.7e308])
def test_very_large_coordinates_leave_the_others_alone(size, d):
    x = normal(40, d, seed=1)
    x[3], x[7] = size, -size
    found = squared_distances(x, x, same=True)
    assert torch.isfinite(found).all()
    assert_right(x, x, same=True)


def test_batches_and_their_broadcast():
    x = torch.stack([clusters(10.0**k, 20, 12, torch.float64) for k in (0, 5, 10)])
    y = torch.stack([with_outlier(10.0**k, 15, 12, torch.float64) for k in (12, 3)])[:, None]
    assert_right(x, x, same=True)
    found = squared_distances(x, y)
    assert found.shape == (2, 3, 20, 15)
    assert_close(found, truth_of(x, y), rtol=1e-10, atol=0)


def test_views_with_strides_are_taken():
    x = clusters(1e7, 24, 60, torch.float64)[:, ::3]
    assert_right(x, x.flip(0)[::2])
    assert_right(x.expand(3, 24, 20), x.expand(3, 24, 20), same=True)


@st.composite
def point_sets(draw):
    """Two sets of one law: scales, offsets, far points, duplicates, clusters."""
    d = draw(st.integers(1, 40))
    n, m = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    dtype = draw(st.sampled_from(DTYPES))
    most = 12 if dtype == torch.float64 else 8
    seed = draw(st.integers(0, 10_000))
    scale, offset, far = (10.0 ** draw(st.integers(-12, most)) for _ in range(3))
    generator = torch.Generator().manual_seed(seed)

    def normals(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    places = offset * normals(1, d) + far * normals(draw(st.integers(1, 5)), d)

    def points(count):
        of = torch.randint(len(places), (count,), generator=generator)
        x = places[of] + scale * normals(count, d)
        for _ in range(draw(st.integers(0, 2))):
            x[draw(st.integers(0, count - 1))] = 10.0 ** draw(st.integers(-12, 15))
        x[draw(st.integers(0, count - 1))] = x[draw(st.integers(0, count - 1))]
        return x.to(dtype)

    x, y = points(n), points(m)
    y[draw(st.integers(0, m - 1))] = x[draw(st.integers(0, n - 1))]
    return x, y


@settings(max_examples=150, deadline=None)
@given(point_sets())
def test_distances_of_any_points(sets):
    x, y = sets
    assert_right(x, y)
    assert_right(y, x)
    assert_right(x, x, same=True)


@settings(max_examples=25, deadline=None)
@given(point_sets(), st.sampled_from([0.01, 1.0, [0.1, 10.0]]))
def test_normalized_costs_lie_between_zero_and_one(sets, v):
    x, y = (t[:25] for t in sets)
    spread = truth_of(x, y).median().clamp(1e-20, 1e20) / x.shape[-1]
    v = [float(spread) * u for u in (v if isinstance(v, list) else [v])]
    for cost in (km.scalar_cost, km.vector_cost, km.matrix_cost, km.svd_cost):
        for pair in ((x, y), (x, x), (x, x.clone())):
            value = float(cost(*pair, v, normalized=True))
            assert 0 <= value <= 1, (cost.__name__, value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [8, 9, 20])
@pytest.mark.parametrize("far", [1e6, 1e10, 1e15])
def test_one_far_point_is_one_point_without_overlap(far, d, dtype):
    """A far point of both sets adds its own one to the matrix and svd costs, and nothing else."""
    x, y = normal(40, d, seed=1, dtype=dtype), normal(40, d, seed=2, dtype=dtype)
    far_point = torch.full((1, d), far, dtype=dtype)
    x_far, y_far = torch.cat([x, far_point]), torch.cat([y, far_point])
    tolerance = {"rtol": 1e-4 if dtype == torch.float32 else 1e-9, "atol": 0}
    assert_close(km.svd_cost(x_far, y_far, 0.5), km.svd_cost(x, y, 0.5) + 1, **tolerance)
    matrix = [km.matrix_cost(*pair, 0.5, ridge=1e-3) for pair in ((x_far, y_far), (x, y))]
    assert_close(matrix[0], matrix[1] + (1 / 1.001) ** 2, **tolerance)
    for a, b in ((x_far, y_far), (x_far, y)):
        for cost in (km.scalar_cost, km.vector_cost, km.matrix_cost, km.svd_cost):
            assert 0 <= float(cost(a, b, 0.5, normalized=True)) <= 1


# In turns: both precisions with every layout and dimension, and with every distance.
@pytest.mark.parametrize(
    ("far", "layout", "chunk", "d", "dtype"),
    [
        (far, layout, chunk, d, DTYPES[(i + j + k) % 2])
        for i, far in enumerate((1e3, 1e5, 1e9))
        for j, layout in enumerate(("clusters", "outlier", "offset"))
        for k, (d, chunk) in enumerate([(1, None), (3, 7), (4, None), (8, 7), (9, 7), (20, None)])
    ],
)
def test_gradients_of_far_clusters(far, layout, chunk, d, dtype):
    """Against autograd of explicit differences in float64, of the same rounded points."""
    if dtype == torch.float32 and far > 1e6 and layout != "outlier":
        pytest.skip("float32 cannot hold such points")
    x = LAYOUTS[layout](far, 30, d, dtype).requires_grad_()
    y = LAYOUTS[layout](far, 26, d, dtype, seed=2).requires_grad_()
    weights = normal(30, 26, seed=5, dtype=torch.float64).abs()

    def direct(x, y):
        return (-truth_of(x, y) / (4 * 0.5 * d)).exp()

    def found_and_truth(found, truth):
        for f, t in zip(
            torch.autograd.grad(found, (x, y)), torch.autograd.grad(truth, (x, y)), strict=True
        ):
            tolerance = 1e-5 if dtype == torch.float32 else 1e-9
            assert_close(
                f.double(), t.double(), rtol=tolerance, atol=tolerance * float(t.abs().max())
            )

    found_and_truth((km.gram(x, y, 0.5).double() * weights).sum(), (direct(x, y) * weights).sum())
    cost = km.scalar_cost(x, y, 0.5, chunk=chunk, log=True)
    truth = 2 * direct(y, x).mean().log() - direct(y, y).mean().log()
    found_and_truth(cost, truth)


@pytest.mark.parametrize("d", [9, 20])
def test_distances_can_be_differentiated(d):
    x, y = (clusters(3.0, n, d, torch.float64, seed=n).requires_grad_() for n in (5, 4))
    assert torch.autograd.gradcheck(squared_distances, (x, y))
    assert torch.autograd.gradgradcheck(squared_distances, (x, y))


@pytest.mark.parametrize("far", [1.0, 1e8])
def test_distances_under_vmap_and_compile(far):
    x = torch.stack([clusters(far, 7, 12, torch.float64, seed=s) for s in (1, 2)])
    y = with_outlier(far, 6, 12, torch.float64)
    truth = truth_of(x, y)
    for found in (
        torch.vmap(squared_distances, (0, None))(x, y),
        torch.vmap(lambda t: squared_distances(y, t), 1, 1)(x.transpose(0, 1)).permute(1, 2, 0),
        torch.compile(squared_distances, backend="aot_eager", fullgraph=True)(
            x, y.expand(2, 6, 12)
        ),
    ):
        assert_close(found, truth, rtol=1e-10, atol=0)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(-3, 9), st.integers(0, 1000))
def test_costs_do_not_see_a_shift(d, power, seed):
    """A shift by a whole number of units in the last place of every coordinate rounds nothing."""
    grid = 2.0**-16
    x, y = ((normal(n, d, seed=seed + n) / grid).round() * grid for n in (12, 9))
    shift = float(round(10.0**power / grid)) * grid
    for cost in (km.scalar_cost, km.vector_cost, km.matrix_cost, km.svd_cost):
        assert_close(cost(x + shift, y + shift, 0.3), cost(x, y, 0.3), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [4, 9])
def test_pulls_of_two_points_of_which_one_is_very_far(d, dtype):
    # The median of two points may be the far one, which is no origin for the others.
    unit = 1e-11
    x = torch.stack([unit * normal(d, seed=1, dtype=dtype), torch.full((d,), 1e9, dtype=dtype)])
    y = (unit * normal(4, d, seed=2, dtype=dtype)).requires_grad_()
    km.gram(y, x, 2 * unit**2).sum().backward()
    a, b = y.detach().double(), x.double()[:1]
    kernel = (-truth_of(a, b) / (8 * d * unit**2)).exp()
    expected = kernel * (b - a) / (4 * d * unit**2)
    assert_close(y.grad.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
