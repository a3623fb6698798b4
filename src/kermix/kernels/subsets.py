"""Points chosen, ordered and recognized by what they are, not by where they stand.

A test must not see rows that its features were chosen from: they fit them better than others. A
feature map remembers the keys of those rows, short hashes, and a sketch keeps their sums apart.
Since the rule depends on nothing but the content of a row, rows of all sketches are treated alike,
and what is left of each is still a random sample of one source if both sources are the same.
"""

import torch
from torch import Tensor

from kermix.checks import rows_at_once

__all__ = ["distinct_rows", "recognized", "row_keys", "symmetric_subset"]

SPREADING = -0x61C8864680B583EB  # 2**64 divided by the golden ratio, as a signed number


@torch.no_grad()
def symmetric_subset(points: Tensor, count: int, seed: int = 0) -> Tensor:  # (N, d) -> (K,)
    r"""Indices of `count` points (of all, if there are fewer), as if drawn at random.

    Points are ordered by a hash of their values that is salted with `seed`; the k-th copy of a
    point has a hash of its own. So `points[symmetric_subset(points, count)]` is the same, row by
    row, however the points are ordered: a permutation test that chooses landmarks or scales from
    the pooled sample by it treats all labellings alike, and keeps its level.

    Example:
        >>> points = torch.arange(6.0)[:, None]
        >>> shuffled = points[torch.tensor([3, 1, 5, 0, 4, 2])]
        >>> a, b = (p[symmetric_subset(p, 3)] for p in (points, shuffled))
        >>> torch.equal(a, b)
        True
    """
    hashes = _row_hashes(points, seed)
    hashes, order = hashes.sort(stable=True)
    places = torch.arange(len(hashes), device=hashes.device)
    new = torch.ones_like(hashes, dtype=torch.bool)
    new[1:] = hashes[1:] != hashes[:-1]
    copies = places - torch.where(new, places, 0).cummax(0).values
    first = _mixed(hashes + copies * SPREADING).topk(min(count, len(hashes)), largest=False)
    return order[first.indices].to(points.device)


@torch.no_grad()
def distinct_rows(points: Tensor) -> tuple[Tensor, Tensor]:  # (N, d) -> (U,), (N,)
    """Indices of one copy of each row, and for each row its place among these.

    The distinct rows come in an order that depends on their values alone, as if at random.

    Example:
        >>> points = torch.tensor([[1.0], [2.0], [1.0]])
        >>> kept, place = distinct_rows(points)
        >>> len(kept), torch.equal(points[kept][place], points)
        (2, True)
    """
    order = _row_hashes(points, 0).sort(stable=True).indices.to(points.device)
    ordered = points[order]
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    place = torch.empty_like(order)
    place[order] = new.cumsum(0) - 1
    return order[new], place


@torch.no_grad()
def row_keys(rows: Tensor) -> Tensor:  # (N, d) -> (N,)
    """32-bit hashes of rows; equal for equal numbers, whatever their dtype."""
    # Keys are kept in files, so the multipliers must never change.
    generator = torch.Generator().manual_seed(15)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) | 1
    found = []
    for part in rows.detach().cpu().split(rows_at_once(rows.shape[1], 2**20)):
        # Minus zero is zero. Whole numbers have no low bits: fold high ones in.
        bits = (part.double() + 0.0).contiguous().view(torch.int64)
        # High bits of a product depend on all bits of its factors.
        found.append(((bits ^ (bits >> 32)) * factors).sum(1) >> 32)
    return torch.cat(found).to(torch.int32)


@torch.no_grad()
def recognized(keys: Tensor, rows: Tensor) -> Tensor:  # (K,) sorted, (N, d) -> (M,)
    """Indices of the rows whose keys are among those given."""
    if not len(keys) or not len(rows):
        return torch.empty(0, dtype=torch.long, device=rows.device)
    asked, known = row_keys(rows), keys.cpu()
    places = torch.searchsorted(known, asked).clamp(max=len(known) - 1)
    return (known[places] == asked).nonzero().squeeze(-1).to(rows.device)


def _row_hashes(points: Tensor, seed: int) -> Tensor:  # (N, d) -> (N,), int64
    generator = torch.Generator().manual_seed((int(seed) ^ SPREADING) % 2**63)
    salts = torch.randint(-(2**63), 2**63 - 1, (points.shape[1],), generator=generator)
    if points.device.type == "mps":  # has no float64
        points = points.cpu()
    salts = salts.to(points.device)
    size = rows_at_once(points.shape[1], 2**20)
    # Adding zero makes minus zero zero.
    bits = (rows.double().add(0.0).contiguous().view(torch.int64) for rows in points.split(size))
    return torch.cat([_mixed(_mixed(b + salts).sum(1)) for b in bits])


def _mixed(numbers: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit depends on every bit."""
    numbers = (numbers ^ _shifted(numbers, 30)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ _shifted(numbers, 27)) * -0x6B2FB644ECCEEE15
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (numbers >> by) & (2 ** (64 - by) - 1)
