"""Tables: readers of files and frames, whole or in batches."""
