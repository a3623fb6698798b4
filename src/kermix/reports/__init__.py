"""Pages, figures and provenance of results."""
