"""Commands of the shell, run in this process."""

from typer.testing import CliRunner

from internals import app
from kermix.errors import KermixError


def kermix(*arguments):
    """Run a command; its error, if it raises one of ours, is raised here."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, KermixError):
        raise result.exception
    assert result.exit_code == 0, f"{result.output}\n{result.exception}"
    return result
