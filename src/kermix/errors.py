"""Named errors and warnings: what was wrong, the likely cause, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ClusterError",
    "DegenerateDataWarning",
    "DeviceError",
    "DownloadError",
    "ImageError",
    "InconsistentGivenWarning",
    "KermixError",
    "KernelError",
    "MissingExtraError",
    "OptionError",
    "PoorFitWarning",
    "RankError",
    "ReparametrizationError",
    "RunError",
    "SampleError",
    "SchemaError",
    "ShapeError",
    "SizeError",
    "SketchError",
    "TableError",
    "TrainingError",
    "VarianceError",
    "WeightError",
    "ZeroDensityWarning",
    "nearest",
]


class KermixError(Exception):
    """Base class of every error that kermix raises on purpose."""


class ShapeError(KermixError, ValueError):
    """An argument has the wrong number of dimensions, or sizes that do not match."""


class SampleError(KermixError, ValueError):
    """Samples are empty, of a type that cannot be used, or hold NaN or infinite values."""


class VarianceError(KermixError, ValueError):
    """A variance or covariance is not positive, not finite, or not a number at all."""


class WeightError(KermixError, ValueError):
    """Weights are negative, not finite, all zero, or do not match the samples."""


class OptionError(KermixError, ValueError):
    """An option has an unsupported value, or options contradict each other."""


class KernelError(KermixError, ValueError):
    """An argument is not a kernel, or a closed form needs the Gaussian kernel."""


class SketchError(KermixError, ValueError):
    """A sketch is empty, damaged, or has a different feature map from the other."""


class DeviceError(KermixError, RuntimeError):
    """Arguments are on different devices."""


class SizeError(KermixError, ValueError):
    """The request is well formed but too large to finish."""


class TableError(KermixError, ValueError):
    """A file or table cannot be read as numbers; the message names the file, row and column."""


class SchemaError(TableError):
    """A table does not match its schema, or has none; the message names the column."""


class ReparametrizationError(KermixError, NotImplementedError):
    """Samples cannot be written as a differentiable function of the parameters."""


class MissingExtraError(KermixError, ImportError):
    """A feature needs a package that is not installed; the message names the extra."""


class ImageError(KermixError, ValueError):
    """A file or folder of images cannot be read; the message names it."""


class DownloadError(KermixError, RuntimeError):
    """A file cannot be downloaded, or is not the official file; the message names it."""


class ClusterError(KermixError, RuntimeError):
    """A cluster cannot be reached, or one of its workers cannot do the work; it is named."""


class RunError(KermixError, RuntimeError):
    """A run folder exists already, cannot be written, or does not hold what it should."""


class TrainingError(KermixError, RuntimeError):
    """Training cannot continue: the loss is no longer finite."""


class RankError(KermixError, RuntimeError):
    """Processes that work together do not agree, or one of them was lost."""


class DegenerateDataWarning(UserWarning):
    """The data have no scale (all points are equal, say), so a stated fallback was used."""


class InconsistentGivenWarning(UserWarning):
    """Given cells break a relation that the columns of the fitted table have."""


class PoorFitWarning(UserWarning):
    """A model is not clearly better than a single Gaussian."""


class ZeroDensityWarning(UserWarning):
    """Rows hold what a model has never seen, so that their density is zero."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that is not there: those most like it, or all.

    Example:
        >>> nearest("Femal", ["Female", "Male"]), nearest("x", ["Female", "Male"])
        ('; did you mean Female or Male?', '; there are Female, Male.')
    """
    lower = {n.lower(): n for n in names}
    near = [lower[n] for n in get_close_matches(name.lower(), lower, 3, 0.6)]
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are {', '.join(lower.values())}."
