"""The table model: a schema and encoded rows in, mixtures of every column given any others out."""
