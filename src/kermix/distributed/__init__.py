"""One cost over many processes: losses of the batch of all ranks, and how to start ranks."""

from kermix.distributed.launch import launch
from kermix.distributed.loss import DistributedLoss, RankInfo, Strategy
from kermix.distributed.ranks import Ranks, shares, slice_of

__all__ = [
    "DistributedLoss",
    "RankInfo",
    "Ranks",
    "Strategy",
    "launch",
    "shares",
    "slice_of",
]
