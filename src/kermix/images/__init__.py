"""Images: the spaces in which they are compared, and how good samples are."""
