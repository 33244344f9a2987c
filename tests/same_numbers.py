"""A fixture of the tests that use torch, for the conftest.py of their folders."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws the same numbers, whichever tests came before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
