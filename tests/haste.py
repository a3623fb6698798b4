"""Short trainings look at what they have learnt with less care: most of their time would go there.

Read by the tests, and by a fit that they start as a program of its own. Ranks do not know of it.
"""

from kermix.reports import fit_figures, table_quality
from kermix.training import table_model

fit_figures.GRID = 40  # places on each side of a picture of a density
table_quality.TREES = 10  # that tell samples from data, at the end of every fit of a table
table_model.LOOKS = 512  # at held-out rows, in a report after each of a few steps
