"""The version of kermix, for files that say what wrote them."""

__all__ = ["__version__"]

__version__ = "0.2.0"
