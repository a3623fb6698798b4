"""Write `docs/paper.md` from `results/paper/`: `python scripts/paper_page.py`.

`kermix reproduce --out results/paper` writes what is read here. `--judge NAME ...` first judges
the numbers of these figures anew, after a rule has changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from kermix.paper.catalogue import ARTEFACTS, judge_again
from kermix.paper.contents import CONTENTS, Entry

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "paper", ROOT / "docs" / "paper.md"
Claims = list[dict[str, Any]]


def page() -> str:
    """The page's Markdown: what the paper states, then its figures with claims and verdicts."""
    files = [file for name in ARTEFACTS if (file := RESULTS / f"{name}.json").exists()]
    records = [json.loads(file.read_text()) for file in files]
    claims = [
        {**claim, "figure": record["paper"]} for record in records for claim in record["claims"]
    ]
    lines = [
        "# The paper",
        "",
        "Written by `python scripts/paper_page.py` from the files in `results/paper/`, which"
        " `kermix reproduce` wrote. Each claim is decided from the numbers by the rule next to it;"
        " our own claims, which the paper does not make, are marked and do not count.",
        "",
        *_counts(claims),
        "## Everything that the paper states",
        "",
        "In the order of the paper. A statement with several readings or cases shows how many of"
        " them were confirmed. Errata are on the page [Mathematics]"
        "(mathematics.md#errata-where-the-paper-is-wrong-or-silent).",
        "",
        "| where | what | code | tests | found |",
        "|---|---|---|---|---|",
        *(_row(entry, claims) for entry in CONTENTS),
        "",
    ]
    for file, record in zip(files, records, strict=True):
        lines += _figure(file.stem, record)
    return "\n".join(lines)


def by_statement(claims: Claims) -> dict[str, Claims]:
    """The paper's claims, grouped by the statement that they are readings or cases of."""
    found: dict[str, Claims] = {}
    for claim in claims:
        if not claim["ours"]:
            found.setdefault(claim.get("statement") or claim["text"], []).append(claim)
    return found


def _counts(claims: Claims) -> list[str]:
    groups = by_statement(claims).values()
    whole = sum(all(claim["holds"] for claim in group) for group in groups)
    none = sum(not any(claim["holds"] for claim in group) for group in groups)
    readings = sum(map(len, groups))
    seen = sum(claim["holds"] for group in groups for claim in group)
    return [
        f"**Of {len(groups)} statements of the paper, {whole} were confirmed in every reading "
        f"and case, {len(groups) - whole - none} in some, {none} in none** ({seen} of {readings} "
        "readings and cases).",
        "",
    ]


def _row(entry: Entry, claims: Claims) -> str:
    groups = by_statement([c for c in claims if entry.figure in ("", c["figure"])])
    judged = []
    for statement in entry.statements:
        group = groups.get(statement, [])
        seen = sum(claim["holds"] for claim in group)
        if not group:
            judged.append("not judged yet")
        elif len(group) == 1:
            judged.append("confirmed" if seen else "**not confirmed**")
        else:
            judged.append(
                f"{'' if seen else '**'}confirmed in {seen} of {len(group)}{'' if seen else '**'}"
            )
        if len(entry.statements) > 1:
            judged[-1] = f"{statement.rstrip('.')}: {judged[-1]}"
    found = "; ".join([*judged, *([entry.found] if entry.found else [])]) or "as stated"
    code = ", ".join(f"`{name.removeprefix('kermix.')}`" for name in entry.code) or "-"
    tests = ", ".join(f"`{name}`" for name in entry.tests) or "judged alone"
    return f"| {entry.item} | {_plain(entry.says)} | {code} | {tests} | {_plain(found)} |"


def _figure(name: str, record: dict[str, Any]) -> list[str]:
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
    size = "quick version, " if record["quick"] else ""
    rows = []
    for claim in record["claims"]:
        seen = "yes" if claim["holds"] else "**no**"
        text = ("Ours: " if claim["ours"] else "") + claim["text"]
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in claim["numbers"].items())
        cells = (seen, *(_plain(cell) for cell in (text, claim["rule"], numbers)))
        rows.append("| " + " | ".join(cells) + " |")
    return [
        f"## {record['title']}",
        "",
        f"![{record['title']}](../results/paper/{name}.png)",
        "",
        f"*{_plain(record['caption'])}*",
        "",
        "| confirmed | claim | rule | numbers |",
        "|---|---|---|---|",
        *rows,
        "",
        *(line for note in record["notes"] for line in (_plain(note), "")),
        f"{size}{where}, commit `{record['commit']}`,"
        f" [{name}.json](../results/paper/{name}.json).",
        "",
    ]


def _plain(text: str) -> str:
    """Text in which nothing is taken for a tag or the edge of a cell."""
    return text.replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    for name in sys.argv[2:] if sys.argv[1:2] == ["--judge"] else []:
        judge_again(name, RESULTS)
    PAGE.write_text(page())
    print(PAGE)
