"""How actors explore: how often, how far, and from whose random numbers."""

import copy
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")
from algorithm_runs import BOX, DISCRETE, NAMES, make, make_batch  # noqa: E402

from kary_replay.algorithms import flatten  # noqa: E402

N = 20_000
SIX_SIGMA = 6 / math.sqrt(N)


def act(algorithm, exploration, seed=0, n=N):
    """One observation, n times over, so that all that differs is exploration."""
    observation = torch.linspace(-1, 1, 5).repeat(n, 1)
    return algorithm.act(
        observation, np.full(n, exploration, np.float32), np.random.default_rng(seed)
    )


@pytest.mark.parametrize("name", NAMES)
def test_without_exploration_rows_do_not_differ_and_nothing_is_drawn(name):
    rng = np.random.default_rng(0)
    algorithm = make(name)
    action = algorithm.act(torch.zeros(7, 5), np.zeros(7, np.float32), rng)
    assert (action == action[0]).all() and rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("name", NAMES)
def test_actions_have_the_shape_and_dtype_of_the_buffer(name):
    boxes = [BOX, gym.spaces.Box(-1, 1, (2, 3)), gym.spaces.Box(0, 5, (), np.float64)]
    for space in [DISCRETE, gym.spaces.Discrete(4, start=-2)] if name == "dqn" else boxes:
        algorithm = make(name, action_space=space)
        for exploration in (0.0, 1.0):
            action = act(algorithm, exploration, n=50)
            assert action.shape == (50, *space.shape) and action.dtype == (
                np.int64 if name == "dqn" else np.float32
            )
            low, high = (0, int(space.n) - 1) if name == "dqn" else (-1, 1)
            assert low <= action.min() and action.max() <= high
        algorithm.update(make_batch(algorithm))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_actions(name):
    algorithm = make(name)
    one, same, other = (act(algorithm, 0.5, seed, 200) for seed in (0, 0, 1))
    assert (one == same).all() and (one != other).any()


@pytest.mark.parametrize("name", NAMES)
def test_each_environment_explores_by_its_own_number(name):
    algorithm = make(name)
    exploration = np.tile(np.array([0.0, 1.0], np.float32), 500)
    action = algorithm.act(torch.zeros(1000, 5), exploration, np.random.default_rng(0))
    assert (action[::2] == action[0]).all() and len(np.unique(action[1::2], axis=0)) > 1


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0])
def test_the_share_of_random_actions(epsilon):
    algorithm = make("dqn")
    best = act(algorithm, 0.0, n=1)[0]
    counts = np.bincount(act(algorithm, epsilon), minlength=3) / N
    expected = np.full(3, epsilon / 3)
    expected[best] += 1 - epsilon
    # the standard deviation of a share is at most a half
    assert np.abs(counts - expected).max() < 0.5 * SIX_SIGMA
    assert (
        np.abs(np.bincount(act(algorithm, epsilon / 2), minlength=3) / N - expected).max()
        > 0.5 * SIX_SIGMA
        or epsilon < 0.1
    )


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_the_noise_has_the_standard_deviation_and_is_cut_at_the_bounds(name):
    algorithm = make(name)
    mean = act(algorithm, 0.0, n=1)[0]
    assert np.abs(mean).max() < 0.6  # else the noise would be cut
    noise = act(algorithm, 0.05) - mean
    assert np.abs(noise.mean(0)).max() < 0.05 * SIX_SIGMA
    assert np.abs(noise.std(0) / 0.05 - 1).max() < SIX_SIGMA
    assert abs(np.corrcoef(noise.T)[0, 1]) < SIX_SIGMA
    far = act(algorithm, 10.0)
    assert np.abs(far).max() == 1 and (np.abs(far) == 1).mean() > 0.8
    assert algorithm.exploration(0.0) == algorithm.exploration(1.0) == pytest.approx(0.1)


def test_sac_draws_from_its_own_distribution():
    algorithm = make("sac")
    observation = torch.linspace(-1, 1, 5).repeat(1, 1)
    with torch.no_grad():
        mean, log_std = (value[0].numpy() for value in algorithm.actor(observation))
    u = np.arctanh(act(algorithm, 1.0).astype(np.float64).clip(-1 + 1e-7, 1 - 1e-7))
    assert np.abs((u.mean(0) - mean) / np.exp(log_std)).max() < SIX_SIGMA
    assert np.abs(u.std(0) / np.exp(log_std) - 1).max() < SIX_SIGMA
    np.testing.assert_allclose(act(algorithm, 0.0, n=1)[0], np.tanh(mean), rtol=1e-4, atol=1e-6)
    half = np.arctanh(act(algorithm, 0.5).astype(np.float64))
    assert np.abs(half.std(0) / np.exp(log_std) - 0.5).max() < SIX_SIGMA
    assert algorithm.exploration(0.5) == 1.0


def by_torch(algorithm, observation):
    """The best actions as torch's modules have them."""
    with torch.no_grad():
        if algorithm.name == "dqn":
            return algorithm.q(observation).argmax(1).numpy()
        output = algorithm.actor(observation)
        return (output[0].tanh() if algorithm.name == "sac" else output).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_actors_act_as_what_was_trained_copied_or_moved_last(name):
    """NumPy must notice when the parameters lie in a new vector, or the module is copied."""
    observation, still, rng = (
        torch.randn(300, 5),
        np.zeros(300, np.float32),
        np.random.default_rng(0),
    )

    def check(algorithm):
        action, expected = algorithm.act(observation, still, rng), by_torch(algorithm, observation)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-6)
        return action

    algorithm = make(name, learning_rate=0.1)
    before = check(algorithm)
    for seed in range(5):
        algorithm.update(make_batch(algorithm, seed=seed))
    after = check(algorithm)
    assert (before != after).any()
    flat = flatten([algorithm.policy])
    flat.mul_(-1)
    assert (check(algorithm) != after).any()
    algorithm.policy.load_state_dict(make(name, seed=8).policy.state_dict())
    check(algorithm)
    copied = copy.deepcopy(algorithm.policy)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1)
    check(algorithm)
    algorithm.policy.load_state_dict(copied.state_dict())
    check(algorithm)


def test_one_linear_layer_is_a_network_too():
    algorithm = make("dqn", hidden=())
    observation = torch.randn(300, 5)
    assert (act(algorithm, 0.0, n=3) < 3).all()
    action = algorithm.act(observation, np.zeros(300, np.float32), np.random.default_rng(0))
    assert (action == by_torch(algorithm, observation)).mean() > 0.99
