"""Squared distances, and the pull of points on each other, without cancellation.

A matrix product gives all squared distances as $|p|^2 + |q|^2 - 2 p q$, with an error of a
few roundings of $|p|^2 + |q|^2$: where two points are close to each other and far from the
origin, nothing is left of their distance. So the origin is a median, which one far point does not
move, and entries that are small against the norms are computed again: from an origin near to them,
or from differences. An accelerator does so tile by tile, without telling the host.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.checks import ROOM_FOR_SUMS, broadcast_shape, has_triton, is_traced, rows_at_once

__all__ = [
    "DIRECT_DIFFERENCES_UP_TO",
    "DIRECT_PULLS_UP_TO",
    "Layout",
    "attraction",
    "distances_on_cpu",
    "mismatch_of",
    "mismatches",
    "numbers_of",
    "squared_distances",
]

DIRECT_DIFFERENCES_UP_TO = 8

# Entries at most this large against the norms are computed again. The others have a relative error
# of some roundings of float64 divided by it: 1e-12 and 1e-9.
CLOSE = {torch.float64: 2.0**-14, torch.float32: 2.0**-24}

# A pull is computed again if its terms are longer than this, against the distances.
LONGEST_TERMS = {torch.float64: 2.0**16, torch.float32: 2.0**6}
DIRECT_PULLS_UP_TO = 3


class Layout(NamedTuple):
    r"""Which columns of mixed rows are numbers and which are codes, the last ones.

    Two codes are equal or not. A difference adds $s^2$ to the squared distance, as it would
    for one-hot columns of height $s / \sqrt 2$: the kernel of mixed rows is a Gaussian.
    """

    codes: int  # how many columns, the last ones, hold codes
    mismatch: float  # s^2
    columns: int  # of the table, by which squared distances are divided


@torch.no_grad()
def mismatch_of(
    codes: Tensor,  # (N, c)
    columns: Tensor | None = None,  # (c,), bool
    least_different: float = 0.02,
) -> float:
    r"""The $s^2$ for which two random rows differ as much by a category as by a number.

    Two numbers of unit variance differ by 2 in the mean square. Codes of two rows differ with
    probability $1 - \sum p^2$; with its mean over the columns, $s^2$ is 2 divided by
    it. There is one $s$ for all columns: were each scaled by itself, rare values would weigh
    most. It does not depend on the order of the rows.

    Args:
        codes: Codes of the rows.
        columns: Which of them are categories; by default all.
        least_different: Share of pairs that count as different at least: a nearly constant column
            weighs no more than this allows.
    """
    shares = []
    for k, column in enumerate(codes.unbind(-1)):
        if columns is None or bool(columns[k]):
            counts = torch.unique(column, return_counts=True)[1].sort().values.double()
            shares.append(1 - (counts / counts.sum()).square().sum())
    if not shares:
        return 2.0
    return 2 / max(least_different, float(torch.stack(shares).mean()))


def numbers_of(points: Tensor, layout: Layout | None) -> Tensor:  # (*B, N, d)
    """The columns that are no codes."""
    return points if layout is None else points[..., : points.shape[-1] - layout.codes]


def mismatches(a: Tensor, b: Tensor, layout: Layout) -> Tensor:  # (*B, M, N)
    """Squared distances of the codes of rows."""
    # Small whole numbers are compared and counted several times faster than others.
    codes = (t[..., t.shape[-1] - layout.codes :].detach().to(torch.int32) for t in (a, b))
    first, second = (t.unbind(-1) for t in codes)
    shape = broadcast_shape(a.shape[:-2], b.shape[:-2])
    dtype = torch.uint8 if layout.codes < 256 else torch.int16
    total = torch.zeros(*shape, a.shape[-2], b.shape[-2], dtype=dtype, device=a.device)
    for p, q in zip(first, second, strict=True):
        total += p.unsqueeze(-1) != q.unsqueeze(-2)
    return total.to(a.dtype).mul_(layout.mismatch)


def squared_distances(
    a: Tensor,  # (*B, M, d)
    b: Tensor,  # (*B, N, d)
    same: bool = False,
    layout: Layout | None = None,
) -> Tensor:  # (*B, M, N)
    """All squared distances, each with a small relative error, and never infinite.

    No tensor of all differences is held.

    Args:
        a: Points.
        b: Points, in the same dtype.
        same: Whether both are the same points, whose distances to themselves are 0.
        layout: Which columns are codes; None: all are numbers.

    Example:
        >>> points = torch.ones(2, 20).double()
        >>> squared_distances(points, 1e12 + torch.tensor([[1.0], [4.0]]).double() * points)[0, 0]
        tensor(2.0000e+25, dtype=torch.float64)
    """
    if layout is not None:
        of_codes = mismatches(a, b, layout)
        a, b = (numbers_of(t, layout) for t in (a, b))
        return of_codes + squared_distances(a, b, same) if a.shape[-1] else of_codes
    if a.shape[-1] <= DIRECT_DIFFERENCES_UP_TO:
        columns = zip(a.unbind(-1), b.unbind(-1), strict=True)
        # In place: on a CPU most of the time of such a sum is for memory that is new.
        differences = (p.unsqueeze(-1) - q.unsqueeze(-2) for p, q in columns)
        total = next(differences).pow_(2)
        for difference in differences:
            total = total.add_(difference.pow_(2))
        return total.clamp_max_(_largest(a.dtype))
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    a, b = (t.expand(*batch, *t.shape[-2:]) for t in (a, b))
    if torch.compiler.is_compiling():
        return _opaque_distances(a, b, same)
    distances: Tensor = _Distances.apply(a, b, same)
    return distances


def _column_by_column(
    pull: Tensor, a: Tensor, b: Tensor, both: bool
) -> tuple[Tensor, Tensor | None]:
    toward_b, toward_a = [], []
    for p, q in zip(a.unbind(-1), b.unbind(-1), strict=True):
        move = (q.unsqueeze(-2) - p.unsqueeze(-1)) * pull
        toward_b.append(move.sum(-1))
        if both:
            toward_a.append(-move.sum(-2))
        del move  # before the next one is made
    return torch.stack(toward_b, -1), torch.stack(toward_a, -1) if both else None


def attraction(
    pull: Tensor,  # (*B, M, N)
    a: Tensor,  # (*B, M, d)
    b: Tensor,  # (*B, N, d)
    distances: Tensor | None,  # (*B, M, N)
    same: bool = False,
    both: bool = True,
    layout: Layout | None = None,
) -> tuple[Tensor, Tensor | None]:  # (*B, M, d), (*B, N, d)
    r"""Where points are pulled to, $\sum_j w_{ij} (b_j - a_i)$, and the same for `b`.

    The error is small against $\sum_j |w_{ij}| |b_j - a_i|$, however far from the origin
    the points are.

    Args:
        pull: The weights `w`.
        a: Points.
        b: Points that pull them, and are pulled.
        distances: Squared distances between them, which points in up to three dimensions need not.
        same: Whether both are the same points, which do not pull themselves.
        both: Whether the pull on `b` is wanted.
        layout: Which columns are codes, which nothing pulls.
    """
    if layout is not None:
        return _attraction_of_numbers(pull, a, b, same, both, layout)
    if a.shape[-1] <= DIRECT_PULLS_UP_TO:
        return _column_by_column(pull, a, b, both)
    origin = _middle(b)
    looked_at = a.device.type == "cpu" and not torch.is_grad_enabled() and not is_traced(pull, a)
    if looked_at and a.dtype in LONGEST_TERMS:
        assert distances is not None
        return _attraction_on_cpu(pull, a, b, distances, origin, same, both)
    return _by_products(pull, a, b, origin, both, _wide(a.device))


def _attraction_of_numbers(
    pull: Tensor, a: Tensor, b: Tensor, same: bool, both: bool, layout: Layout
) -> tuple[Tensor, Tensor | None]:
    p, q = (numbers_of(t, layout) for t in (a, b))
    if not p.shape[-1]:
        return torch.zeros_like(a), torch.zeros_like(b) if both else None
    found = attraction(pull, p, q, squared_distances(p, q, same).detach(), same, both)
    room = (0, layout.codes)
    toward_b, toward_a = (t if t is None else torch.nn.functional.pad(t, room) for t in found)
    assert toward_b is not None
    return toward_b, toward_a


def _by_products(
    pull: Tensor, a: Tensor, b: Tensor, origin: Tensor, both: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    pull, origin = pull.to(dtype), origin.to(dtype)
    p, q = a.to(dtype) - origin, b.to(dtype) - origin
    toward_b = (pull @ q - pull.sum(-1, keepdim=True) * p).to(a.dtype)
    if not both:
        return toward_b, None
    return toward_b, (pull.mT @ p - pull.mT.sum(-1, keepdim=True) * q).to(a.dtype)


def _attraction_on_cpu(
    pull: Tensor,
    a: Tensor,
    b: Tensor,
    distances: Tensor,
    origin: Tensor,
    same: bool,
    both: bool,
    longest_in_double: float = 2.0**30,
) -> tuple[Tensor, Tensor | None]:
    longest = LONGEST_TERMS[a.dtype]
    others = distances
    if same:
        pull = pull.clone()
        pull.diagonal(dim1=-2, dim2=-1).zero_()
        others = _off_diagonal(distances)
    if not others.numel():
        return torch.zeros_like(a), torch.zeros_like(b)
    reach_a, reach_b = (torch.linalg.vector_norm(t - origin, dim=-1) for t in (a, b))
    if bool(reach_a.amax() + reach_b.amax() <= longest * others.amin().sqrt()):
        return _by_products(pull, a, b, origin, both, a.dtype)
    pull = pull.masked_fill(distances == 0, 0)
    sizes = pull.abs()
    allowed = longest * (sizes * distances.sqrt())
    far_a = _exceeds(sizes, reach_a, reach_b, allowed.sum(-1))
    far_b = _exceeds(sizes.mT, reach_b, reach_a, allowed.sum(-2))
    if not bool(far_a.any() | far_b.any()):
        return _by_products(pull, a, b, origin, both, a.dtype)
    toward_b, toward_a = _by_products(pull, a, b, origin, both, torch.float64)
    if a.dtype != torch.float64:
        # Float64 has more than twice the digits; an origin that is very far needs still more.
        allowed *= longest_in_double / longest
        far_a &= _exceeds(sizes, reach_a, reach_b, allowed.sum(-1))
        far_b &= _exceeds(sizes.mT, reach_b, reach_a, allowed.sum(-2))
    _pull_by_differences(toward_b, far_a, pull, a, b)
    if toward_a is not None:
        _pull_by_differences(toward_a, far_b, pull.mT, b, a)
    return toward_b, toward_a


def _off_diagonal(matrix: Tensor) -> Tensor:  # (*B, N, N) -> (*B, N - 1, N)
    """All entries but those on the diagonal, a view: it starts every row of N + 1."""
    n = matrix.shape[-1]
    return matrix.contiguous().flatten(-2)[..., 1:].unflatten(-1, (n - 1, n + 1))[..., :-1]


def _exceeds(sizes: Tensor, reach: Tensor, other: Tensor, allowed: Tensor) -> Tensor:
    terms = (sizes @ other.unsqueeze(-1)).squeeze(-1) + sizes.sum(-1) * reach
    return ~(terms <= allowed)


def _pull_by_differences(
    toward: Tensor, chosen: Tensor, pull: Tensor, points: Tensor, others: Tensor
) -> None:
    for index in chosen.nonzero().tolist():
        *item, row = index
        here = (*item, row)
        toward[here] = pull[here] @ (others[tuple(item)] - points[here])


class _Distances(torch.autograd.Function):
    """Squared distances in many dimensions; under `vmap`, those of one larger batch."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, same: bool) -> Tensor:
        return _all_distances(a, b, same)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.same = inputs
        ctx.save_for_backward(a, b, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b, distances = ctx.saved_tensors
        distances = distances.detach()
        if not ctx.needs_input_grad[0]:
            toward_a, _ = attraction(grad.mT, b, a, distances.mT, ctx.same, both=False)
            return None, -2 * toward_a, None
        both = ctx.needs_input_grad[1]
        toward_b, back = attraction(grad, a, b, distances, ctx.same, both)
        return -2 * toward_b, None if back is None else -2 * back, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], a: Tensor, b: Tensor, same: bool) -> Any:
        a, b = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((a, b), in_dims[:2], strict=True)
        )
        return _Distances.apply(a, b, same), 0


def _all_distances(a: Tensor, b: Tensor, same: bool) -> Tensor:
    wide = _wide(a.device)
    with torch.no_grad():
        if a.is_cuda and has_triton():
            from kermix.kernels.means_triton import recompute_distances

            origin, p, q = (t.to(wide) for t in (_middle(b), a, b))
            found = _products(p - origin, q - origin)
            distances = recompute_distances(*found, p, q, CLOSE[_narrow(a.dtype)])
        elif a.device.type == "cpu":
            distances = distances_on_cpu(a.to(wide), b.to(wide), CLOSE[_narrow(a.dtype)], same)
        else:
            way = "donot_use_mm_for_euclid_dist"
            distances = torch.cdist(a.to(wide), b.to(wide), compute_mode=way).square_()
        distances = distances.clamp_(max=_largest(a.dtype)).to(a.dtype)
        if same:
            distances.diagonal(dim1=-2, dim2=-1).zero_()
    return distances


@torch.library.custom_op("kermix::squared_distances", mutates_args=())
def _opaque_distances(a: Tensor, b: Tensor, same: bool) -> Tensor:
    """Opaque to the compiler: which entries are computed again depends on the data."""
    return _all_distances(a, b, same)


@_opaque_distances.register_fake
def _(a: Tensor, b: Tensor, same: bool) -> Tensor:
    return a.new_empty(*a.shape[:-1], b.shape[-2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.same = inputs
    ctx.save_for_backward(a, b, output)


_opaque_distances.register_autograd(_Distances.backward, setup_context=_save)


def _products(p: Tensor, q: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    squares_p, squares_q = (t.square().sum(-1) for t in (p, q))
    products = torch.matmul(p, q.mT, out=out)
    distances = products.mul_(-2).add_(squares_p.unsqueeze(-1)).add_(squares_q.unsqueeze(-2))
    return distances, squares_p, squares_q


def distances_on_cpu(
    a: Tensor,  # (*B, M, d)
    b: Tensor,  # (*B, N, d)
    close: float = CLOSE[torch.float64],
    same: bool = False,
    out: Tensor | None = None,
) -> Tensor:  # (*B, M, N)
    """The squared distances of float64 points, which may be infinite; on the diagonal if `same`.

    Args:
        a: Points.
        b: Points.
        close: Entries below this share of the norms are computed again.
        same: Whether both are the same points.
        out: Where to write.
    """
    origin = _middle(b)
    distances, squares_a, squares_b = _products(a - origin, b - origin, out)
    if same:
        distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    if not bool(distances.amin() >= close * (squares_a.amax() + squares_b.amax())):
        # Not a number, where squares overflow, is also not above the limit.
        limits = close * (squares_a.unsqueeze(-1) + squares_b.unsqueeze(-2))
        again = ~((distances >= limits) & (limits < torch.inf))
        if same:
            again.diagonal(dim1=-2, dim2=-1).fill_(False)
        items = (t.reshape(-1, *t.shape[-2:]) for t in (distances, again, a, b))
        for found, marks, p, q in zip(*items, strict=True):
            _recompute(found, marks, p, q, close)
    return distances


def _recompute(
    distances: Tensor,
    again: Tensor,
    a: Tensor,
    b: Tensor,
    close: float,
    origins: int = 64,
    few: float = 1 / 64,
) -> None:
    """Compute the marked entries of one matrix again, in place.

    From up to `origins` of their own, while more than a share of `few` of the pairs is left.
    """
    for _ in range(origins):
        counts = again.sum(1)
        if int(counts.sum()) <= few * again.numel():
            break
        row = int(counts.argmax())
        columns = again[row].nonzero().squeeze(-1)
        rows = (2 * again[:, columns].sum(1) > len(columns)).nonzero().squeeze(-1)
        block = rows.unsqueeze(-1), columns
        found, squares_a, squares_b = _products(a[rows] - a[row], b[columns] - a[row])
        right = found >= close * (squares_a.unsqueeze(-1) + squares_b.unsqueeze(-2))
        right &= again[block]
        distances[block] = torch.where(right, found, distances[block])
        again[block] &= ~right
        if int(right.sum()) * 4 < len(rows) * len(columns):
            break
    for pairs in again.nonzero().split(rows_at_once(a.shape[-1])):
        i, j = pairs.unbind(-1)
        distances[i, j] = (a[i] - b[j]).square().sum(-1)


def _middle(points: Tensor, rows: int = 63) -> Tensor:  # (*B, N, d) -> (*B, 1, d)
    """The median of some points in each coordinate, which a few far ones do not move."""
    step = -(-points.shape[-2] // rows)
    some = points.detach()[..., ::step, :]
    middle = some.shape[-2] // 2
    return some.sort(-2).values[..., middle : middle + 1, :]


def _narrow(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in CLOSE else torch.float32


def _largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max * ROOM_FOR_SUMS


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
