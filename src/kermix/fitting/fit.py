"""Fit a model to data: what `kermix fit` does, as a function.

Here is decided which model a fit takes (of rows, of images, of a table) and with which settings,
and which kind of run a folder holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_args

from kermix.checks import check_option
from kermix.data.dataset import Dataset
from kermix.data.loading import IMAGE_SETS, is_table, load
from kermix.data.readers.common import Reading, is_pattern, load_pyarrow
from kermix.data.readers.frames import Frame
from kermix.data.sources import Source, Table, read_table, table_of_arrow
from kermix.distributed.processes import check_ranks
from kermix.environment import is_rank, world_of_environment
from kermix.errors import OptionError
from kermix.files import whole_file, write_array
from kermix.fitting import open_run
from kermix.runs.folder import check_new_folder, next_free_folder
from kermix.runs.run import KEPT, Run, Start, equivalent_command
from kermix.runs.train import complete
from kermix.settings import Strategy, check_name
from kermix.tables.runs.table_fit import (
    COMPARED_MODELS,
    READING,
    TABLE_SETTINGS,
    TableFit,
    TypedTable,
    can_compare_models,
    table_settings,
    typed_table,
    why_table_model,
)
from kermix.tables.runs.training_data import LargeTable, is_large, look_at_large
from kermix.training.budget import DEFAULT, QUICK
from kermix.training.fit_settings import IMAGES, ROWS, FitSettings, ImageModelName, RowModelName
from kermix.training.loop import gradients_on

__all__ = [
    "OF_TABLES",
    "SETTINGS",
    "Asked",
    "Choice",
    "begin_fit",
    "choose_model",
    "fit",
    "reopen",
    "resume",
]

FOR_ROWS, FOR_IMAGES = (FitSettings.part(family) for family in (ROWS, IMAGES))
SETTINGS = {*FOR_ROWS.names, *FOR_IMAGES.names} | TABLE_SETTINGS
OF_TABLES = TABLE_SETTINGS - {*FOR_ROWS.names}
OF_IMAGES = {setting.name: setting.about for setting in FOR_IMAGES.settings
             if setting.name not in FOR_ROWS.names}  # fmt: skip
TO_BOTH = (TABLE_SETTINGS - OF_TABLES - {"components", "average"}) | {"model"}
MODELS = ("table", *get_args(RowModelName), *get_args(ImageModelName))


def check_settings(settings: Mapping[str, Any], target: str | None) -> None:
    """Refuse names that no fit has, and values that the model that is asked for cannot have."""
    for name in settings:
        check_name(name, SETTINGS)
    model = settings.get("model")
    check_option("model", model or "table", MODELS)
    if model == "table" or (model is None and set(settings) & OF_TABLES):
        own = {name: value for name, value in settings.items() if name in TABLE_SETTINGS}
        table_settings(own, None if target is None else 0)
    elif mixed := sorted(set(settings) & (OF_TABLES - _of_model(model))):
        raise OptionError(f"{mixed[0]} is a setting of the table model (model='table').")
    _check_as_rows(settings, model)


def _of_model(model: str | None) -> set[str]:
    """Settings of images, where a model of these is named."""
    return {*OF_IMAGES} if model in get_args(ImageModelName) else set()


def _check_as_rows(settings: Mapping[str, Any], model: str | None) -> None:
    """Refuse values that rows do not allow, unless a model of something else is named."""
    own = {n: v for n, v in settings.items() if n in FOR_ROWS.names and n != "budget"}
    if own and model not in ("codes", "code-mixture", "table"):
        _of_rows(own)


def _of_rows(settings: Mapping[str, Any]) -> FitSettings:
    """Settings of a fit of rows; what they do not have is left out."""
    given = {
        n: value for n, value in settings.items() if n in FOR_ROWS.names and value is not None
    }
    if given.get("model") == "conv":  # which is that of large images
        given["model"] = "small-conv"
    return FitSettings(**given)


def row_settings(dataset: Dataset, settings: Mapping[str, Any]) -> FitSettings:
    """Settings of a fit of rows, which are images or not."""
    _check_of_rows(dataset, settings)
    chosen = _of_rows(settings)
    unsaid = "model" not in settings and not settings.get("refine_steps")
    if unsaid and dataset.image is not None and chosen.cost != "likelihood":
        square = dataset.image[1] == dataset.image[2] >= 4
        chosen = replace(chosen, model="small-conv" if square else "generator")
    return chosen.for_data(len(dataset.values)).quick() if chosen.budget == QUICK else chosen


def _check_of_rows(dataset: Dataset, settings: Mapping[str, Any]) -> None:
    """Refuse settings of images and of tables, where neither is fitted."""
    unused = sorted(set(settings) & OF_TABLES)
    if unused:
        raise OptionError(
            f"{dataset.name}: {unused[0]} is a setting of the table model, but no column varies."
        )
    if settings.get("model") in ("codes", "code-mixture") or set(settings) & {*OF_IMAGES}:
        usual = [name for name, about in OF_IMAGES.items() if not about.rare]
        raise OptionError(
            f"{dataset.name}: model='codes' and 'code-mixture', {', '.join(usual)} are for "
            "square images of at least 16 pixels (use size to resize them)."
        )


def image_settings(dataset: Dataset, settings: Mapping[str, Any]) -> FitSettings:
    """Settings of a fit of images, by default those that suit them."""
    unused = sorted(set(settings) - set(FOR_IMAGES.names))
    if unused:
        raise OptionError(
            f"{unused[0]} does not apply to a fit of images; these take "
            f"{', '.join(sorted(FOR_IMAGES.names))}."
        )
    assert dataset.image is not None
    base = FitSettings.for_images(dataset.name, dataset.image, settings.get("model", "codes"))
    return replace(base.quick() if settings.get("budget") == QUICK else base, **settings)


@dataclass(frozen=True)
class Asked:
    """What a user said of a fit, beside the data.

    Attributes:
        settings: Settings of models, by name; an unnamed model is not among them.
        look: How a table is read, and what its columns are.
        rows: How many rows to take.
        data_root: Where the files of a set of images are.
        size: Side of the images in pixels.
        target: The column that `predict` is about.
        from_disk: Whether a table is trained from disk.
    """

    settings: Mapping[str, Any]
    look: Mapping[str, Any]
    rows: int | None = None
    data_root: str | Path | None = None
    size: int | None = None
    target: str | None = None
    from_disk: bool | None = None

    @property
    def model(self) -> str | None:
        """The model that is asked for."""
        return self.settings.get("model")

    @property
    def budget(self) -> str | None:
        """How much is to be done."""
        return self.settings.get("budget")

    @property
    def seed(self) -> int:
        """Of rows that are drawn."""
        return self.settings.get("seed", 0)

    @property
    def foreign(self) -> set[str]:
        """Settings that the table model does not have, or a mixture reads otherwise."""
        return set(self.settings) - TO_BOTH - OF_TABLES

    @property
    def own(self) -> set[str]:
        """Settings that the table model alone has."""
        return set(self.settings) & OF_TABLES

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise OptionError(f"rows={self.rows}: must be at least 1.")

    def check_no_target(self) -> None:
        """Refuse a target, where another model than the table model was asked for."""
        if self.target is not None:
            raise OptionError(f"target={self.target!r} is for the table model (model='table').")

    def reason_for_rows(self, why: str) -> str | None:
        """What is said of a mixture, where none was asked for."""
        if {"model", "cost", "components"} & set(self.settings):
            return None
        return f"A mixture was chosen because {why} (override with --model table)."

    @property
    def needs_table(self) -> bool:
        """Whether only a table with columns can be meant."""
        return self.model == "table" or bool(self.look) or self.target is not None

    @property
    def reading(self) -> dict[str, Any]:
        """How data that are no table are loaded."""
        return {"rows": self.rows, "data_root": self.data_root, "size": self.size}


class Choice(NamedTuple):
    """The model that a fit takes, and why."""

    kind: str  # "table", "compare_models" (the table model with mixtures), "rows" or "images"
    reason: str | None  # a sentence, where nobody asked for it
    data: Any  # as it was read for the choice


def choose_model(data: Source, asked: Asked) -> Choice:
    """Choose the model that suits data, from what was said and what the data are."""
    large = _reason_for_disk(data, asked)
    if large is not None:
        _check_not_of_images(data, asked.reading)
        return Choice("table", large, look_at_large(str(data), asked.look, asked.seed))
    found, reason = _found_table(data, asked), None
    if found is not None:
        chosen = _table_choice(found, asked)
        if chosen is not None:
            _check_not_of_images(data, asked.reading)
            return chosen
        asked.check_no_target()
        reason = asked.reason_for_rows("all columns are plain numbers")
        if asked.look or not isinstance(data, str | Path) or is_pattern(data):
            return Choice("rows", reason, _numbers(found.frame))
    if not isinstance(data, str | Path):
        return Choice("rows", reason, data)
    if asked.foreign and is_table(data):
        reason = asked.reason_for_rows(f"{min(asked.foreign)} is a setting of it")
    dataset = _loaded(str(data), asked)
    return Choice(_kind_of(dataset, asked), reason, dataset)


def _found_table(data: Source, asked: Asked) -> TypedTable | None:
    """The table that data are; None if they are none, or settings do not ask what they are."""
    found = None
    if asked.needs_table or is_pattern(data) or not asked.foreign:
        found = typed_table(data, asked.look, asked.rows, asked.seed, asked.model == "table")
    if found is None and asked.needs_table:
        what = "the table model, " if asked.model == "table" else ""
        raise OptionError(
            f"{what}{', '.join((*READING, 'target'))} are for tables with columns, which "
            f"{data} is not."
        )
    return found


def _kind_of(dataset: Dataset, asked: Asked) -> str:
    """Images, unless a model of rows is asked for."""
    from kermix.images.generator_run import suits_images

    of_rows = asked.model is not None and asked.model not in get_args(ImageModelName)
    of_rows = of_rows or asked.settings.get("cost") == "likelihood"
    return "rows" if of_rows or not suits_images(dataset) else "images"


def _table_choice(found: TypedTable, asked: Asked) -> Choice | None:
    """The table model, alone or against mixtures; None if rows of numbers are to be fitted."""
    if asked.model == "table":
        return Choice("table", None, found)
    if asked.foreign or asked.model is not None:
        return None
    if asked.target is None and not asked.own and can_compare_models(found):
        return Choice("compare_models", COMPARED_MODELS, found)
    why = _why_table(found, asked)
    if why is None:
        return None
    return Choice("table", f"The table model was chosen because {why}.", found)


def _why_table(found: TypedTable, asked: Asked) -> str | None:
    if found.schema.modelled:
        why = why_table_model(found.schema, found.frame.rows)
        if why is None and asked.target is not None:
            return "a target is named"
        if why is None and asked.own:
            return f"{min(asked.own)} is a setting of it"
        if why is None and asked.budget not in (None, QUICK, DEFAULT):
            return "a budget is given"
        return why
    # Numbers may be fitted as rows; what else is constant, may not.
    types = load_pyarrow().types
    plain = all(types.is_integer(c.type) or types.is_floating(c.type)
                for c in found.frame.columns.values())  # fmt: skip
    return None if plain else "it has constants that are no numbers"


def _reason_for_disk(data: Source, asked: Asked) -> str | None:
    """Why a table is trained from disk, as a sentence; None if it is not."""
    if not _may_be_large(data, asked):
        if asked.from_disk:
            raise OptionError(
                f"from_disk: {data if isinstance(data, str | Path) else 'what is in memory'} "
                "cannot be trained from disk, which is only for all rows of a file with the table "
                "model."
            )
        return None
    if asked.from_disk is False:
        return None
    if asked.from_disk:
        return f"{Path(data).name} is read in blocks and trained from disk."
    look = {name: value for name, value in asked.look.items() if value is not None}
    return is_large(data, Reading(**look))


def _may_be_large(data: Source, asked: Asked) -> TypeGuard[str | Path]:
    """Whether data are all rows of a file, and the table model may be fitted to them."""
    table = isinstance(data, str | Path) and is_table(data) and asked.rows is None
    return table and not asked.foreign and asked.model in (None, "table")


def _loaded(source: str, asked: Asked) -> Dataset:
    """Data that are no table with columns of its own."""
    if asked.data_root is not None and source.partition(":")[0] not in IMAGE_SETS:
        raise OptionError(f"data_root is for {', '.join(IMAGE_SETS)}; {source} does not use it.")
    root = None if asked.data_root is None else Path(asked.data_root)
    dataset = load(source, asked.seed, asked.rows, data_root=root, size=asked.size)
    side = None if asked.size is None else (asked.size, asked.size)
    if side is not None and (dataset.image is None or dataset.image[1:] != side):
        raise OptionError(f"size={asked.size}: {source} cannot be resized.")
    return dataset


OF_DATA = ("rows", "data_root", "size", "target", "from_disk")
STARTED = ("device", "precision", "devices", "nodes", "began")
STRATEGIES = get_args(Strategy)


def fit(
    data: Source,
    *,
    out: str | Path | None = None,
    quick: bool = False,
    show: bool = False,
    **options: Any,
) -> Run:
    """Fit a mixture, a table model or a generator to data: train, draw samples, write a report.

    The result is a run folder like that of `kermix fit`, which also works with `kermix resume`,
    `sample` and `score`.

    Args:
        data: A built-in data set (`"moons"`), an image data set (`"mnist"`), a path, or rows in
            memory: a data frame, an array, a tensor; these are copied into the folder. A table
            with categories, missing values, times or integers is fitted with the table model
            (`kermix.TableModel`); for a table of numbers, a mixture in closed form is fitted too,
            and held-out rows decide. `model` overrides this: `"table"`, `"mixture"`, ...; arrays,
            and settings that only a mixture has, mean `"mixture"`.
        out: Run folder, which must not exist; by default `runs/NAME`.
        quick: Another name of `budget="quick"`, for a first look.
        show: Whether to show a progress bar.
        options: `rows`, `data_root` and `size` of data that are read; of tables `columns`,
            `exclude`, `kinds`, `delimiter`, `decimal`, `encoding`, `header`, `missing`, `sheet`,
            `target` and `from_disk` (train from rows encoded in the run folder; by default if they
            do not fit in half of the free memory); `device`, `precision`, `devices`, `nodes` and
            `strategy`;
            and every setting of `kermix.training.fit_settings.FitSettings` (of
            `kermix.tables.model.table_settings.TableModelSettings` for the table model).

    Returns:
        The run: `.sample(n, seed)`, `.score(rows)`, `.model()`, `.folder`, `.config`; of the table
        model also `.sample(n, given={...})`, `.impute(table)` and `.predict(table, target)`.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = fit("moons", out=folder.name + "/run", rows=200, steps=4, refine_steps=4)
        >>> run.sample(3, seed=0).shape, (run.folder / "report.html").exists()
        (torch.Size([3, 2]), True)
        >>> folder.cleanup()
    """
    with gradients_on():
        run, dataset = begin_fit(data, out=out, quick=quick, **options)
        complete(run, dataset, show)
    return run


def resume(
    folder: str | Path,
    *,
    devices: int | None = None,
    nodes: int | None = None,
    strategy: str | None = None,
    show: bool = False,
) -> Run:
    """Continue a run that was stopped, to the same result as without the stop.

    Args:
        folder: The run's folder.
        devices: Processes on each node; by default as many as before, or as torchrun started.
        nodes: Nodes, likewise.
        strategy: How costs are computed over processes, likewise.
        show: Whether to show a progress bar.
    """
    with gradients_on():
        run = reopen(folder, devices, nodes, strategy)
        complete(run, run.dataset(), show)
    return run


def reopen(
    folder: str | Path,
    devices: int | None = None,
    nodes: int | None = None,
    strategy: str | None = None,
) -> Run:
    """A run to continue, with another number of processes if that is asked for."""
    run = open_run(folder)
    if "ranks" in run.config:
        before = run.ranks
        asked = (devices or before[0], nodes or before[1], strategy or before[2])
        if is_rank() and devices is nodes is None:
            asked = (*world_of_environment(), asked[2])
        return run.with_ranks(**_ranks(*asked))
    if devices or nodes or strategy:
        raise OptionError(
            f"{folder}: only fits of rows and tables can be trained by several processes."
        )
    return run


def begin_fit(
    data: Source,
    *,
    out: str | Path | None = None,
    quick: bool = False,
    command: Sequence[str] | None = None,
    **settings: Any,
) -> tuple[Run, Any]:
    """Make the run folder of a fit; see `fit`. Nothing is trained yet.

    `command` are the words that were typed; by default those that do the same. `began` is when the
    time of a budget begins, as `time.monotonic` has it; by default now.
    """
    of_data = _popped(settings, OF_DATA)
    if quick:
        if settings.get("budget", QUICK) != QUICK:
            raise OptionError(
                f"quick is budget='quick', but budget={settings['budget']!r}: leave out one."
            )
        settings["budget"] = QUICK
    command = command or _equivalent(data, of_data, settings)
    strategy = settings.pop("strategy", None)
    start = _started(command, strategy, _popped(settings, STARTED))
    look = _popped(settings, READING)
    if settings.get("model") == "auto":
        del settings["model"]
    asked = Asked(settings, look, **of_data)
    check_settings(settings, asked.target)  # refused before any file is read
    folder = None if out is None else Path(out)
    if folder is not None and start.alone:
        check_new_folder(folder)  # of several processes, one makes it and the others find it
    choice = choose_model(data, asked)
    if choice.kind == "images" and (strategy is not None or not start.alone):
        raise OptionError(
            f"{data}: fits of images are trained by one process; leave out devices, nodes and "
            "strategy."
        )
    return _begun(data, choice, asked, folder, start)


def _begun(
    data: Source, choice: Choice, asked: Asked, folder: Path | None, start: Start
) -> tuple[Run, Any]:
    """The run of the model that was chosen."""
    if choice.kind == "images":
        return _begin_images(str(data), choice.data, asked, folder, start)
    if choice.kind == "rows":
        return _begin_rows(data, choice, asked, folder, start)
    own = {name: value for name, value in asked.settings.items() if name != "model"}
    on_disk = isinstance(choice.data, LargeTable)
    options = asked.look if on_disk else {**asked.look, "rows": asked.rows}
    compare_models = choice.kind == "compare_models"
    return TableFit(
        choice.data, own, start, options, asked.target, choice.reason, compare_models
    ).begin(folder)


def _begin_images(
    source: str, dataset: Dataset, asked: Asked, folder: Path | None, start: Start
) -> tuple[Run, Dataset]:
    from kermix.images.generator_run import begin_images

    chosen = image_settings(dataset, asked.settings)
    folder = folder or next_free_folder(dataset.name.replace(":", "-"))
    run = begin_images(folder, source, dataset, chosen, start, options=asked.reading)
    return run, dataset


def _begin_rows(
    data: Source, choice: Choice, asked: Asked, folder: Path | None, start: Start
) -> tuple[Run, Dataset]:
    from kermix.fitting.samples_run import begin_samples

    notes = (choice.reason,) if choice.reason else ()
    if isinstance(choice.data, Dataset):
        dataset = choice.data
        chosen = row_settings(dataset, asked.settings)
        folder = folder or next_free_folder(dataset.name)
        options = asked.reading
        run = begin_samples(folder, str(data), dataset, chosen, start, options, notes)
        return run, dataset
    # Rows that were in memory, or are not the whole file, are kept in the folder.
    given = sorted(name for name, value in asked.reading.items() if value is not None)
    if given and choice.data is data:
        raise OptionError(
            f"{given[0]} is only for data read from files; select rows before the fit."
        )
    if not start.alone:
        raise OptionError(
            "Several processes read their data from files: write the data to a file first."
        )
    table = read_table(choice.data)
    dataset = Dataset("table", table.values, table.columns, notes=tuple(table.notes()))
    chosen = row_settings(dataset, asked.settings)
    folder = folder or next_free_folder("table")
    source = str((folder / KEPT[table.named]).absolute())
    run = begin_samples(folder, source, dataset, chosen, start, notes=notes)
    _keep(table, Path(source))
    return run, dataset


def _check_not_of_images(data: Source, reading: Mapping[str, Any]) -> None:
    """Refuse options of sets of images, which would say nothing of a table."""
    given = [name for name in ("data_root", "size") if reading.get(name) is not None]
    if given:
        name = data if isinstance(data, str | Path) else "The data"
        raise OptionError(f"{name} is a table; {given[0]} is only for images.")


def _keep(table: Table, path: Path) -> None:
    """Write rows beside the run, which reads them again when it goes on."""
    if not table.named:
        write_array(path, table.values.numpy())
        return
    pyarrow = load_pyarrow()
    from pyarrow import parquet

    columns = {name: table.values[:, k].numpy() for k, name in enumerate(table.columns)}
    with whole_file(path) as part:
        parquet.write_table(pyarrow.table(columns), part)


def _numbers(frame: Frame) -> Table:
    columns = load_pyarrow().table(dict(frame.columns))
    return table_of_arrow(columns, frame.name, None)


def _equivalent(
    data: Source, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """The command that does what a call of `fit` does; data in memory are found in the folder."""
    source, given = str(data), {**options, **settings}
    if not isinstance(data, str | Path):  # what is kept has been chosen from them
        source, left = "", {"rows", *READING} - {"kinds"}
        given = {name: value for name, value in given.items() if name not in left}
    rare = OF_TABLES | {name for name, about in OF_IMAGES.items() if about.rare}
    others = [n for n, value in settings.items() if n in rare or value is None]
    by_set = {name: given.pop(name) for name in others if name in SETTINGS}
    return equivalent_command("fit", source, given, by_set)


def _popped(settings: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Those of the settings that have these names, which they leave."""
    return {name: settings.pop(name) for name in names if name in settings}


def _started(command: Sequence[str], strategy: str | None, where: Mapping[str, Any]) -> Start:
    ranks = _ranks(where.get("devices"), where.get("nodes"), strategy)
    return Start(command, **{**where, **ranks})


def _ranks(devices: int | None, nodes: int | None, strategy: str | None) -> dict[str, Any]:
    """Numbers of processes that can be, by default what this process is one of."""
    local, there = world_of_environment() if is_rank() else (1, 1)
    strategy = strategy or "auto"
    check_option("strategy", strategy, STRATEGIES)
    devices = local if devices is None else devices
    nodes = there if nodes is None else nodes
    check_ranks(devices, nodes)
    return {"devices": devices, "nodes": nodes, "strategy": strategy}
