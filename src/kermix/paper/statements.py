"""Statements of the paper that several of its figures bear on, so that each counts once."""

__all__ = ["BEST", "NO_DIFFICULTIES", "SIMILAR"]

NO_DIFFICULTIES = "No difficulties in fitting toy 2D data and images such as MNIST and CelebA."
BEST = "Among the costs, the SVD cost works best."
SIMILAR = "The scalar, vector-matrix and matrix-matrix costs perform similarly."
