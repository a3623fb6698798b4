"""Data: a file, a frame or a name in, numbers, typed tables or images out."""
