"""Judge generators: diversity, novelty, fidelity and memorizing, of samples and sketches."""
