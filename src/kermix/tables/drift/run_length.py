"""Thresholds for a mean run length: streams without drift are simulated from the reference.

A monitor looks at sums of features of batches, old ones forgotten at several speeds. Batches of a
simulated stream are drawn from the rows of the reference; so is, once a stream, a reference that
they are compared with, because the one at hand is a sample too. The threshold is the one whose
mean run length, over these streams and references, is what was asked for.

Sums of batches that forget old ones, each at its own speed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Calibration", "Memories", "calibrate"]


@dataclass
class Memories:
    r"""Weighted sums of the features of batches, a batch of age `a` with $(1 - 1/m)^a$.

    Attributes:
        keep: $1 - 1/m$ for each memory of `m` batches.
        reference_rows: Of the reference that features are measured from.
        sums: Of features, (..., memories, q).
        rows: Weighted number of rows of each memory, (memories,).
        squares: The same with squared weights.
    """

    keep: Tensor
    reference_rows: int
    sums: Tensor
    rows: Tensor
    squares: Tensor

    @classmethod
    def empty(
        cls,
        memories: Sequence[int],
        shape: tuple[int, ...],
        reference_rows: int,
        dtype: torch.dtype = torch.float64,
    ) -> "Memories":
        """No batch yet; features have the last size of the shape."""
        keep = 1 - 1 / torch.tensor(memories, dtype=dtype)
        count = len(memories)
        sums = torch.zeros(*shape[:-1], count, shape[-1], dtype=dtype)
        return cls(
            keep, reference_rows, sums, torch.zeros(count).to(keep), torch.zeros(count).to(keep)
        )

    def add(self, batch: Tensor, rows: int) -> None:  # (..., q)
        """Forget a little, and add the sum of the features of a batch of so many rows."""
        self.sums.mul_(self.keep[:, None]).add_(batch[..., None, :])
        self.rows = self.rows * self.keep + rows
        self.squares = self.squares * self.keep.square() + rows

    def differences(self) -> Tensor:  # (..., memories, q)
        """Sums on a scale on which their covariance without drift is that of one row.

        It is that of independent rows, and of a reference that is a sample too.
        """
        variance = self.squares + self.rows.square() / self.reference_rows
        return self.sums / variance.clamp(min=math.ulp(1.0)).sqrt()[:, None]


POOL = 4096  # blocks that simulated batches are put together from
BLOCKS = 4  # of a batch
NORMAL_FROM = 1000  # rows of a block whose mean is as good as normal
BATCHES = 60_000  # of all streams that last as long as was asked
FEWEST_STREAMS, MOST_STREAMS = 400, 800
TIMES_LONGER = 4  # streams are followed so many times the run length
MOST_STEPS = 10_000
SCALING_STEPS, SCALING_STREAMS = 64, 400
COLUMN_VALUES = 4000


@dataclass(frozen=True)
class Calibration:
    """What is known of the statistics where nothing drifts.

    Attributes:
        centre: Means of the cube roots of each statistic, (memories, parts).
        spread: Their standard deviations.
        threshold: Of the combined statistic.
        columns: The largest score of any column in simulated batches, in rising order.
        mean_run_length: Of the simulated streams at this threshold.
    """

    centre: Tensor
    spread: Tensor
    threshold: float
    columns: Tensor
    mean_run_length: float

    def scores(self, statistics: Tensor) -> Tensor:  # (..., memories, parts)
        """Statistics as nearly normal scores: cube roots (Wilson and Hilferty) on one scale."""
        return (statistics.clamp(min=0) ** (1 / 3) - self.centre) / self.spread

    def column_pvalue(self, score: float) -> float:
        """The share of batches without drift in which some column has such a score."""
        above = len(self.columns) - int(torch.searchsorted(self.columns, score))
        return (1 + above) / (1 + len(self.columns))


def combined(scores: Tensor, columns: int) -> Tensor:  # (..., memories, parts) -> (...)
    r"""One number, ruled by the largest scores: the logarithm of a mean of $e^{z|z|/2}$.

    Half of the mean's weight is that of the columns, half that of the kernels.
    """
    evidence = scores * scores.abs() / 2
    sides = [evidence[..., :columns], evidence[..., columns:]]
    logs = [side.flatten(-2).logsumexp(-1) - math.log(side.shape[-1] * side.shape[-2])
            for side in sides if side.shape[-1]]  # fmt: skip
    return torch.stack(logs, -1).logsumexp(-1) - math.log(len(logs))


@torch.no_grad()
def calibrate(
    features: Tensor,  # (M, q), of mean 0
    reference_rows: int,
    weights: Tensor,  # (q, parts)
    columns: int,
    batch_size: int,
    memories: Sequence[int],
    expected: float,
    generator: torch.Generator,
) -> Calibration:
    """The threshold for a mean run length, and the scale of every statistic.

    Args:
        features: Of rows of the reference.
        reference_rows: How many rows the reference has.
        weights: Of their squares in the statistic of each part.
        columns: How many parts are single columns; they come first.
        batch_size: Rows of a batch.
        memories: How many batches each sum remembers.
        expected: Mean number of batches until the first alarm where nothing drifts.
        generator: Of everything random.
    """
    world = _World(features.float(), reference_rows, batch_size, generator)
    weights = weights.float()
    few = _statistics(world, weights, memories, SCALING_STREAMS)
    roots = torch.stack([next(few).clamp(min=0) ** (1 / 3) for _ in range(SCALING_STEPS)])
    spread, centre = torch.std_mean(roots.flatten(0, 1), 0)
    # A feature that never varies in the reference, such as a gap that no row has, counts fully.
    spread = torch.where(spread > 1e-6 * spread.amax(), spread, spread.amax().clamp(min=1e-6))
    unset = Calibration(centre, spread, 0.0, torch.zeros(0), 0.0)
    streams = int(min(MOST_STREAMS, max(FEWEST_STREAMS, BATCHES / expected)))
    steps = int(min(MOST_STEPS, math.ceil(TIMES_LONGER * expected)))
    highest = torch.full((steps, streams), -math.inf)
    of_columns: list[Tensor] = []
    running = torch.full((streams,), -math.inf)
    apart = max(1, 2 * max(memories))
    for step, statistics in zip(
        range(steps), _statistics(world, weights, memories, streams), strict=False
    ):
        scores = unset.scores(statistics)
        running = torch.maximum(running, combined(scores, columns))
        highest[step] = running
        enough = len(of_columns) * streams >= COLUMN_VALUES
        if columns and not enough and (step % apart == apart - 1 or step == steps - 1):
            of_columns.append(scores[:, :, :columns].amax((1, 2)))
    threshold, found = _threshold(highest, expected)
    null = torch.cat(of_columns)[:COLUMN_VALUES] if of_columns else torch.zeros(0)
    return Calibration(
        centre.double(), spread.double(), threshold, null.double().sort().values, found
    )


class _World:
    """The reference as if it were everything: batches and references drawn from it."""

    def __init__(
        self, features: Tensor, rows: int, batch_size: int, generator: torch.Generator
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.generator = generator
        covariance = (features.mT @ features).double() / len(features)
        values, vectors = torch.linalg.eigh(covariance)
        self.root = (vectors * values.clamp(min=0).sqrt()).mT.float()  # (q, q)
        count = min(BLOCKS, batch_size)
        sizes = [batch_size // count + (k < batch_size % count) for k in range(count)]
        pools = {size: self._pool(features, size) for size in set(sizes)}
        self.blocks = [pools[size] for size in sizes]

    def _pool(self, features: Tensor, size: int) -> Tensor:  # (POOL, q)
        """Sums of the features of so many rows drawn at random."""
        if size >= NORMAL_FROM:
            return self._normal(POOL) * math.sqrt(size)
        found = features.new_zeros(POOL, features.shape[1])
        for _ in range(size):
            chosen = torch.randint(len(features), (POOL,), generator=self.generator)
            found += features[chosen]
        return found

    def _normal(self, count: int) -> Tensor:
        return torch.randn(count, len(self.root), generator=self.generator) @ self.root

    def references(self, streams: int) -> Tensor:  # (streams, q)
        """Mean features of references of as many rows."""
        return self._normal(streams) / math.sqrt(self.rows)

    def batches(self, streams: int) -> Tensor:  # (streams, q)
        """Sums of the features of one batch for each stream."""
        found = self.root.new_zeros(streams, self.root.shape[1])
        for pool in self.blocks:
            found += pool[torch.randint(len(pool), (streams,), generator=self.generator)]
        return found


def _statistics(
    world: _World, weights: Tensor, memories: Sequence[int], streams: int
) -> Iterator[Tensor]:  # (streams, memories, parts)
    """The statistics of streams, step by step and without end."""
    reference = world.references(streams) * world.batch_size
    state = Memories.empty(memories, (streams, len(weights)), world.rows, torch.float32)
    while True:
        state.add(world.batches(streams) - reference, world.batch_size)
        yield state.differences().square() @ weights


def _threshold(highest: Tensor, expected: float) -> tuple[float, float]:
    """The threshold whose mean run length is the expected one, and what it is there."""
    finite = highest[-1]
    low, high = float(highest[0].min()), float(finite.max())
    for _ in range(40):
        middle = (low + high) / 2
        if _mean_run_length(highest, middle) < expected:
            low = middle
        else:
            high = middle
    return high, _mean_run_length(highest, high)


def _mean_run_length(highest: Tensor, threshold: float) -> float:
    """Mean batches until the first alarm; streams without one go on at their last rate."""
    steps, streams = highest.shape
    quiet = (highest < threshold).sum(0)  # batches before the alarm
    ended = quiet < steps
    total = float((quiet + ended).sum())
    going_on = streams - int(ended.sum())
    if going_on:
        late = ended & (quiet >= steps // 2)
        exposure = float((quiet + ended).clamp(min=steps // 2).sub(steps // 2).sum())
        total += going_on * exposure / max(0.5, float(late.sum()))
    return total / streams
