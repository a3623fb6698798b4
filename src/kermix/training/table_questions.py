"""What a step of the table model asks: which cells of a row are seen, and which count."""

from typing import NamedTuple

import torch
from torch import Tensor

from kermix.models.table.layout import TableLayout

__all__ = ["Questions", "ordered_questions", "questions_of", "random_questions"]

LINKS_FIRST = 0.7  # share of rows that see all links


class Questions(NamedTuple):
    """Cells of some rows.

    Attributes:
        seen: Which are seen.
        factors: How often the log-likelihood of each counts.
    """

    seen: Tensor  # (N, D), bool
    factors: Tensor  # (N, D)

    def where(self, chosen: Tensor, other: "Questions") -> "Questions":  # (N, 1), bool
        """These questions for the chosen rows, others for the rest."""
        pairs = zip(self, other, strict=True)
        return Questions(*(torch.where(chosen, a, b) for a, b in pairs))

    def part(self, rows: slice) -> "Questions":
        """Those of some rows."""
        return Questions(self.seen[rows], self.factors[rows])


def questions_of(seen: Tensor, layout: TableLayout) -> Questions:  # (N, D), bool
    """All columns that are not seen count, `d / (d - m)` times if `m` of `d` are.

    With `m` uniform in `0 ... d - 1` this is the mean, over orders of the chain rule, of a row's
    negative log-density, without bias. Links are a chain of their own, before that of the columns,
    which few rows ask for.
    """
    parts = []
    sizes = layout.table_columns, len(layout.links)
    for some, scale in zip((~seen).split(sizes, 1), (1.0, 1 / (1 - LINKS_FIRST)), strict=True):
        count = some.sum(1, keepdim=True).clamp(min=1)
        parts.append(some * (scale * some.shape[1] / count))
    return Questions(seen, torch.cat(parts, 1))


def random_questions(rows: int, layout: TableLayout, generator: torch.Generator) -> Questions:
    """Any columns may be seen: `m` of them, uniform in `0 ... columns - 1`.

    Links come before columns, so most rows see all of them; the others see as many as chance has
    it, because columns may be given first.
    """
    device, columns, links = generator.device, layout.table_columns, len(layout.links)
    found = _subsets(rows, columns, generator)
    if links:
        some = _subsets(rows, links, generator)
        first = torch.rand(rows, 1, generator=generator, device=device) < LINKS_FIRST
        found = torch.cat([found, some | first], 1)
    return questions_of(found, layout)


def ordered_questions(rows: int, layout: TableLayout, generator: torch.Generator) -> Questions:
    """The next cell of a row counts whose first ones are seen, as rows are drawn: links first."""
    device, count = generator.device, layout.columns
    place = (torch.arange(count, device=device) + len(layout.links)) % count
    at = torch.randint(count, (rows, 1), generator=generator, device=device)
    return Questions(place < at, (place == at) * float(count))


def _subsets(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    ranks = torch.rand(rows, columns, generator=generator, device=device).argsort(1).argsort(1)
    count = torch.randint(columns, (rows, 1), generator=generator, device=device)
    return ranks < count
