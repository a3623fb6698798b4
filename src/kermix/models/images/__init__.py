"""Models of images: autoencoders, generators by class, classifiers, and their evaluation."""
