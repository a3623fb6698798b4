"""Bad input is refused with a named error that says which argument was wrong."""

import pytest
import torch

import kermix as km
from cases import COSTS, LOSSES, RIDGED, normal
from internals import generation_module as ablations
from kermix import errors

GOOD_X, GOOD_Y = normal(4, 3, seed=1), normal(5, 3, seed=2)
ones = torch.ones
everywhere = pytest.mark.parametrize("name", COSTS)


def with_value(tensor, value):
    tensor = tensor.clone()
    tensor[2, 1] = value
    return tensor


SAMPLES = [
    (ones(3), errors.ShapeError),
    (torch.tensor(1.0), errors.ShapeError),
    (ones(0, 3), errors.SampleError),
    (ones(4, 0), errors.SampleError),
    (ones(0, 4, 3), errors.SampleError),
    (with_value(GOOD_X, torch.nan), errors.SampleError),
    (with_value(GOOD_X, torch.inf), errors.SampleError),
    (with_value(GOOD_X, -torch.inf), errors.SampleError),
    (ones(4, 3, dtype=torch.int64), errors.SampleError),
    (ones(4, 3, dtype=torch.bool), errors.SampleError),
    (ones(4, 3, dtype=torch.complex64), errors.SampleError),
    (GOOD_X.numpy(), errors.SampleError),
    ([[1.0, 2.0, 3.0]], errors.SampleError),
    (None, errors.SampleError),
]
PAIRS = [
    (ones(4, 2), ones(5, 3), errors.ShapeError),
    (ones(2, 4, 3), ones(3, 5, 3), errors.ShapeError),
    (ones(4, 3), ones(5, 3, device="meta"), errors.DeviceError),
    (ones(4, 3, device="meta"), ones(5, 3), errors.DeviceError),
]


def _shown(bad):
    # An object shows its address, and every process must find the same tests.
    return "object" if type(bad) is object else str(bad)


VARIANCES = [0.0, -1.0, torch.nan, torch.inf, [], [1.0, -1.0], [1.0, 0.0], [1.0, torch.nan]]
VARIANCES += [torch.tensor(-1.0), torch.tensor([1.0, 0.0]), torch.tensor([])]
WEIGHTS = [
    (torch.tensor([1.0, -1.0, 1.0, 1.0]), errors.WeightError),
    (torch.zeros(4), errors.WeightError),
    (ones(3), errors.WeightError),
    (ones(4, 1), errors.WeightError),
    (torch.tensor(1.0), errors.WeightError),
    (torch.tensor([1.0, torch.nan, 1.0, 1.0]), errors.WeightError),
    (torch.tensor([1.0, torch.inf, 1.0, 1.0]), errors.WeightError),
    (ones(4, dtype=torch.int64), errors.WeightError),
    ([0.25, 0.25, 0.25, 0.25], errors.WeightError),
    (ones(4, device="meta"), errors.DeviceError),
]
# Everything that takes two samples and a variance.
FUNCTIONS = COSTS | {
    "frobenius": ablations.frobenius_cost,
    "vector_weights": km.vector_weights,
    "gram": km.gram,
    "loss": lambda x, y, v: km.SVDLoss(v)(x, y),
}


@pytest.mark.parametrize(("bad", "error"), SAMPLES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples(name, bad, error):
    first, second = ("a", "b") if name == "gram" else ("x", "y")
    with pytest.raises(error, match=rf"\b{first}\b"):
        FUNCTIONS[name](bad, GOOD_Y, 1.0)
    if name == "gram" and bad is None:
        return  # gram(a, None, v) may mean gram(a, a, v)
    with pytest.raises(error, match=rf"\b{second}\b"):
        FUNCTIONS[name](GOOD_Y, bad, 1.0)


@pytest.mark.parametrize(("x", "y", "error"), PAIRS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples_that_do_not_fit_each_other(name, x, y, error):
    first, second = ("a", "b") if name == "gram" else ("x", "y")
    with pytest.raises(error, match=rf"\b{first}\b.*\b{second}\b"):
        FUNCTIONS[name](x, y, 1.0)


@pytest.mark.parametrize(("x", "y", "error"), PAIRS)
def test_samples_of_the_distance_cost(x, y, error):
    with pytest.raises(error, match=r"\bx\b.*\by\b"):
        ablations.distance_nuclear_cost(x, y)
    with pytest.raises(errors.SampleError, match=r"\bx\b"):
        ablations.distance_nuclear_cost(with_value(GOOD_X, torch.nan), GOOD_Y)


@pytest.mark.parametrize("bad", VARIANCES, ids=_shown)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_variance(name, bad):
    with pytest.raises(errors.VarianceError, match=r"\bv\b"):
        FUNCTIONS[name](GOOD_X, GOOD_Y, bad)


@pytest.mark.parametrize("bad", VARIANCES, ids=_shown)
def test_variance_of_kernels_and_losses(bad):
    with pytest.raises(errors.VarianceError, match=r"\bv\b"):
        km.scalar_cost(GOOD_X, GOOD_Y, km.GaussianKernel(bad))
    with pytest.raises(errors.VarianceError, match=r"\bv_q\b"):
        km.scalar_cost(GOOD_X, GOOD_Y, km.GaussianKernel(1.0, bad))
    for name in LOSSES:
        with pytest.raises(errors.VarianceError, match=r"\bv\b"):
            LOSSES[name](bad)(GOOD_X, GOOD_Y)


def test_variance_of_the_wrong_shape():
    with pytest.raises((errors.VarianceError, errors.ShapeError), match=r"\bv\b"):
        km.scalar_cost(GOOD_X, GOOD_Y, ones(2, 2))


def test_lists_of_different_length():
    with pytest.raises(errors.VarianceError, match=r"\bv_q\b"):
        km.scalar_cost(GOOD_X, GOOD_Y, km.GaussianKernel([1.0, 2.0], [1.0, 2.0, 3.0]))


@pytest.mark.parametrize(("bad", "error"), WEIGHTS)
@everywhere
def test_weights(name, bad, error):
    with pytest.raises(error, match="weights_x"):
        COSTS[name](GOOD_X, GOOD_Y, 1.0, weights_x=bad)
    with pytest.raises(error, match="weights_y"):
        COSTS[name](GOOD_Y, GOOD_X, 1.0, weights_y=bad)
    loss = LOSSES[name](1.0)
    with pytest.raises(error, match="weights_x"):
        loss(GOOD_X, GOOD_Y, weights_x=bad)
    with pytest.raises(error, match="weights_y"):
        loss(GOOD_Y, GOOD_X, weights_y=bad)


@pytest.mark.parametrize(("bad", "error"), WEIGHTS)
def test_weights_of_vector_weights(bad, error):
    with pytest.raises(error, match="weights_x"):
        km.vector_weights(GOOD_X, GOOD_Y, 1.0, weights_x=bad)


@everywhere
def test_one_bad_batch_item_is_enough(name):
    x = GOOD_X.repeat(3, 1, 1)
    weights = ones(3, 4)
    weights[1] = 0
    with pytest.raises(errors.WeightError, match="weights_x"):
        COSTS[name](x, GOOD_Y, 1.0, weights_x=weights)
    x[2, 0, 0] = torch.nan
    with pytest.raises(errors.SampleError, match=r"\bx\b"):
        COSTS[name](x, GOOD_Y, 1.0)


@pytest.mark.parametrize("bad", [-1e-6, torch.nan, torch.inf])
@pytest.mark.parametrize("name", RIDGED)
def test_ridge(name, bad):
    with pytest.raises(errors.OptionError, match="ridge"):
        COSTS[name](GOOD_X, GOOD_Y, 1.0, ridge=bad)
    with pytest.raises(errors.OptionError, match="ridge"):
        LOSSES[name](1.0, ridge=bad)(GOOD_X, GOOD_Y)


def test_ridge_of_vector_weights():
    with pytest.raises(errors.OptionError, match="ridge"):
        km.vector_weights(GOOD_X, GOOD_Y, 1.0, ridge=-1.0)


@pytest.mark.parametrize("bad", [0, -1, 1.5])
@pytest.mark.parametrize("name", ["scalar", "vector"])
def test_chunk(name, bad):
    with pytest.raises(errors.OptionError, match="chunk"):
        COSTS[name](GOOD_X, GOOD_Y, 1.0, chunk=bad)


def test_options():
    with pytest.raises(errors.OptionError, match=r"form.*trace"):
        km.matrix_cost(GOOD_X, GOOD_Y, 1.0, form="determinant")
    with pytest.raises(errors.OptionError, match=r"form.*trace"):
        km.MatrixLoss(1.0, form="determinant")(GOOD_X, GOOD_Y)
    with pytest.raises(errors.OptionError, match=r"method.*svd"):
        km.svd_cost(GOOD_X, GOOD_Y, 1.0, method="guess")
    with pytest.raises(errors.OptionError, match=r"method.*svd"):
        km.nuclear_norm(GOOD_X, method="guess")
    with pytest.raises(errors.OptionError, match=r"rule.*median"):
        km.choose_variance(GOOD_X, rule="guess")


@pytest.mark.parametrize(("bad", "error"), SAMPLES)
def test_bandwidth(bad, error):
    with pytest.raises(error, match=r"\bx\b"):
        km.choose_variance(bad)


def test_nuclear_norm_of_a_vector():
    with pytest.raises(errors.ShapeError):
        km.nuclear_norm(ones(3))


def test_every_error_is_a_kermix_error():
    for name in ("ShapeError", "SampleError", "VarianceError", "WeightError", "OptionError"):
        assert issubclass(getattr(errors, name), errors.KermixError)
        assert issubclass(getattr(errors, name), ValueError)


SKETCHED = km.Sketch(km.nystrom_features(GOOD_X, 0.1, rank=3)).update(GOOD_X)
# Every option that is a number, with what takes it; None is allowed for some of them.
NUMBERS = {
    "chunk": [km.scalar_cost, km.vector_cost, km.vector_weights],
    "ridge": [km.vector_cost, km.vector_weights, km.matrix_cost, km.two_sample_test],
    "tolerance": [km.svd_cost],
    "rank": [km.svd_cost, km.decompose],
    "permutations": [km.two_sample_test, km.compare],
    "seed": [km.two_sample_test, km.compare],
    "groups": [km.two_sample_test],
    "jackknife_groups": [km.compare],
    "max_points": [km.compare],
}
NO_NUMBERS = ["small", "", b"2", [0.5], {}, 1j, torch.ones(3), object()]


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize("option", NUMBERS)
def test_options_of_the_wrong_type(option, bad):
    for function in NUMBERS[option]:
        test = function in (km.two_sample_test, km.compare)
        variance = () if test else (0.1,)
        method = {"method": "sketch"} if function is km.svd_cost else {}
        with pytest.raises(errors.KermixError, match=option):
            function(GOOD_X, GOOD_Y, *variance, **{option: bad}, **method)


@pytest.mark.parametrize("bad", [3, 1j, object()], ids=lambda bad: type(bad).__name__)
def test_columns_that_are_no_list(bad):
    with pytest.raises(errors.TableError, match="columns"):
        km.compare(GOOD_X, GOOD_Y, columns=bad)


@pytest.mark.parametrize(
    "bad",
    [*NO_NUMBERS, None, True, 0, -1, 2.5],
    ids=_shown,
)
def test_counts_that_are_none(bad):
    for option in ("dimension", "rank"):
        with pytest.raises(errors.OptionError, match=option):
            km.fourier_features(**{"dimension": 2, "v": 0.1, "rank": 4} | {option: bad})
    with pytest.raises(errors.OptionError, match="permutations"):
        km.two_sample_test(GOOD_X, GOOD_Y, permutations=bad)


@pytest.mark.parametrize("bad", [*NO_NUMBERS, None, 2.5], ids=_shown)
def test_seeds_that_are_none(bad):
    calls = [
        lambda: km.fourier_features(2, 0.1, 4, seed=bad),
        lambda: km.nystrom_features(GOOD_X, 0.1, 3, seed=bad),
        lambda: km.two_sample_test(GOOD_X, GOOD_Y, permutations=3, seed=bad),
        lambda: km.compare(GOOD_X, GOOD_Y, permutations=3, seed=bad),
    ]
    for call in calls:
        with pytest.raises(errors.OptionError, match="seed"):
            call()


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=lambda bad: type(bad).__name__)
def test_options_of_features_and_sketches(bad):
    for option in ("tolerance", "candidates"):
        with pytest.raises(errors.OptionError, match=option):
            km.nystrom_features(GOOD_X, 0.1, 3, **{option: bad})
    for cost in (km.vector_cost, km.matrix_cost):
        with pytest.raises(errors.OptionError, match="ridge"):
            cost(SKETCHED, GOOD_Y, ridge=bad)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", ["auto", "svd", "polar"])
def test_a_matrix_without_singular_values(method, value):
    matrix = with_value(GOOD_X, value)
    with pytest.raises(errors.SampleError, match="matrix"):
        km.nuclear_norm(matrix, method=method)
    with pytest.raises(errors.OptionError, match="tolerance"):
        km.nuclear_norm(GOOD_X, method=method, tolerance="small")
