"""Imported by the fork server alone: all that workers import, and the recording of one update.

What is imported later would be imported by every worker for itself, one after the other where cores
are few. Nothing here may start a thread: a fork copies only the thread that calls it.
"""

import atexit
import os
import signal

# How a run ends, its supervisor decides: this may be sent to all processes.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from ...algorithms import DQN, DQNOptions  # noqa: E402
from . import worker_process  # noqa: E402, F401


def record() -> None:
    """Record one update of small networks; the second recording takes a tenth of the time."""
    observations = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    options = DQNOptions(hidden=(4,), batch_size=2)
    algorithm = DQN(observations, gymnasium.spaces.Discrete(2), options)
    names = "reward", "discount", "importance_weight"
    batch = {name: torch.zeros(2) for name in names}
    batch["observation"] = batch["next_observation"] = torch.zeros(2, 2)
    batch["action"] = torch.zeros(2, dtype=torch.int64)
    algorithm.update(batch)


torch.set_num_threads(1)
record()
# When the server ends, it ends at once: there is nothing to clean up, and whoever reads the output
# of the program waits until nobody can write to it any more.
atexit.register(os._exit, 0)
