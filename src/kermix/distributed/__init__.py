"""One cost over many processes: losses of the batch of all ranks, and how to start ranks."""

from .batchnorm import BatchNormOverRanks, batch_norm_over_ranks
from .launch import launch
from .loss import DistributedLoss, RankInfo, Strategy
from .ranks import Ranks, shares, slice_of

__all__ = [
    "BatchNormOverRanks",
    "DistributedLoss",
    "RankInfo",
    "Ranks",
    "Strategy",
    "batch_norm_over_ranks",
    "launch",
    "shares",
    "slice_of",
]
