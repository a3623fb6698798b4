"""Fitting: any data in, the run that suits it out (`km.fit` and `kermix fit`)."""
