"""Readers: a file or a frame in, its columns as Arrow arrays out, whole or in batches."""
