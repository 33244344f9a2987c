"""Imported by the fork server alone: all that workers import.

What is imported later would be imported by every worker for itself, one after the other where cores
are few. Nothing here may start a thread: a fork copies only the thread that calls it.
"""

import atexit
import os
import signal

from ...fork_server import ENDING

for number in ENDING:
    signal.signal(number, signal.SIG_IGN)

import torch  # noqa: E402

from . import worker_process  # noqa: E402, F401

torch.set_num_threads(1)
# When the server ends, it ends at once: there is nothing to clean up, and whoever reads the output
# of the program waits until nobody can write to it any more.
atexit.register(os._exit, 0)
