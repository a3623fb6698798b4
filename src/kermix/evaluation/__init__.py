"""Judging generators: samples or sketches in, diversity, novelty, fidelity and distances out."""
