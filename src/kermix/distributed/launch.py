"""Starting ranks on this machine, and ending all of them when one fails."""

import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from kermix import errors
from kermix.environment import is_rank, world_of_environment
from kermix.errors import KermixError, OptionError, RankError

__all__ = ["check_ranks", "launch"]

PRELOADED = ["kermix.distributed.launch", "lightning.fabric"]  # where there is one
SECONDS_FOR_OTHERS = 1.0  # in which ranks that merely lost a peer fail by themselves
# How a rank fails whose only trouble is that another one is gone.
LOST_A_PEER = ("DistBackendError", "DistNetworkError", "DistStoreError")
LOST_A_PEER_TEXTS = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL")


def check_ranks(devices: int, nodes: int) -> None:
    """Refuse numbers of ranks that cannot be, or that are not those of the environment."""
    for name, value in (("devices", devices), ("nodes", nodes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name}={value!r}: must be at least 1.")
    if not is_rank():
        _meeting_point(nodes)
    elif world_of_environment() != (devices, nodes):
        local, there = world_of_environment()
        raise OptionError(
            f"devices={devices} and nodes={nodes}, but this process was started as one of "
            f"{local} on each of {there} nodes; omit these options under torchrun."
        )


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    devices: int,
    nodes: int = 1,
) -> Any:
    """Run a function in `devices` processes here, each a rank, and return what rank 0 returned.

    The function finds RANK, WORLD_SIZE and the like in its environment, where Lightning Fabric and
    `torch.distributed.init_process_group("gloo")` look for them. If one rank fails, all are ended,
    and that rank's error is raised here. SIGINT and SIGTERM are handed on to the ranks.

    For several nodes, run the same program on each, with MASTER_ADDR and MASTER_PORT (a port of
    node 0 that is free) and NODE_RANK (0, 1, ...) in the environment.

    Args:
        function: What to run; it and its arguments are pickled, so it is defined in a module.
        arguments: Its arguments.
        devices: Ranks on this node.
        nodes: Nodes.

    Returns:
        What rank 0 returned; None on nodes other than the first.
    """
    check_ranks(devices, nodes)
    address, port, node = _meeting_point(nodes)
    # The server imports torch once, and every rank is a copy of it.
    method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
    if method == "forkserver":
        get_context(method).set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="kermix-ranks-") as folder:
        environment = {
            "MASTER_ADDR": address, "MASTER_PORT": str(port), "GROUP_RANK": str(node),
            "WORLD_SIZE": str(devices * nodes), "LOCAL_WORLD_SIZE": str(devices),
        }  # fmt: skip
        context = start_processes(
            _run_rank,
            (function, arguments, environment, node * devices, folder, sys.path),
            nprocs=devices,
            join=False,
            start_method=method,
        )
        assert context is not None
        processes = context.processes
        try:
            with _handed_on(processes):
                failed = _wait_for(processes)
        finally:
            # Also when this process is interrupted: no rank outlives it.
            _end(processes)
        if failed:
            raise _cause(processes, failed, Path(folder), node * devices)
        result = Path(folder) / "result"
        return pickle.loads(result.read_bytes()) if result.exists() else None


def _run_rank(
    index: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    first: int,
    folder: str,
    path: list[str],
) -> None:
    rank = first + index
    sys.path[:] = path
    # A group of its own: a terminal's Ctrl-C reaches the program, which hands it on once.
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(index))
    if "OMP_NUM_THREADS" not in os.environ:
        ranks_here = int(environment["LOCAL_WORLD_SIZE"])
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks_here))
    try:
        answer = function(*arguments)
        if rank == 0:
            (Path(folder) / "result").write_bytes(pickle.dumps(answer))
    except BaseException as error:  # noqa: BLE001
        _note(error, Path(folder) / f"error-{rank}.json")
        # At once: an orderly end would wait for ranks that wait for this one.
        os._exit(1)


def _note(error: BaseException, path: Path) -> None:
    content = {
        "time": time.time(),
        "kind": type(error).__name__,
        "text": str(error),
        "trace": "".join(traceback.format_exception(error)),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


def _meeting_point(nodes: int) -> tuple[str, int, int]:
    if nodes == 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return "127.0.0.1", free.getsockname()[1], 0
    names = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise OptionError(
            f"nodes={nodes}, and {', '.join(missing)} is not set. Run the same command on every "
            "node, with MASTER_ADDR (the first node's address), MASTER_PORT (a free port of it) "
            "and NODE_RANK (0, 1, ...) in the environment; or start it with torchrun."
        )
    node = int(os.environ["NODE_RANK"])
    if not 0 <= node < nodes:
        raise OptionError(f"NODE_RANK={node} with nodes={nodes}: nodes are numbered from 0.")
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), node


@contextmanager
def _handed_on(processes: list[Any]) -> Iterator[None]:
    """Send SIGINT and SIGTERM on to the ranks, where handlers may be set at all."""

    def send(number: int, frame: Any) -> None:
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, number)

    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(s, send) for s in signals]
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for s, handler in zip(signals, before, strict=True):
            signal.signal(s, handler)


def _wait_for(processes: list[Any]) -> list[int]:
    """Wait for all to end, or for one to fail; returns those that failed by themselves."""
    running = {process.sentinel: index for index, process in enumerate(processes)}
    failed: list[int] = []
    end: float | None = None
    while running and (end is None or time.monotonic() < end):
        left = None if end is None else max(0.0, end - time.monotonic())
        for sentinel in wait(list(running), timeout=left):
            index = running.pop(sentinel)
            processes[index].join()
            if processes[index].exitcode:
                failed.append(index)
                end = end or time.monotonic() + SECONDS_FOR_OTHERS
    return failed


def _end(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()


def _cause(processes: list[Any], failed: list[int], folder: Path, first: int) -> Exception:
    """The error of the rank that failed first, not of those that merely lost it."""
    noted = {}
    for index in failed:
        path = folder / f"error-{first + index}.json"
        if path.exists():
            noted[index] = json.loads(path.read_text())
    own = {i: e for i, e in noted.items() if not _lost_a_peer(e)}
    killed = [i for i in failed if i not in noted]
    if not own and killed:
        rank, code = first + killed[0], processes[killed[0]].exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        likely = " If nobody sent it, the system did, for want of memory."
        return RankError(
            f"Rank {rank} {how}, and all others were ended."
            f"{likely if code == -signal.SIGKILL else ''}"
        )
    among = own or noted
    index = min(among, key=lambda i: among[i]["time"])
    kind, text = among[index]["kind"], among[index]["text"]
    named = getattr(errors, kind, None)
    if isinstance(named, type) and issubclass(named, KermixError):
        error: Exception = named(f"Rank {first + index}: {text}")
    else:
        error = RankError(f"Rank {first + index} failed with {kind}: {text}")
    error.add_note(among[index]["trace"])
    return error


def _lost_a_peer(noted: dict[str, Any]) -> bool:
    if noted["kind"] in LOST_A_PEER:
        return True
    return noted["kind"] == "RuntimeError" and any(t in noted["text"] for t in LOST_A_PEER_TEXTS)
