"""Short trainings look at what they have learnt with less care: most of their time would go there.

Read by the tests, and by a fit that they start as a program of its own. Ranks do not know of it.
"""

from internals import fit_figures_module as fit_figures
from internals import generator_run_module as image_run
from internals import spectra_module as variances
from internals import table_quality_module as table_quality
from internals import table_run_module as table_results
from internals import table_training_module as table_model
from internals import watch_module as check

HASTE = (
    (fit_figures, "GRID", 40),  # places on each side of a picture of a density
    (image_run, "SAMPLES", 300),
    (table_model, "LOOKS", 512),  # at held-out rows
    # In a training; each looks at these rows and writes a checkpoint.
    (table_model, "REPORTS", 10),
    (variances, "SEEN", 300),  # of which the samples' variance is found
    (table_quality, "TREES", 10),  # that tell samples from data
    # Rows that are drawn for that.
    (table_results, "LEAST_JUDGED", 200),
    (check, "LEAST_JUDGED", 200),
)
USUAL = tuple((module, name, getattr(module, name)) for module, name, _ in HASTE)
CARE = {name: value for module, name, value in USUAL if module is table_model}  # that ranks have

for _module, _name, _value in HASTE:
    setattr(_module, _name, _value)


def take_time(patch):
    """What users have: for tests of the numbers that they see."""
    for module, name, value in USUAL:
        patch.setattr(module, name, value)
