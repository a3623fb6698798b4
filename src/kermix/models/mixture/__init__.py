"""Networks and tables of parameters that return mixtures or centres."""
