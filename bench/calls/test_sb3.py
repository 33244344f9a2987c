"""Stable-Baselines3: a learner's two calls on the buffer, and whole training runs."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.dqn import dqn

from bench.harness.timing import Bar
from bench.rivals.sb3_prioritized import OURS, PYTHON, UNIFORM, UNIFORM_SHARE, Buffers, fill
from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

PER_BAR, TRAINING_BAR, DQN_BAR = 2.0, 0.98, 0.97  # DQN on CartPole has the smallest updates
POINTS = [("HalfCheetah", 1_000_000, 256), ("Atari 4×84×84", 20_000, 32)]
MORE_POINTS = [
    ("HalfCheetah", 100_000, 256),
    ("HalfCheetah", 1_000_000, 32),
    ("Atari 4×84×84", 20_000, 256),
]
SHORT_POINTS = [("HalfCheetah", 100_000, 256), ("Atari 4×84×84", 2_000, 32)]
SMOKE_POINTS = [(rows, 1_000, batch) for rows, _, batch in SHORT_POINTS]
FILLED = 100_000  # transitions in the buffer when a training run is timed
# Single windows scatter by a tenth, whatever their length: many short ones tell more than few long
# ones of as much time in all.
TRAINING_WINDOWS = 210
WINDOW = 0.4  # training windows are this much of the length of those of the threads
PART_WINDOWS, PART_STEPS = 21, 400
CLASSES = {OURS: PrioritizedReplayBuffer, UNIFORM: ReplayBuffer}
# By default our draws are of either kind; a share that is given keeps them of one.
SHARES = {"by priority": UNIFORM_SHARE, "uniform": 1.0}
# Stock settings, but for two. A learning rate of 0 changes no cost and keeps both policies as they
# were: else the better one is timed with other episodes. Exploration is constant, so that every
# window has its share of greedy steps.
RUNS = {
    "DQN, CartPole-v1": (
        DQN,
        "CartPole-v1",
        {"exploration_initial_eps": 0.05, "exploration_final_eps": 0.05},
    ),
    "DDPG, HalfCheetah-v5": (DDPG, "HalfCheetah-v5", {}),
    "TD3, HalfCheetah-v5": (TD3, "HalfCheetah-v5", {}),
    "SAC, HalfCheetah-v5": (SAC, "HalfCheetah-v5", {}),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "buffers" in metafunc.fixturenames:
        points = POINTS + (MORE_POINTS if metafunc.config.getoption("--full") else [])
        points = SMOKE_POINTS if metafunc.config.getoption("--benchmark-disable") else points
        points = SHORT_POINTS if metafunc.config.getoption("--short") else points
        ids = [
            f"{rows.split()[0]}-{slots:.0e}-{batch}".replace("+0", "")
            for rows, slots, batch in points
        ]
        metafunc.parametrize(
            ("buffers", "sb3_batch"), [(p[:2], p[2]) for p in points], indirect=["buffers"], ids=ids
        )


@pytest.fixture
def buffers(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, Buffers]]:
    yield *request.param, Buffers(*request.param)
    gc.collect()


def test_cycle(compare, buffers, sb3_batch):
    rows, slots, built = buffers
    ours, *others = built.cycles(sb3_batch)
    parameters = {"rows": rows, "slots": slots, "batch": sb3_batch}
    notes = {UNIFORM: "sample alone: it has no priorities"}
    compare.times(
        "SB3: sample + update_priorities",
        parameters,
        ours,
        others,
        [Bar((PYTHON,), PER_BAR)],
        notes,
    )


def trained(run: str, buffer_class: type[ReplayBuffer], filled: int, draws: str) -> Any:
    """A model that has begun to train, its buffer filled; `draws` are those of ours."""
    algorithm, env_id, settings = RUNS[run]
    is_ours = buffer_class is PrioritizedReplayBuffer
    model: Any = algorithm(
        "MlpPolicy",
        env_id,
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs={"uniform_share": SHARES[draws]} if is_ours else {},
        learning_rate=0.0,
        seed=0,
        device="cpu",
        **settings,
    )
    fill(model.replay_buffer, filled)
    return model.learn(model.learning_starts + 100)


def training(
    run: str, buffer_class: type[ReplayBuffer], filled: int, draws: str, seconds: float
) -> Callable[[], float]:
    """A window of training: environment steps per second of `learn()`, after a warm-up."""
    model = trained(run, buffer_class, filled, draws)

    def rate(n_steps: int) -> float:
        start = perf_counter()
        model.learn(n_steps, reset_num_timesteps=False)
        return n_steps / (perf_counter() - start)

    n_steps = max(20, round(rate(50) * seconds))
    return lambda: rate(n_steps)


def in_turn(calls: list[Callable[[], float]]) -> Callable[[], float]:
    """A call that makes the next of these calls, round and round."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


@pytest.mark.parametrize("draws", SHARES)
@pytest.mark.parametrize("run", RUNS)
def test_training(compare, request, run, draws, smoke):
    """The bar: our buffer costs next to nothing over SB3's own, whichever way it draws."""
    torch.set_num_threads(1)
    seconds = WINDOW * request.config.getoption("--window")
    # Where a model finds its memory makes a difference of a hundredth, and depends on which were
    # made before: so each has one that was made early and one that was made late.
    made: dict[str, list[Callable[[], float]]] = {name: [] for name in CLASSES}
    filled = 1_000 if smoke else FILLED
    for name in (OURS, UNIFORM, UNIFORM, OURS):
        made[name].append(training(run, CLASSES[name], filled, draws, seconds))
    windows = {name: in_turn(models) for name, models in made.items()}
    bars = [Bar((UNIFORM,), DQN_BAR if run.startswith("DQN") else TRAINING_BAR)]
    parameters = {"run": run, "draws": draws}
    compare.rates(
        "SB3: training", parameters, OURS, windows, bars, TRAINING_WINDOWS, unit="steps/s"
    )


PARTS = {  # of an environment step or an update of SB3's DQN: who is called, by what name
    "add": lambda model: (model.replay_buffer, "add"),
    "sample": lambda model: (model.replay_buffer, "sample"),
    "loss": lambda _: (dqn.F, "smooth_l1_loss"),
    "train": lambda model: (model, "train"),
}
REST = "rest of train()"


@pytest.fixture(scope="module")
def learners(request: pytest.FixtureRequest) -> dict[str, Any]:
    """DQN in the middle of its training, with either buffer."""
    torch.set_num_threads(1)
    filled = 1_000 if request.config.getoption("--benchmark-disable") else FILLED
    return {
        name: trained("DQN, CartPole-v1", made, filled, "by priority")
        for name, made in CLASSES.items()
    }


def seconds_in_parts(model: Any, n_steps: int) -> dict[str, float]:
    """Train for some environment steps; return the seconds that each part of an update takes."""
    seconds = dict.fromkeys([*PARTS, "backward"], 0.0)

    def timed(part: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            result = original(*args, **kwargs)
            seconds[part] += perf_counter() - start
            return result

        return call

    def zeroed(*args: Any, **kwargs: Any) -> None:
        # `backward` of ours is not torch's own. It stands between these two calls, whoever has it.
        zero_grad(*args, **kwargs)
        seconds["backward"] -= perf_counter()

    def clipped(*args: Any, **kwargs: Any) -> torch.Tensor:
        seconds["backward"] += perf_counter()
        return clip_grad_norm(*args, **kwargs)

    zero_grad, clip_grad_norm = model.policy.optimizer.zero_grad, torch.nn.utils.clip_grad_norm_
    n_updates = model._n_updates
    with pytest.MonkeyPatch.context() as patch:
        # a name that no other module looks at
        patch.setattr(dqn, "F", SimpleNamespace(smooth_l1_loss=F.smooth_l1_loss))
        for part, find in PARTS.items():
            owner, name = find(model)
            patch.setattr(owner, name, timed(part, getattr(owner, name)))
        patch.setattr(model.policy.optimizer, "zero_grad", zeroed)
        patch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
        model.learn(n_steps, reset_num_timesteps=False)
    seconds[REST] = seconds.pop("train") - seconds["sample"] - seconds["loss"] - seconds["backward"]
    return {part: value / (model._n_updates - n_updates) for part, value in seconds.items()}


@pytest.mark.parametrize("part", ["add", "sample", "loss", "backward", REST])
def test_part_of_training(compare, part, learners):
    """Where the time of the smallest update goes, and of the four environment steps before it."""
    windows = {
        name: lambda model=model: seconds_in_parts(model, PART_STEPS)[part]
        for name, model in learners.items()
    }
    compare.rates(
        "SB3: parts of DQN's training",
        {"part": part},
        OURS,
        windows,
        (),
        PART_WINDOWS,
        unit="s",
    )
