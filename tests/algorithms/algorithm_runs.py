"""Spaces, batches and algorithms for the tests of this folder."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch

from kary_replay.algorithms import ALGORITHMS

NAMES = ["dqn", "ddpg", "td3", "sac"]
VECTOR = gym.spaces.Box(-1, 1, (5,), np.float32)
BOARD = gym.spaces.Box(0, 1, (4, 10, 10), bool)
IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
DICT = gym.spaces.Dict(
    {
        "place": gym.spaces.Discrete(3, start=1),
        "camera": gym.spaces.Box(0, 255, (1, 36, 40), np.uint8),
        "arm": gym.spaces.Box(-1, 1, (2, 3), np.float32),
        "height": gym.spaces.Box(-1, 1, (), np.float64),
    }
)
SPACES = {"vector": VECTOR, "board": BOARD, "image": IMAGE, "dict": DICT}
NUMBERS = {  # of dtypes that networks make floats of
    "doubles": gym.spaces.Box(-1, 1, (2, 3), np.float64),
    "shorts": gym.spaces.Box(0, 2, (2,), np.int16),
    "longs": gym.spaces.Box(0, 2, (2,), np.int64),
    "counts": gym.spaces.Box(0, 2, (3,), np.int32),
    "number": gym.spaces.Discrete(3, start=-1),
    "places": gym.spaces.MultiDiscrete([3, 4]),
    "bits": gym.spaces.MultiBinary(4),
}
NUMBERS["all"] = gym.spaces.Dict(NUMBERS)
DISCRETE, BOX = gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (2,), np.float32)


def make(
    name,
    observation_space=VECTOR,
    action_space=None,
    *,
    record=False,
    share=None,
    seed=0,
    device="cpu",
    **options,
):
    """Return an algorithm with small networks; a recording takes longer than most tests."""
    cls = ALGORITHMS[name]
    options = replace(cls.options_class(hidden=(16, 8)), **options)
    action_space = action_space or (DISCRETE if "dqn" in name else BOX)
    algorithm = cls(observation_space, action_space, options, seed=seed, device=device, share=share)
    for minimizer in algorithm.minimizers.values():
        if not record:
            minimizer._compute = minimizer._gradient
    return algorithm


def observations(space, n, rng):
    """Return n random observations as a tensor, or a dict of them."""
    if isinstance(space, gym.spaces.Dict):
        return {key: observations(part, n, rng) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Discrete):
        return torch.from_numpy(rng.integers(space.start, space.start + space.n, n))
    if space.dtype == bool:
        return torch.from_numpy(rng.random((n, *space.shape)) < 0.2)
    if space.dtype == np.uint8:
        return torch.from_numpy(rng.integers(0, 256, (n, *space.shape), np.uint8))
    if np.issubdtype(space.dtype, np.integer):
        return torch.from_numpy(rng.integers(0, 2, (n, *space.shape), space.dtype))
    return torch.from_numpy(rng.uniform(-1, 1, (n, *space.shape)).astype(space.dtype))


def make_on_policy(name, observation_space, action_space, record, options):
    """Return an algorithm that learns from rollouts; options may have its share and seed, too."""
    cls, options = ALGORITHMS[name], dict(options)
    share, seed = options.pop("share", None), options.pop("seed", 0)
    made = cls(
        observation_space, action_space, cls.options_class(**options), seed=seed, share=share
    )
    if not record:
        for minimizer in made.minimizers.values():
            minimizer._compute = minimizer._gradient
    return made


def make_batch(algorithm, n=12, seed=0):
    """Return a random batch; a third of its rows is terminated, and no two have the same weight."""
    rng = np.random.default_rng(seed)
    action_space = algorithm.action_space
    discrete = isinstance(action_space, gym.spaces.Discrete)
    action = (
        rng.integers(action_space.n, size=n)
        if discrete
        else rng.uniform(-1, 1, (n, *action_space.shape))
    )
    return {
        "observation": observations(algorithm.observation_space, n, rng),
        "action": torch.from_numpy(action if discrete else action.astype(np.float32)),
        "reward": torch.from_numpy(rng.normal(size=n).astype(np.float32)),
        "next_observation": observations(algorithm.observation_space, n, rng),
        "discount": torch.from_numpy((0.9 * (rng.random(n) > 0.33)).astype(np.float32)),
        "importance_weight": torch.from_numpy(rng.uniform(0.1, 1, n).astype(np.float32)),
    }


def parameters(algorithm):
    """Return all that is trained, and the targets, as one vector."""
    return torch.cat(
        [
            *(minimizer.flat for minimizer in algorithm.minimizers.values()),
            *algorithm.targets.values(),
        ]
    )


FAULTS = {  # what the tests of TD errors must notice
    "the discount is ignored": lambda batch: {
        **batch,
        "discount": torch.full_like(batch["discount"], 0.9),
    },
    "the reward is ignored": lambda batch: {**batch, "reward": torch.zeros_like(batch["reward"])},
    "observations are exchanged": lambda batch: {**batch, "observation": batch["next_observation"]},
    "another action": lambda batch: {**batch, "action": other_actions(batch["action"])},
}


def other_actions(action):
    """Return another action for each."""
    return -action if action.is_floating_point() else (action + 1) % int(DISCRETE.n)


def part(batch, rows):
    """Return some rows of a batch."""
    return {
        key: part(value, rows) if isinstance(value, dict) else value[rows]
        for key, value in batch.items()
    }


def forward(stack, x):
    """Return what linear layers with ReLU in between do, in float64 NumPy."""
    linears = [layer for layer in stack if hasattr(layer, "weight")]
    for linear in linears:
        x = x @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
        x = x if linear is linears[-1] else np.maximum(x, 0)
    return x


def adam_step(before, gradient, learning_rate):
    """Return the parameters after Adam's first step, in float64: the moments' biases cancel."""
    before, gradient = np.asarray(before, np.float64), np.asarray(gradient, np.float64)
    return before - learning_rate * gradient / (np.abs(gradient) + 1e-8)
