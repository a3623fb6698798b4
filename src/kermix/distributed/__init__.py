"""One cost over many processes: losses of the batch of all ranks, and how to start ranks."""

from kermix.distributed.batchnorm import BatchNormOverRanks, batch_norm_over_ranks
from kermix.distributed.launch import launch
from kermix.distributed.loss import DistributedLoss, RankInfo, Strategy
from kermix.distributed.ranks import Ranks, shares, slice_of

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
