"""Images: generators and classifiers, their training, runs and reports."""
