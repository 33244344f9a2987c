"""Seeds, threads with a time-out, and Hypothesis profiles for every test.

``HYPOTHESIS_PROFILE`` picks the profile. ``default`` and ``ci`` draw the same examples on every
run, so a red test stays red; ``thorough`` draws fresh ones, many more, and prints how to replay a
failure.
"""

import faulthandler
import os
import sys

import numpy as np
import pytest
import threads
from hypothesis import HealthCheck, settings

SEED = 20160218
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default",
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=QUIET,
)
settings.register_profile("ci", settings.get_profile("default"), print_blob=True)
settings.register_profile(
    "thorough",
    max_examples=1000,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=QUIET,
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


@pytest.fixture(autouse=True)
def no_hang():
    """End the process, with all stacks, if a test takes ten minutes: a hang has to fail."""
    faulthandler.dump_traceback_later(600.0, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def rng():
    """A generator that gives the same numbers in every test and every run."""
    return np.random.default_rng(SEED)


@pytest.fixture
def run_threaded():
    """`threads.run_threaded`: starts behind a barrier, passes exceptions on, fails on a hang."""
    return threads.run_threaded
