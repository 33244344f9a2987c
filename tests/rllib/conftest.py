"""RLlib is in an environment of its own: make test-rllib."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
pytest.importorskip(
    "ray.rllib", reason="RLlib is not installed: make test-rllib", exc_type=ImportError
)
