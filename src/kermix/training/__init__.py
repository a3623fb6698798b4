"""Training: what is minimised, how variance and step size change, the loop, its checkpoints."""
