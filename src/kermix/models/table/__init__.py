"""The table model: one network that gives the mixture of every column from any seen ones."""

from kermix.models.table.layout import TableLayout
from kermix.models.table.network import ColumnParts, TableNetwork

__all__ = ["ColumnParts", "TableLayout", "TableNetwork"]
