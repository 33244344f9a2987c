"""Stable-Baselines3: a learner's two calls on the buffer, and whole training runs of stock algorithms."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import pytest
import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer

from bench.rivals.sb3_prioritized import OURS, PYTHON, UNIFORM, Buffers, fill
from bench.timing import Bar
from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

PER_BAR, TRAINING_BAR = 2.0, 0.97
POINTS = [("HalfCheetah", 1_000_000, 256), ("Atari 4×84×84", 20_000, 32)]
MORE_POINTS = [("HalfCheetah", 100_000, 256), ("HalfCheetah", 1_000_000, 32), ("Atari 4×84×84", 20_000, 256)]
SHORT_POINTS = [("HalfCheetah", 100_000, 256), ("Atari 4×84×84", 2_000, 32)]
SMOKE_POINTS = [(rows, 1_000, batch) for rows, _, batch in SHORT_POINTS]
FILLED = 100_000  # transitions in the buffer when a training run is timed
WINDOW = 4  # training windows are this many times longer than those of the threads
# Stock settings, but for two. A learning rate of 0 changes no cost and keeps both policies as they were: else the better one
# is timed with other episodes. Exploration is constant, so that every window has its share of greedy steps.
RUNS = {
    "DQN, CartPole-v1": (DQN, "CartPole-v1", {"exploration_initial_eps": 0.05, "exploration_final_eps": 0.05}),
    "DDPG, HalfCheetah-v5": (DDPG, "HalfCheetah-v5", {}),
    "TD3, HalfCheetah-v5": (TD3, "HalfCheetah-v5", {}),
    "SAC, HalfCheetah-v5": (SAC, "HalfCheetah-v5", {}),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "buffers" in metafunc.fixturenames:
        points = POINTS + (MORE_POINTS if metafunc.config.getoption("--full") else [])
        points = SMOKE_POINTS if metafunc.config.getoption("--benchmark-disable") else points
        points = SHORT_POINTS if metafunc.config.getoption("--short") else points
        ids = [f"{rows.split()[0]}-{slots:.0e}-{batch}".replace("+0", "") for rows, slots, batch in points]
        metafunc.parametrize(("buffers", "sb3_batch"), [(p[:2], p[2]) for p in points], indirect=["buffers"], ids=ids)


@pytest.fixture
def buffers(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, Buffers]]:
    yield *request.param, Buffers(*request.param)
    gc.collect()


def test_cycle(compare, buffers, sb3_batch):
    rows, slots, built = buffers
    ours, *others = built.cycles(sb3_batch)
    parameters = {"rows": rows, "slots": slots, "batch": sb3_batch}
    notes = {UNIFORM: "sample alone: it has no priorities"}
    compare.times("SB3: sample + update_priorities", parameters, ours, others, [Bar((PYTHON,), PER_BAR)], notes)


def training(run: str, buffer_class: type[ReplayBuffer], filled: int, seconds: float) -> Callable[[], float]:
    """A window of training: environment steps per second of `learn()`, after a warm-up."""
    algorithm, env_id, settings = RUNS[run]
    model: Any = algorithm(
        "MlpPolicy", env_id, replay_buffer_class=buffer_class, learning_rate=0.0, seed=0, device="cpu", **settings
    )
    fill(model.replay_buffer, filled)
    model.learn(model.learning_starts + 100)

    def rate(n_steps: int) -> float:
        start = perf_counter()
        model.learn(n_steps, reset_num_timesteps=False)
        return n_steps / (perf_counter() - start)

    n_steps = max(20, round(rate(200) * seconds))
    return lambda: rate(n_steps)


@pytest.mark.parametrize("run", RUNS)
def test_training(compare, request, run, smoke):
    """The bar: prioritized replay costs next to nothing over SB3's own uniform replay."""
    torch.set_num_threads(1)
    seconds = WINDOW * request.config.getoption("--window")
    classes = {OURS: PrioritizedReplayBuffer, UNIFORM: ReplayBuffer}
    windows = {name: training(run, made, 1_000 if smoke else FILLED, seconds) for name, made in classes.items()}
    parameters = {"run": run}
    compare.rates("SB3: training", parameters, OURS, windows, [Bar((UNIFORM,), TRAINING_BAR)], unit="steps/s")
