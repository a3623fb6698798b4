"""One cost over many processes: each rank's rows in, the cost of all rows out; how ranks start."""

from kermix.distributed.processes import Ranks, launch, shares, slice_of

__all__ = ["Ranks", "launch", "shares", "slice_of"]
