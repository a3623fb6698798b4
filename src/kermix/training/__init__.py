"""Training: a task, settings and data in, a trained network out; `loop` is the only one to step an optimizer."""
