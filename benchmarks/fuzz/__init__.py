"""`python -m benchmarks fuzz`: random calls of public functions, against independent references.

Every case is made from `(seed, number)` alone; `python -m benchmarks.fuzz NUMBER` replays one.
The references were written from the documentation, without the code that they check.
"""

from benchmarks.fuzz.runner import run

__all__ = ["run"]
