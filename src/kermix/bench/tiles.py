"""Scalar cost and its gradient without an N x K matrix, against geomloss through KeOps."""

from typing import Any

import torch

import kermix as km

from .timing import Timing, device_name, measure

__all__ = ["run"]

V = 0.05


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """One row for each program: the Gaussian kernel norm of geomloss has the same three sums."""
    n, d = (2000 if quick else 100_000), 3
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, d, generator=generator).to(device_name()) for _ in range(2))
    y.requires_grad_()
    repeats = 5 if x.is_cuda or quick else 1
    loss = km.ScalarLoss(V)

    def ours() -> None:
        y.grad = None
        loss(x, y).backward()

    rows = [_row("kermix ScalarLoss", n, d, measure(ours, repeats, warmup=1))]
    try:
        from geomloss import SamplesLoss

        # exp(-|x - y|^2 / (2 blur^2)) is our kernel for blur^2 = d * 2 v.
        peer = SamplesLoss("gaussian", blur=(2 * d * V) ** 0.5, backend="online")

        def theirs() -> None:
            y.grad = None
            peer(x, y).backward()

        rows.append(_row("geomloss gaussian (KeOps)", n, d, measure(theirs, repeats, warmup=1)))
    except Exception as error:  # noqa: BLE001
        rows.append(
            {"program": "geomloss gaussian (KeOps)", "N": n, "d": d, "error": str(error)[:300]}
        )
    for row in rows:
        if "step_s" in row:
            row["times_ours"] = row["step_s"] / rows[0]["step_s"]
    return {"scalar_value_and_gradient": rows}


def _row(program: str, n: int, d: int, timing: Timing) -> dict[str, Any]:
    return {
        "program": program,
        "N": n,
        "d": d,
        "step_s": timing["median_s"],
        "raw_s": timing["raw_s"],
    }
