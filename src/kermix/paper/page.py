"""The page with all figures and claims of a folder."""

from collections.abc import Sequence
from pathlib import Path

from kermix.paper.artefact import Record, Rows
from kermix.paper.claims import Claim
from kermix.reports.page import Report

__all__ = ["PAGE", "claim_rows", "write_page"]

PAGE = "index.html"
MOST_ROWS = 20


def claim_rows(record: Record) -> list[tuple[str, str, str, str]]:
    """Verdict, claim, rule and numbers of each claim."""
    claims = [Claim.from_json(c) for c in record["claims"]]
    return [(c.verdict, ("Ours: " if c.ours else "") + c.text, c.rule, c.evidence) for c in claims]


def write_page(folder: Path, records: Sequence[Record]) -> Path:
    """Write `index.html`, which holds everything that it shows."""
    claims = [claim for record in records for claim in record["claims"]]
    seen = sum(claim["holds"] for claim in claims)
    page = Report(
        "The paper, reproduced",
        f"Hu and Principe, A Family of Kernelized Matrix Costs for Multiple-Output Mixture "
        f"Neural Networks. {seen} of {len(claims)} claims confirmed. Each is decided by a rule "
        "from the numbers in the files next to this page.",
    )
    missed = [
        (record["paper"], text)
        for record in records
        for verdict, text, _, _ in claim_rows(record)
        if verdict != "Confirmed"
    ]
    if missed:
        page.heading("Not confirmed")
        page.table(("", "claim"), missed, text=True)
    for record in records:
        page.heading(f"{record['title']} ({record['paper']})")
        if record["quick"]:
            page.text("Quick version: fewer seeds, steps and points than the full one.")
        page.image((folder / f"{record['paper']}.png").read_bytes(), record["caption"])
        page.table(("", "claim", "rule", "numbers"), claim_rows(record), text=True)
        for note in record["notes"]:
            page.text(note)
        for name, rows in record["tables"].items():
            if 0 < len(rows) <= MOST_ROWS:
                page.text(f"{name.capitalize()}:")
                page.table(list(rows[0]), _cells(rows))
        machine = record["machine"]
        where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
        page.text(f"{record['seconds']:.0f} seconds on {where}, commit {record['commit']}.")
    page.heading("Settings")
    for record in records:
        page.text(record["paper"])
        page.table(("setting", "value"), list(record["settings"].items()), text=True)
    page.heading("Repeat it")
    page.code("\n".join(dict.fromkeys(record["command"] for record in records)))
    return page.save(folder / PAGE)


def _cells(rows: Rows) -> list[list[object]]:
    return [["" if row[c] is None else row[c] for c in rows[0]] for row in rows]
