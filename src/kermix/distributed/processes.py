"""Ranks: how they start and end, Lightning's Fabric on them, and what they send each other.

Gradients flow through what is gathered from all ranks and through sums over them. The convention:
each rank holds its own copy of the loss, and a backward gives the gradient of the *sum of these
copies* with respect to what the rank put in. All copies are equal, so a rank's gradient is $W$
times its share, and the **mean over ranks of the gradients of the parameters, which is what
data-parallel training takes, is the gradient that one process with the whole batch would have
found**.
"""

import importlib
import json
import logging
import os
import pickle
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from kermix import errors
from kermix.environment import is_rank, world_of_environment
from kermix.errors import KermixError, MissingExtraError, OptionError, RankError

__all__ = ["Ranks", "check_ranks", "launch", "make_fabric", "shares", "slice_of"]

PRELOADED = ["kermix.distributed.processes", "lightning.fabric"]  # where there is one
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


def _wait_for(processes: list[Any], seconds: float = 1.0) -> list[int]:
    """Wait for all to end, or for one to fail; returns those that failed by themselves.

    Ranks that merely lost a peer fail by themselves within so many seconds.
    """
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
                end = end or time.monotonic() + seconds
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
        return _ended_by_others(first + killed[0], processes[killed[0]].exitcode)
    among = own or noted
    index = min(among, key=lambda i: among[i]["time"])
    return _noted_error(first + index, among[index])


def _ended_by_others(rank: int, code: int) -> RankError:
    """The error of a rank that left no note."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    likely = " If nobody sent it, the system did, for want of memory."
    return RankError(
        f"Rank {rank} {how}, and all others were ended.{likely if code == -signal.SIGKILL else ''}"
    )


def _noted_error(rank: int, noted: dict[str, Any]) -> Exception:
    """The error that a rank has noted, of its own kind if that is one of kermix."""
    named = getattr(errors, noted["kind"], None)
    if isinstance(named, type) and issubclass(named, KermixError):
        error: Exception = named(f"Rank {rank}: {noted['text']}")
    else:
        error = RankError(f"Rank {rank} failed with {noted['kind']}: {noted['text']}")
    error.add_note(noted["trace"])
    return error


def _lost_a_peer(noted: dict[str, Any]) -> bool:
    if noted["kind"] in LOST_A_PEER:
        return True
    return noted["kind"] == "RuntimeError" and any(t in noted["text"] for t in LOST_A_PEER_TEXTS)


def make_fabric(device: str, precision: Any, devices: int = 1, nodes: int = 1) -> Any:
    """Fabric on a device with a precision; with several processes, this one is one of them."""
    if precision == "auto":
        fabric = make_fabric(device, "32-true", devices, nodes)
        if fabric.device.type != "cuda":
            return fabric
        precision = "bf16-mixed"
    try:
        # Two packages bring the same Fabric.
        found = "lightning.fabric" if find_spec("lightning") else "lightning_fabric"
        Fabric = importlib.import_module(found).Fabric
        environments = importlib.import_module(f"{found}.plugins.environments.torchelastic")
    except ImportError:
        raise MissingExtraError("Training needs Lightning: pip install 'kermix[fit]'.") from None
    kind, options = device, dict[str, Any](devices=1)
    if numbered := re.fullmatch(r"(cuda):(\d+)", device):
        kind, options = numbered[1], {"devices": [int(numbered[2])]}
    if devices * nodes > 1:
        if not is_rank():
            raise OptionError(
                f"devices={devices} and nodes={nodes}, but this process was started alone: use "
                "kermix.distributed.launch, `kermix fit --devices`, or torchrun."
            )
        check_ranks(devices, nodes)
        options = {"devices": devices, "num_nodes": nodes, "strategy": "ddp"}
        options["plugins"] = [environments.TorchElasticEnvironment()]
    try:
        with _without_advice():  # about tensor cores
            fabric = Fabric(accelerator=kind, precision=precision, **options)
    except (ValueError, RuntimeError, AssertionError) as error:
        # Lightning has errors of its own, all of these kinds: unknown names, absent devices.
        raise OptionError(
            f"device={device!r} with precision={precision!r} cannot be used here: "
            f"{' '.join(str(error).split())}"
        ) from None
    if devices * nodes > 1:
        with _without_advice():  # a banner
            fabric.launch()
    return fabric


@contextmanager
def _without_advice() -> Iterator[None]:
    """Have no library log what is not a warning: a user can do nothing about Lightning's advice.

    The precision of products of matrices is PyTorch's own setting, of the whole process.
    """
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        yield
    finally:
        logging.disable(before)


def shares(rows: int, ranks: int) -> list[int]:
    """How many of so many rows each rank takes: the first ones take one more if need be.

    Example:
        >>> shares(10, 4)
        [3, 3, 2, 2]
    """
    least, more = divmod(rows, ranks)
    return [least + (rank < more) for rank in range(ranks)]


def slice_of(counts: Sequence[int], rank: int) -> slice:
    """Where a rank's rows lie among all.

    Example:
        >>> slice_of([3, 3, 2], 1)
        slice(3, 6, None)
    """
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])


class Ranks:
    """The processes of a group, and the collectives that losses need.

    Without a process group there is one rank, and nothing is sent.

    Args:
        group: A process group; None stands for all processes.

    Attributes:
        rank: The number of this process in the group.
        size: The number of processes.
        payload: Bytes that this rank has handed to collectives so far: of a gather its own rows
            as padded, of a sum the whole tensor. What a network moves for them depends on its
            algorithm.

    Example:
        >>> ranks = Ranks()
        >>> ranks.rank, ranks.size, ranks.sum(torch.ones(2))
        (0, 1, tensor([1., 1.]))
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        there = dist.is_available() and dist.is_initialized()
        if group is not None and not there:
            raise OptionError(
                "group is given, but there is no process group: call "
                "torch.distributed.init_process_group first, or leave group out."
            )
        self.group = group
        self.rank = dist.get_rank(group) if there else 0
        self.size = dist.get_world_size(group) if there else 1
        self.payload = 0
        if self.rank < 0:
            raise OptionError("This process is not a member of the given group.")

    def gather(self, rows: Tensor, counts: Sequence[int], dim: int = -2) -> Tensor:
        """The rows of all ranks, one rank after the other, along an axis that may differ in size.

        Args:
            rows: The rows of this rank.
            counts: How many rows each rank has.
            dim: The axis along which rows lie.
        """
        if self.size == 1:
            return rows
        return _Gather.apply(rows, self, tuple(counts), dim)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        return tensor if self.size == 1 else _Sum.apply(tensor, self)

    @torch.no_grad()
    def max(self, tensor: Tensor) -> Tensor:
        """The largest over ranks, element by element; a constant for differentiation."""
        largest = tensor.detach().clone()
        if self.size > 1:
            self._count(largest)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return largest

    @torch.no_grad()
    def broadcast(self, tensor: Tensor, owner: int = 0) -> Tensor:
        """The tensor of one rank, on all ranks; the others give one of its shape."""
        tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1 and tensor.numel():
            self._count(tensor)
            dist.broadcast(tensor, self._global(owner), group=self.group)
        return tensor

    def collect(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """Whole numbers of every rank, as Python numbers: waits for the device."""
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.int64, device=device)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._count(mine)
        dist.all_gather(parts, mine, group=self.group)
        return torch.stack(parts).tolist()

    def log_sum(self, logarithms: Tensor, weights: Tensor | None, total: int) -> Tensor:
        r"""Logarithm of $\sum_r \sum_j w_j e^{l_j}$ over the last axis and all ranks.

        Args:
            logarithms: The numbers of this rank, (*B, n), where n may be zero.
            weights: Their weights (*B, n), which sum to 1 over all ranks; None: `1 / total`.
            total: The number of numbers on all ranks.
        """
        seen = logarithms.detach()
        if weights is not None:
            seen = seen.masked_fill(weights <= 0, -torch.inf)
        lowest = torch.full_like(seen.sum(-1), -torch.inf)
        scale = self.max(seen.amax(-1) if seen.shape[-1] else lowest)
        values = (logarithms - scale.unsqueeze(-1)).clamp(max=60.0).exp()
        weighted = values / total if weights is None else values * weights.to(values)
        return scale + self.sum(weighted.sum(-1)).log()

    def _count(self, tensor: Tensor) -> None:
        self.payload += tensor.numel() * tensor.element_size()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, counts: tuple[int, ...], dim: int) -> Tensor:
        ctx.ranks, ctx.counts, ctx.dim = ranks, counts, dim
        first = rows.detach().movedim(dim, 0)
        # Equal sizes are what every backend can gather.
        padded = first.new_zeros(max(counts), *first.shape[1:])
        padded[: len(first)] = first
        parts = [torch.empty_like(padded) for _ in counts]
        ranks._count(padded)
        dist.all_gather(parts, padded, group=ranks.group)
        whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return whole.movedim(0, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        total = grad.movedim(ctx.dim, 0).contiguous().clone()
        ctx.ranks._count(total)
        dist.all_reduce(total, group=ctx.ranks.group)
        mine = total[slice_of(ctx.counts, ctx.ranks.rank)]
        return mine.movedim(0, ctx.dim), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _summed(tensor, ranks)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, ctx.ranks), None


def _summed(tensor: Tensor, ranks: Ranks) -> Tensor:
    total = tensor.detach().contiguous().clone()
    ranks._count(total)
    dist.all_reduce(total, group=ranks.group)
    return total
