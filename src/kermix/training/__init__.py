"""Training: a task, settings and data in, a trained network out."""
