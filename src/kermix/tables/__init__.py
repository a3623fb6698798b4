"""Tables: everything that kermix does with typed columns."""
