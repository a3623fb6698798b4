"""Asking a fitted table on a local page: questions, odd rows, checks, and a fit as it happens."""
