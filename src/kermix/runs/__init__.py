"""Run folders: what `kermix fit` and `kermix classify` write, and how they go on."""
