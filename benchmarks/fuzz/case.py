"""One random call: its own generator, what was checked, and what was found to be wrong."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kermix.errors import DegenerateDataWarning, KermixError, PoorFitWarning

__all__ = ["RELATIVE", "Array", "Case", "Finding", "precision", "run_case"]

Array = NDArray[np.float64]

# The documented tolerances, those of tests/tolerances.py.
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}

# Rounding that a number in [0, 1] may have, in units of its type's precision.
UNIT_SLACK = 16


def precision(dtype: torch.dtype) -> float:
    """The unit of rounding of what is computed inside: half types are computed in float32."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


@dataclass(frozen=True)
class Finding:
    """Something wrong: which case, in which function, of which kind, and what."""

    case: int
    function: str
    category: str
    what: str


class Case:
    """One case of the fuzz; all its randomness comes from `(seed, number)`."""

    def __init__(self, number: int, seed: int = 0) -> None:
        self.number = number
        self.seed = seed
        self.rng = np.random.default_rng([seed, number])
        self.function = ""
        self.setting: dict[str, Any] = {}
        self.findings: list[Finding] = []
        self.checks: Counter[str] = Counter()

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < probability)

    def pick(self, *options: Any) -> Any:
        """One of them."""
        return options[int(self.rng.integers(len(options)))]

    def found(self, category: str, what: str) -> None:
        """Record a finding."""
        self.findings.append(Finding(self.number, self.function, category, what[:300]))

    def holds(self, truth: Any, category: str, what: str) -> bool:
        """Record a finding unless something is true."""
        self.checks[category] += 1
        if not bool(truth):
            self.found(category, what)
        return bool(truth)

    def finite(self, got: Tensor, name: str = "value", where: Any = None) -> bool:
        """All numbers are finite, or those at `where`."""
        good = torch.isfinite(got.detach()).numpy()
        if where is not None:
            good = good | ~where
        return self.holds(good.all(), "not finite", f"{name} is {_shown(got)}")

    def unit(self, got: Tensor, name: str = "value", dtype: torch.dtype | None = None) -> bool:
        """All numbers are in [0, 1], up to the last bits of what they were computed from."""
        slack = UNIT_SLACK * torch.finfo(dtype or got.dtype).eps
        values = got.detach().double()
        good = ((values >= 0) & (values <= 1 + slack)).all()
        return self.holds(good, "outside [0, 1]", f"{name} is {_shown(got)}")

    def at_most_zero(self, got: Tensor, dtype: torch.dtype) -> bool:
        """The logarithms of numbers in [0, 1]."""
        slack = UNIT_SLACK * torch.finfo(dtype).eps
        good = (got.detach().double() <= slack).all()
        return self.holds(good, "outside [0, 1]", f"logarithm is {_shown(got)}")

    def close(
        self, got: Tensor, expected: Any, error: Any, name: str = "value", by: str = "wrong value"
    ) -> bool:
        """Entries differ by at most `error`; numbers outside of the type's range are left out."""
        want = np.asarray(expected, dtype=np.float64)
        have = got.detach().double().numpy()
        if not self.holds(have.shape == want.shape, "wrong shape", f"{name}: {have.shape}"):
            return False
        allowed = np.broadcast_to(np.asarray(error, dtype=np.float64), want.shape)
        largest = torch.finfo(got.dtype).max
        with np.errstate(invalid="ignore", over="ignore"):
            good = np.abs(have - want) <= allowed + torch.finfo(got.dtype).tiny
            good |= (np.abs(want) > largest / 2) & (np.sign(have) == np.sign(want))
        if good.all():
            self.checks[by] += 1
            return True
        worst = np.unravel_index(np.argmin(good), good.shape) if want.ndim else ()
        return self.holds(
            False,
            by,
            f"{name}{list(map(int, worst)) or ''} is {have[worst]:.12g}, expected "
            f"{want[worst]:.12g} +- {allowed[worst]:.2g}",
        )

    def report(self) -> list[dict[str, Any]]:
        """The findings as rows of a result file, with the setting of the call."""
        setting = ", ".join(f"{k}={v}" for k, v in self.setting.items())
        return [{**asdict(f), "setting": setting[:400]} for f in self.findings]


def run_case(case: Case, kind: Callable[[Case], None]) -> Case:
    """Make the call; whatever is raised or warned without a name is a finding too."""
    with torch.random.fork_rng(devices=[]), _watched(case):
        # Of the CPU alone: `torch.manual_seed` notes where it was called for each device.
        torch.default_generator.manual_seed(case.seed * 2**32 + case.number)
        kind(case)
    return case


@contextmanager
def _watched(case: Case) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except KermixError as error:
            case.found("refused", f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - what a fuzz is for
            case.found("unnamed error", f"{type(error).__name__}: {error}")
    for warning in caught:
        if not issubclass(warning.category, DegenerateDataWarning | PoorFitWarning):
            case.found("unnamed warning", f"{warning.category.__name__}: {warning.message}")


def _shown(values: Tensor) -> str:
    flat = values.detach().double().flatten()
    bad = flat[~((flat >= 0) & (flat <= 1))]
    return ", ".join(f"{v:.12g}" for v in (bad if len(bad) else flat)[:4].tolist())
