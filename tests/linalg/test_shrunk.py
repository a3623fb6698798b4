"""`C (s C + ridge)^-1`, which primal costs and weightings of a pooled sample share."""

import torch
from torch.testing import assert_close

from cases import normal
from internals import ridged_factor, shrunk


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
