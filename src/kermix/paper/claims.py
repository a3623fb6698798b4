"""Claims of the paper, judged by numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Claim", "svd_is_best"]


@dataclass(frozen=True)
class Claim:
    """One statement, the rule that decides it, and what the numbers say.

    Attributes:
        text: What is claimed, in a sentence.
        rule: When it counts as confirmed, in words.
        numbers: What the rule was applied to.
        holds: Whether it was confirmed.
        ours: Whether the statement is not the paper's but a correction of it.
        statement: The paper's statement, in its own words where that is short. Claims of the same
            statement are readings of it, or cases, and count as one.

    Example:
        >>> claim = Claim("One is small.", "below 2", {"one": 1.0}, holds=True)
        >>> claim.sentence()
        'Confirmed: One is small. (below 2; one 1)'
    """

    text: str
    rule: str
    numbers: Mapping[str, float]
    holds: bool
    ours: bool = False
    statement: str = ""

    @property
    def verdict(self) -> str:
        """`Confirmed` or `NOT confirmed`."""
        return "Confirmed" if self.holds else "NOT confirmed"

    @property
    def evidence(self) -> str:
        """The numbers as text."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.numbers.items())

    def sentence(self) -> str:
        """The verdict, the claim, the rule and the numbers."""
        return f"{self.verdict}: {self.text} ({self.rule}; {self.evidence})"

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        plain = {name: float(value) for name, value in self.numbers.items()}
        return {**asdict(self), "numbers": plain, "holds": bool(self.holds)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Claim":
        """The inverse of `as_json`."""
        return cls(**content)


def svd_is_best(found: Mapping[str, float], sign: int) -> bool:
    """Whether the SVD cost has the most (sign 1) or the least (-1) of all costs.

    Example:
        >>> svd_is_best({"svd": 0.1, "scalar": 0.2}, -1)
        True
    """
    return all(sign * found["svd"] > sign * found[name] for name in found if name != "svd")
