"""Which model a fit takes, and with which settings: of rows, of images, of a table."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kermix.data.loading import Dataset, is_table
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.table import Source
from kermix.errors import OptionError
from kermix.runs.image_run import ASKED, MODEL_OPTIONS, suits_images
from kermix.runs.table_fit import TABLE_SETTINGS, TypedTable, is_contested, why_table_model
from kermix.runs.table_store import is_large
from kermix.training.image_settings import ImageSettings
from kermix.training.settings import FitSettings

__all__ = ["OF_TABLES", "SETTINGS", "TO_BOTH", "can_be_contested", "check_settings",
           "image_settings", "reason_for_disk", "reason_for_table_model", "row_settings",
           "suits_image_models"]  # fmt: skip

SMALLEST_SIDE = 4
OF_IMAGES = ("code", "spaces", "encoder_steps", "chunk")
SETTINGS = {field.name for field in fields(FitSettings)} | {*ASKED} | TABLE_SETTINGS
OF_TABLES = TABLE_SETTINGS - {field.name for field in fields(FitSettings)} - {*ASKED}
TO_BOTH = (TABLE_SETTINGS - OF_TABLES - {"components", "average"}) | {"model"}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse names that neither a fit of rows nor one of images has, and bad values of rows."""
    unknown = sorted(set(settings) - SETTINGS)
    if unknown:
        raise OptionError(
            f"There is no setting {unknown[0]!r}; there are {', '.join(sorted(SETTINGS))}."
        )
    mixed = sorted(set(settings) & OF_TABLES)
    if mixed and settings.get("model") not in (None, "table"):
        raise OptionError(f"{mixed[0]} is a setting of the table model (model='table').")
    if settings.get("model") not in ("codes", "code-mixture", "table"):
        left = {*OF_IMAGES, *OF_TABLES}
        FitSettings(**{k: v for k, v in settings.items() if k not in left and v is not None})


def suits_image_models(dataset: Dataset, settings: Mapping[str, Any]) -> bool:
    """Whether data are fitted as images: they are some, and no model of rows is asked for."""
    model = settings.get("model")
    if model is not None and model not in MODEL_OPTIONS.values():
        return False
    return suits_images(dataset) and settings.get("cost") != "likelihood"


def row_settings(dataset: Dataset, settings: Mapping[str, Any], quick: bool) -> FitSettings:
    """Settings of a fit of rows, which are images or not."""
    if settings.get("model") in ("codes", "code-mixture") or set(settings) & set(OF_IMAGES):
        raise OptionError(
            f"{dataset.name}: model='codes' and 'code-mixture', {', '.join(OF_IMAGES)} are for "
            "square images of at least 16 pixels (use size to resize them)."
        )
    unused = sorted(set(settings) & OF_TABLES)
    if unused:
        raise OptionError(
            f"{dataset.name}: {unused[0]} is a setting of the table model, but no column varies."
        )
    chosen = FitSettings(**{name: value for name, value in settings.items() if value is not None})
    unsaid = "model" not in settings and not settings.get("refine_steps")
    if unsaid and dataset.image is not None and chosen.cost != "likelihood":
        square = dataset.image[1] == dataset.image[2] >= SMALLEST_SIDE
        chosen = replace(chosen, model="conv" if square else "generator")
    return chosen.for_data(len(dataset.values)).quick() if quick else chosen


def image_settings(dataset: Dataset, settings: Mapping[str, Any], quick: bool) -> ImageSettings:
    """Settings of a fit of images, by default those that suit them."""
    chosen = dict(settings)
    unused = sorted(set(chosen) - set(ASKED))
    if unused:
        raise OptionError(
            f"{unused[0]} does not apply to a fit of images; these take {', '.join(ASKED)}."
        )
    if "model" in chosen:
        chosen["model"] = {v: k for k, v in MODEL_OPTIONS.items()}[chosen["model"]]
    assert dataset.image is not None
    base = ImageSettings.for_images(dataset.name, dataset.image)
    if chosen.get("model") == "mixture":
        base = replace(base, spaces=("codes",), model="mixture", refine_steps=25)
    return replace(base.quick() if quick else base, **chosen)


def reason_for_table_model(
    found: TypedTable, settings: Mapping[str, Any], target: str | None
) -> str | None:
    """Why a table is for the table model; None if it is not, or another model was asked for."""
    if set(settings) - TO_BOTH - OF_TABLES or "model" in settings:
        return None
    if not found.schema.modelled:  # numbers may be fitted as rows; what else is constant, may not
        types = load_pyarrow().types
        plain = all(types.is_integer(c.type) or types.is_floating(c.type)
                    for c in found.frame.columns.values())  # fmt: skip
        return None if plain else "it has constants that are no numbers"
    why = why_table_model(found.schema, found.frame.rows)
    if why is None and target is not None:
        return "a target is named"
    if why is None and set(settings) & OF_TABLES:
        return f"{min(set(settings) & OF_TABLES)} is a setting of it"
    return why


def reason_for_disk(
    data: Source,
    look: Mapping[str, Any],
    rows: int | None,
    settings: Mapping[str, Any],
    from_disk: bool | None,
) -> str | None:
    """Why a table is trained from disk, as a sentence; None if it is not."""
    other = bool(set(settings) - TO_BOTH - OF_TABLES) or settings.get("model", "table") != "table"
    table = isinstance(data, str | Path) and is_table(data) and rows is None and not other
    if from_disk and not table:
        raise OptionError(
            f"from_disk: {data if isinstance(data, str | Path) else 'what is in memory'} cannot "
            "be trained from disk, which is only for all rows of a file with the table model."
        )
    if from_disk is False or not table:
        return None
    assert isinstance(data, str | Path)
    if from_disk:
        return f"{Path(data).name} is read in blocks and trained from disk."
    return is_large(data, Reading(**{n: v for n, v in look.items() if v is not None}))


def can_be_contested(found: TypedTable, settings: Mapping[str, Any]) -> bool:
    """Whether nobody has said which model is to be fitted, and held-out rows can decide."""
    return not set(settings) - TO_BOTH and "model" not in settings and is_contested(found)
