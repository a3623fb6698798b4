"""`kermix bench fuzz`: random calls of the public functions, against independent references.

Every case is made from `(seed, number)` alone; `python -m kermix.bench.fuzz NUMBER` replays one.
The references were written from the documentation, without the code that they check.
"""

from .runner import run

__all__ = ["run"]
