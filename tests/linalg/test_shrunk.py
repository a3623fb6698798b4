"""Systems that are solved with a Cholesky factor, and their derivatives."""

import torch
from torch.testing import assert_close

from cases import normal
from internals import cholesky, ridged_factor, shrunk


def test_a_batch_of_singular_matrices_is_shrunk():
    half = normal(3, 6, 4, seed=1)
    c = half @ half.mT
    assert torch.linalg.matrix_rank(c).tolist() == [4, 4, 4]
    for ridge, scale in ((1e-3, 1.0), (torch.tensor(0.5).double(), torch.tensor(2.0).double())):
        regularized = scale * c + ridge * torch.eye(6).double()
        assert_close(shrunk(c, ridge, scale), c @ torch.linalg.inv(regularized))
        factor = ridged_factor(c, ridge, scale)
        assert_close(factor @ factor.mT, regularized)
        assert factor.triu(1).count_nonzero() == 0


def test_squares_of_whitened_columns_have_two_derivatives():
    """Of one factor and of two, whose batch shapes differ."""
    a, b = normal(4, 4, seed=1).requires_grad_(), normal(2, 5, 5, seed=2).requires_grad_()
    columns = normal(2, 4, 5, seed=3).requires_grad_()

    def once(a, columns):
        return cholesky(a @ a.mT, 1e-2).whitened_square(columns)

    def twice(a, b, columns):
        return cholesky(a @ a.mT, 1e-2).whitened_square(columns, cholesky(b @ b.mT, 1e-2))

    left, right = (cholesky(t @ t.mT, 1e-2) for t in (a, b))
    whitened = left.whiten(columns)
    assert_close(once(a, columns), whitened.square().sum((-2, -1)))
    assert_close(twice(a, b, columns), right.whiten(whitened.mT).square().sum((-2, -1)))
    for call, given in ((once, (a, columns)), (twice, (a, b, columns))):
        assert torch.autograd.gradcheck(call, given)
        assert torch.autograd.gradgradcheck(call, given)
