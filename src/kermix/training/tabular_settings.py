"""Settings of a fit of Gaussian-product networks to a table."""

import math
from dataclasses import dataclass

from kermix.checks import check_option
from kermix.errors import OptionError
from kermix.models.product.rows import FORMS, ProductForm

__all__ = ["TableSettings"]


@dataclass(frozen=True)
class TableSettings:
    """Settings of a fit to a table.

    Attributes:
        terms: Products in the sum.
        width: Features of a column in the layers before the last.
        depth: Gaussian layers.
        form: How the columns meet, see `kermix.models.GaussianProduct`.
        epochs: At most so many passes over the rows.
        batch_size: Rows in each step; None takes a sixteenth of them, from 16 to 256; with bins a
            tenth of two classes, up to 2048, and a twelfth of more, up to 1024.
        learning_rate: Peak learning rate.
        decay: Weight decay of the affine maps and coefficients.
        patience: Epochs without progress on held-out rows after which a member stops.
        seed: All randomness comes from it.
    """

    terms: int = 32
    width: int = 8
    depth: int = 2
    form: ProductForm = "variational"
    epochs: int = 40
    batch_size: int | None = None
    learning_rate: float = 2e-2
    decay: float = 0.1
    patience: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("form", self.form, FORMS)
        for name in ("terms", "width", "depth", "epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r} must be a whole number, at least 1.")
        if self.batch_size == 1:
            raise OptionError(
                "batch_size=1 must be at least 2: a row is compared with the others of its batch. "
                "None takes a fair share of the rows."
            )
        if not 0 < self.learning_rate < math.inf or not 0 <= self.decay < math.inf:
            raise OptionError(
                f"learning_rate={self.learning_rate} must be above 0, and decay={self.decay} not "
                "negative; both must be finite."
            )
