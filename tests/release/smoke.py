"""Everything that the core does, once, with NumPy alone: python smoke.py, after an installation."""

import importlib.util
import multiprocessing
import sys
import tempfile

import numpy as np

import kary_replay as kr

FIELDS = {
    "observation": kr.Field((4,), "float32"),
    "action": kr.Field((), "int64"),
    "reward": kr.Field((), "float32"),
}
N_STEP = {"next_observation": kr.Field((4,), "float32"), "discount": kr.Field((), "float32")}
N = 100


def rows(n, reward=0.0):
    return {"observation": np.zeros((n, 4)), "action": np.arange(n), "reward": np.full(n, reward)}


def add_elsewhere(buffer):
    buffer.add(**rows(N, 7.0))


def check_tree():
    tree = kr.SumTree(N, arity=8)
    tree.set(np.arange(N), np.arange(N))
    assert tree.total == N * (N - 1) / 2 and tree.find(0.0) == 1
    assert tree.sample(32, rng=0).dtype == np.int64
    tree.check_invariants()


def check_buffer():
    buffer = kr.PrioritizedReplayBuffer(2 * N, FIELDS, seed=0)
    buffer.add(**rows(N))
    batch = buffer.sample(32)
    assert batch.observation.shape == (32, 4) and batch.importance_weight.dtype == np.float32
    assert buffer.update_priorities(batch.handle, td_error=batch.action) == 32
    with tempfile.TemporaryDirectory() as folder:
        buffer.save(folder)
        again = kr.PrioritizedReplayBuffer.load(folder)
    assert (again.sample(32).index == buffer.sample(32).index).all()
    buffer.check_invariants()


def check_n_step():
    buffer = kr.ReplayBuffer(N, {**FIELDS, **N_STEP}, seed=0)
    writer = kr.NStepWriter(buffer, n_envs=1, n_step=3, gamma=0.5)
    for step in range(10):
        writer.add(
            **rows(1, 1.0),
            next_observation=np.zeros((1, 4)),
            terminated=[step == 9],
            truncated=[False],
        )
    assert len(buffer) == 10 and set(buffer.sample(32).reward) <= {1.75, 1.5, 1.0}


def check_sharing():
    with kr.PrioritizedReplayBuffer(2 * N, FIELDS, seed=0, shared=True) as buffer:
        child = multiprocessing.get_context("spawn").Process(target=add_elsewhere, args=(buffer,))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and len(buffer) == N
        assert (buffer.sample(32).reward == 7).all()
        buffer.check_invariants()


if __name__ == "__main__":
    check_tree()
    check_buffer()
    check_n_step()
    if sys.platform == "linux":
        check_sharing()
    assert importlib.util.find_spec("kary_replay.adapters.sb3"), "the adapters are not packed"
    print(
        f"kary-replay {kr.__version__} works on Python {sys.version.split()[0]} "
        f"and NumPy {np.__version__}"
    )
