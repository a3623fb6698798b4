"""Which rows had a part in the choice of a feature map: recognized by their content.

A test must not see rows that its features were chosen from: they fit them better than others. A
map remembers the keys of those rows, short hashes, and a sketch keeps their sums apart. Since the
rule depends on nothing but the content of a row, rows of all sketches are treated alike, and what
is left of each is still a random sample of one source if both sources are the same.
"""

import torch
from torch import Tensor

__all__ = ["recognized", "row_keys"]

ROWS_AT_A_TIME = 8192
SEED = 15  # of the multipliers: keys are kept in files, so it must never change


@torch.no_grad()
def row_keys(rows: Tensor) -> Tensor:  # (N, d) -> (N,)
    """32-bit hashes of rows; equal for equal numbers, whatever their dtype."""
    generator = torch.Generator().manual_seed(SEED)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) | 1
    found = []
    for part in rows.detach().cpu().split(ROWS_AT_A_TIME):
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
