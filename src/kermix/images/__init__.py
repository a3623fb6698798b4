"""Images: labelled or unlabelled images in, generators, classifiers and reports on them out."""
