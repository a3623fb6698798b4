"""Measuring time and memory the same way in every benchmark."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Timing", "captured", "device_name", "measure", "peak_memory_of", "timed",
           "training_step"]  # fmt: skip


class Timing(dict[str, Any]):
    """Median and raw seconds of repeated calls."""

    @property
    def seconds(self) -> float:
        """The median."""
        return float(self["median_s"])


def device_name() -> str:
    """The device that benchmarks run on: a GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def measure(call: Callable[[], Any], repeats: int = 5, warmup: int = 1) -> Timing:
    """Time a call, waiting for the device before and after each repetition."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        call()
        _wait()
        times.append(time.perf_counter() - start)
    return Timing(median_s=sorted(times)[len(times) // 2], raw_s=times)


def timed(call: Callable[[], Any], repeats: int, warmup: int) -> Timing:
    """Seconds of repeated calls: of the clock on a GPU, of the processors on a CPU."""
    if device_name() == "cuda":
        return measure(call, repeats, warmup)
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return Timing(median_s=sorted(times)[len(times) // 2], raw_s=times)


def peak_memory_of(code: str) -> float:
    """What Python code prints last, in a process of its own: what ran before cannot hide it.

    The code may call `peak()`, the process's peak memory in MB. Not `ru_maxrss`, in which a
    process inherits the peak of the one that started it.
    """
    program = (
        "import re\n"
        "def peak():\n"
        "    status = open('/proc/self/status').read()\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1]) / 1024\n"
        f"{code}\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(answer.stdout.split()[-1])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def training_step(
    network: nn.Module, optimizer: Any, loss: Any, x: Tensor, noise: Tensor
) -> Callable[[], None]:
    """One step of a generator's training."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(x, network(noise)).backward()
        optimizer.step()

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """A step as one CUDA graph, which is what a training loop would replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(6):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
