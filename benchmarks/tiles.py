"""Scalar cost and its gradient without an N x K matrix, against geomloss through KeOps."""

import json
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor

import kermix as km
from benchmarks.timing import device_name, measure

__all__ = ["run"]

V = 0.05
PEER = "geomloss gaussian (KeOps)"


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """One row for each program: the Gaussian kernel norm of geomloss has the same three sums."""
    n = 2000 if quick else 100_000
    ours = {"program": "kermix ScalarLoss", **_timing(km.ScalarLoss(V), n)}
    theirs: dict[str, Any] = {"program": PEER, **_in_own_process(n)}
    for row in (ours, theirs):
        if "step_s" in row:
            row["times_ours"] = row["step_s"] / ours["step_s"]
    return {"scalar_value_and_gradient": [ours, theirs]}


def _timing(loss: Any, n: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 3, generator=generator).to(device_name()) for _ in range(2))
    y.requires_grad_()

    def step() -> None:
        y.grad = None
        value: Tensor = loss(x, y)
        value.backward()

    many = x.is_cuda or n < 10_000
    timing = measure(step, repeats=5 if many else 1, warmup=1 if many else 0)
    return {"N": n, "d": 3, "step_s": timing["median_s"], "raw_s": timing["raw_s"]}


def _in_own_process(n: int) -> dict[str, Any]:
    """The peer compiles code of its own, and must not take the benchmark down if that crashes."""
    command = [sys.executable, "-m", __name__, str(n)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        said = (answer.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"N": n, "d": 3, "failed": f"exit {answer.returncode}: {said[:200]}"}
    row: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return row


def _peer(n: int) -> None:
    from geomloss import SamplesLoss

    # exp(-|x - y|^2 / (2 blur^2)) is our kernel for blur^2 = d * 2 v.
    loss = SamplesLoss("gaussian", blur=(2 * 3 * V) ** 0.5, backend="online")
    _timing(loss, 100)  # compiles
    sys.stdout.write("\n" + json.dumps(_timing(loss, n)) + "\n")


if __name__ == "__main__":
    _peer(int(sys.argv[1]))
