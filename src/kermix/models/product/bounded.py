"""Batch normalization of exponents, of which an exponential is taken: nothing may be far out."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FARTHEST_EXPONENT", "BoundedNorm"]

FARTHEST_EXPONENT = 4.0  # deviations


class BoundedNorm(nn.BatchNorm1d):
    r"""Batch normalization whose values are at most `FARTHEST_EXPONENT` deviations from the mean.

    The bound comes before scale and shift, in training as in evaluation. A scale may be negative
    and a row like no other hundreds of deviations away: its exponential would have no bound.

    Example:
        >>> norm = BoundedNorm(1).eval()
        >>> norm(torch.tensor([[1.0], [-99.0]])).tolist()
        [[0.9999949932098389], [-4.0]]
    """

    def forward(self, x: Tensor) -> Tensor:  # (n, features) or (n, features, rows)
        """Normalized, bounded, scaled and shifted."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if self.training:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:  # a plain mean over batches
            assert self.num_batches_tracked is not None
            momentum = 1.0 / max(1.0, float(self.num_batches_tracked))
        found = functional.batch_norm(
            x, self.running_mean, self.running_var, None, None, self.training, momentum, self.eps
        )
        shape = (1, -1, *[1] * (x.ndim - 2))
        near = functional.hardtanh_(found, -FARTHEST_EXPONENT, FARTHEST_EXPONENT)
        return torch.addcmul(self.bias.view(shape), near, self.weight.view(shape))
