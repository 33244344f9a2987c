"""Rows to fill a Tianshou buffer with, and the two modules whose buffers are compared."""

import numpy as np
import pytest
import tianshou.data
from tianshou.data import Batch

from kary_replay.adapters import tianshou as ours

BOTH = pytest.mark.parametrize("module", [tianshou.data, ours], ids=["stock", "ours"])
TIANSHOU_1 = tianshou.__version__.startswith("1.")


def step(t, n=None, obs_shape=(3,), episode=7):
    """Row t of a made-up run, or of n runs: t can be read off every field, and no two are alike."""
    first, leading = (t, ()) if n is None else (t + 100 * np.arange(n), (n,))
    obs = np.broadcast_to(
        np.reshape(first, (*leading, *(1,) * len(obs_shape))), (*leading, *obs_shape)
    ).astype(np.float32)
    ends = np.broadcast_to((t + 1) % episode == 0, leading)
    return Batch(
        obs=obs,
        act=np.broadcast_to(t % 2, leading),
        rew=np.broadcast_to(t * 0.5, leading),
        terminated=ends,
        truncated=np.zeros(leading, bool),
        obs_next=obs + 1,
        info=Batch(env_id=np.arange(n) if n else 0, lives=np.broadcast_to(t % 3, leading)),
        policy=Batch(),
    )
