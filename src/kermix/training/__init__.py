"""Training: what is minimized, how variance and step size change, the loop, its checkpoints."""
