"""The costs as functions of Gram matrices, without samples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import kermix as km
import tolerances
from cases import normal, uniform
from kermix.costs.dual import log_determinant_cost, log_matrix_cost
from kermix.kernels.gram import ScaledGram
from kermix.linalg.cholesky import cholesky

law = settings(deadline=None, max_examples=40, derandomize=True, database=None)
FORMS = {
    "trace": log_matrix_cost,
    "data_fixed": lambda cross, centres, data: log_matrix_cost(cross, centres, None),
    "logdet": log_determinant_cost,
}


def invertible(k, seed):
    """Random rotations around singular values between 0.3 and 3: condition 10 at most."""
    u, v = (torch.linalg.qr(normal(k, k, seed=seed + i))[0] for i in (0, 1))
    return (u * (0.3 + 2.7 * uniform(k, seed=seed + 2))) @ v


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mixed", ["centres", "data"])
@given(n=st.integers(1, 12), k=st.integers(1, 12), seed=st.integers(0, 10_000))
@law
def test_residuals_mixed_by_an_invertible_matrix(form, mixed, n, k, seed):
    """`P -> T P`, `R_F -> T R_F T'` changes nothing, and the same on the side of the data."""
    if form == "data_fixed" and mixed == "data":
        return  # R_G does not enter, so the data's Gaussians must stay as they are
    # Two widths from point to point: well conditioned without a ridge.
    x = 2 * torch.arange(n, dtype=torch.float64)[:, None] + 0.3 * normal(n, 1, seed=seed)
    y = 2 * torch.arange(k, dtype=torch.float64)[:, None] + 0.3 * normal(k, 1, seed=seed + 1)
    p, r_f, r_g = (km.gram(a, b, 0.25) for a, b in ((y, x), (y, y), (x, x)))
    log_scale = torch.tensor(-0.5, dtype=torch.float64)

    def cost(p, r_f, r_g):
        factors = cholesky(r_f, ridge=0.0), cholesky(r_g, ridge=0.0)
        assert all(factor.ridge == 0 for factor in factors)
        return FORMS[form](ScaledGram(p, log_scale), *factors)

    truth = cost(p, r_f, r_g)
    if mixed == "centres":
        t = invertible(k, seed)
        found = cost(t @ p, t @ r_f @ t.mT, r_g)
    else:
        t = invertible(n, seed)
        found = cost(p @ t.mT, r_f, t @ r_g @ t.mT)
    assert_close(found, truth, rtol=0, atol=tolerances.LAW)
    # It is the pair that is mixed: one of them alone gives another number.
    alone = cost(2 * p, r_f, r_g)
    assert (alone - truth).abs() > 0.1
