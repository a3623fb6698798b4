"""A function of many variables as a sum of products, with no exchange between the variables.

The paper's multivariate approximator (24) in its three forms, with the layers of Eqs. 25 to 27:
each variable goes through a chain of Gaussian layers of its own and all meet only in the last
step.

Batch normalization of exponents, of which an exponential is taken: nothing may be far out.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import check_option, check_sizes
from kermix.errors import OptionError, ShapeError
from kermix.networks.product_layers import gaussian, normalized_gaussian
from kermix.settings import ProductForm

__all__ = [
    "FORMS",
    "BoundedNorm",
    "GaussianProduct",
    "Precision",
    "VariableLayer",
]


class BoundedNorm(nn.BatchNorm1d):
    r"""Batch normalization whose values are at most `farthest` deviations from the mean.

    The bound comes before scale and shift, in training as in evaluation. A scale may be negative
    and a row like no other hundreds of deviations away: its exponential would have no bound.

    Example:
        >>> norm = BoundedNorm(1).eval()
        >>> norm(torch.tensor([[1.0], [-99.0]])).tolist()
        [[0.9999949932098389], [-4.0]]
    """

    farthest = 4.0

    def forward(self, x: Tensor) -> Tensor:  # (n, features) or (n, features, rows)
        """Normalized, bounded, scaled and shifted."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if self.training:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:  # a plain mean over batches
            assert self.num_batches_tracked is not None
            momentum = 1.0 / max(1.0, float(self.num_batches_tracked))
        found = functional.batch_norm(
            x, self.running_mean, self.running_var, None, None, self.training, momentum, self.eps
        )
        shape = (1, -1, *[1] * (x.ndim - 2))
        near = functional.hardtanh_(found, -self.farthest, self.farthest)
        return torch.addcmul(self.bias.view(shape), near, self.weight.view(shape))


Precision: TypeAlias = Literal["one", "norm"]
FORMS = get_args(ProductForm)


class LayerTensors(NamedTuple):
    """The parameters of a layer of variables; V variables, or members times variables."""

    weight: Tensor  # (V, inputs, outputs)
    anchors: Tensor  # (V, outputs)
    scale: Tensor  # (V, outputs), of the batch normalization, as the next
    shift: Tensor


class VariableLayer(nn.Module):
    r"""One Gaussian layer for each variable: $BN(\exp(-(A_t y_t - W_t)^2))$.

    The variables are an axis of their own; A and W have an entry for each, so that nothing passes
    from one to another. Batch statistics belong to one feature of one variable.

    Args:
        variables: Number of variables.
        inputs: Width of what comes in.
        outputs: Width of what goes out.
        shared: Whether all variables share A, as the pixels of an image do; W stays their own.
        generator: Where initial weights come from.

    Example:
        >>> layer = VariableLayer(3, 1, 8, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(5, 3, 1)).shape
        torch.Size([5, 3, 8])
    """

    def __init__(
        self,
        variables: int,
        inputs: int,
        outputs: int,
        *,
        shared: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        maps = 1 if shared else variables
        bound = math.sqrt(3 / inputs)
        weight = torch.rand(maps, inputs, outputs, generator=generator) * 2 * bound - bound
        self.weight = nn.Parameter(weight)
        self.anchors = nn.Parameter(torch.randn(variables, outputs, generator=generator))
        # The variance of a Gaussian is 1/4 at most. A variable that is constant but for a few rows
        # would else be so magnified in these that every product is zero there.
        self.norm = nn.BatchNorm1d(variables * outputs, eps=1e-2)

    def forward(self, y: Tensor) -> Tensor:  # (n, T, inputs) -> (n, T, outputs)
        """Gaussian features of each variable."""
        # A feature of a variable is a feature of its own, at the only position there is.
        u = self._affine(y).reshape(len(y), 1, -1)
        found = normalized_gaussian(u, self.anchors.view(-1), self.norm, "plain")
        return found.view(len(y), *self.anchors.shape)

    def gaussians(self, y: Tensor) -> Tensor:  # (n, T, inputs) -> (n, T, outputs)
        """Features before they are normalized."""
        return gaussian(self._affine(y), self.anchors)

    def _affine(self, y: Tensor) -> Tensor:
        weight = self.weight.expand(len(self.anchors), -1, -1)
        return torch.bmm(y.transpose(0, 1), weight).transpose(0, 1)

    def tensors(self) -> LayerTensors:
        """Maps, anchors, and the batch normalization's scales and shifts, for each variable."""
        weight = self.weight.expand(len(self.anchors), -1, -1)
        scale, shift = (t.view_as(self.anchors) for t in (self.norm.weight, self.norm.bias))
        return LayerTensors(weight, self.anchors, scale, shift)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Running mean and variance, (T, outputs) each."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        return mean.view_as(self.anchors), variance.view_as(self.anchors)


class GaussianProduct(nn.Module):
    r"""A sum of products of functions of one variable each, $k(X_1, \dots, X_T)$.

    With the features $k_t$ of variable t after all layers and
    $d_{tk} = k_{tk}(X_t) - W_{F,k}(t)$, the K terms are

    - `"variational"`: $\exp(-\frac{1}{T} \sum_t d_{tk}^2)$, each at most 1 for any T;
    - `"product"`: $\prod_t \exp(-d_{tk}^2)$, a product of Gaussians;
    - `"signed"`: $\prod_t d_{tk}$, a product of any real functions.

    and the value is $A_F$ times the terms, or $\alpha$ times their sum. Products are
    taken in log space: `log_terms` and `log_abs` have no underflow for any T.

    Args:
        variables: Number of variables of one number each, or the width of each variable.
        outputs: Rows of A_F; None for one value with a single coefficient alpha.
        sizes: Features of a variable after each Gaussian layer; after the last there are K, the
            number of products in the sum.
        form: How the variables meet.
        precision: `"one"`, the paper's; or `"norm"`, of the variational form: the mean square is
            batch-normalized before the exponential, and kept within four deviations. With the
            running statistics that is a precision and a factor for each term; without it the
            terms of many variables differ little, since a mean of many squares does.
        shared: Whether all variables share the affine maps, as the positions of an image do.
        members: Number of independent functions side by side, as an axis before the outputs.
        generator: Where initial weights come from.

    Example:
        >>> start = torch.Generator().manual_seed(0)
        >>> k = GaussianProduct([1, 3, 2], 4, generator=start)  # three variables, six columns
        >>> k(torch.zeros(5, 6)).shape
        torch.Size([5, 4])
        >>> k = GaussianProduct(1000, form="product", generator=start)
        >>> k(torch.zeros(5, 1000)).shape, k.log_abs(torch.zeros(5, 1000))[0].isfinite().all()
        (torch.Size([5]), tensor(True))
    """

    columns: Tensor  # (T, d), where each variable's numbers are; one too many where there is none

    def __init__(
        self,
        variables: int | Sequence[int],
        outputs: int | None = None,
        *,
        sizes: Sequence[int] = (32, 64),
        form: ProductForm = "variational",
        precision: Precision = "one",
        shared: bool = False,
        members: int | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        check_option("form", form, FORMS)
        check_option("precision", precision, ("one", "norm"))
        widths = [1] * variables if isinstance(variables, int) else list(variables)
        _check_variables(widths, shared)
        if not sizes or min(sizes) < 1:
            raise OptionError(f"sizes={list(sizes)}: at least one layer, of at least one feature.")
        check_sizes(outputs=outputs, members=members)
        self.widths, self.form, self.members = tuple(widths), form, members
        self.register_buffer("columns", _columns(widths), persistent=False)
        terms = sizes[-1]
        every = (members or 1) * len(widths)
        self.layers = nn.ModuleList(
            VariableLayer(every, inputs, after, shared=shared, generator=generator)
            for inputs, after in itertools.pairwise([max(widths), *sizes])
        )
        self._scale_by_width()
        self.anchors = nn.Parameter(torch.randn(every, terms, generator=generator))
        self.coefficients = nn.Parameter(_coefficients(members or 1, outputs, terms, generator))
        self.outputs = outputs
        self.norm: BoundedNorm | None = None
        if precision == "norm":
            if form != "variational":
                raise OptionError(
                    f"precision='norm' is for the variational form, not for {form!r}."
                )
            self.norm = BoundedNorm((members or 1) * terms)
            nn.init.constant_(self.norm.weight, 0.5)
        self._start_wide(len(widths))

    @torch.no_grad()
    def _scale_by_width(self) -> None:
        """Scale each variable by its own width, not by the widest."""
        narrow = max(self.widths) / torch.tensor(self.widths * (self.members or 1))
        first = self.layers[0]
        assert isinstance(first, VariableLayer)
        first.weight.mul_(narrow.sqrt()[: len(first.weight), None, None])

    def _start_wide(self, count: int) -> None:
        """Begin with factors so near to 1 that a product of T of them is of the order of 1."""
        last = self.layers[-1].norm
        if self.form == "variational" or not isinstance(last, nn.BatchNorm1d):
            return
        with torch.no_grad():
            last.weight.div_(math.sqrt(count))
            self.anchors.div_(math.sqrt(count))
            if self.form == "signed":
                self.anchors.sub_(1.0)

    def features(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        """The features of each variable, which depend on no other: (n, T, K).

        Args:
            x: Variables side by side, (n, sum of widths), or one tensor for each.

        With members: (n, E, T, K), and x may be (n, E, sum of widths), other rows for each.
        """
        y = self.variables(x)
        if self.training and len(y) < 2:
            raise ShapeError(
                f"x has {len(y)} row in training: batch statistics need at least two."
            )
        for layer in self.layers:
            y = layer(y)
        return y if self.members is None else y.unflatten(1, (self.members, len(self.widths)))

    def log_terms(self, x: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Logarithm of the size, and the sign, of each of the K terms: (n, K).

        With members: (n, E, K).
        """
        k = self.features(x)
        d = k - self.anchors.view(k.shape[1:])
        if self.form == "variational":
            size = -d.square().mean(-2)
            if self.norm is not None:
                size = self.norm(size.flatten(1)).view_as(size)
        elif self.form == "product":
            size = -d.square().sum(-2)
        else:
            # A factor of exactly zero would have an infinite logarithm and lose its gradient.
            d = torch.where(d == 0, d + torch.finfo(d.dtype).tiny ** 0.5, d)
            sign = d.detach().sign().prod(-2)
            return d.abs().log().sum(-2), sign
        return size, torch.ones_like(size)

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        """The value of the function: (n, outputs), or (n,) where outputs is None."""
        size, sign = self.log_terms(x)
        return self._summed(size.exp() * sign)

    def log_abs(self, x: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Logarithm of the absolute value, and the sign: finite where the value underflows."""
        size, sign = self.log_terms(x)
        largest = size.detach().amax(-1, keepdim=True)
        value = self._summed((size - largest).exp() * sign)
        offset = largest if self.outputs is not None else largest.squeeze(-1)
        return value.abs().log() + offset, value.detach().sign()

    def _summed(self, terms: Tensor) -> Tensor:  # (n, [E,] K) -> (n, [E,] [outputs])
        if self.outputs is None:
            coefficient = (
                self.coefficients.view(-1) if self.members else self.coefficients.view(())
            )
            return coefficient * terms.sum(-1)
        if self.members is None:
            return functional.linear(terms, self.coefficients[0])
        return torch.einsum("nek,eok->neo", terms, self.coefficients)

    def variables(self, x: Tensor | Sequence[Tensor]) -> Tensor:  # -> (n, E * T, widest)
        """The input of the first layer: the numbers of each variable, of each member."""
        if not isinstance(x, Tensor):
            x = torch.cat(list(x), -1)
        total = sum(self.widths)
        axes = 2 if self.members is None else 3
        if x.ndim not in (2, axes) or x.shape[-1] != total:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}; {len(self.widths)} variables of "
                f"{total} numbers in all are expected as (rows, {total})."
            )
        if self.members is not None:
            if x.ndim == 2:
                x = x.unsqueeze(1).expand(-1, self.members, -1)
            elif x.shape[1] != self.members:
                raise ShapeError(
                    f"x has shape {tuple(x.shape)} for {self.members} members: give (rows, "
                    f"{self.members}, {total}), or (rows, {total}) shared by all."
                )
        if max(self.widths) == 1:
            return x.reshape(len(x), -1, 1)
        padded = functional.pad(x, (0, 1))
        return padded[..., self.columns].reshape(len(x), -1, max(self.widths))


def _columns(widths: Sequence[int]) -> Tensor:  # (T, widest)
    total, widest = sum(widths), max(widths)
    columns = torch.full((len(widths), widest), total)
    start = 0
    for t, width in enumerate(widths):
        columns[t, :width] = torch.arange(start, start + width)
        start += width
    return columns


def _check_variables(widths: Sequence[int], shared: bool) -> None:
    if not widths or min(widths) < 1:
        raise OptionError(
            f"variables={list(widths)}: at least one variable, each of at least one number."
        )
    if shared and min(widths) < max(widths):
        raise OptionError(
            f"variables={list(widths)}: variables of several widths cannot share their affine "
            "maps."
        )


def _coefficients(
    members: int, outputs: int | None, terms: int, generator: torch.Generator
) -> Tensor:
    if outputs is None:
        return torch.full((members, 1, 1), 1 / terms)
    return torch.randn((members, outputs, terms), generator=generator) / math.sqrt(terms)
