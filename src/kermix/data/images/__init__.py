"""Images: sets by name, folders, IDX files, and their cache."""
