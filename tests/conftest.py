"""Seeds, threads with a time-out, Hypothesis profiles, and what tests that run side by side need.

``HYPOTHESIS_PROFILE`` picks the profile. ``default`` and ``ci`` draw the same examples on every
run, so a red test stays red; ``quick`` draws fewer of them, for ``make test-quick``; ``thorough``
draws fresh ones, many more, and prints how to replay a failure.
"""

import faulthandler
import os
import time

import numpy as np
import pytest
import threads
from hypothesis import HealthCheck, settings

from kary_replay.cores import n_cores

SEED = 20160218
UNDER_XDIST = "PYTEST_XDIST_WORKER" in os.environ
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
settings.register_profile("quick", settings.get_profile("default"), max_examples=10)
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

if UNDER_XDIST:
    # Torch would start a thread per core in every worker, and they would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


STDERR: pytest.StashKey[int] = pytest.StashKey()


def pytest_configure(config):
    """Keep the real standard error, which a test's own is not while pytest captures it."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Let ``-n auto`` be the cores that this process may use, whatever a core is made of."""
    return n_cores()


@pytest.fixture(autouse=True)
def no_hang(pytestconfig):
    """End the process, with all stacks, if a test takes 20 minutes: a hang must fail, not wait."""
    faulthandler.dump_traceback_later(1200.0, exit=True, file=pytestconfig.stash[STDERR])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def no_shared_memory_is_left():
    """Names in /dev/shm that appear during the test go away; those of tests beside it do, too."""
    before = set(os.listdir("/dev/shm"))
    yield
    left, deadline = set(os.listdir("/dev/shm")) - before, time.monotonic() + 900
    while left := left & set(os.listdir("/dev/shm")):
        assert time.monotonic() < deadline, f"left in /dev/shm: {sorted(left)}"
        time.sleep(0.05)


@pytest.fixture
def rng():
    """A generator that gives the same numbers in every test and every run."""
    return np.random.default_rng(SEED)


@pytest.fixture
def run_threaded():
    """`threads.run_threaded`: starts behind a barrier, passes exceptions on, fails on a hang."""
    return threads.run_threaded
