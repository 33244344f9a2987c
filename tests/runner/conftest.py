"""Each test finds the same algorithms, numbers and terminal, whichever tests came before it."""

import pytest

from kary_replay.algorithms import ALGORITHMS

pytest.importorskip("torch")
from same_numbers import same_numbers  # noqa: F401

TERMINAL = "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"


@pytest.fixture(autouse=True)
def same_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in TERMINAL:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def registry():
    """Algorithms that a test registers are forgotten after it: others go through all of them."""
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
