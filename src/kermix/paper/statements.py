"""Statements of the paper that several of its figures bear on, so that each counts once."""

__all__ = [
    "ACCURATE",
    "BEST",
    "CLOSER",
    "CONSISTENT",
    "DIAGONAL_GOES",
    "FROBENIUS",
    "IDENTITY",
    "L2",
    "LESS_ACCURATE",
    "MATRIX_BOUND",
    "NOT_SYMMETRICAL",
    "NO_DIFFICULTIES",
    "NUCLEAR_BOUND",
    "ROOT_VECTORS",
    "SAMPLES_SVD",
    "SATURATES",
    "SIMILAR",
]

NO_DIFFICULTIES = "No difficulties in fitting toy 2D data and images such as MNIST and CelebA."
BEST = "Among the costs, the SVD cost works best."
SIMILAR = "The scalar, vector-matrix and matrix-matrix costs perform similarly."
FROBENIUS = "The Frobenius norm of the cross Gram matrix is ineffective."
L2 = "Decomposing an L2 distance matrix is ineffective."
CLOSER = "The closer q and p are, the larger is the cost."
NOT_SYMMETRICAL = "Vector-matrix and matrix-matrix cost are not symmetrical."
SATURATES = "The scalar cost may saturate much faster than the others."
ACCURATE = "Comparing the four costs, the SVD cost is the most accurate descriptor."
MATRIX_BOUND = "The matrix-matrix cost is bounded by the norm of p (Section IV)."
IDENTITY = "The quantity of Eq. 22 approximates an identity matrix."
DIAGONAL_GOES = "As q shifts away from p, the diagonal elements disappear."
LESS_ACCURATE = "With v = 0.01 it still approximates a diagonal matrix, but less accurately."
CONSISTENT = "The shapes of left and right singular functions are consistent."
ROOT_VECTORS = "For q = p, the eigenvectors are left singular vectors of C (Eq. 20)."
NUCLEAR_BOUND = "The nuclear norm is bounded, and the bound is tight when q = p (Eq. 19)."
SAMPLES_SVD = "The SVD of P_FG is the decomposition under p and q (Property 8, Eq. 16)."
