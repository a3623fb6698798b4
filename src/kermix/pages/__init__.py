"""Pages: numbers in, HTML reports, charts and Matplotlib figures out."""
