"""Judge generators: diversity, novelty, fidelity and memorizing, of samples and sketches."""

from kermix.moved import moved_name


def __getattr__(name: str) -> object:
    return moved_name(__name__, name)
