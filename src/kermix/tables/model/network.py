"""The network of the table model, and the log-likelihood of columns that it did not see.

The mixture network of the paper maps a condition to the weights, centres and variances of a
mixture. Here the condition is any set of columns of a row: for each column the network returns
probabilities of its codes and, for a number, a mixture of Gaussians on the scale of normal scores.
Trained on random subsets, it is a density of whole rows in any order of the chain rule.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import rows_at_once
from kermix.networks.linear import Linear, linear
from kermix.tables.model.layout import REGRESSORS, TableLayout
from kermix.tables.model.linear_relations import FINEST, Expected, StraightLines
from kermix.tables.model.repeated_values import RAMPS, CellValues, ValueCodes

__all__ = ["ColumnParts", "TableNetwork", "log_scales_of", "network_rows_at_once"]

# Reasoned, no record.
LARGEST_LOGIT = 25.0  # so that sums of exponentials neither overflow nor vanish
SMALLEST_SCALE, LARGEST_SCALE = 1e-3, 10.0  # of what lines expect, or of normal scores
KNOTS = 12
WIDE = 1.5  # of a slip, in normal scores


class ColumnParts(NamedTuple):
    """What a network returns for all columns of each row.

    Attributes:
        logits: Of the codes, (N, T); bounded.
        weights: Logarithms of the weights of the Gaussians of each number, (N, Q, K).
        means: Their means.
        log_scales: Logarithms of their standard deviations.
        values: What tells of the values in the cells of columns that repeat, (N, members, G, H).
    """

    logits: Tensor
    weights: Tensor
    means: Tensor
    log_scales: Tensor
    values: Tensor


class TableNetwork(nn.Module):
    """A residual network from seen columns to mixtures of all columns.

    Args:
        layout: Codes and numbers of the table.
        width: Features of a row.
        blocks: Residual blocks.
        components: Gaussians of a number's mixture.
        dropout: Share of features that a block leaves out in training.
        members: Networks of this kind, whose mixtures are averaged.

    Example:
        >>> network = TableNetwork(TableLayout((2, 1), (1,), (0.0,) * 3), width=8, blocks=1)
        >>> codes, values = torch.tensor([[1, 0]]), torch.tensor([[0.3]])
        >>> network.log_likelihood(codes, values, torch.tensor([[True, False]])).shape
        torch.Size([1, 2])
    """

    segments: Tensor
    offsets: Tensor
    numbers: Tensor
    places: Tensor
    knots: Tensor
    membership: Tensor
    regressors: Tensor
    has_regressor: Tensor
    atoms: Tensor
    code_offsets: Tensor
    unit_of_code: Tensor
    shown: Tensor
    free_first: Tensor
    never_seen: Tensor
    starts: Tensor
    within: CellValues | None
    beside: Tensor
    log_scale_offset: Tensor
    log_temperature: Tensor

    def __init__(
        self,
        layout: TableLayout,
        width: int = 256,
        blocks: int = 3,
        components: int = 12,
        dropout: float = 0.1,
        members: int = 1,
    ) -> None:
        super().__init__()
        self.layout, self.components, self.dropout = layout, components, dropout
        numbers = len(layout.numbers)
        for name, tensor in (
            ("segments", layout.segments),
            ("offsets", layout.offsets),
            ("numbers", torch.tensor(layout.numbers, dtype=torch.long)),
            ("places", torch.tensor(layout.positions)),
            ("code_offsets", layout.code_offsets),
            ("unit_of_code", layout.unit_of_code),
            ("knots", math.sqrt(2) * torch.erfinv(torch.linspace(-0.98, 0.98, KNOTS + 1))),
            ("membership", functional.one_hot(layout.segments, layout.columns).float()),
        ):
            self.register_buffer(name, tensor, persistent=False)
        # One row more than there are codes, for cells that are not seen.
        self.codes = nn.Embedding(layout.total + 1, width, padding_idx=layout.total)
        nn.init.normal_(self.codes.weight[:-1], std=1 / math.sqrt(max(1, layout.columns)))
        seen_places = RAMPS * len(layout.repeated)
        self.flags = Linear(layout.columns + numbers * (1 + KNOTS) + seen_places, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.repeated: ValueCodes | None = None
        self.register_module("within", None)
        cells = sum(len(own.sizes) for own in layout.repeated)
        self.out = Linear(width, layout.total - cells + 3 * numbers * components)
        self.follow = self._following(width)
        self.lines: StraightLines | None = None
        if layout.lines is not None:
            self.lines = StraightLines(layout.lines, layout.maps)
            atoms = torch.tensor(layout.atoms, dtype=torch.long)
            self.register_buffer("atoms", atoms, persistent=False)
        self._begin_outputs()
        if layout.repeated:
            self.repeated = ValueCodes(layout.repeated, width)
            deep = [own for own in layout.repeated if own.is_deep]
            self.within = CellValues(deep, layout.columns) if deep else None
            self._look_up_cells()
        # Found on held-out rows after the training; see `calibration`.
        self.register_buffer("log_scale_offset", torch.zeros(numbers))
        self.register_buffer("log_temperature", torch.zeros(layout.columns))
        self.others = nn.ModuleList(
            TableNetwork(replace(layout, lines=None), width, blocks, components, dropout)
            for _ in range(members - 1)
        )
        for other in self.others:
            other.register_module("within", None)  # that of this one is for all

    def _following(self, width: int) -> Linear | None:
        """The factors by which means of numbers move with their regressors."""
        if not self.layout.regressors:
            return None
        regressors = torch.tensor(self.layout.regressors)
        self.register_buffer("regressors", regressors.clamp(min=0), persistent=False)
        self.register_buffer("has_regressor", (regressors >= 0).float(), persistent=False)
        follow = Linear(width, self.components * regressors.numel())
        nn.init.zeros_(follow.weight)
        nn.init.zeros_(follow.bias)
        return follow

    @torch.no_grad()
    def _begin_outputs(self) -> None:
        """Begin with mixtures that are spread out, and relations that hold."""
        layout = self.layout
        self.out.weight.mul_(0.1)
        parts = self._parts(self.out.bias)
        if layout.exact is not None:  # exceptions are rare, and few steps may have to do
            begun = torch.tensor(layout.exact.start_logits)
            last = len(parts.logits) - 2 * len(layout.links)
            parts.logits[last - len(begun) : last] = begun
        parts.means.copy_(torch.linspace(-2, 2, self.components))
        parts.log_scales.fill_(math.log(0.5))

    def _look_up_cells(self) -> None:
        """Where the logits of cells are among all, and what a network sees of each code."""
        layout = self.layout
        of_cells = torch.zeros(layout.total, dtype=torch.bool)
        beside = torch.zeros(layout.total, len(layout.repeated))
        order = torch.empty(layout.total, dtype=torch.long)
        most = max(len(own.sizes) for own in layout.repeated)
        starts = [int(layout.offsets[own.column]) for own in layout.repeated]
        for k, (own, start) in enumerate(zip(layout.repeated, starts, strict=True)):
            cells = slice(start + 1, start + 1 + len(own.sizes))
            of_cells[cells] = True
            beside[start + 1 : start + own.units, k] = 1.0
            order[cells] = k * most + torch.arange(len(own.sizes))
        free = int((~of_cells).sum())
        order[of_cells] += free
        order[~of_cells] = torch.arange(free)
        shares = torch.tensor([own.never_seen for own in layout.repeated])
        shown = torch.where(layout.shown_by_code, layout.unit_of_code, layout.total)
        for name, tensor in (("free_first", order), ("beside", beside), ("shown", shown),
                             ("starts", torch.tensor(starts)),
                             ("never_seen", shares.log() - torch.log1p(-shares))):  # fmt: skip
            self.register_buffer(name, tensor, persistent=False)

    @property
    def width(self) -> int:
        """Features of a row."""
        return int(self.norm.normalized_shape[0])

    def flag_bias(self, place: int) -> Tensor:  # (codes,)
        """The biases of the logits of a flag, which come last among those of codes."""
        flags = self.layout.units[self.layout.table_columns :]
        first = sum(self.layout.units[self.layout.table_columns : place])
        last = self.out.out_features - 3 * len(self.layout.numbers) * self.components
        return self.out.bias[last - sum(flags) + first :][: self.layout.units[place]]

    @property
    def members(self) -> int:
        """Networks whose mixtures are averaged, this one among them."""
        return 1 + len(self.others)

    def forward(
        self,
        codes: Tensor,  # (N, D)
        values: Tensor,  # (N, Q)
        seen: Tensor,  # (N, D), bool
        masks: Tensor | None = None,  # (members * blocks, N, width)
        apart: bool = False,
    ) -> ColumnParts:
        """Mixtures of all columns, from those that are seen.

        Args:
            codes: Codes of all columns; those that are not seen do not count.
            values: Normal scores of the numbers, likewise.
            seen: Which cells count.
            masks: What `dropout_masks` drew, in training.
            apart: Whether the mixtures of all members come one after another, (members * N, ...),
                each as its network has them, for training.
        """
        networks = [self, *self.others]
        parts = [None] * len(networks) if masks is None else masks.chunk(len(networks))
        expected = self._expected(codes, values, seen)
        found = [
            self._relative_to(expected, network._mixtures(codes, values, seen, mask))
            for network, mask in zip(networks, parts, strict=True)
        ]
        if apart:
            return ColumnParts(*(torch.cat(part) for part in zip(*found, strict=True)))
        return self.calibrated(found[0] if len(found) == 1 else self.averaged(found), seen)

    @torch.no_grad()
    def try_out(self) -> None:
        """Ask for one row, so that parts which do not fit are found where a network is read."""
        codes = torch.zeros(1, self.layout.columns, dtype=torch.long)
        values = torch.zeros(1, len(self.layout.numbers))
        for seen in (torch.ones_like(codes, dtype=torch.bool), codes.bool()):
            self(codes, values, seen)

    def _relative_to(self, expected: Expected | None, parts: ColumnParts) -> ColumnParts:
        """Mixtures whose centres and widths are in units of what lines expect.

        The last component is as wide as the column and has a weight that no training takes from
        it, so that a slip of the pen is improbable and not impossible.
        """
        scales = _within(parts.log_scales, SMALLEST_SCALE)
        if expected is None or self.lines is None:
            return parts._replace(log_scales=scales)
        centre, scale = (part.unsqueeze(-1) for part in expected)
        means, scales = centre + scale * parts.means, scales + scale.log()
        if not self.lines.slips or self.components == 1:
            return parts._replace(means=means, log_scales=scales)
        last = torch.arange(self.components, device=scale.device) == self.components - 1
        last = last & self.lines.followed.unsqueeze(-1)
        others = parts.weights[..., :-1].logsumexp(-1, keepdim=True)
        weights = torch.where(last, others + math.log(self.lines.slips), parts.weights)
        scales = scales.masked_fill(last, math.log(WIDE))
        means = means.masked_fill(last, 0.0)
        return parts._replace(weights=weights, means=means, log_scales=scales)

    def calibrated(self, parts: ColumnParts, seen: Tensor) -> ColumnParts:  # (N, D), bool
        """Wider or narrower Gaussians, and flatter or steeper probabilities, column by column.

        By as much as columns are seen: what depends on no other is not learned by heart, and
        shares of categories, above all of rare ones, stay as they are.
        """
        columns = self.layout.table_columns
        share = seen[:, :columns].sum(1, keepdim=True) / max(1, columns - 1)
        cooled = torch.exp(-share * self.log_temperature)[:, self.segments]
        wider = (share * self.log_scale_offset).unsqueeze(-1)
        return parts._replace(logits=parts.logits * cooled, log_scales=parts.log_scales + wider)

    def averaged(self, found: list[ColumnParts]) -> ColumnParts:
        """The mean of densities: of probabilities, and of Gaussians by their member's weight."""
        logits = torch.stack([part.logits for part in found])  # (M, N, T)
        logits = logits - (logits.exp() @ self.membership).log()[..., self.segments]
        number = logits[..., self.offsets[self.numbers], None]  # (M, N, Q, 1)
        weights = torch.stack([part.weights for part in found]).log_softmax(-1) + number
        means, log_scales = ([part[k] for part in found] for k in (2, 3))
        return ColumnParts(
            torch.logsumexp(logits, 0), torch.cat(list(weights), -1), torch.cat(means, -1),
            torch.cat(log_scales, -1), torch.cat([part.values for part in found], 1),
        )  # fmt: skip

    def _places(self, codes: Tensor, values: Tensor) -> Tensor:  # (N, Q)
        """Normal scores of all numbers, atoms among them."""
        own = codes[:, self.numbers]
        at = (own + self.code_offsets[self.numbers]).clamp(0, len(self.places) - 1)
        return torch.where(own == 0, values, self.places[at])

    def _expected(self, codes: Tensor, values: Tensor, seen: Tensor) -> Expected | None:
        """What lines through the numbers that are seen tell about all."""
        if self.lines is None:
            return None
        own = codes[:, self.numbers]
        known = seen[:, self.numbers] & (own <= self.atoms) & (own >= 0)
        return self.lines(self._places(codes, values), known)

    def _mixtures(
        self, codes: Tensor, values: Tensor, seen: Tensor, masks: Tensor | None
    ) -> ColumnParts:
        """What this member alone returns."""
        shown = codes + self.offsets
        if self.repeated is not None:
            shown = self.shown[(codes + self.code_offsets).clamp(0, len(self.shown) - 1)]
        at = torch.where(seen, shown, self.layout.total)
        features = functional.embedding_bag(
            at, self.codes.weight, mode="sum", padding_idx=self.layout.total
        )
        there = seen[:, self.numbers].to(values.dtype)
        place = self._places(codes, values)
        # Piecewise linear functions, so that a sharp dependence on a number is easy to learn.
        low, high = self.knots[:-1], self.knots[1:]
        ramps = ((place.unsqueeze(-1) - low) / (high - low)).clamp(0, 1) * there.unsqueeze(-1)
        inputs = [seen.to(values.dtype), place * there, ramps.flatten(1)]
        if self.repeated is not None:
            inputs.append(self.repeated.ramps(codes, place, seen))
        features = features + self.flags(torch.cat(inputs, 1))
        for number, block in enumerate(self.blocks):
            features = block(features, None if masks is None else masks[number])
        features = self.norm(features)
        parts = self._parts(self.out(features).float())
        parts = parts._replace(logits=bounded(self._all_logits(parts.logits, features)))
        if self.repeated is not None:
            parts = parts._replace(logits=self._with_unseen(parts.logits),
                                   values=self.repeated.features(features))  # fmt: skip
        if self.follow is None:
            return parts
        factors = self.follow(features).float().unflatten(-1, (-1, self.components, REGRESSORS))
        near = (place * there)[:, self.regressors] * self.has_regressor  # (N, Q, A)
        return parts._replace(means=parts.means + (factors * near.unsqueeze(2)).sum(-1))

    def dropout_masks(self, rows: int, generator: torch.Generator) -> Tensor | None:
        """Factors of the features of each block: none, or what keeps their mean.

        They come from a generator of the training's own, so that one that is resumed draws the
        same, and from one for all processes, so that several draw what one would.
        """
        if not self.dropout:
            return None
        shape = (self.members * len(self.blocks), rows, self.width)
        uniform = torch.rand(shape, generator=generator, device=generator.device)
        return (uniform >= self.dropout) / (1 - self.dropout)

    def _all_logits(self, free: Tensor, features: Tensor) -> Tensor:  # (N, T)
        """Logits in the order of columns, those of cells among them."""
        if self.repeated is None:
            return free
        return torch.cat([free, self.repeated.cell_logits(features)], 1).index_select(
            1, self.free_first
        )

    def _with_unseen(self, logits: Tensor) -> Tensor:
        """Give values that no row has their share, of columns all of whose values repeat."""
        others = (logits.exp() @ self.beside).log()
        return logits.index_copy(1, self.starts, others + self.never_seen)

    def units(self, codes: Tensor) -> Tensor:  # (N, D)
        """Places of the logits of codes among those of all columns."""
        if self.repeated is None:
            return codes + self.offsets
        return self.unit_of_code[codes + self.code_offsets]

    def _parts(self, outputs: Tensor) -> ColumnParts:
        count = len(self.layout.numbers) * self.components
        logits, *rest = outputs.split([outputs.shape[-1] - 3 * count, count, count, count], -1)
        shape = (-1, self.components)
        weights, means, log_scales = (part.unflatten(-1, shape) for part in rest)
        nothing = outputs.new_zeros(*outputs.shape[:-1], 1, 0)
        return ColumnParts(logits, weights, means, log_scales, nothing)

    def linked_numbers(self, codes: Tensor, seen: Tensor) -> Tensor | None:  # (N, D)
        """Cells that a link which is seen says are numbers; None without links."""
        if not self.layout.links:
            return None
        base = self.layout.columns - len(self.layout.links)
        said = seen[:, base:] & (codes[:, base:] == 1)
        found = torch.zeros_like(seen)
        for k, link in enumerate(self.layout.links):
            found[:, link.first] |= said[:, k]
            found[:, link.second] |= said[:, k]
        return found

    def column_log_likelihood(
        self, parts: ColumnParts, codes: Tensor, values: Tensor, seen: Tensor
    ) -> Tensor:  # (N, D)
        """Log-likelihood of each cell under its column's mixture, given those that are seen."""
        with torch.autocast(values.device.type, enabled=False):
            sums = linear(parts.logits.exp(), self.membership.T)
            found = parts.logits.gather(1, self.units(codes)) - sums.log()
            if self.within is not None:
                told = self.within.log_probability(parts.values, codes)
                found = found.index_add(1, self.within.columns, told.to(found.dtype))
            certain = self.linked_numbers(codes, seen)
            if certain is not None:
                found = found.masked_fill(certain, 0.0)
            if len(self.layout.numbers):
                density = mixture_log_density(parts, values)
                continuous = codes[:, self.numbers] == 0
                found = found.index_add(
                    1, self.numbers, torch.where(continuous, density, 0.0).to(found.dtype)
                )
        return found

    def log_likelihood(self, codes: Tensor, values: Tensor, seen: Tensor) -> Tensor:  # (N, D)
        """Log-likelihood of each cell that is not seen, given those that are; 0 for the latter."""
        found = self.column_log_likelihood(self(codes, values, seen), codes, values, seen)
        return found.masked_fill(seen, 0.0)


def network_rows_at_once(network: TableNetwork, most: int = 8192) -> int:
    """Rows whose outputs are held at a time: some 100 MB of them.

    Args:
        network: The network.
        most: Draws depend on it, through the order of random numbers.
    """
    layout = network.layout
    wide = network.members * network.out.out_features + layout.total
    if layout.repeated:  # probabilities of the values of one column, and of what is in a cell
        wide += 4 * max(len(own.counts) for own in layout.repeated)
    return rows_at_once(wide, 32_000_000, most=most)


def bounded(logits: Tensor) -> Tensor:
    """Logits within 25 of zero, where they are themselves if they are small."""
    return LARGEST_LOGIT * torch.tanh(logits / LARGEST_LOGIT)


def log_scales_of(parts: ColumnParts) -> Tensor:
    """Logarithms of standard deviations, within what a number of seven digits can tell."""
    return _within(parts.log_scales, FINEST)


def _within(log_scales: Tensor, smallest: float) -> Tensor:
    return log_scales.clamp(math.log(smallest), math.log(LARGEST_SCALE))


def mixture_log_density(parts: ColumnParts, values: Tensor) -> Tensor:  # (N, Q)
    """Log-density of normal scores."""
    log_scales = log_scales_of(parts)
    z = (values.unsqueeze(-1) - parts.means) * (-log_scales).exp()
    log_density = -0.5 * z.square() - log_scales - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(parts.weights + log_density, -1) - torch.logsumexp(parts.weights, -1)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = Linear(width, width), Linear(width, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        hidden = functional.silu(self.first(self.norm(features)))
        return features + self.second(hidden if mask is None else hidden * mask)
