"""BatchNorm whose statistics are those of the batch over all ranks."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.distributed.ranks import Ranks

__all__ = ["BatchNormOverRanks", "batch_norm_over_ranks"]


class BatchNormOverRanks(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over all ranks, on any device; `torch.nn.SyncBatchNorm` needs a GPU.

    Parameters and buffers have the names of `torch.nn.BatchNorm1d`, so weights can be exchanged.

    Args:
        like: The layer that it stands for; parameters and buffers are shared with it.
        ranks: The processes; each may have another number of rows.
    """

    def __init__(self, like: nn.modules.batchnorm._BatchNorm, ranks: Ranks) -> None:
        super().__init__(
            like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats
        )
        self._parameters, self._buffers = like._parameters, like._buffers
        self.ranks = ranks
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:  # (n, channels, ...)
        """Normalise with the mean and variance over the rows of all ranks."""
        if not self.training and self.track_running_stats:
            return functional.batch_norm(
                x,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                False,
                0.0,
                self.eps,
            )
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        with torch.no_grad():
            count = self.ranks.sum(x.new_tensor(x.numel() / x.shape[1], dtype=torch.float64))
            count = count.to(x.dtype)
        mean = self.ranks.sum(x.sum(axes)) / count
        centred = x - mean.view(shape)
        variance = self.ranks.sum(centred.square().sum(axes)) / count
        if self.training and self.track_running_stats:
            self._remember(mean, variance * (count / (count - 1)))
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if not self.affine:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of axes from two up."""


def batch_norm_over_ranks(module: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """Replace every BatchNorm layer inside by one over all ranks, in place where that can be.

    On a GPU it is `torch.nn.SyncBatchNorm`, elsewhere `BatchNormOverRanks`.
    """
    if ranks.size == 1:
        return module
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module, ranks.group)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        already = isinstance(module, BatchNormOverRanks | nn.SyncBatchNorm)
        return module if already else BatchNormOverRanks(module, ranks)
    for name, child in module.named_children():
        setattr(module, name, batch_norm_over_ranks(child, ranks, device))
    return module
