"""Prioritized hindsight replay: who is drawn, and that it equals SB3's, given the same draws."""

import copy
import pickle
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sb3_runs import CLASSES, assert_trained, first_difference, recorded
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from kary_replay.adapters.sb3 import PrioritizedHerReplayBuffer
from kary_replay.adapters.sb3.prioritized_buffer import PrioritizedBuffer

Recorded = recorded(PrioritizedHerReplayBuffer)


class Repeated(HerReplayBuffer):
    """SB3's own, made to draw given slots."""

    def __init__(self, *args, draws, **kwargs):
        super().__init__(*args, **kwargs)
        self.draws = iter(draws)

    def sample(self, batch_size, env=None):
        slots = next(self.draws)
        n_real = batch_size - int(self.her_ratio * batch_size)
        assert (self.ep_length.reshape(-1)[slots] > 0).all()
        with mock.patch.object(
            np.random, "choice", return_value=np.concatenate([slots[n_real:], slots[:n_real]])
        ):
            return super().sample(batch_size, env)


def envs(n_envs, continuous=False):
    return DummyVecEnv(
        [lambda: BitFlippingEnv(n_bits=4, continuous=continuous) for _ in range(n_envs)]
    )


def learn(algorithm, buffer_class, n_envs=1, steps=300, **buffer_kwargs):
    model = algorithm(
        "MultiInputPolicy",
        envs(n_envs, algorithm is SAC),
        learning_starts=40,
        buffer_size=120,
        batch_size=20,
        train_freq=8,
        gradient_steps=3,
        policy_kwargs={"net_arch": [8]},
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs=buffer_kwargs,
        seed=1,
        device="cpu",
    )
    return model.learn(steps)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_equals_sb3s_given_the_same_draws(algorithm, n_envs, strategy):
    kwargs = {"n_envs": n_envs, "goal_selection_strategy": strategy}
    ours = learn(algorithm, Recorded, alpha=0.7, beta=0.0, uniform_share=0.0, **kwargs)
    assert ours.replay_buffer.full
    stock = learn(algorithm, Repeated, draws=ours.replay_buffer.draws, **kwargs)
    assert len(ours.replay_buffer.draws) >= 15
    assert first_difference(ours, stock) is None


def check_drawable(buffer):
    masses = buffer.native.tree.get(np.arange(buffer.buffer_size * buffer.n_envs)).reshape(
        buffer.buffer_size, buffer.n_envs
    )
    np.testing.assert_array_equal(masses > 0, buffer.ep_length > 0)
    buffer.native.check_invariants()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_only_rows_of_whole_episodes_have_mass(n_envs):
    buffer = learn(DQN, PrioritizedHerReplayBuffer, n_envs).replay_buffer
    env, rng = envs(n_envs), np.random.default_rng(0)
    obs = env.reset()
    for step in range(200):
        action = rng.integers(0, 4, n_envs)
        next_obs, reward, done, infos = env.step(action)
        buffer.add(copy.deepcopy(obs), copy.deepcopy(next_obs), action, reward, done, infos)
        obs = next_obs
        check_drawable(buffer)
        if step % 3 == 0 and buffer.native.total_mass > 0:
            rewards = buffer.sample(16).rewards
            assert (buffer.ep_length.reshape(-1)[rewards.batch.handle["index"]] > 0).all()
            F.mse_loss(torch.full((16, 1), 2.0), rewards)
        if step % 7 == 0 and buffer._updates.last_batch is not None:
            # some of its rows may be forbidden by now
            buffer.update_priorities(np.full(len(buffer._updates.last_batch), 3.0))
            check_drawable(buffer)


def test_nothing_can_be_drawn_before_the_first_episode_ends():
    env = envs(1)
    buffer = PrioritizedHerReplayBuffer(50, env.observation_space, env.action_space, env, "cpu")
    obs = env.reset()
    buffer.add(obs, obs, np.zeros((1, 1), int), np.zeros(1), np.zeros(1, bool), [{}])
    with pytest.raises(RuntimeError, match="no episode has ended"):
        buffer.sample(4)


def test_a_saved_buffer_needs_an_environment_and_goes_on(tmp_path):
    model = learn(DQN, PrioritizedHerReplayBuffer)
    model.save_replay_buffer(tmp_path / "buffer")
    again = DQN(
        "MultiInputPolicy",
        envs(1),
        replay_buffer_class=PrioritizedHerReplayBuffer,
        buffer_size=120,
        device="cpu",
    )
    again.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=True)
    check_drawable(again.replay_buffer)
    again.replay_buffer.sample(10)
    clone = pickle.loads(pickle.dumps(model.replay_buffer))
    assert clone.env is None
    clone.set_env(envs(1))
    clone.sample(10)


def test_without_virtual_goals_the_batch_is_what_was_stored():
    buffer = learn(DQN, PrioritizedHerReplayBuffer, n_sampled_goal=0).replay_buffer
    samples = buffer.sample(30)
    rows = samples.rewards.batch.handle["index"]
    for key, array in buffer.observations.items():
        np.testing.assert_array_equal(samples.observations[key], array[rows, 0])
    np.testing.assert_array_equal(samples.rewards.numpy()[:, 0], buffer.rewards[rows, 0])


@pytest.mark.parametrize("buffer_class", CLASSES["her"])
@pytest.mark.parametrize("strategy", [*GoalSelectionStrategy, "FINAL", "episode", "Future"])
def test_a_strategy_is_named_or_given(buffer_class, strategy):
    buffer = learn(
        SAC, buffer_class, n_envs=2, steps=60, goal_selection_strategy=strategy, copy_info_dict=True
    ).replay_buffer
    expected = (
        strategy
        if isinstance(strategy, GoalSelectionStrategy)
        else GoalSelectionStrategy[strategy.upper()]
    )
    assert buffer.goal_selection_strategy is expected
    assert any(info for info in buffer.infos.ravel())


@pytest.mark.parametrize("buffer_class", CLASSES["her"])
@pytest.mark.parametrize("space", [{"image_obs_space": True}, {"discrete_obs_space": True}])
def test_goals_may_be_images_or_numbers(buffer_class, space):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, **space), 2)
    model = DQN(
        "MultiInputPolicy",
        env,
        learning_starts=20,
        batch_size=8,
        train_freq=8,
        buffer_size=60,
        device="cpu",
        seed=0,
        replay_buffer_class=buffer_class,
        policy_kwargs={"net_arch": [8], "features_extractor_kwargs": {"cnn_output_dim": 8}},
    )
    assert_trained(model.learn(80))


@pytest.mark.parametrize("n_more", [1, 5, 9])
def test_reset_forgets_the_episodes(n_more):
    buffer = learn(DQN, PrioritizedHerReplayBuffer, steps=130).replay_buffer
    buffer.reset()
    assert not buffer.ep_length.any()
    env = envs(1)
    obs = env.reset()
    for step in range(n_more):
        next_obs, reward, _, infos = env.step([0])
        buffer.add(obs, next_obs, np.zeros((1, 1), int), reward, np.array([step % 4 == 3]), infos)
        check_drawable(buffer)
    assert buffer.ep_length[:, 0].tolist() == [4] * (n_more // 4 * 4) + [0] * (
        120 - n_more // 4 * 4
    )


@pytest.mark.parametrize("buffer_class", CLASSES["her"])
def test_bit_flipping_is_solved(buffer_class):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=7), 2)
    model = DQN(
        "MultiInputPolicy",
        env,
        learning_rate=1e-3,
        learning_starts=100,
        batch_size=32,
        train_freq=1,
        gradient_steps=2,
        target_update_interval=200,
        exploration_final_eps=0.02,
        buffer_size=10_000,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs={"n_sampled_goal": 5},
    )
    # measured: 0.99 and 1.0; of the last 100 episodes
    assert np.mean(model.learn(1800).ep_success_buffer) > 0.9


def interrupted_after(function):
    """Return a function that does the same, and then is interrupted by Ctrl-C."""

    def interrupted(*args, **kwargs):
        function(*args, **kwargs)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("when", ["add", "_compute_episode_length"])
def test_an_interrupt_in_the_midst_of_add(when, monkeypatch):
    """What is missing is made up for at the next call, and all is as if nothing had happened."""
    env = envs(2)
    ours, whole = (
        PrioritizedHerReplayBuffer(
            40, env.observation_space, env.action_space, env, "cpu", 2, uniform_share=0.0, seed=0
        )
        for _ in range(2)
    )
    for number in range(60):
        observation = env.reset()
        ends = np.array([number % 5 == 4, number % 7 == 6])
        step = observation, observation, np.zeros((2, 1), int), np.zeros(2), ends, [{}, {}]
        whole.add(*step)
        is_interrupted = number in (10, 34, 41) and (ends.any() or when == "add")
        with monkeypatch.context() as patch:
            owner = PrioritizedBuffer if when == "add" else ours
            if is_interrupted:
                patch.setattr(owner, when, interrupted_after(getattr(owner, when)))
            with pytest.raises(KeyboardInterrupt) if is_interrupted else nullcontext():
                ours.add(*step)
    slots = np.arange(40)
    for one in (ours, copy.deepcopy(ours)):
        np.testing.assert_array_equal(one.ep_start, whole.ep_start)
        np.testing.assert_array_equal(one.ep_length, whole.ep_length)
        masses = one.native.tree.get(slots)
        np.testing.assert_array_equal(masses, whole.native.tree.get(slots))
        assert (one.pos, one.full) == (whole.pos, whole.full)
    ours.sample(16)


def test_episodes_as_long_as_the_ring():
    """They leave nothing to draw, as SB3's: their first rows are those that come next."""
    env, n_rows = envs(2), 20
    both = [
        cls(n_rows * 2, env.observation_space, env.action_space, env, "cpu", 2, **options)
        for cls, options in ((HerReplayBuffer, {}), (PrioritizedHerReplayBuffer, {"seed": 0}))
    ]
    lengths = [[20, 5, 40, 7, 20, 20, 3, 60, 9], [4, 20, 6, 6, 40, 11, 20, 1, 90]]
    ends = [np.isin(np.arange(1, 201), np.cumsum(of_one)) for of_one in lengths]
    for now in np.array(ends).T:
        observation = env.reset()
        for one in both:
            one.add(observation, observation, np.zeros((2, 1), int), np.zeros(2), now, [{}, {}])
        stock, ours = both
        np.testing.assert_array_equal(ours.ep_length, stock.ep_length)
        drawable = ours.native.tree.get(np.arange(n_rows * 2)).reshape(n_rows, 2) > 0
        np.testing.assert_array_equal(drawable, stock.ep_length > 0)
    ours.sample(16)


def test_parts_that_are_assigned_are_stored():
    env = envs(2)
    buffer = PrioritizedHerReplayBuffer(40, env.observation_space, env.action_space, env, "cpu", 2)
    goals = np.ones_like(buffer.observations["achieved_goal"])
    with pytest.raises(ValueError, match="the part 'achieved_goal' must have the shape"):
        buffer.observations["achieved_goal"] = goals[:3]
    buffer.observations["achieved_goal"] = goals
    stored = buffer.native.field_view("observation")
    assert (stored["achieved_goal"] == 1).all() and not (stored["desired_goal"] == 1).any()
    buffer.observations = {key: np.ones_like(part) for key, part in buffer.observations.items()}
    assert (stored["desired_goal"] == 1).all()
    with pytest.raises(KeyError):
        buffer.observations["another"] = goals
