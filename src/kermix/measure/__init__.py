"""How far apart two samples are: every measure, error bars, p-values."""
