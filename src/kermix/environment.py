"""The version of kermix, and which of several processes this one is, as its environment says."""

import os

__all__ = ["__version__", "is_main_process", "is_rank", "world_of_environment"]

__version__ = "0.2.0"


def is_rank() -> bool:
    """Whether this process was started as one of several, by `launch` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "LOCAL_RANK" in os.environ


def is_main_process() -> bool:
    """Whether this process is the one that talks to the user."""
    return not is_rank() or os.environ["RANK"] == "0"


def world_of_environment() -> tuple[int, int]:
    """Processes on each node, and nodes, as told to a rank by who started it."""
    world = int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return local, max(1, world // local)
