"""Random calls of the costs and losses, their values and gradients against the references."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kermix as km
from benchmarks.fuzz import exact
from benchmarks.fuzz.case import RELATIVE, Array, Case, precision
from benchmarks.fuzz.inputs import Pair, draw_pair
from benchmarks.fuzz.references import Reference, cost, gradients

__all__ = [
    "debiased_loss", "gradient_and_value", "loss_of", "matrix_cost", "scalar_cost", "svd_cost",
    "threshold_cost", "vector_cost",
]  # fmt: skip

RIDGE = {torch.float64: 1e-6}
MOST_EXACT = 5
# Beyond this a gradient is lost in rounding, whatever the program.
WORST_GRADIENT = 0.05


def scalar_cost(case: Case) -> None:
    """The scalar cost, also in tiles."""
    options = {"chunk": int(case.rng.integers(4, 40))} if case.chance(0.3) else {}
    _cost(case, km.scalar_cost, "scalar", draw_pair(case), options)


def vector_cost(case: Case) -> None:
    """The vector cost."""
    options: dict[str, Any] = {}
    if case.chance(0.3):
        options["chunk"] = int(case.rng.integers(4, 40))
    _cost(case, km.vector_cost, "vector", draw_pair(case), _with_ridge(case, options))


def matrix_cost(case: Case) -> None:
    """The matrix cost in its three forms."""
    form = case.pick("trace", "data_fixed", "logdet")
    _cost(case, km.matrix_cost, form, draw_pair(case), _with_ridge(case, {"form": form}))


def svd_cost(case: Case) -> None:
    """The SVD cost by three methods."""
    method = case.pick("auto", "svd", "svd", "polar")
    _cost(case, km.svd_cost, "svd", draw_pair(case), {"method": method})


def threshold_cost(case: Case) -> None:
    """Any cost on both sides of a number of points at which another way may begin."""
    edge = case.pick(1000, 1024, 1500, 2048)
    name = case.pick("scalar", "vector", "svd")
    sides = (7, 300, edge, edge + 1) if edge < 1500 or name == "scalar" else (7, 300)
    n, k = edge + int(case.rng.integers(-1, 2)), int(case.pick(*sides))
    pair = draw_pair(case, sizes=(n, k), batches=False)
    function = getattr(km, f"{name}_cost")
    _cost(case, function, name, pair, {"ridge": 1e-4} if name == "vector" else {})


def gradient_and_value(case: Case) -> None:
    """The gradient of a cost's logarithm by points (and variance) against the chain rule."""
    name = case.pick("scalar", "vector", "trace", "data_fixed", "logdet", "svd")
    pair = draw_pair(case, most=20, batches=False)
    options: dict[str, Any] = {"ridge": 10 ** case.rng.uniform(-5, -2)}
    if name in ("trace", "data_fixed", "logdet"):
        options["form"] = name
    function: Any = km.matrix_cost if "form" in options else getattr(km, f"{name}_cost")
    if name in ("scalar", "svd"):
        del options["ridge"]
    normalized = name != "logdet" and case.chance(0.5)
    case.function = f"{function.__name__} gradient"
    case.setting |= {**options, "normalized": normalized}
    x, y = pair.x.detach().clone().requires_grad_(), pair.y.detach().clone().requires_grad_()
    value = function(
        x, y, pair.kernel.argument, log=True, normalized=normalized, **options, **pair.weights()
    )
    _compare_gradients(case, name, pair, (x, y), value, normalized, options.get("ridge", 0.0), 1.0)


def loss_of(case: Case) -> None:
    """One of the four losses with its gradient."""
    name = case.pick("scalar", "vector", "trace", "data_fixed", "logdet", "svd")
    kind = {"scalar": km.ScalarLoss, "vector": km.VectorLoss, "svd": km.SVDLoss}
    pair = draw_pair(case, most=20, batches=False)
    log = case.chance(0.7)
    options: dict[str, Any] = {"ridge": 1e-4} if name not in ("scalar", "svd") else {}
    if name not in kind:
        options["form"] = name
    made = kind.get(name, km.MatrixLoss)
    case.function = made.__name__
    case.setting |= {**options, "log": log}
    x, y = pair.x.detach().clone().requires_grad_(), pair.y.detach().clone().requires_grad_()
    value = made(pair.kernel.argument, log=log, **options)(x, y, *_both_weights(pair))
    if log:
        _compare_gradients(case, name, pair, (x, y), value, name != "logdet", 1e-4, -1.0)
        return
    reference = _references(pair, name, name != "logdet", 1e-4)[0]
    size = np.exp(min(reference.log, 700.0))
    error = tolerance(pair.coarsest, reference) * (1 + size)
    want = 1 - size if name != "logdet" else -size / min(len(x), len(y))
    case.close(value, want, error, "loss")
    value.backward()
    for leaf, side in ((x, "x"), (y, "y")):
        if _steepest(pair) < torch.finfo(leaf.dtype).max:
            case.finite(_gradient(leaf), f"gradient by {side}")


def debiased_loss(case: Case) -> None:
    """The loss of four halves."""
    n = int(case.rng.integers(2, 30))
    pair = draw_pair(case, sizes=(n, n), weighted=False, batches=False, unequal=False)
    if len(pair.x) != len(pair.y):
        return
    name = case.pick("scalar", "svd")
    case.function = "DebiasedLoss"
    case.setting["loss"] = name
    y = pair.y.detach().clone().requires_grad_()
    inner = (km.ScalarLoss if name == "scalar" else km.SVDLoss)(pair.kernel.argument)
    value = km.DebiasedLoss(inner)(pair.x.detach(), y)
    half = n // 2
    a, b = array(pair.x), array(pair.y)
    halves = [(a[:half], b[:half]), (b[half : 2 * half], a[half : 2 * half])]
    halves += [(a[:half], a[half : 2 * half]), (b[:half], b[half : 2 * half])]
    found = [cost(name, *h, pair.kernel, normalized=True) for h in halves]
    signs = (-0.5, -0.5, 0.5, 0.5)
    want = sum(s * r.log for s, r in zip(signs, found, strict=True))
    error = sum(tolerance(pair.coarsest, r) * (1 + abs(r.log)) for r in found)
    case.close(value, want, error, "loss")
    value.backward()
    if _steepest(pair) < torch.finfo(y.dtype).max:
        case.finite(_gradient(y), "gradient by y")


def _cost(case: Case, function: Callable, name: str, pair: Pair, options: dict[str, Any]) -> None:
    normalized = name != "logdet" and case.chance(0.5)
    log = case.chance(0.4)
    case.function = function.__name__
    case.setting |= {**options, "normalized": normalized, "log": log}
    leaf = case.chance(0.1)
    x = pair.x.detach().requires_grad_(leaf)
    value = function(
        x,
        pair.y,
        pair.kernel.argument,
        normalized=normalized,
        log=log,
        **options,
        **pair.weights(),
    )
    case.holds(value.dtype == pair.dtype, "wrong type", f"{value.dtype}, not {pair.dtype}")
    ridge = options.get("ridge") or 0.0
    if name not in ("scalar", "svd") and options.get("ridge") is None:
        ridge = RIDGE.get(pair.dtype, 1e-4)
    small = max(pair.x.shape[-2], pair.y.shape[-2]) <= MOST_EXACT and pair.x.shape[-1] <= 10
    precise = small and not pair.x.shape[:-2]
    references = _references(pair, name, normalized, ridge)
    logs = np.array([r.log for r in references])
    relative = np.array([tolerance(pair.coarsest, r) for r in references])
    if options.get("method") == "polar":
        relative = relative + 1e-4
    if precise:
        case.checks["mpmath"] += 1
        logs = np.array([_exact(pair, name, normalized, ridge)])
    shape = pair.x.shape[:-2]
    logs, relative = logs.reshape(shape), relative.reshape(shape)
    if log:
        case.finite(value, where=np.abs(logs) < torch.finfo(pair.dtype).max / 2)
        if normalized:
            case.at_most_zero(value, pair.coarsest)
        case.close(value, logs, relative + RELATIVE[pair.coarsest] * np.abs(logs), "logarithm")
        return
    with np.errstate(under="ignore"):
        want = np.exp(np.minimum(logs, 700.0)) * (-1 if name == "logdet" else 1)
    case.finite(value)
    if normalized:
        case.unit(value, dtype=pair.coarsest)
    case.close(value, want, relative * np.abs(want))


def _compare_gradients(
    case: Case,
    name: str,
    pair: Pair,
    leaves: tuple[Tensor, Tensor],
    value: Tensor,
    normalized: bool,
    ridge: float,
    sign: float,
) -> None:
    reference = _references(pair, name, normalized, ridge)[0]
    largest = torch.finfo(pair.dtype).max
    if abs(reference.log) > largest / 4:
        return
    error = tolerance(pair.coarsest, reference) + RELATIVE[pair.coarsest] * abs(reference.log)
    case.close(value, sign * reference.log, error, "logarithm")
    value.backward()
    x, y = array(leaves[0]), array(leaves[1])
    for leaf, side, (want, sizes, blur) in zip(
        leaves, ("x", "y"), gradients(reference, x, y), strict=True
    ):
        got = _gradient(leaf)
        if np.abs(sizes).max() > torch.finfo(leaf.dtype).max / 16:
            continue
        if not case.finite(got, f"gradient by {side}"):
            continue
        eps = precision(pair.coarsest)
        share = 16 * eps * reference.amplification * (4 + reference.exponent())
        relative = 10 * RELATIVE[pair.coarsest] + 64 * eps * reference.exponent()
        if max(share, relative - 10 * RELATIVE[pair.coarsest]) > WORST_GRADIENT:
            continue
        allowed = relative * sizes + share * blur + 1e-6 * relative * sizes.max()
        case.close(got, sign * want, allowed, f"gradient by {side}", "wrong gradient")


def _steepest(pair: Pair) -> float:
    """More than any gradient of a logarithm can be: half types do not hold much."""
    both = np.concatenate([array(pair.x), array(pair.y)])
    return 8 * float(np.ptp(both)) / min(pair.kernel.v_p + pair.kernel.v_q)


def _references(pair: Pair, name: str, normalized: bool, ridge: float) -> list[Reference]:
    shape = pair.x.shape[:-2]
    return [cost(name, *_item(pair, index), normalized, ridge) for index in np.ndindex(*shape)]


def _exact(pair: Pair, name: str, normalized: bool, ridge: float) -> float:
    return exact.log_cost(name, *_item(pair, ()), normalized, ridge)


def _item(pair: Pair, index: tuple[int, ...]) -> tuple[Any, Any, Any, Any, Any]:
    a, b = (None if w is None else array(w)[index] for w in _both_weights(pair))
    return array(pair.x)[index], array(pair.y)[index], pair.kernel, a, b


def _both_weights(pair: Pair) -> tuple[Tensor | None, Tensor | None]:
    return pair.weights_x, pair.weights_y


def tolerance(dtype: torch.dtype, reference: Reference) -> float:
    return RELATIVE[dtype] + 16 * precision(dtype) * reference.rounding()


def _with_ridge(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    if case.chance(0.5):
        options["ridge"] = float(10 ** case.rng.uniform(-8, -1))
    return options


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def array(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()
