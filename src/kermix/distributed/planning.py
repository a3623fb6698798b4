r"""What a loss over ranks costs: seconds, and bytes moved, before anything is run.

Work is counted in kernel values, in products (multiply-adds of matrix products and solves) and in
factorizations (multiply-adds of QR and SVD, which run slower); what is sent is a list of
collectives. A `Machine` turns the counts into seconds:

$$t = s \left( t_0 + v\, t_v + v d\, t_d + p\, t_p + f\, t_f
    + \sum_{\mathrm{collectives}} \left( \lceil \log_2 W \rceil\, l + m / B \right) \right)$$

with $W$ ranks, the slow-down $s = \max(1, W / \mathrm{cores})$ of ranks that share
cores, and `m` the bytes that leave a rank: $(W - 1) b$ for a gather of `b` bytes of each
rank, $2 b (W - 1) / W$ for a sum of `b` bytes (a ring, the least that is possible).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from kermix.checks import check_option
from kermix.errors import OptionError

__all__ = [
    "CPU",
    "GPU",
    "Collective",
    "Machine",
    "Plan",
    "Problem",
    "Work",
    "bytes_moved",
    "collective_seconds",
    "fastest",
    "plan",
    "traffic",
    "work",
]

CostName: TypeAlias = Literal["scalar", "vector", "matrix", "trace", "svd"]
StrategyName: TypeAlias = Literal["gather", "shard", "moments"]

NUMBERS_TOLD = 18  # what ranks tell each other about their rows, eight bytes each
POLAR_STEPS = 16


@dataclass(frozen=True)
class Problem:
    """A step: the value of a loss and its gradient at the centres.

    Attributes:
        cost: Which of the four. `"matrix"` is the one with the data fixed, `"trace"` the one
            with both Gram matrices, whose log-determinant costs the same.
        n: Data on all ranks.
        k: Centres on all ranks.
        d: Dimension.
        ranks: Processes.
        r: Features, for moments.
        element: Bytes of a number.
        method: How an SVD cost is computed.
        told: Whether ranks tell each other the number of their rows.
    """

    cost: CostName
    n: int
    k: int
    d: int
    ranks: int
    r: int = 256
    element: int = 4
    method: Literal["svd", "polar"] = "svd"
    told: bool = True

    def __post_init__(self) -> None:
        check_option("cost", self.cost, ("scalar", "vector", "matrix", "trace", "svd"))
        if min(self.n, self.k, self.d, self.ranks, self.r) < 1:
            raise OptionError(f"{self}: sizes are whole numbers from 1 up.")


class Work(NamedTuple):
    """What one rank computes."""

    kernels: float
    products: float
    factors: float


class Collective(NamedTuple):
    """A gather of so many bytes from each rank, or a sum of so many bytes."""

    kind: Literal["gather", "sum"]
    payload: int


@dataclass(frozen=True)
class Machine:
    """Constants of a machine, and of the network between its ranks.

    Attributes:
        name: What it is.
        call_s: Seconds of a step in which nothing is computed.
        kernel_s: Seconds for each kernel value with its gradient.
        kernel_d_s: Seconds for each kernel value and dimension, in addition.
        product_s: Seconds for each multiply-add of a product or solve.
        factor_s: Seconds for each multiply-add of a QR or SVD.
        latency_s: Seconds of a message.
        bandwidth: Bytes a second that leave a rank.
        cores: Ranks that run at full speed side by side; None: as many as there are.
        double_s: Like `product_s` in float64, in which features and systems are computed; None:
            the same.
    """

    name: str
    call_s: float
    kernel_s: float
    kernel_d_s: float
    product_s: float
    factor_s: float
    latency_s: float
    bandwidth: float
    cores: int | None = None
    double_s: float | None = None

    def slow_down(self, ranks: int) -> float:
        """How much slower a rank is because others share its core."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0


class Plan(NamedTuple):
    """What a strategy is expected to cost."""

    seconds: float
    compute_s: float
    network_s: float
    bytes_moved: float  # that leave one rank
    payload: int  # what one rank hands to collectives


# Fitted by `python -m benchmarks.scaling` on two cores, rounded; and an H200: products from its
# own benchmarks, the rest nominal. Only their ratios decide between strategies.
CPU = Machine("CPU core", 3.4e-3, 1.6e-8, 6e-11, 3.6e-11, 1e-10, 3.6e-4, 8.6e8)
GPU = Machine("H200", 1e-3, 2e-12, 1e-13, 8e-15, 1e-12, 1e-5, 3e11, double_s=6e-14)


def work(problem: Problem, strategy: StrategyName) -> Work:
    """What each rank computes for a step.

    Example:
        >>> work(Problem("scalar", 100, 50, 2, ranks=2), "shard").kernels
        8750.0
    """
    n, k, w, r = problem.n, problem.k, problem.ranks, problem.r
    if strategy == "moments":
        points = (n + k) / w
        # Features and their products: once for the data; for the centres again, and backward.
        per_point = (n + 3 * k) / (n + k)
        return Work(points * r * per_point, 2 * points * r * r * per_point, 8 * r**3)
    share = w if strategy == "shard" else 1
    small = min(n, k)
    if problem.cost == "scalar":
        return Work((n * k + n * n + k * k) / share, 0.0, 0.0)
    if problem.cost == "vector":
        return Work((n * k + n * n) / share + k * k, 3 * k**3, 0.0)
    if problem.cost == "matrix":
        return Work(n * k / share + k * k, 3 * n * k * k / share + 3 * k**3, 0.0)
    if problem.cost == "trace":
        # The sharded factor has a gradient in closed form; its ranks wait for each other.
        factor = n**3 / 2 if strategy == "shard" else n**3
        solves = (2 * n * n * k + factor) / share
        return Work((n * k + n * n) / share + k * k, solves + 3 * k**3, 0.0)
    large = max(n, k)
    if problem.method == "polar":
        return Work(n * k / share, 2 * POLAR_STEPS * large * small**2 / share, 0.0)
    if strategy == "gather":
        return Work(n * k, large * small**2, 4 * large * small**2)
    triangles = w * min(small, large / w) * small**2 if w > 1 else 0
    sharded = large * small**2 / w
    return Work(n * k / w, 2 * sharded, 2 * (sharded + triangles) + 4 * small**3)


def traffic(problem: Problem, strategy: StrategyName) -> list[Collective]:
    """The collectives of a step, in the order of their size, none of a single rank.

    Example:
        >>> [c.payload for c in traffic(Problem("svd", 10**9, 100, 2, 2, r=10), "moments")]
        [896, 896, 896, 144, 8, 8]
    """
    w, e, d = problem.ranks, problem.element, problem.d
    if w == 1:
        return []
    rows_x, rows_y = -(-problem.n // w), -(-problem.k // w)
    points_x, points_y = Collective("gather", rows_x * d * e), Collective("gather", rows_y * d * e)
    back_y = Collective("sum", problem.k * d * e)
    if strategy == "moments":
        moments = Collective("sum", (problem.r**2 + problem.r + 2) * 8)
        scale = Collective("sum", 8)
        found = [moments, moments, moments, scale, scale]
    elif strategy == "gather":
        found = [points_x, points_y, back_y]
    elif problem.cost == "svd":
        found = _sharded_svd(problem, points_x, points_y, back_y)
    elif problem.cost == "trace":
        found = [points_x, points_y, back_y, *_sharded_factor(problem)]
    else:
        number = Collective("sum", 8 if problem.cost in ("vector", "matrix") else e)
        found = [points_y, back_y]
        if problem.cost == "matrix":
            found += [number] * 3  # the common scale, the sum, and its gradient
        else:
            found += [points_x]
        if problem.cost == "scalar":
            # Scale, sum and gradient of <p, q> and <q, q>; <p, p> is a constant.
            found += [number] * 8
        if problem.cost == "vector":
            found += [Collective("gather", rows_y * 8), Collective("sum", problem.k * 8)]
            found += [number] * 2
    if problem.told:
        found.append(Collective("gather", NUMBERS_TOLD * 8))
    return sorted(found, key=lambda c: -c.payload)


def _sharded_svd(
    problem: Problem, points_x: Collective, points_y: Collective, back_y: Collective
) -> list[Collective]:
    w, e = problem.ranks, problem.element
    number = Collective("sum", e)
    small, large = sorted((problem.n, problem.k))
    centres_are_small = problem.k <= problem.n
    # Points, the common scale, the sum and its gradient.
    found = [points_y if centres_are_small else points_x, number, number, number]
    if centres_are_small:
        found.append(back_y)
    square = Collective("sum", small * small * e)
    if problem.method == "polar":
        return found + [square] * POLAR_STEPS + [number] * 2
    return [*found, Collective("gather", min(small, -(-large // w)) * small * e)]


def _sharded_factor(problem: Problem) -> list[Collective]:
    """Of equal shares: blocks and panels of the factor, both substitutions, and the result."""
    w, k = problem.ranks, problem.k
    rows = -(-problem.n // w)
    block, side = Collective("sum", rows * rows * 8), Collective("sum", rows * k * 8)
    number, square = Collective("sum", 8), Collective("sum", k * k * 8)
    panel = Collective("gather", rows * rows * 8)
    # The scale of the cross Gram matrix and whether the factor failed; the result, and backward.
    return [block, panel] * w + [side, side] * w + [number] * 2 + [square] * 2


def bytes_moved(collective: Collective, ranks: int) -> float:
    """Bytes that leave a rank, by the algorithm that moves least."""
    if collective.kind == "gather":
        return (ranks - 1) * collective.payload
    return 2 * collective.payload * (ranks - 1) / ranks


def collective_seconds(collective: Collective, ranks: int, machine: Machine) -> float:
    """Seconds of a collective."""
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    seconds = steps * machine.latency_s + bytes_moved(collective, ranks) / machine.bandwidth
    # Ranks that share a core send and add one after the other.
    return machine.slow_down(ranks) * seconds


def plan(problem: Problem, strategy: StrategyName, machine: Machine) -> Plan:
    """What a step is expected to cost.

    Example:
        >>> problem = Problem("svd", 2000, 500, 2, ranks=4)
        >>> plan(problem, "shard", CPU).seconds < plan(problem, "gather", CPU).seconds
        True
    """
    check_option("strategy", strategy, ("gather", "shard", "moments"))
    done, sent = work(problem, strategy), traffic(problem, strategy)
    kernel_s = machine.kernel_s + problem.d * machine.kernel_d_s
    double = strategy == "moments" or problem.cost != "svd"
    product_s = (machine.double_s or machine.product_s) if double else machine.product_s
    compute = machine.slow_down(problem.ranks) * (
        machine.call_s
        + done.kernels * kernel_s
        + done.products * product_s
        + done.factors * machine.factor_s
    )
    network = sum(collective_seconds(c, problem.ranks, machine) for c in sent)
    return Plan(
        compute + network,
        compute,
        network,
        sum(bytes_moved(c, problem.ranks) for c in sent),
        sum(c.payload for c in sent),
    )


def fastest(problem: Problem, device: str) -> Literal["gather", "shard"]:
    """The exact strategy that is expected to be faster on a kind of device.

    Example:
        >>> fastest(Problem("svd", 100, 100, 2, ranks=4), "cpu")
        'gather'
        >>> fastest(Problem("svd", 4000, 1000, 2, ranks=4), "cpu")
        'shard'
    """
    machine = GPU if device == "cuda" else CPU
    problem = replace(problem, method="polar") if device == "cuda" else problem
    if problem.ranks == 1:
        return "gather"
    seconds = {s: plan(problem, s, machine).seconds for s in ("gather", "shard")}
    return "shard" if seconds["shard"] < seconds["gather"] else "gather"
