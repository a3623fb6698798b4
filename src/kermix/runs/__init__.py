"""Run folders: settings and a source of data in, checkpoints, results and a report out."""
