"""Runs on tables: a table in, a fitted model in its folder, answers, scores and a report out."""
