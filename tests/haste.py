"""Short trainings look at what they have learnt with less care: most of their time would go there.

Read by the tests, and by a fit that they start as a program of its own. Ranks do not know of it.
"""

from kermix.evaluation import spectra as variances
from kermix.explore import watch as check
from kermix.images import generator_run as image_run
from kermix.pages import fit_figures
from kermix.tables.model import table_training as table_model
from kermix.tables.runs import table_quality
from kermix.tables.runs import table_run as table_results

CARE = {name: getattr(table_model, name) for name in ("LOOKS", "REPORTS")}  # that ranks have

fit_figures.GRID = 40  # places on each side of a picture of a density
image_run.SAMPLES = 300
table_model.LOOKS = 512  # at held-out rows
table_model.REPORTS = 10  # in a training; each looks at these rows and writes a checkpoint
variances.SEEN = 300  # of which the samples' variance is found
table_quality.TREES = 10  # that tell samples from data
table_results.LEAST_JUDGED = check.LEAST_JUDGED = 200  # rows that are drawn for that
