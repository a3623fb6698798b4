"""One run for all tests of the page."""

import pytest

from explore_cases import people_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A short fit of a table with odd names, which tests only read."""
    return people_run(tmp_path_factory.mktemp("explore"))
