"""What a user should know about the data of a fit before believing its numbers."""

from kermix.data.loading import Dataset
from kermix.data.tables.common import listed
from kermix.models.mixture.scaled import column_moments
from kermix.training.build import Split

__all__ = ["fit_notes"]


def fit_notes(dataset: Dataset, split: Split) -> list[str]:
    """One sentence or two for each thing: what was left out, too few rows, constant columns.

    Example:
        >>> from kermix.training.build import split_rows
        >>> rows = torch.tensor([[1.0, 5.0], [2.0, 5.0]])
        >>> for note in fit_notes(Dataset("two", rows, ["a", "b"]), split_rows(rows, 0)):
        ...     print(note)
        two: 2 rows are too few to hold some out; metrics are for the training rows only.
        two: constant column: b. Samples vary around its value; leave it out if they must not.
    """
    notes = list(dataset.notes)
    if not split.apart:
        count = len(split.train)
        notes.append(
            f"{dataset.name}: {count} row{'s are' if count != 1 else ' is'} too few to hold some "
            "out; metrics are for the training rows only."
        )
    if dataset.image is not None or len(split.train) == 1:
        return notes
    scale = column_moments(split.train)[1][0]
    constant = [name for name, s in zip(dataset.columns, scale.tolist(), strict=True) if s == 0]
    if constant:
        one = len(constant) == 1
        notes.append(
            f"{dataset.name}: constant column{'' if one else 's'}: {listed(constant)}. Samples "
            f"vary around {'its value; leave it' if one else 'their values; leave them'} out if "
            "they must not."
        )
    return notes
