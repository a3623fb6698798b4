"""Two-sample tests: rows of two samples in, exact permutation p-values and their parts out."""
