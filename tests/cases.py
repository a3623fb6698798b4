"""The costs and losses by the names of reference.py, and samples to try them on."""

from functools import partial

import pytest
import torch

import kermix as km

COSTS = {
    "scalar": km.scalar_cost,
    "vector": km.vector_cost,
    "trace": partial(km.matrix_cost, form="trace"),
    "data_fixed": partial(km.matrix_cost, form="data_fixed"),
    "logdet": partial(km.matrix_cost, form="logdet"),
    "svd": km.svd_cost,
}
LOSSES = {
    "scalar": km.ScalarLoss,
    "vector": km.VectorLoss,
    "trace": partial(km.MatrixLoss, form="trace"),
    "data_fixed": partial(km.MatrixLoss, form="data_fixed"),
    "logdet": partial(km.MatrixLoss, form="logdet"),
    "svd": km.SVDLoss,
}
RIDGED = ("vector", "trace", "data_fixed", "logdet")
# The log-determinant has no form in [0, 1].
BOUNDED = tuple(name for name in COSTS if name != "logdet")
DTYPES = (torch.float64, torch.float32)
# Earlier ones leave a compiled graph at branches that look at data, and go on behind them.
whole_graphs = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13),
    reason="torch compiles costs into one graph from 2.13 on",
)


def ridged(name, ridge):
    """The keyword `ridge`, for the costs and losses that have one."""
    return {"ridge": ridge} if name in RIDGED else {}


def outputs(name):
    """The keywords that ask for each number a cost can give."""
    plain = [{}, {"log": True}]
    bounded = [{"normalized": True}, {"normalized": True, "log": True}]
    return plain + bounded if name in BOUNDED else plain


def normal(*shape, seed=0, dtype=torch.float64):
    """Standard normal numbers, the same for the same seed, rounded to `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def uniform(*shape, seed=0, dtype=torch.float64):
    """Numbers between 0 and 1, the same for the same seed, rounded to `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).to(dtype)


def samples(kind, n, k, d, v, dtype=torch.float64, seed=0):
    """Data (n, d) and centres (k, d).

    near: a few kernel widths wide, centres close to data, a third of them 30 widths away.
    unit: data fill the unit cube whatever the variance, as images do, centres close to data.
    apart: data and centres 100 widths from each other, where the kernel underflows.
    """
    width = v**0.5
    x = uniform(n, d, seed=seed) if kind == "unit" else 2 * width * normal(n, d, seed=seed)
    y = x[torch.arange(k) % n] + 0.5 * width * normal(k, d, seed=seed + 1)
    if kind == "near":
        y[-(k // 3) :] += 30 * width * (k >= 3)
    if kind == "apart":
        y += 100 * width
    return x.to(dtype), y.to(dtype)
