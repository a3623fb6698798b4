"""What got slower: the ratios of a run against the last recorded ones of the same machine."""

import json
from pathlib import Path
from typing import Any

from kermix.errors import OptionError

__all__ = ["ALLOWED", "changes", "recorded_ratios"]

ALLOWED = 0.25  # share by which a ratio may fall: two runs of the same program differ by as much


def recorded_ratios(path: Path) -> dict[str, float]:
    """The ratios of a record.

    Args:
        path: A file that `python -m benchmarks` wrote.
    """
    if not path.is_file():
        raise OptionError(f"{path}: there is no record of this machine yet; run it once without.")
    tables = json.loads(path.read_text())["tables"]
    if "ratios" not in tables:
        raise OptionError(f"{path}: this benchmark records no ratios; --compare is for speed.")
    return {row["what"]: float(row["ratio"]) for row in tables["ratios"]}


def changes(before: dict[str, float], now: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each ratio that both have, those that fell most first.

    Example:
        >>> changes({"a": 4.0, "b": 2.0}, {"a": 2.0, "b": 2.0})[0]
        {'what': 'a', 'before': 4.0, 'now': 2.0, 'change': -0.5, 'verdict': 'slower'}
    """
    rows = [
        {"what": what, "before": old, "now": now[what], "change": now[what] / old - 1}
        for what, old in before.items()
        if what in now
    ]
    for row in rows:
        fell = row["change"] < -ALLOWED
        row["verdict"] = "slower" if fell else "faster" if row["change"] > ALLOWED else "as before"
    return sorted(rows, key=lambda row: row["change"])
