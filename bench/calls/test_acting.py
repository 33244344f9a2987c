"""Choosing the best actions of a few observations: ours against torch's modules, and SB3's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN

from bench.harness.timing import Contender, Record, nothing
from kary_replay.algorithms import ALGORITHMS

OURS, TORCH, SB3 = "kary-replay", "the same network by torch", "SB3"
# observations, options of DQN, policy and its arguments in SB3 where it has such a network
NETWORKS: dict[str, tuple[spaces.Box, dict[str, Any], tuple[str, dict[str, Any]] | None]] = {
    "nature": (
        spaces.Box(0, 255, (4, 84, 84), np.uint8),
        {"hidden": (), "image_network": "nature"},
        ("CnnPolicy", {}),
    ),
    "data_efficient": (
        spaces.Box(0, 255, (4, 84, 84), np.uint8),
        {"hidden": (), "image_network": "data_efficient"},
        None,
    ),
    "boards": (spaces.Box(0, 1, (4, 10, 10), np.bool_), {"hidden": ()}, None),
    "vectors": (
        spaces.Box(-1, 1, (17,), np.float32),
        {"hidden": (256, 256)},
        ("MlpPolicy", {"net_arch": [256, 256]}),
    ),
}
ROWS, SHORT_ROWS = (1, 2, 3, 4, 5, 7, 8, 20, 32, 128), (1, 8)
ACTIONS = spaces.Discrete(6)


class Still(gymnasium.Env[Any, Any]):
    """An environment that SB3 reads spaces from."""

    def __init__(self, observations: spaces.Box) -> None:
        self.observation_space, self.action_space = observations, ACTIONS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    few = metafunc.config.getoption("--short") or metafunc.config.getoption("--benchmark-disable")
    metafunc.parametrize("rows", SHORT_ROWS if few else ROWS)


def callers(network: str, rows: int) -> dict[str, Callable[[], object]]:
    """Return what is asked for the best actions of the same observations, by who does it."""
    space, options, theirs = NETWORKS[network]
    kind = ALGORITHMS["dqn"]
    algorithm = kind(space, ACTIONS, kind.options_class(dueling=False, **options), seed=0)
    space.seed(0)
    seen = np.stack([space.sample() for _ in range(rows)])
    still, rng = np.zeros(rows, np.float32), np.random.default_rng(0)

    def by_torch() -> object:
        with torch.inference_mode():
            return algorithm.q(torch.from_numpy(seen)).argmax(1).numpy()

    found: dict[str, Callable[[], object]] = {
        OURS: lambda: algorithm.act(seen, still, rng),
        TORCH: by_torch,
    }
    if theirs is not None:
        policy, given = theirs
        env = Still(space)
        model = DQN(policy, env, policy_kwargs=given, buffer_size=1, device="cpu", seed=0)
        found[SB3] = lambda: model.predict(seen, deterministic=True)
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_best_actions(compare, one_core, network, rows):
    torch.set_num_threads(1)
    parameters = {"network": network, "rows": rows}
    candidates = [
        Contender(name, call, lambda n: [()] * n) for name, call in callers(network, rows).items()
    ]
    first = {each.name: [each.timed(1, nothing)[0]] for each in candidates}
    compare.times("acting: best actions", parameters, candidates[0], candidates[1:])
    compare.keep(Record("acting: first call", parameters, "s", OURS, first))
