"""How many statements of the paper were confirmed: each counts once, whatever its readings."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["by_statement", "counted_in_words", "is_refuted", "that_count"]

Claims: TypeAlias = list[Mapping[str, Any]]  # as `Claim.as_json` has them


OUTCOMES = {
    "all": "confirmed in every reading and case",
    "some": "confirmed in some",
    "tied": "ended in ties",
    "none": "refuted in all",
}


def by_statement(claims: Iterable[Mapping[str, Any]]) -> dict[str, Claims]:
    """The paper's claims, grouped by the statement that they are readings or cases of."""
    found: dict[str, Claims] = {}
    for claim in claims:
        if not claim["ours"]:
            found.setdefault(claim["statement"] or claim["text"], []).append(claim)
    return found


def that_count(claims: Iterable[Mapping[str, Any]]) -> Claims:
    """Those that say something."""
    return [claim for claim in claims if claim["state"] != "not counted"]


def is_refuted(claim: Mapping[str, Any]) -> bool:
    """Whether a claim was judged and does not hold: a tie is neither."""
    return not claim["holds"] and claim["state"] == "judged"


def counted_in_words(claims: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Two phrases: what became of the statements, and of their readings and cases.

    Example:
        >>> held = {"text": "a", "statement": "", "ours": False, "holds": True, "state": "judged"}
        >>> counted_in_words([held])[0]
        'Of 1 statement of the paper, 1 was confirmed in every reading and case'
    """
    every = by_statement(claims).values()
    groups = [group for own in every if (group := that_count(own))]
    outcomes = Counter(map(_outcome, groups))
    parts = [_was(outcomes[kind], told) for kind, told in OUTCOMES.items() if outcomes[kind]]
    plural = "" if len(groups) == 1 else "s"
    cases = Counter(_outcome([claim]) for group in groups for claim in group)
    left = sum(map(len, every)) - cases.total()
    return (
        f"Of {len(groups)} statement{plural} of the paper, {', '.join(parts) or 'none counts'}",
        f"of {cases.total()} readings and cases, {cases['all']} confirmed, {cases['tied']} tied, "
        f"{cases['none']} refuted; {left} more say nothing and are not counted",
    )


def _outcome(group: Claims) -> str:
    """What became of a statement: confirmed in all its claims or some, tied, or refuted."""
    held = sum(claim["holds"] for claim in group)
    if held:
        return "all" if held == len(group) else "some"
    return "none" if all(map(is_refuted, group)) else "tied"


def _was(count: int, told: str) -> str:
    if told.startswith("ended"):
        return f"{count} {told}"
    return f"{count} {'was' if count == 1 else 'were'} {told}"
