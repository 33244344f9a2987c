"""A learner's whole update, its draw included: ours against others', with the same network."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch

import kary_replay as kr
from bench.harness.timing import Contender, Record, nothing
from bench.rivals import remote
from bench.rivals.compiled_learner import MAKERS, compiled
from bench.rivals.sb3_learner import ENVS, FILLED, PERIOD, filled_model
from kary_replay.algorithms import ALGORITHMS

OURS, SB3, COMPILED = "kary-replay", "SB3", "CleanRL's way, torch.compile"
BATCHES = {"dqn": 64, "ddpg": 256, "td3": 256, "sac": 256}
SHORT_COMPILED = "dqn"  # in the short form; compiling all would take longer than all else
TOGETHER = 40  # updates in one call of SBX, which makes one program of them


def ours(algorithm: str, units: int, batch_size: int) -> Callable[[], object]:
    """Return a call that makes one update: two hidden layers of `units`, FILLED rows."""
    kind, env = ALGORITHMS[algorithm], gym.make(ENVS[algorithm])
    discrete = hasattr(env.action_space, "n")
    options = kind.options_class(hidden=(units, units), batch_size=batch_size)
    learner = kind(env.observation_space, env.action_space, options, seed=0)
    shape = env.observation_space.shape
    action = kr.Field((), "int64") if discrete else kr.Field(env.action_space.shape, "float32")
    scalars = {name: kr.Field((), "float32") for name in ("reward", "discount")}
    observations = {
        name: kr.Field(shape, "float32") for name in ("observation", "next_observation")
    }
    buffer = kr.PrioritizedReplayBuffer(
        FILLED, {**observations, "action": action, **scalars}, seed=0
    )
    rng = np.random.default_rng(0)
    drawn = (
        rng.integers(2, size=FILLED)
        if discrete
        else rng.uniform(-1, 1, (FILLED, *action.shape)).astype(np.float32)
    )
    both = {name: rng.standard_normal((FILLED, *shape), np.float32) for name in observations}
    buffer.add(
        **both,
        action=drawn,
        reward=rng.standard_normal(FILLED, np.float32),
        discount=np.full(FILLED, 0.99, np.float32),
    )
    names = (*observations, "action", *scalars, "importance_weight")
    batch = buffer.sample(batch_size)  # into which all are drawn, as the runner's learner does it
    tensors = {name: torch.from_numpy(batch[name]) for name in names}

    def update() -> None:
        drawn = buffer.sample(batch_size, out=batch)
        td_error = learner.update(tensors)
        buffer.update_priorities(drawn.handle, td_error.numpy())

    return update


def sb3(algorithm: str, units: int, batch_size: int) -> Callable[[], object]:
    """Return a call that makes one update of SB3's learner, stock settings."""
    model = filled_model(stable_baselines3, algorithm, units)
    return lambda: model.train(gradient_steps=1, batch_size=batch_size)


def contender(name: str, update: Callable[[], object]) -> Contender:
    """Make calls of PERIOD updates each; the batches are drawn inside, as learners do."""

    def call() -> None:
        for _ in range(PERIOD):
            update()

    return Contender(name, call, lambda n: [()] * n, operations=PERIOD)


@pytest.mark.parametrize("units", [64, 256])
@pytest.mark.parametrize("algorithm", ENVS)
def test_update(compare, one_core, short, smoke, algorithm, units):
    torch.set_num_threads(1)
    batch_size = BATCHES[algorithm]
    parameters = {"algorithm": algorithm, "units": units, "batch": batch_size}
    makers, notes = {OURS: ours, SB3: sb3}, {}
    if algorithm in MAKERS and (algorithm == SHORT_COMPILED or not (short or smoke)):
        makers[COMPILED] = compiled
        notes[COMPILED] = "the update in plain torch, on SB3's uniform buffer"
    elif algorithm in MAKERS:
        notes[COMPILED] = "left out of the short form but for DQN: compiling takes too long"
    else:
        notes[COMPILED] = "left out of DDPG, of which TD3 is the later form"
    candidates = [
        contender(name, make(algorithm, units, batch_size)) for name, make in makers.items()
    ]
    sbx = remote.attempt("sbx", notes, algorithm, units, batch_size)
    try:
        if sbx is not None:
            candidates += [sbx.train(together) for together in (TOGETHER, 1)]
            notes[sbx.name] = (
                "SB3's interface in JAX, on the same uniform buffer. It makes one program of the "
                "updates in a call of `train`, and draws all their batches before the first."
            )
        first = {each.name: [each.timed(1, nothing)[0]] for each in candidates}
        compare.times("learner: update", parameters, candidates[0], candidates[1:], notes=notes)
        compare.keep(Record("learner: first call", parameters, "s", OURS, first))
    finally:
        if sbx is not None:
            sbx.close()
