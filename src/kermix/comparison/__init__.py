"""Compare two data sets: permutation tests, measures with error bars, sketches, drift."""
