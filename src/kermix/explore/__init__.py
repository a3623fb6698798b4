"""The local page: a run in, a server that answers questions about it out."""
