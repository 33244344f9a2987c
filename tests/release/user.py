"""A user's program, which mypy --strict has to accept, with the package installed; it also runs."""

import tempfile
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import kary_replay as kr
from kary_replay import (
    Batch,
    Field,
    FrameReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SumTree,
)
from kary_replay.errors import EmptyBufferError, KaryReplayError

# ----------------------------------------------------------------------------------------- the tree
tree = SumTree(1000, arity=16)
tree.set(3, 0.5)
tree.set([4, 5], np.ones(2))
assert_type(tree.get(3), float)
assert_type(tree.get([3, 4]), npt.NDArray[np.float64])
assert_type(tree.find(0.2), int)
assert_type(tree.find(np.array([0.2, 0.7])), npt.NDArray[np.int64])
assert_type(tree.sample(32, stratified=False, rng=np.random.default_rng(0)), npt.NDArray[np.int64])
assert_type(tree.total, float)
assert_type(len(tree), int)
tree.check_invariants()

# -------------------------------------------------------------------------------------- the buffers
fields = {
    "observation": Field((4,), "float32"),
    "action": Field((), np.int64),
    "reward": Field((), np.dtype("float32")),
    "next_observation": Field(4, "float32"),
    "discount": Field((), "float32"),
}
nested = {
    "observation": {"camera": Field((8, 8), "uint8"), "speed": Field((), "float32")},
    "reward": fields["reward"],
}
assert_type(fields["observation"].shape, tuple[int, ...])
assert_type(fields["observation"].nbytes, int)


def transitions(n: int) -> dict[str, npt.ArrayLike]:
    observation = np.zeros((n, 4), np.float32)
    return {
        "observation": observation,
        "action": [0] * n,
        "reward": np.ones(n),
        "next_observation": observation,
        "discount": np.full(n, 0.99),
    }


def learn(buffer: PrioritizedReplayBuffer, batch_size: int = 32) -> int:
    batch = buffer.sample(batch_size, stratified=True, unique=False)
    assert_type(batch, Batch)
    assert_type(batch.index, npt.NDArray[np.int64])
    assert_type(batch.importance_weight, npt.NDArray[np.float32])
    assert_type(batch.handle, npt.NDArray[np.void])
    assert_type(len(batch), int)
    names: list[str] = [*batch]
    assert names == [*batch.keys()]
    reward: npt.NDArray[np.float32] = batch.reward  # the fields are the user's own: Any
    same: npt.NDArray[np.float32] = batch["reward"]
    n_applied = buffer.update_priorities(batch.handle, td_error=reward - 0.5 * same)
    assert_type(n_applied, int)
    return n_applied


def uniform(buffer: ReplayBuffer) -> Batch:
    """A prioritized buffer is a buffer."""
    return buffer.sample(8)


buffer = PrioritizedReplayBuffer(
    1000, fields, alpha=0.6, beta=0.4, priority_epsilon=1e-6, seed=None
)
try:
    learn(buffer)
except EmptyBufferError as error:
    base: KaryReplayError = error
assert_type(buffer.add(**transitions(100)), npt.NDArray[np.int64])
buffer.add(priority=np.full(10, 2.0), **transitions(10))
learn(buffer)
uniform(buffer)
buffer.beta = 0.7
assert_type(buffer.beta, float)
assert_type(buffer.alpha, float)
assert_type(buffer.total_mass, float)
assert_type(buffer.capacity, int)
assert_type(buffer.nbytes, int)
assert_type(buffer.tree, SumTree)
assert_type(kr.ReplayBuffer(10, nested, seed=0).fields, dict[str, Any])
schedule = kr.LinearSchedule(0.4, 1.0, 1000)
buffer.beta = schedule(500)

with tempfile.TemporaryDirectory() as directory:
    buffer.save(directory)
    assert_type(PrioritizedReplayBuffer.load(directory), PrioritizedReplayBuffer)


# ----------------------------------------------------------------------------- writers, the limiter
def td_error_of(rows: dict[str, Any]) -> npt.NDArray[np.float64]:
    return np.abs(np.asarray(rows["reward"], np.float64)) + 1e-6


writer = kr.NStepWriter(buffer, n_envs=2, n_step=3, gamma=0.99, priority=td_error_of)
step = {name: value for name, value in transitions(2).items() if name != "discount"}
assert_type(
    writer.add(**step, terminated=[False, True], truncated=np.zeros(2, bool)), npt.NDArray[np.int64]
)
assert_type(writer.n_pending, npt.NDArray[np.int64])
writer.reset(env=[0])

limiter = kr.RateLimiter(buffer, samples_per_insert=8.0, min_size=100)
assert_type(limiter.await_add(1, timeout_seconds=0.1), bool)
assert_type(limiter.await_sample(32, timeout_seconds=0.1, should_stop=lambda: False), bool)
assert_type(limiter.balance, float)

sequences = kr.sequence_fields(
    {"observation": Field((4,), "float32"), "reward": Field((), "float32")}, length=10
)
sequence_buffer = PrioritizedReplayBuffer(100, sequences)
sequence_writer = kr.SequenceWriter(sequence_buffer, n_envs=1, length=10, period=5, burn_in=2)
assert_type(sequence_writer.burn_in, int)

frames = FrameReplayBuffer(
    1000,
    Field((84, 84), "uint8"),
    {"action": fields["action"], "reward": fields["reward"]},
    stack=4,
)
frame_writer = kr.FrameStackWriter(frames, n_envs=1, gamma=0.99)
assert_type(frames.stack, int)


# ---------------------------------------------------------------------------------- other processes
def act(shared: PrioritizedReplayBuffer) -> None:
    shared.add(**transitions(10))


if __name__ == "__main__":
    with PrioritizedReplayBuffer(1000, fields, shared=True) as shared:
        other = PrioritizedReplayBuffer.attach(shared.descriptor)
        assert_type(other, PrioritizedReplayBuffer)
        process = get_context("spawn").Process(target=act, args=(shared,))
        process.start()
        process.join()
        assert len(other) == 10
