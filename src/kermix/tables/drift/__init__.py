"""Drift: periods or batches in, alarms and what changed out."""
