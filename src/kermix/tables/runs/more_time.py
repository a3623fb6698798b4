"""What a fit took, and what more time would probably bring."""

from kermix.runs.run import Outcome
from kermix.tables.compare.verdict import area_text
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.runs.table_quality import TableQuality
from kermix.training.budget import BEST, DEFAULT, QUICK, in_words, seconds_of

__all__ = ["longer_budget", "not_good_yet", "steps_told"]

# Conventions.
TO_THE_END = 0.9  # share of the steps after which the best one is called the end
EASILY = 0.9  # AUC from which samples are told from data easily
LONGER = 4  # times as long


def steps_told(outcome: Outcome, kept: int, settings: TableModelSettings) -> str:
    """How many steps there were and how long they took, which was kept, and what more would bring.

    Args:
        outcome: How the training ended.
        kept: The step whose weights are kept; 0 where no rows were held out.
        settings: Those of the fit.
    """
    steps = f"{outcome.step:,}"
    if outcome.trainer is not None and outcome.trainer.task.course.spent:
        steps += f" in {in_words(outcome.trainer.task.course.spent)}"
        if seconds_of(settings.budget) is not None:
            steps += f" of the {settings.budget} for the whole fit"
    if not kept:
        return steps
    if not gained_to_the_end(outcome, kept):
        return (f"{steps}, of which step {kept:,} was kept; held-out rows gained nothing after "
                "it, so more steps would probably not help")  # fmt: skip
    longer = longer_budget(settings)
    how = f" (--budget {longer})" if longer else ""
    return f"{steps}; held-out rows gained to the end, so more steps would probably help{how}"


def gained_to_the_end(outcome: Outcome, kept: int) -> bool:
    """Whether the best step was among the last."""
    return kept >= TO_THE_END * outcome.step


def longer_budget(settings: TableModelSettings) -> str | None:
    """The next longer budget; None where there is none.

    Example:
        >>> longer_budget(TableModelSettings(budget="quick"))
        'default'
        >>> longer_budget(TableModelSettings(budget="30s"))
        '2m'
    """
    seconds = seconds_of(settings.budget)
    if seconds is None:
        return {QUICK: DEFAULT, DEFAULT: BEST, None: BEST}.get(settings.budget)
    return in_words(LONGER * seconds).replace(" min", "m").replace(" ", "")


def not_good_yet(
    quality: TableQuality, outcome: Outcome, kept: int, settings: TableModelSettings
) -> str | None:
    """Why samples should not be used yet, and what would help, as a sentence; None if they may."""
    if quality.auc is None or quality.interval is None or quality.auc < EASILY:
        return None
    told = (f"Not a good model yet: a classifier tells samples from data easily, with "
            f"{area_text(quality.auc, quality.interval)}")  # fmt: skip
    longer = longer_budget(settings)
    if longer is None or not gained_to_the_end(outcome, kept):
        return (f"{told}. More steps would probably not help; more rows or fewer columns "
                "(--exclude) may.")  # fmt: skip
    return f"{told}. A longer fit would probably help: --budget {longer}."
