"""Errors that are caught by code for RLlib, which asserts, and by code for kary_replay."""

from __future__ import annotations


class ArgumentError(AssertionError, ValueError):
    """An argument is out of range, or does not fit the batch drawn last."""
