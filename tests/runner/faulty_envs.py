"""Environments that do what environments should not."""

import os
import signal
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np


class Faulty(gymnasium.Env):
    """Counts steps, and breaks at one of them; once, if a file is there to remember it by."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, fault="none", at=50, length=20, once=None, only_if=None, reward=1.0, render_mode=None
    ):
        self.fault, self.at, self.length, self.once = fault, at, length, once
        self.only_if, self.reward = only_if, reward
        self.n_steps = 0
        if fault == "making" and self.due():
            raise RuntimeError("no room for the bottle")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if self.fault == "reset hangs" and self.n_steps >= self.at and self.due():
            time.sleep(1000)
        observation = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self.fault == "nan at reset" and self.n_steps >= self.at:
            observation[2] = np.nan
        return observation, {}

    def due(self):
        if self.only_if is not None:
            return os.path.exists(self.only_if)
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def step(self, action):
        self.t += 1
        self.n_steps += 1
        observation = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        reward = self.reward * float(np.sum(action))
        if (
            self.n_steps == self.at
            and self.fault != "none"
            and "reset" not in self.fault
            and self.due()
        ):
            if self.fault == "raises":
                raise RuntimeError("the bottle is empty")
            if self.fault == "sys.exit":
                sys.exit(0)
            if self.fault == "os._exit":
                os._exit(0)
            if self.fault == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.fault == "hangs":
                time.sleep(1000)
            if self.fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "nan":
                observation[1] = np.nan
            if self.fault == "nan reward":
                reward = np.nan
            if self.fault == "large reward":
                reward = 1e39
            if self.fault == "shape":
                observation = observation[:2]
            if self.fault == "words":
                observation = ["one", "two", "three"]
            if self.fault == "child":
                import subprocess

                child = subprocess.Popen(["sleep", "1000"])
                Path(os.environ["CHILD_FILE"]).write_text(str(child.pid))
        return observation, reward, False, self.t >= self.length, {}

    def close(self):
        if self.fault == "close raises":
            raise RuntimeError("the door is stuck")
        if self.fault == "close exits":
            sys.exit("goodbye")


def make(**options):
    return Faulty(**options)


def make_elsewhere(folder, **options):
    """Change the working directory, as simulators do that unpack something."""
    os.chdir(folder)
    return Faulty(**options)


class Continuous(Faulty):
    """The same with continuous actions, which it hands on to its observations."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action):
        observation, *others = super().step(action)
        observation[:2] += action
        return observation, *others


def make_continuous(**options):
    return Continuous(**options)


gymnasium.register("Faulty-v0", entry_point=Faulty)
