"""Images as the paper makes them: noise to pixels, one fixed variance, each of the four costs.

The paper says that MNIST and CelebA were fitted without difficulties and that the SVD cost works
best; it shows no picture, and gives neither network nor variance for images. Here a convolutional
network turns 10-D uniform noise into pixels from 0 to 1, the cost acts between pixels with one
variance that is fixed throughout, and every step has a new batch. There are two variances: that of
the paper's toy figure, 0.001, and 0.01, the least at which images of a batch see each other.

With a folder of data the sets are MNIST, the AT&T faces and CelebA, whichever are there. CelebA
is not public without its terms, and the recorded numbers are of MNIST and of the AT&T faces,
which are not what the paper speaks of: claims on them are ours, and do not count. Without one
they are scikit-learn's digits, of which the paper says nothing, and it is said so.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from kermix.errors import RunError
from kermix.files import write_json
from kermix.pages.sheets import sheet as image_sheet
from kermix.paper.artefact import (
    BEST,
    INK_COLOUR,
    NO_DIFFICULTIES,
    SIMILAR,
    Artefact,
    Claim,
    Rows,
    Tick,
    bare,
    ignore,
    sheet,
)
from kermix.paper.generation import NOISE
from kermix.paper.image_cells import (
    COSTS,
    DATA,
    Cell,
    CellTraining,
    Pictures,
    cell_file,
    data_cell,
    read_pictures,
    sets_in,
    shown_in,
    train_image_cell,
)
from kermix.paper.verdicts import best, decided, of_seeds, ratio_claim, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["NAMES", "claims", "judged", "run", "summarise"]

VARIANCES = (0.01, 0.001)  # of the kernel: a convention, see above
NAMES = {"digits": "digits (8 x 8)", "mnist": "MNIST", "faces": "AT&T faces", "celeba": "CelebA"}
TITLES = {"svd": "SVD", "scalar": "scalar", "vector": "vector-matrix", "matrix": "matrix-matrix"}


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    cells: Path | None = None,
    training: CellTraining | None = None,
    seeds: int | None = None,
    variances: Sequence[float] | None = None,
    device: str = "auto",
) -> Artefact:
    """Compute the figure.

    Args:
        quick: Whether to train small networks on few images for a moment, with one variance.
        data_root: Folder of `mnist`, `faces` and CelebA; without it, digits.
        tick: Called with the share that is done.
        cells: Folder of trained networks, which are taken where they are there. Without a folder
            of data nothing else is trained, and seeds of which some cell is missing are left out.
        training: Instead of the full or quick setting.
        seeds: Networks for each cost and variance.
        variances: Kernel variances, in units of pixels from 0 to 1.
        device: Where to train.
    """
    training = training or (CellTraining.quick() if quick else CellTraining())
    variances = tuple(variances or (VARIANCES[:1] if quick else VARIANCES))
    seeds_of = _seeds_of(cells, data_root, variances, seeds or (2 if quick else 3))
    sets = tuple(seeds_of)
    readers = _readers(sets, data_root, 1000 if quick else None)
    found = _cells(readers, _wanted(seeds_of, variances), training, cells, device, tick)
    rows = list(map(_row, found))
    return Artefact(
        name="fig-images",
        title="Images",
        caption="Images of the data (left) and of networks that were trained with each cost "
        f"between pixels; v = {', '.join(f'{v:g}' for v in variances)}, the first of several "
        "seeds. A sample is a centre, without the kernel's noise.",
        figure=_figure(found, sets, variances),
        settings={
            "sets": list(sets), "v": list(variances), "v is": "in units of pixels from 0 to 1",
            "seeds": {name: len(own) for name, own in seeds_of.items()},
            "noise": f"{NOISE}-D uniform", "network": "transposed convolutions, "
            "BatchNorm, ReLU, sigmoid at the end", "optimiser": "Adam, betas (0.5, 0.9)",
            "loss": "minus the logarithm of the normalized cost",
            "matrix-matrix cost": "tr(P^T R_F^-1 P), the data being fixed",
            **_how_trained(found),
        },
        tables={"methods": _filled(_methods(rows)), "seeds": _filled(rows)},
        claims=judged({"seeds": rows}),
        notes=_notes(readers.values()),
    )  # fmt: skip


def _readers(
    sets: Sequence[str], data_root: Path | None, most: int | None
) -> dict[str, "_Reader"]:
    return {name: _Reader(name, data_root, most) for name in sets}


def _cells(
    readers: Mapping[str, "_Reader"],
    wanted: Sequence[tuple[str, str, float, int]],
    training: CellTraining,
    cells: Path | None,
    device: str,
    tick: Tick,
) -> list[Cell]:
    """The cells that are wanted, taken from the folder or trained."""
    found: list[Cell] = []
    for name, method, variance, seed in wanted:
        found.append(_cell(readers[name], method, variance, seed, training, cells, device))
        tick(len(found) / len(wanted))
    return found


def _notes(readers: Collection["_Reader"]) -> list[str]:
    """What was read otherwise than it is published, and that digits are not the paper's."""
    notes = [note for read in readers for note in read.notes]
    if [read.name for read in readers] == ["digits"]:
        notes.append(
            "No --data-root was given: scikit-learn's digits (8 x 8 pixels), not the paper's "
            "sets: claims on them are ours."
        )
    return notes


def _wanted(
    seeds_of: Mapping[str, Sequence[int]], variances: Sequence[float]
) -> list[tuple[str, str, float, int]]:
    """Set, method, variance and seed of each cell; first of each set its data."""
    return [
        (name, *cell)
        for name, own in seeds_of.items()
        for cell in [(DATA, 0.0, 0), *product(COSTS, variances, own)]
    ]


def _how_trained(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    used = dict.fromkeys(json.dumps(cell["training"]) for cell in cells)
    machines = dict.fromkeys(cell["machine"]["gpu"] or cell["machine"]["cpu"] for cell in cells)
    return {"training": [json.loads(text) for text in used], "trained on": list(machines)}


def _seeds_of(
    cells: Path | None, data_root: Path | None, variances: Sequence[float], seeds: int
) -> dict[str, list[int]]:
    """Which sets are shown, and the seeds of each."""
    if cells is not None and data_root is None and any(cells.glob("*.json")):
        return _complete_seeds(cells, variances)
    return {name: list(range(seeds)) for name in sets_in(data_root)}


def _complete_seeds(cells: Path, variances: Sequence[float]) -> dict[str, list[int]]:
    """Of each set in a folder of cells, the seeds of which there is every cost and variance."""
    found: dict[str, list[int]] = {}
    for name in NAMES:
        if not cell_file(cells, name, DATA, 0.0, 0).exists():
            continue
        own = [int(path.stem.rpartition("-")[2]) for path in cells.glob(f"{name}-svd-v*-*.json")]
        whole = [
            seed for seed in sorted(set(own))
            if all(cell_file(cells, name, c, v, seed).exists() for c in COSTS for v in variances)
        ]  # fmt: skip
        if whole:
            found[name] = whole
    if not found:
        raise RunError(
            f"{cells}: no set has a seed with all costs and variances; name the folder of the "
            "data, and they are trained."
        )
    return found


class _Reader:
    """The images of a set, read when they are needed: not where all cells are there."""

    def __init__(self, name: str, data_root: Path | None, most: int | None) -> None:
        self.name, self._data_root, self._most = name, data_root, most
        self._pictures: Pictures | None = None

    def __call__(self) -> Pictures:
        if self._pictures is None:
            self._pictures = read_pictures(self.name, self._data_root, self._most)
        return self._pictures

    @property
    def notes(self) -> list[str]:
        return [] if self._pictures is None else list(self._pictures.notes)


def _cell(
    read: _Reader, method: str, variance: float, seed: int, training: CellTraining,
    cells: Path | None, device: str,
) -> Cell:  # fmt: skip
    path = None if cells is None else cell_file(cells, read.name, method, variance, seed)
    if path is not None and path.exists():
        try:
            cell: Cell = json.loads(path.read_text())
            _row(cell), shown_in(cell)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: not a cell of fig-images ({error}).") from None
        return cell
    if method == DATA:
        made = data_cell(read(), training, device)
    else:
        made = train_image_cell(read(), method, variance, seed, training, device)
    if path is not None:
        write_json(path, made)
    return made


def _row(cell: Cell) -> dict[str, Any]:
    head = {key: cell[key] for key in ("set", "method", "variance", "seed")}
    return {**head, **cell["numbers"], "seconds": round(cell["seconds"], 1)}


def summarise(rows: Rows, name: str, variance: float) -> dict[str, dict[str, float]]:
    """Means over seeds of each cost at a variance, and the numbers of the data."""
    found = {}
    for method in (DATA, *COSTS):
        own = [
            row for row in rows
            if row["set"] == name and row["method"] == method
            and (method == DATA or row["variance"] == variance)
        ]  # fmt: skip
        numbers = [key for key in own[0] if key not in ("set", "method", "seed", "variance")]
        found[method] = {key: mean(row[key] for row in own) for key in numbers}
    return found


def _methods(rows: Rows) -> Rows:
    table = []
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == name]
        variances = dict.fromkeys(r["variance"] for r in of_set if r["method"] != DATA)
        for i, variance in enumerate(variances):
            for method, numbers in summarise(of_set, name, variance).items():
                if method != DATA or i == 0:
                    v = None if method == DATA else variance
                    table.append({"set": name, "method": method, "v": v, **numbers})
    return table


def _filled(rows: Rows) -> Rows:
    """Rows that all have the same columns."""
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in columns} for row in rows]


def claims(name: str, variance: float, rows: Rows) -> list[Claim]:
    """Judge what the paper says of images, for one set and variance.

    Args:
        name: Of the set.
        variance: Of the kernel.
        rows: The numbers of each seed of all sets and variances, those of data among them.
    """
    where, ours = f"{NAMES[name]}, v = {variance:g}", name not in ("mnist", "celeba")
    (data,) = (row for row in rows if row["set"] == name and row["method"] == DATA)

    def values(key: str) -> dict[str, list[float]]:
        return of_seeds(rows, key, COSTS, by="method", set=name, variance=variance)

    energy, limit = values("energy"), data["energy of the mean image"] / 4
    rarest = values("least frequent class") if _has_classes(rows, name) else {}
    collapsed = [
        m for m in COSTS if mean(energy[m]) > 2 * limit or (rarest and max(rarest[m]) == 0)
    ]
    readings = (
        ("energy distance in pixels", "energy", "least", -1),
        ("Frechet distance in random features", "frechet in random features", "least", -1),
        ("coverage in random features", "coverage", "most", 1),
    )
    return [
        _without_difficulties(where, energy, limit, rarest, ours),
        *(
            best(
                f"The SVD cost works best on images ({where}; read as: {reading}).",
                f"{which} of the four costs, by paired differences",
                values(key), sign, data=[data[key]],
                collapsed=collapsed, ours=ours, statement=BEST,
            )
            for reading, key, which, sign in readings
        ),
        ratio_claim(
            f"The scalar, vector-matrix and matrix-matrix costs perform similarly ({where}).",
            "their energy distances to test images are within a factor of two of each other",
            {m: energy[m] for m in ("scalar", "vector", "matrix")}, 2, collapsed=collapsed,
            ours=ours, statement=SIMILAR,
        ),
    ]  # fmt: skip


def _without_difficulties(
    where: str,
    energy: Mapping[str, Sequence[float]],
    limit: float,
    rarest: Mapping[str, Sequence[float]],
    ours: bool,
) -> Claim:
    """The claim that every cost draws images, and all of their classes where there are any."""
    tests = {f"energy, {m}": spread(own) for m, own in energy.items()}
    shares = {f"rarest class, {m}": spread(own) for m, own in rarest.items()}
    rule = "energy distance to test images at most a quarter of that of the mean image"
    if shares:
        rule += ", and at least 1 % of the samples in each class; for each cost"
    return decided(
        f"There are no difficulties in fitting images with any of the four costs ({where}).",
        rule,
        tests | shares,
        least=dict.fromkeys(shares, 0.01),
        most=dict.fromkeys(tests, limit),
        numbers={"limit": limit},
        ours=ours,
        statement=NO_DIFFICULTIES,
    )


def _has_classes(rows: Rows, name: str) -> bool:
    trained = (row for row in rows if row["set"] == name and row["method"] != DATA)
    return all(row.get("least frequent class") is not None for row in trained)


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    rows = tables["seeds"]
    found = dict.fromkeys((r["set"], r["variance"]) for r in rows if r["method"] != DATA)
    return [claim for name, variance in found for claim in claims(name, variance, rows)]


def _figure(cells: Sequence[Cell], sets: Sequence[str], variances: Sequence[float]) -> "Figure":
    lines = [(name, variance) for name in sets for variance in variances]
    figure, panels = sheet(len(lines), 1 + len(COSTS), 8.6, 1.35 * len(lines) + 0.3)
    for number, (line, (name, variance)) in enumerate(zip(panels, lines, strict=True)):
        for axes, method in zip(line, (DATA, *COSTS), strict=True):
            cell = _first_seed(cells, name, method, variance)
            axes.imshow(image_sheet(shown_in(cell), across=6), interpolation="nearest")
            title = TITLES.get(method, "data") if number == 0 else ""
            bare(axes, title)
        line[0].set_ylabel(f"{NAMES[name]}\nv = {variance:g}", fontsize=7, color=INK_COLOUR)
    return figure


def _first_seed(cells: Sequence[Cell], name: str, method: str, variance: float) -> Cell:
    v = 0.0 if method == DATA else variance
    own = [c for c in cells if (c["set"], c["method"], c["variance"]) == (name, method, v)]
    return min(own, key=lambda cell: cell["seed"])
