"""Calibration of a table network: how wide its mixtures should be for rows it never saw.

Networks are too sure of what they learned by heart. After the training, each column gets a factor
of the standard deviations of its Gaussians and a temperature of the probabilities of its codes,
which make held-out rows most likely. Both count in full if all other columns are seen, less if
fewer are, and not at all if none is; the result is a density like any other.

Of a small table few rows can be held out. Instead, half of the rows are left out by two members
each, and the others learn them: half of the table says which step is kept and how wide mixtures
are. Two members err more than all, so what two need is not what all need. Let a member err with
the variance $b + v$, of which $v$ is what members differ by, and its Gaussians have the variance
$s^2$. The mean of $n$ densities has the variance $s^2 + (1 - 1/n) v$, and errs with
$b + v / n$: it is calibrated if $s^2 = b - v + 2 v / n$, which is a straight line in $1/n$. What
one member needs and what two need are both found on the rows that they left out, and the line
through them says what all need. It is drawn through logarithms, which cannot become negative, and
where members differ much has widths rather above those of the line in variances.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from kermix.tables.model.network import ColumnParts, TableNetwork

__all__ = ["OutOfFold", "calibrate", "for_all_members", "match_flags"]


@torch.no_grad()
def match_flags(
    network: TableNetwork, codes: Tensor, weights: Tensor | None = None, rounds: int = 12
) -> None:
    """Give flags, which are drawn before all columns, the shares that they have in some rows.

    How many rows break a relation is known. A network learns it from the few rows of a step that
    ask for a flag and see no column, so it is off by as much as their noise.

    Args:
        network: The network, of which the biases of flags are changed.
        codes: Codes of rows, those of flags among them, (N, D).
        weights: Of the rows, (N,).
        rounds: How often biases are moved.
    """
    layout = network.layout
    codes, flags = codes.clamp(min=0), range(layout.table_columns, layout.columns)
    for place in sorted(flags, key=lambda k: int(layout.drawing_ranks[k])):
        before = [k for k in flags if layout.drawing_ranks[k] < layout.drawing_ranks[place]]
        told = torch.nn.functional.pad(codes[:, before], (0, 1))  # the first has none before it
        patterns, at = told.unique(dim=0, return_inverse=True)
        counts = torch.zeros(len(patterns), layout.counts[place], device=codes.device)
        one = torch.ones(len(codes), device=codes.device) if weights is None else weights
        counts.index_put_((at, codes[:, place]), one.to(counts), accumulate=True)
        wanted, share = counts.sum(0) / counts.sum(), counts.sum(1) / counts.sum()
        rows = torch.zeros(len(patterns), layout.columns, dtype=torch.long, device=codes.device)
        rows[:, before] = patterns[:, :-1]
        seen = torch.zeros_like(rows, dtype=torch.bool)
        seen[:, before] = True
        values = torch.zeros(len(rows), len(layout.numbers), device=codes.device)
        first = int(layout.offsets[place])
        for _ in range(rounds):
            logits = network(rows, values, seen).logits[:, first : first + len(wanted)]
            found = share @ logits.softmax(1)
            move = (wanted.clamp(min=1e-4) / found.clamp(min=1e-6)).log().clamp(-1, 1)
            for member in (network, *network.others):
                member.flag_bias(place).add_(move)


@torch.no_grad()
def calibrate(
    network: TableNetwork,
    parts: ColumnParts,
    codes: Tensor,  # (N, D)
    values: Tensor,  # (N, Q)
    known: Tensor,  # (N, D), bool
    weights: Tensor,  # (N, 1) or (N, D)
    pull: float = 2.0,
) -> None:
    """Find scale and temperature of each column, and give their logarithms to the network.

    Args:
        network: The network, which is changed.
        parts: What it returned for held-out rows, without calibration.
        codes: Codes of these rows.
        values: Normal scores.
        known: Cells that were seen, which do not count.
        weights: Of the other cells, such that those of each column sum to the number of rows.
        pull: Towards no change: both logarithms are normal, of deviation 1/2, before any row is
            seen.
    """

    def losses() -> Tensor:  # (D,)
        calibrated = network.calibrated(parts, known)
        cells = network.column_log_likelihood(calibrated, codes, values, known)
        return -(cells.masked_fill(known, 0.0).double() * weights).sum(0)

    def of_offset(log_scale_offset: Tensor) -> Tensor:
        network.log_scale_offset = log_scale_offset
        return pull * log_scale_offset.double().square() + losses()[network.numbers]

    def of_temperature(log_temperature: Tensor) -> Tensor:
        network.log_temperature = log_temperature
        return pull * log_temperature.double().square() + losses()

    # A scale changes the density of its own number alone, a temperature the codes of its own
    # column: all columns are searched side by side, each for one number at a time.
    network.log_temperature = torch.zeros_like(network.log_temperature)
    network.log_scale_offset = _least(of_offset, torch.zeros_like(network.log_scale_offset))
    network.log_temperature = _least(of_temperature, torch.zeros_like(network.log_temperature))


def _least(
    losses: Callable[[Tensor], Tensor], start: Tensor, farthest: float = 1.5, steps: int = 18
) -> Tensor:
    """Where each of several functions of one number is least, by golden sections.

    The start is kept where nothing that was found is better.

    Args:
        losses: The functions.
        start: Where to begin.
        farthest: How far to go to both sides: of logarithms, a factor of 4.5.
        steps: How many; 18 come to within 3e-4 of the best logarithm.
    """
    golden = (5**0.5 - 1) / 2
    low, high = start - farthest, start + farthest
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = losses(left), losses(right)
    for _ in range(steps):
        leftward = at_left < at_right
        low, high = torch.where(leftward, low, left), torch.where(leftward, right, high)
        kept, kept_at = torch.where(leftward, left, right), torch.minimum(at_left, at_right)
        part = golden * (high - low)
        new = torch.where(leftward, high - part, low + part)
        new_at = losses(new)
        left, right = torch.where(leftward, new, kept), torch.where(leftward, kept, new)
        at_left, at_right = (
            torch.where(leftward, new_at, kept_at),
            torch.where(leftward, kept_at, new_at),
        )
    best = (low + high) / 2
    return torch.where(losses(best) < losses(start), best, start)


class OutOfFold:
    """Which members leave out which rows.

    Args:
        rows: How many rows there are.
        members: How many networks, at least three.
        seed: Of the random order of the rows.
        share: Of the rows, which two members leave out; this and the next were chosen on columns
            that the head of benchmarks/conditional.py names.
        most_left_out: Of the rows, by each member.

    Attributes:
        judging: Numbers of the rows that two members leave out.

    Example:
        >>> out_of_fold = OutOfFold(800, members=4, seed=0)
        >>> len(out_of_fold.judging), out_of_fold.left_out.sum(0).tolist()
        (400, [201, 200, 200, 199])
    """

    def __init__(
        self, rows: int, members: int, seed: int, share: float = 0.5, most_left_out: float = 0.25
    ) -> None:
        pairs = torch.tensor([*itertools.combinations(range(members), 2)])
        count = int(rows * min(share, most_left_out * members / 2))
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        self.judging = order[:count]
        self.left_out = torch.zeros(rows, members, dtype=torch.bool)
        self.left_out[self.judging[:, None], pairs[torch.arange(count) % len(pairs)]] = True

    def to(self, device: torch.device) -> None:
        """Bring both lists to a device."""
        self.judging, self.left_out = self.judging.to(device), self.left_out.to(device)

    def factors(self, rows: Tensor) -> Tensor:  # (n,) -> (members, n)
        """How much each row of a step counts for each member, 1 on average."""
        learned = (~self.left_out[rows]).T.float()
        return learned / learned.mean()

    def log_likelihood(
        self, network: TableNetwork, rows: Tensor, codes: Tensor, values: Tensor, known: Tensor
    ) -> Tensor:  # (n, D)
        """Log-likelihood of each cell by the two members that left out its row."""
        parts = network(codes, values, known, apart=True)
        told = (t.repeat(network.members, 1) for t in (codes, values, known))
        found = network.column_log_likelihood(parts, *told).unflatten(0, (network.members, -1))
        out = self.left_out[rows].T.to(found.device).unsqueeze(-1)
        own = found.masked_fill(~out, -torch.inf)
        return torch.logsumexp(own, 0) - out.sum(0).log()

    def calibrate(
        self,
        network: TableNetwork,
        rows: Tensor,
        codes: Tensor,
        values: Tensor,
        known: Tensor,
        weights: Tensor,
    ) -> None:
        """Find scale and temperature of each column by members that left out the rows.

        Args:
            network: The network, which is changed.
            rows: Numbers of some of the rows in `judging`.
            codes: Their codes.
            values: Their normal scores.
            known: Cells that were seen, which do not count.
            weights: Of the other cells, as for `kermix.tables.model.calibration.calibrate`.
        """
        found = network(codes, values, known, apart=True)
        members = self.left_out[rows].to(codes.device).nonzero()[:, 1].view(-1, 2)
        at = members * len(rows) + torch.arange(len(rows), device=codes.device).unsqueeze(1)
        first, second = (ColumnParts(*(part[one] for part in found)) for one in at.T)
        alone = ColumnParts(*(torch.cat(pair) for pair in zip(first, second, strict=True)))
        two = (2, 1)
        calibrate(network, alone, codes.repeat(two), values.repeat(two), known.repeat(two),
                  (weights / 2).repeat(two))  # fmt: skip
        of_one = network.log_scale_offset, network.log_temperature
        calibrate(network, network.averaged([first, second]), codes, values, known, weights)
        of_two = network.log_scale_offset, network.log_temperature
        network.log_scale_offset, network.log_temperature = (
            for_all_members(one, two, network.members)
            for one, two in zip(of_one, of_two, strict=True)
        )


def for_all_members(one: Tensor, two: Tensor, members: int) -> Tensor:
    """What the mean of all members needs, on the line in `1 / members` through one and two.

    Example:
        >>> for_all_members(torch.tensor(0.4), torch.tensor(0.3), 4)
        tensor(0.2500)
    """
    return two + (2 / members - 1) * (one - two)
