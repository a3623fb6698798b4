"""Benchmarks: each runs ours and the peers on the same inputs, and writes one result file.

A benchmark is a module with a function `run(quick) -> dict` of tables: a table is a list of rows,
and all rows of a table have the same keys. Reported are ratios, with the raw times beside them.
"""

from kermix.cli import spin_briefly

spin_briefly()  # as the command line does, before PyTorch is loaded
