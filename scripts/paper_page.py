"""Write `docs/paper.md` from `results/paper/`: `python scripts/paper_page.py`.

`kermix reproduce --out results/paper` writes what is read here.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "paper", ROOT / "docs" / "paper.md"
ORDER = ("fig-generation", "fig-measure", "fig-identity", "fig-singular-functions",
         "table-classification")  # fmt: skip


def page() -> str:
    """The page's Markdown: for each figure its picture, and the claims with their verdicts."""
    files = [file for name in ORDER if (file := RESULTS / f"{name}.json").exists()]
    records = [json.loads(file.read_text()) for file in files]
    claims = [claim for record in records for claim in record["claims"] if not claim["ours"]]
    seen = sum(claim["holds"] for claim in claims)
    lines = [
        "# The paper's figures",
        "",
        "Written by `python scripts/paper_page.py` from the files in `results/paper/`, which"
        " `kermix reproduce` wrote. Each claim is judged by the rule beside it, from the numbers.",
        "",
        f"**{seen} of {len(claims)} of the paper's claims were seen.**",
        "",
    ]
    for file, record in zip(files, records, strict=True):
        lines += _figure(file.stem, record)
    return "\n".join(lines)


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
        "| seen | claim | rule | numbers |",
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
    PAGE.write_text(page())
    print(PAGE)
