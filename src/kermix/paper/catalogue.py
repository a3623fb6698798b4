"""The figures and the table that there are, how a folder of them is made, and its page."""

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kermix.errors import OptionError, RunError
from kermix.files import write_json
from kermix.paper.artefact import Claim, Record, Rows, Tick, files_of, ignore, read_record

__all__ = [
    "ARTEFACTS",
    "PAGE",
    "by_statement",
    "check_folder",
    "chosen",
    "claim_rows",
    "counted_in_words",
    "is_refuted",
    "judge_again",
    "records_in",
    "reproduce",
    "that_count",
    "write_page",
]

PAGE = "index.html"


def claim_rows(record: Record) -> list[tuple[str, str, str, str]]:
    """Verdict, claim, rule and numbers of each claim."""
    claims = [Claim.from_json(c) for c in record["claims"]]
    return [(c.verdict, ("Ours: " if c.ours else "") + c.text, c.rule, c.evidence) for c in claims]


def write_page(folder: Path, records: Sequence[Record]) -> Path:
    """Write `index.html`, which holds everything that it shows."""
    from kermix.pages.page import Page, Repeat  # NumPy, which commands begin without

    claims = [Claim.from_json(claim).as_json() for record in records for claim in record["claims"]]
    found, cases = counted_in_words(claims)
    commands = dict.fromkeys(record["command"] for record in records)
    page = Page("paper", "The paper, reproduced", {
        "found": found,
        "cases": cases,
        "missed": [(record["paper"], verdict, text) for record in records
                   for verdict, text, _, _ in claim_rows(record) if verdict != "Confirmed"],
        "records": [_shown(record, folder) for record in records],
    })  # fmt: skip
    return page.repeated_by(Repeat("\n".join(commands))).save(folder / PAGE)


def _shown(record: Record, folder: Path, most_rows: int = 20) -> dict[str, Any]:
    """What the page shows of a figure or table; no tables of more rows."""
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
    tables = [(name, list(rows[0]), _cells(rows)) for name, rows in record["tables"].items()
              if 0 < len(rows) <= most_rows]  # fmt: skip
    return {
        **record,
        "png": (folder / f"{record['paper']}.png").read_bytes(),
        "claims": claim_rows(record),
        "tables": tables,
        "settings": list(record["settings"].items()),
        "made": f"{record['seconds']:.0f} seconds on {where}, commit {record['commit']}.",
    }


def _cells(rows: Rows) -> list[list[object]]:
    return [["" if row[c] is None else row[c] for c in rows[0]] for row in rows]


ARTEFACTS = {
    "fig-toy": "samples of networks trained with each cost, in the authors' own setting",
    "fig-generation": "the same on narrow modes far apart, and with the ablations",
    "fig-prior": "a mixture with a continuous prior, weights and variances, for each cost",
    "fig-images": "images drawn in pixels by networks trained with each cost",
    "fig-measure": "the costs while one density slides past the other",
    "fig-identity": "the identity function as the Gaussians at the samples see it",
    "fig-singular-functions": "left and right singular functions, and eigenfunctions",
    "fig-remarks": "what the text says beside its figures: forms, variances, dimensions, bounds",
    "table-classification": "accuracy of the Gaussian-product network",
    "table-as-written": "the same with Eqs. 25 to 27 to the letter, both readings of their norm",
}

WITH_CELLS = ("fig-toy", "fig-images", "table-classification", "table-as-written")


def chosen(names: Sequence[str]) -> list[str]:
    """The names meant: all for none or `all`, each once, in the paper's order."""
    if not names or "all" in names:
        return list(ARTEFACTS)
    for name in names:
        if name not in ARTEFACTS:
            raise OptionError(f"{name!r} is not in the paper; there are {', '.join(ARTEFACTS)}.")
    return [name for name in ARTEFACTS if name in names]


def check_folder(folder: Path, names: Sequence[str], overwrite: bool = False) -> None:
    """Refuse a folder in which something would be lost."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another --out.")
    if overwrite or not folder.exists():
        return
    found = _in_the_way(folder, names)
    if found:
        raise RunError(
            f"{folder} holds {', '.join(found[:4])}{', ...' if len(found) > 4 else ''} already; "
            "choose another --out, or replace them with --overwrite."
        )


def _in_the_way(folder: Path, names: Sequence[str]) -> list[str]:
    """Names of files that new ones would replace."""
    found = [file.name for name in names for file in files_of(name, folder)]
    # A page among results of ours is ours: it is made anew from all of them.
    if (folder / PAGE).exists() and not records_in(folder):
        found.append(PAGE)
    return found


def records_in(folder: Path) -> list[Record]:
    """The results that a folder holds, in the paper's order."""
    files = [folder / f"{name}.json" for name in ARTEFACTS]
    return [read_record(file) for file in files if file.exists()]


def judge_again(name: str, folder: Path) -> Record:
    """Judge what a folder holds of a figure by the rules of today; nothing is computed anew.

    Args:
        name: Of the figure or table.
        folder: Where its files are; in its JSON file the claims, and notes that follow from the
            tables, are replaced.
    """
    module = _module(name)
    record = read_record(folder / f"{name}.json")
    record["claims"] = [claim.as_json() for claim in module.judged(record["tables"])]
    if hasattr(module, "noted"):
        record["notes"] = module.noted(record["tables"])
    write_json(folder / f"{name}.json", record)
    return record


def _module(name: str) -> Any:
    (name,) = chosen([name])
    return importlib.import_module(f"kermix.paper.{name.partition('-')[2].replace('-', '_')}")


def reproduce(
    name: str,
    folder: Path,
    quick: bool = False,
    *,
    data_root: Path | None = None,
    cells: Path | None = None,
    tick: Tick = ignore,
) -> Record:
    """Compute one figure or table, write its files and the page of all that are there.

    Args:
        name: One of `ARTEFACTS`.
        folder: Where files go; those of the same name are replaced.
        quick: Whether to take fewer seeds, steps and points.
        data_root: Folder of MNIST, CIFAR-10 and faces, for the table and the figure of images.
        cells: Folder of trained networks of the figure of images: those that are there are taken,
            the others are trained and kept. For the table, a folder with an earlier one, whose
            cells are taken.
        tick: Called now and then with the share that is done.
    """
    run: Callable = _module(name).run
    start = time.perf_counter()
    options = {"cells": cells} if cells is not None and name in WITH_CELLS else {}
    artefact = run(quick, data_root=data_root, tick=tick, **options)
    record: Record = artefact.save(folder, quick=quick, seconds=time.perf_counter() - start)
    write_page(folder, records_in(folder))
    return record


# How many statements of the paper were confirmed: each counts once, whatever its readings.
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
