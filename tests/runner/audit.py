"""Runs whose rollouts are checked step by step: none is lost silently, and none is used twice."""

import itertools
import json
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch

from kary_replay.algorithms import IMPALA, PPO

FILE = "AUDIT_FILE"  # the environment variable that names where the learner writes what it found
UNIT = 2.0**-24  # float32 has all multiples of it below 1
numbers = itertools.count()


class Counted(gymnasium.Env):
    """Says which environment it is, and how many observations it has shown, in their units.

    The rest of an observation is noise, so that no two have the same answer. After so many steps
    it dawdles until a file is there, so that a run does not end before that.
    """

    observation_space = gymnasium.spaces.Box(-3, 3, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, dawdles_after=None, until=None):
        self.dawdles_after, self.until = dawdles_after, until
        self.number = os.getpid() % 2**16 * 2**8 + next(numbers)
        self.count = 0
        self.rng = np.random.default_rng(self.number)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.shown(), {}

    def step(self, action):
        if self.until is not None and self.count > self.dawdles_after:
            if os.path.exists(self.until):
                self.until = None
            else:
                time.sleep(0.02)
        self.t += 1
        is_over = self.t == 50
        # what comes after an episode is seen by the actor, and not by the learner
        return self.shown(counts=not is_over), float(action), is_over, False, {}

    def shown(self, counts=True):
        known = [self.number * UNIT, self.count * UNIT]
        self.count += counts
        return np.array([*known, *self.rng.uniform(-3, 3, 4)], np.float32)


class Audit:
    """What a learner has seen."""

    def __init__(self):
        self.last = {}  # of each environment
        self.found = {"rows": 0, "missed": 0, "updates": 0}

    def take(self, observation):
        """Note the steps of a batch, [T, N, 6]; each environment's come in order, and once."""
        ids, counts = (torch.round(observation[..., i] / UNIT).long().numpy() for i in (0, 1))
        assert (ids == ids[0]).all(), "a rollout has steps of two environments"
        assert (np.diff(counts, axis=0) == 1).all(), "steps of a rollout do not follow one another"
        for number, first, last in zip(ids[0].tolist(), counts[0], counts[-1], strict=True):
            before = self.last.get(number, -1)
            assert first > before, f"step {first} was learned from before"
            self.found["missed"] += int(first - before - 1)
            self.last[number] = last
        self.found["rows"] += ids.size
        self.found["updates"] += 1
        Path(os.environ[FILE]).write_text(json.dumps(self.found))


class AuditedPPO(PPO):
    """PPO that checks its rollouts, and that its own networks have chosen the actions."""

    name = "audited-ppo"

    def build(self):
        super().build()
        self.audit = Audit()

    def update(self, batch):
        self.audit.take(batch["observation"])
        observation, action = (batch[name].flatten(0, 1) for name in ("observation", "action"))
        with torch.no_grad():
            outputs, _ = self.network(observation)
        log_prob = self.network.distribution.log_prob(outputs, action)
        torch.testing.assert_close(log_prob, batch["log_prob"].flatten(), rtol=0.0, atol=1e-4)
        return super().update(batch)


class AuditedIMPALA(IMPALA):
    """IMPALA that checks its rollouts."""

    name = "audited-impala"

    def build(self):
        super().build()
        self.audit = Audit()

    def update(self, batch):
        self.audit.take(batch["observation"])
        return super().update(batch)


def accounts(directory):
    """Return where the steps of a run are that has ended, by its last checkpoint."""
    counters = json.loads((directory / "checkpoint.json").read_text())
    with np.load(directory / counters["folder"] / "rollouts.npz") as file:
        counts = {name: file[name] for name in ("written", "used", "lost", "expired")}
        _, _, length, n_envs = file["rows.version"].shape
    used = counts["used"].sum() * length * n_envs
    dropped = counts["lost"].sum() + counts["expired"].sum()
    return {
        "taken": counters["env_steps"],
        "updates": counters["updates"],
        "learned": int(used - counts["expired"].sum()),
        "dropped": int(dropped),
        "waiting": int(counts["written"].sum() * n_envs - used),
    }


def check(directory, rows_per_update, found):
    """Raise if a step is nowhere, or in two places; return the `accounts`."""
    steps = accounts(directory)
    assert steps["taken"] == steps["learned"] + steps["dropped"] + steps["waiting"], steps
    assert steps["learned"] == steps["updates"] * rows_per_update == found["rows"], (steps, found)
    assert steps["updates"] == found["updates"], (steps, found)
    # What was dropped in the end is missed by nobody.
    assert found["missed"] <= steps["dropped"], (steps, found)
    return steps
