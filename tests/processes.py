"""Processes that tests stop, kill or wait for: copies of a server that has read the modules once.

A new interpreter would spend seconds with reading torch and Lightning. The server is that of
`kermix.distributed.launch`, which `conftest.py` gives the same modules to read.
"""

import contextlib
import os
import sys
import tempfile
import time
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

PRELOADED = [
    *import_module("kermix.distributed.launch").PRELOADED,  # the package has such a function
    # What the copies would else read one by one: the commands, and what they work with.
    "kermix.cli.app", "kermix.fitting.fit", "kermix.tables.model.table_estimator", "pyarrow.parquet", "pydantic",
    "safetensors.torch", "sklearn.datasets", "sklearn.ensemble", "typer.rich_utils",
]  # fmt: skip


class Process:
    """A function that runs in a process of its own, with the environment of this one.

    Args:
        function: What to run, defined in a module.
        arguments: Its arguments.
    """

    def __init__(self, function, *arguments):
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._output = Path(name)
        state = (dict(os.environ), list(sys.path))
        self._process = context.Process(target=_run, args=(function, arguments, state, name))
        self._process.start()
        self.pid = self._process.pid

    @property
    def output(self):
        """What it has printed so far, errors included."""
        return self._output.read_text()

    def wait(self, seconds=60):
        """Its exit code, once it has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"still running: {self.output}"
        return self._process.exitcode

    def wait_for(self, something, seconds=60):
        """Wait until something is true."""
        end = time.monotonic() + seconds
        while not something():
            assert self._process.is_alive(), self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.01)

    def send(self, number):
        """Send it a signal."""
        os.kill(self.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.join()
        self._output.unlink()


def command(*arguments):
    """`kermix` with arguments."""
    return Process(run_command, *map(str, arguments))


def run_command(*arguments):
    """Be the command line, with the haste of tests."""
    import_module("haste")
    sys.argv = ["kermix", *arguments]
    from kermix.cli import main

    main()


def _run(function, arguments, state, output):
    environment, path = state
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with contextlib.suppress(AttributeError):  # where pytest captures, they are not files
        sys.stdout.reconfigure(line_buffering=True)
    function(*arguments)
