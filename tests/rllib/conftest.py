"""RLlib is in an environment of its own: make test-rllib."""

from __future__ import annotations

import faulthandler
import os

import pytest

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
pytest.importorskip(
    "ray.rllib", reason="RLlib is not installed: make test-rllib", exc_type=ImportError
)


@pytest.fixture
def no_hang_for_an_hour(no_hang, pytestconfig):
    """Instead of ten minutes: some examples learn for longer."""
    from conftest import STDERR

    faulthandler.dump_traceback_later(3_600.0, exit=True, file=pytestconfig.stash[STDERR])
