"""Tables: typed columns in; models, comparisons, drift, evaluations and sketches of them out."""
