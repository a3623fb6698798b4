"""Threads of the command line spin briefly while they wait, unless the user says otherwise."""

import os
import subprocess
import sys

import pytest

from internals import SPINS, WAITING, spin_briefly


@pytest.fixture
def nothing_said(monkeypatch):
    for name in WAITING:
        monkeypatch.setenv(name, "")  # so that it is restored whatever happens
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("nothing_said")
def test_threads_spin_briefly():
    spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == SPINS


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_said_stays(name, monkeypatch):
    monkeypatch.setenv(name, "7")
    spin_briefly()
    assert {n: os.environ[n] for n in WAITING if n in os.environ} == {name: "7"}


def test_it_is_said_before_pytorch_is_there():
    code = "import kermix.cli, sys; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
