"""A loss whose batch lies on many ranks: the same number, and the same gradient, as on one.

Ranks first agree on how many rows each has, and that all of them mean the same problem.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kermix.checks import (
    check_option,
    full_precision,
    is_concrete,
    normalized_weights,
    solve_dtype,
    working_dtype,
)
from kermix.costs.functions import SKETCH_ABOVE
from kermix.costs.losses import KernelLoss, MatrixLoss, SVDLoss, VectorLoss
from kermix.costs.moments import CANDIDATES, MomentStatistics, subsample
from kermix.distributed import sharded
from kermix.distributed.processes import Ranks
from kermix.errors import DeviceError, KernelError, OptionError, RankError, SampleError, ShapeError
from kermix.kernels.gaussian import as_kernel
from kermix.linalg.cholesky import default_ridge
from kermix.mixtures.sampled_mixture import Mixture
from kermix.settings import Strategy
from kermix.sketches.accumulation import (
    FeatureSums,
    Moments,
    moments_of_sums,
    sample_sums,
)
from kermix.sketches.features import FeatureMap, nystrom_features
from kermix.sketches.sketch import Sketch, check_comparable

__all__ = ["BatchSide", "DistributedLoss", "RankInfo", "agree", "side_of"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass
class BatchSide:
    """One set of samples: this rank's rows, and how many there are on each."""

    name: str
    points: Tensor
    counts: list[int]
    weights: Tensor | None

    def __len__(self) -> int:
        return sum(self.counts)

    def gathered(self, ranks: Ranks) -> tuple[Tensor, Tensor | None]:
        """Points and weights of all ranks."""
        points = ranks.gather(_wide(self.points), self.counts).to(self.points.dtype)
        return points, self.gathered_weights(ranks)

    def gathered_weights(self, ranks: Ranks) -> Tensor | None:
        """Weights of all ranks, as they were given."""
        if self.weights is None:
            return None
        return ranks.gather(_wide(self.weights), self.counts, dim=-1)

    def shares(self, ranks: Ranks) -> Tensor | None:
        """Weights of all ranks' points, divided by their sum."""
        weights = self.gathered_weights(ranks)
        if weights is None:
            return None
        like = self.points.new_empty(*self.points.shape[:-2], len(self), self.points.shape[-1])
        return normalized_weights(f"weights_{self.name}", weights, like)


def side_of(
    name: str, side: Tensor | Sketch, weights: Tensor | None, rows: Sequence[int] | None
) -> BatchSide | Sketch:
    """One of the two arguments `x` and `y`, checked."""
    if isinstance(side, Sketch):
        if weights is not None:
            raise OptionError(f"weights_{name} is given for a sketch, which has its own weights.")
        return side
    if isinstance(side, Mixture):
        raise SampleError(
            f"{name} is a mixture, but ranks share rows of points; use the loss in one process."
        )
    if not isinstance(side, Tensor) or side.dtype not in DTYPES or side.ndim < 2:
        raise SampleError(f"{name} must be a floating-point tensor of shape (*batch, rows, d).")
    if weights is not None and weights.shape[-1:] != side.shape[-2:-1]:
        raise SampleError(
            f"weights_{name} has shape {tuple(weights.shape)} for {side.shape[-2]} rows."
        )
    return BatchSide(name, side, [] if rows is None else list(rows), weights)


def _facts(side: BatchSide) -> list[int]:
    x, w = side.points, side.weights
    finite = not is_concrete(x) or bool(torch.isfinite(x).all())
    return [
        x.shape[-2], x.shape[-1], x.ndim, math.prod(x.shape[:-2]), DTYPES.index(x.dtype),
        int(finite), int(_has_gradient(x)), int(w is not None),
        int(w is not None and _has_gradient(w)),
    ]  # fmt: skip


def _check_facts(name: str, facts: list[tuple[int, ...]]) -> None:
    """Refuse what does not fit together; each fact has an entry for every rank."""
    for fact, values in zip(FACTS, facts[1:5], strict=True):
        if len(set(values)) > 1:
            shown = [str(DTYPES[v]) for v in values] if fact == "dtype" else list(values)
            raise RankError(
                f"{name} does not have the same {fact} on all ranks: {shown}, in order of rank."
            )
    if len(set(facts[7])) > 1:
        raise RankError(f"weights_{name} is given on some ranks only: give it on all, or on none.")
    bad = [rank for rank, finite in enumerate(facts[5]) if not finite]
    if bad:
        raise SampleError(f"{name} has NaN or infinite values on ranks {bad}.")
    if not sum(facts[0]):
        raise SampleError(f"{name} is empty on all ranks.")


FACTS = ("dimension", "number of axes", "batch size", "dtype")


def _share_gradients(side: BatchSide, of_points: bool, of_weights: bool) -> None:
    """Where one rank's rows have a gradient, all ranks take part in the backward."""
    if of_points and not _has_gradient(side.points):
        side.points = side.points.detach().requires_grad_()
    if of_weights and side.weights is not None and not _has_gradient(side.weights):
        side.weights = side.weights.detach().requires_grad_()


def agree(ranks: Ranks, sides: list[BatchSide]) -> None:
    """Tell each other the sizes; what does not fit together is refused by all ranks alike."""
    if not sides:
        return
    told = [fact for side in sides for fact in _facts(side)]
    width = len(told) // len(sides)
    answers = ranks.collect(told, sides[0].points.device)
    for k, side in enumerate(sides):
        facts = list(zip(*[row[k * width : (k + 1) * width] for row in answers], strict=True))
        _check_facts(side.name, facts)
        side.counts = list(facts[0])
        _share_gradients(side, any(facts[6]), any(facts[8]))


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _wide(tensor: Tensor) -> Tensor:
    """Half precision as float32, which every backend can send."""
    return tensor.to(working_dtype(tensor))


# Entries of the Gram matrix between the sets above which `auto` shards. On CPUs every loss was
# faster sharded at 500,000, and the one that was measured at 250,000 was slower
# (`results/bench/scaling-cpu2.json`). For GPUs it is a guess: nobody has measured several.
SHARD_ABOVE, SHARD_ABOVE_CUDA = 250_000, 4_000_000


class RankInfo(NamedTuple):
    """How a loss was computed."""

    strategy: Literal["gather", "shard", "moments"]
    rows_x: list[int]
    rows_y: list[int]
    ranks: Ranks  # which has counted what was sent, that of the backward included
    error_bound: Tensor | None = None  # of the normalized cost; None: exact, or not known
    rank: int | None = None  # number of features


class DistributedLoss(nn.Module):
    r"""A loss of the batch over all ranks, each of which gives the rows that it has.

    Every rank calls it (with as many rows as it likes, or none) and gets the same number: that of
    one process with all rows, rank after rank. After the backward the *mean over ranks* of the
    gradients of shared parameters, which is what `DistributedDataParallel` and Lightning Fabric
    take, is the gradient of one process with the whole batch; the gradient at a rank's own rows is
    the number of ranks times its share of it. Averaging losses of separate batches, in contrast,
    trains on another objective.

    What is sent, and who works, is the strategy:

    - `"gather"`: all points to all ranks; every rank computes everything.
    - `"shard"`: points; each rank computes its rows of the Gram matrices, and what is reduced is
      of the size of the smaller set (see `kermix.distributed.sharded`).
    - `"moments"`: sums of r features and of their products: the same whatever the batch size.
      Approximate, with the error bound of sketches, unless a side is a sketch.
    - `"auto"`: `"moments"` if a side is a sketch or `features` are given, or for an SVD loss of
      very many points, if its error bound is within the loss's tolerance; else `"gather"` or
      `"shard"`, by the size of the Gram matrix. `return_info=True` tells what was chosen.

    Args:
        loss: One of the losses of kermix; any other module of `(x, y, weights_x, weights_y)` can
            be gathered for.
        strategy: How.
        group: A process group; None: all processes. Without any there is one rank.
        features: The feature map of `"moments"`, the same on all ranks. If None, landmarks are
            chosen among the points, anew for each call.
        rank: Number of landmarks at most, if they are chosen.

    Example:
        >>> x = torch.linspace(0, 1, 50)[:, None]
        >>> loss = DistributedLoss(km.SVDLoss(0.01), strategy="shard")
        >>> value, info = loss(x, x + 0.1, return_info=True)
        >>> value, km.SVDLoss(0.01)(x, x + 0.1), info.strategy
        (tensor(0.0326), tensor(0.0326), 'shard')
    """

    def __init__(
        self,
        loss: nn.Module,
        strategy: Strategy = "auto",
        group: dist.ProcessGroup | None = None,
        features: FeatureMap | None = None,
        rank: int = 1024,
    ) -> None:
        super().__init__()
        check_option("strategy", strategy, ("auto", "gather", "shard", "moments"))
        if strategy in ("shard", "moments") and not isinstance(loss, KernelLoss):
            raise OptionError(
                f"strategy={strategy!r} needs a kermix loss, but {type(loss).__name__} is "
                "another module; use strategy='gather'."
            )
        if strategy in ("shard", "moments") and _other_kernel(loss):
            raise KernelError(
                f"strategy={strategy!r} needs the Gaussian kernel, but the loss has another; use "
                "strategy='gather'."
            )
        self.loss, self.strategy, self.group = loss, strategy, group
        self.features, self.rank = features, rank

    def extra_repr(self) -> str:
        """The settings that `print` shows."""
        return f"strategy={self.strategy}"

    def forward(
        self,
        x: Tensor | Sketch,  # (*B, n, d)
        y: Tensor | Sketch,  # (*B, k, d)
        weights_x: Tensor | None = None,  # (*B, n)
        weights_y: Tensor | None = None,  # (*B, k)
        rows_x: Sequence[int] | None = None,
        rows_y: Sequence[int] | None = None,
        return_info: bool = False,
    ) -> Tensor | tuple[Tensor, RankInfo]:  # (*B,)
        """The loss between the data and the centers of all ranks.

        Args:
            x: Data of this rank, or a sketch of all data, the same on all ranks.
            y: Centers of this rank, or a sketch of all.
            weights_x: Weights of the data, relative to those of all ranks.
            weights_y: Weights of the centers.
            rows_x: How many data each rank has, if that is known: it saves an exchange, for which
                the host has to wait for the device, and the checks that ranks agree.
            rows_y: How many centers each rank has.
            return_info: Whether to return also how the loss was computed.
        """
        value, info = self._computed(x, y, (weights_x, weights_y), (rows_x, rows_y))
        return (value, info) if return_info else value

    def _computed(
        self,
        x: Tensor | Sketch,
        y: Tensor | Sketch,
        weights: tuple[Tensor | None, Tensor | None],
        rows: tuple[Sequence[int] | None, Sequence[int] | None],
    ) -> tuple[Tensor, RankInfo]:
        ranks = Ranks(self.group)
        sides = [side_of("x", x, weights[0], rows[0]), side_of("y", y, weights[1], rows[1])]
        tensors = [side for side in sides if isinstance(side, BatchSide)]
        if not tensors or any(side.counts == [] for side in tensors):
            agree(ranks, tensors)
        if len(tensors) < 2:
            if self.strategy not in ("auto", "moments"):
                raise OptionError(f"strategy={self.strategy!r} needs samples, not a sketch.")
            return self._moments(ranks, sides)
        first, second = tensors
        if first.points.device != second.points.device:
            raise DeviceError(f"x is on {first.points.device} and y on {second.points.device}.")
        return self._by_strategy(ranks, first, second)

    def _by_strategy(
        self, ranks: Ranks, first: BatchSide, second: BatchSide
    ) -> tuple[Tensor, RankInfo]:
        strategy = self._chosen(ranks, first, second)
        if strategy == "gather":
            return self._gather(ranks, first, second)
        found = self._certified_moments(ranks, first, second) if strategy == "moments" else None
        return self._shard(ranks, first, second) if found is None else found

    def _chosen(
        self, ranks: Ranks, x: BatchSide, y: BatchSide
    ) -> Literal["gather", "shard", "moments"]:
        if self.strategy != "auto":
            return self.strategy
        loss = self.loss
        if not isinstance(loss, KernelLoss) or _other_kernel(loss):
            return "gather"
        if self.features is not None:
            return "moments"
        if isinstance(loss, SVDLoss) and _takes_a_sketch(loss, x, y):
            return "moments"
        return "shard" if ranks.size > 1 and _worth_sharding(loss, x, y) else "gather"

    def _gather(self, ranks: Ranks, x: BatchSide, y: BatchSide) -> tuple[Tensor, RankInfo]:
        (points_x, weights_x), (points_y, weights_y) = x.gathered(ranks), y.gathered(ranks)
        value = self.loss(points_x, points_y, weights_x=weights_x, weights_y=weights_y)
        return value, RankInfo("gather", x.counts, y.counts, ranks)

    def _shard(self, ranks: Ranks, x: BatchSide, y: BatchSide) -> tuple[Tensor, RankInfo]:
        loss = self.loss
        assert isinstance(loss, KernelLoss)
        if loss.v is None:
            raise OptionError("The loss has no variance: give it one, or give a sketch.")
        if isinstance(loss, SVDLoss) and loss.options["method"] == "sketch":
            raise OptionError("method='sketch' is strategy='moments', not 'shard'.")
        weights = x.shares(ranks), y.shares(ranks)
        dtype = working_dtype(x.points, y.points)
        with full_precision(x.points.device):
            everything = x.gathered(ranks)[0] if isinstance(loss.v, str) else x.points
            kernel = as_kernel(loss.v, everything)
            a, b = sharded.kernel_sets(
                ranks,
                kernel,
                (
                    (x.points.to(dtype), x.counts, weights[0]),
                    (y.points.to(dtype), y.counts, weights[1]),
                ),
            )
            terms = kernel.cross_terms(x.points.shape[-1], not isinstance(loss, SVDLoss))
            options = _statistics_options(loss, x.points.device, dtype)
            log_cost, found = loss.log_cost(sharded.RankStatistics(a, b, terms, **options))
        value = log_cost if loss.log else log_cost.exp()
        if not (loss.normalized or loss.log):
            value = -value  # the log-determinant itself, which is not positive
        value = value.to(torch.promote_types(x.points.dtype, y.points.dtype))
        info = RankInfo("shard", x.counts, y.counts, ranks, found.error_bound)
        return loss.minimized(value, min(len(x), len(y))), info

    def _certified_moments(
        self, ranks: Ranks, x: BatchSide, y: BatchSide
    ) -> tuple[Tensor, RankInfo] | None:
        """By moments; None if that was not asked for by name and is not exact enough."""
        value, info = self._moments(ranks, [x, y])
        loss = self.loss
        named = self.strategy == "moments" or self.features is not None
        if named or not isinstance(loss, SVDLoss) or loss.options["method"] == "sketch":
            return value, info
        assert info.error_bound is not None
        detached = value.detach()
        fidelity = (-detached).exp() if loss.log else 1 - detached
        error = info.error_bound.to(fidelity) / fidelity
        # Rank 0 decides: the others may have rounded differently.
        if float(ranks.broadcast(error)) <= float(str(loss.options["tolerance"])):
            return value, info
        return None

    def _moments(
        self, ranks: Ranks, sides: Sequence[BatchSide | Sketch]
    ) -> tuple[Tensor, RankInfo]:
        loss = self.loss
        assert isinstance(loss, KernelLoss)
        if _other_kernel(loss):
            raise KernelError(
                "A sketch has features of the Gaussian kernel, but the loss has another kernel; "
                "give points."
            )
        features = self._feature_map(ranks, sides)
        moments, counts, weighted = [], [], False
        dtype = features.parameters.dtype
        for side in sides:
            if isinstance(side, Sketch):
                moments.append(side.moments)
                counts.append([side.count])
                weighted |= side.weighted
            else:
                moments.append(_reduced_moments(ranks, features, side))
                counts.append(side.counts)
                weighted |= side.weights is not None
                dtype = side.points.dtype
        both = MomentStatistics(moments[0], moments[1], weighted, loss.ridge, dtype)
        value, found = both.answer(loss.cost_name, loss.log_cost(both), loss.normalized, loss.log)
        if not (loss.normalized or loss.log):
            value = -value  # the log-determinant itself, which is not positive
        info = RankInfo("moments", counts[0], counts[1], ranks, found.error_bound, features.rank)
        return loss.minimized(value, min(sum(counts[0]), sum(counts[1]))), info

    def _feature_map(self, ranks: Ranks, sides: Sequence[BatchSide | Sketch]) -> FeatureMap:
        loss = self.loss
        assert isinstance(loss, KernelLoss)
        sketches = [side for side in sides if isinstance(side, Sketch)]
        if len(sketches) == 2:
            check_comparable(*sketches)
        known = sketches[0].feature_map if sketches else self.features
        if known is not None:
            if loss.v is not None:
                raise OptionError(
                    "The loss has a variance, but a sketch or features have the kernel they "
                    "were made with; omit the loss's v."
                )
            return known
        if loss.v is None:
            raise OptionError("The loss has no variance: give it one, or give features.")
        return self._landmarks(ranks, [side for side in sides if isinstance(side, BatchSide)])

    @torch.no_grad()
    def _landmarks(self, ranks: Ranks, sides: list[BatchSide]) -> FeatureMap:
        """Landmarks among a bounded number of points of each rank, chosen by rank 0."""
        if any(side.points.ndim != 2 for side in sides):
            raise ShapeError("strategy='moments' takes one set of points per argument.")
        loss = self.loss
        assert isinstance(loss, KernelLoss)
        most = max(1, CANDIDATES // (2 * ranks.size))
        pooled = []
        for side in sides:
            counts = [min(count, most) for count in side.counts]
            own = subsample(side.points.detach().double(), counts[ranks.rank], ranks.rank)
            pooled.append(ranks.gather(own, counts))
        candidates = torch.cat(pooled)
        tolerance = float(str(loss.options.get("tolerance") or 1e-6)) / 4
        kernel = as_kernel(loss.v, pooled[0])  # type: ignore[arg-type]
        chosen = nystrom_features(
            candidates,
            kernel,
            rank=min(self.rank, len(candidates)),
            tolerance=tolerance,
            candidates=len(candidates),
        )
        landmarks = chosen.landmarks
        if ranks.size > 1:
            # Rank 0 decides: the others may have rounded differently.
            size = landmarks.new_full((), float(len(landmarks)))
            count = int(ranks.broadcast(size))
            buffer = landmarks.new_zeros(count, landmarks.shape[1])
            buffer[: min(count, len(landmarks))] = landmarks[:count]
            landmarks = ranks.broadcast(buffer)
        return type(chosen)(landmarks, kernel)


def _other_kernel(loss: nn.Module) -> bool:
    return isinstance(loss, KernelLoss) and loss.kernel is not None


def _reduced_moments(ranks: Ranks, features: FeatureMap, side: BatchSide) -> Moments:
    """Moments of the points of all ranks: only sums of the features' size are sent."""
    if side.points.ndim != 2 or side.points.shape[1] != features.dimension:
        raise ShapeError(
            f"{side.name} has shape {tuple(side.points.shape)}; for strategy='moments' it must "
            f"have shape (N, {features.dimension})."
        )
    if side.points.device != features.parameters.device:
        raise DeviceError(
            f"{side.name} is on {side.points.device}, the features on "
            f"{features.parameters.device}."
        )
    sums, log_scale = sample_sums(features, side.points, side.weights)
    common = ranks.max(log_scale)
    sums = sums.rescaled(log_scale - common)
    flat = ranks.sum(torch.cat([part.reshape(-1) for part in sums]))
    parts = flat.split([part.numel() for part in sums])
    shaped = (part.view(like.shape) for part, like in zip(parts, sums, strict=True))
    return moments_of_sums(features, len(side), FeatureSums(*shaped), common)


def _statistics_options(
    loss: KernelLoss, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """How the statistics of a loss are to be computed: the loss's options, and the dtype."""
    asked = dict(loss.options)
    asked.pop("form", None)
    if asked.get("ridge") is None:
        asked["ridge"] = default_ridge(dtype)
    solves = isinstance(loss, VectorLoss | MatrixLoss)
    return {"dtype": solve_dtype(device) if solves else dtype, **asked}


def _takes_a_sketch(loss: SVDLoss, x: BatchSide, y: BatchSide) -> bool:
    if not x.points.ndim == y.points.ndim == 2:
        return False
    many = min(len(x), len(y)) > SKETCH_ABOVE.get(x.points.device.type, 4096)
    method = loss.options["method"]
    return method == "sketch" or (many and method == "auto")


def _worth_sharding(loss: KernelLoss, x: BatchSide, y: BatchSide) -> bool:
    if isinstance(loss, MatrixLoss) and loss.form != "data_fixed" and x.points.ndim > 2:
        return False
    few, more = sorted((len(x), len(y)))
    if x.points.is_cuda:
        return few * more > SHARD_ABOVE_CUDA
    # By QR, as on a CPU, every rank repeats a part of the work that grows with `few` cubed.
    repeated = isinstance(loss, SVDLoss) and more < 3 * few
    return few * more > SHARD_ABOVE and not repeated
