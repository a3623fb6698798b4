"""The documentation's page of benchmarks, written from the result files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.catalogue import BENCHMARKS
from kermix.errors import MissingExtraError, OptionError

__all__ = ["markdown_table", "write_page"]

Draw: TypeAlias = Callable[[Any, dict[str, Any]], None]

OTHER_PAGES = {"images": "images.md"}
LONGEST = 60  # lines of a table that is shown whole
LINES = ("s:", "^-.", "v--", "o-")
INK = {"h200": "#0072B2", "cpu2": "#D55E00"}


def write_page(results: Path, page: Path) -> Path:
    """Write `page`, a Markdown file, and its pictures beside it, from all files in `results`."""
    records = [(path, _read(path)) for path in sorted(results.glob("*.json"))]
    if not records:
        raise OptionError(f"{results} holds no result files; run a benchmark first.")
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks --page` from the files in `results/bench/`; every "
        "number below is in one of them, with machine, versions, commit and raw times. Times are "
        "medians; compare ratios within a run, not seconds across machines.",
        "",
    ]
    for name, text in BENCHMARKS.items():
        found = [(path, r) for path, r in records if r.get("benchmark") == name]
        if not found:
            continue
        lines += [f"## {name}", "", text[0].upper() + text[1:] + ".", ""]
        if name in OTHER_PAGES:
            lines += [f"These tables are on [a separate page]({OTHER_PAGES[name]}).", ""]
            continue
        if name in PICTURES:
            file, text, draw = PICTURES[name]
            _against_size([record for _, record in found], draw, page.parent / file)
            lines += [f"![{text}]({file})", ""]
        for path, record in found:
            told = record.get("protocol")  # of records that were joined on another machine
            joined = told.get("measured_on") if isinstance(told, dict) else None
            machine = joined or record["machine"]
            where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
            source = f"[{path.name}](../results/bench/{path.name})"
            lines += [f"**{where}**, commit `{record['commit']}`, {source}{_begun(record)}:", ""]
            for title, rows in record["tables"].items():
                lines += _section(title.replace("_", " "), markdown_table(rows))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines))
    return page


def _read(path: Path) -> dict[str, Any]:
    """A result file; that of the tests' power, which has its own form, as tables too."""
    record: dict[str, Any] = json.loads(path.read_text())
    if "power" not in record:
        return record
    columns = {"rejected": "", "published": "published "}
    rates = [
        {
            **{name: row[name] for name in ("case", "sizes", "repetitions")},
            **{before + k: v for part, before in columns.items() for k, v in row[part].items()},
        }
        for row in record["power"]["rows"]
    ]
    tables = {f"share of rejections at level {record['power']['level']}": rates}
    begun = {"begun": record["begun"]} if "begun" in record else {}
    return {"benchmark": "power", **record["environment"], **begun, "tables": tables}


def _begun(record: dict[str, Any]) -> str:
    """Whose repetitions the record continues, if any."""
    if "begun" not in record:
        return ""
    first = record["begun"]
    return f", begun at commit `{first['commit']}` on {first['machine']['cores']} cores"


def _section(title: str, table: list[str]) -> list[str]:
    """A table with its title; a long one, of single runs, is folded."""
    if len(table) <= LONGEST:
        return [f"*{title}*", "", *table, ""]
    summary = f"<summary>{title}: {len(table) - 2} rows</summary>"
    return ['<details markdown="1">', summary, "", *table, "", "</details>", ""]


def markdown_table(rows: list[dict[str, Any]]) -> list[str]:
    """A Markdown table of rows, without raw times."""
    columns = [c for c in dict.fromkeys(k for row in rows for k in row) if not c.startswith("raw")]
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return head + [
        "| " + " | ".join(_shown(row.get(column, "")) for column in columns) + " |" for row in rows
    ]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _against_size(records: list[dict[str, Any]], draw: Draw, picture: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "The page needs Matplotlib: pip install 'kermix[plots]'."
        ) from None
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("points in each set")
    for record in records:
        draw(axes, record)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)


def _time(axes: Any, record: dict[str, Any]) -> None:
    name = record["machine"]["name"]
    rows = record["tables"]["from_points_to_costs"]
    sizes, times = [r["N"] for r in rows], [r["all_costs_s"] for r in rows]
    axes.loglog(sizes, times, "o-", color=INK.get(name, "#009E73"), label=name)
    axes.set_ylabel("seconds, points to all four costs")


def _memory(axes: Any, record: dict[str, Any]) -> None:
    name = record["machine"]["name"]
    rows = record["tables"]["peak_memory"]
    methods = dict.fromkeys(r["method"] for r in rows)
    for method, line in zip(methods, LINES, strict=False):
        chosen = [r for r in rows if r["method"] == method]
        axes.loglog(
            [r["N"] for r in chosen],
            # A call that needs nothing beyond what was there before has no logarithm.
            [max(r["peak_mb"], 0.1) for r in chosen],
            line,
            color=INK.get(name, "#009E73"),
            label=f"{method}, {name}",
            markersize=4,
        )
    axes.set_ylabel("peak memory in MB")


def _rank(axes: Any, record: dict[str, Any]) -> None:
    name = record["machine"]["name"]
    rows = record["tables"]["rank_for_one_percent"]
    scores, ranks = [r["vendi"] for r in rows], [r["rank"] for r in rows]
    axes.plot(scores, ranks, "o-", color=INK.get(name, "#009E73"), label=name)
    axes.set_xlabel("Vendi score")
    axes.set_ylabel("features for a certified error of 1 %")


PICTURES: dict[str, tuple[str, str, Draw]] = {
    "sketch": ("sketch-time.png", "Time for all four costs against the number of points", _time),
    "evaluate": ("evaluate-rank.png", "Features needed against the Vendi score", _rank),
    "memory": ("memory.png", "Peak memory against the number of points", _memory),
}
