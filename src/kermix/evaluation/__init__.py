"""Judge generators: diversity, novelty, fidelity and memorizing, of samples and sketches."""

from kermix.moved import MOVED_FROM_EVALUATION, moved_function


def __getattr__(name: str) -> object:
    return moved_function(__name__, name, MOVED_FROM_EVALUATION)
