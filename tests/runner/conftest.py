"""Algorithms that a test registers are forgotten after it: others go through all of them."""

import pytest

from kary_replay.algorithms import ALGORITHMS


@pytest.fixture(autouse=True)
def registry():
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
