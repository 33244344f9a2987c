"""n-step returns, trajectory in, transitions out, of SB3's buffer and of ours."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from sb3_runs import CLASSES, assert_trained, learn, over_classes
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from kary_replay.adapters.sb3 import PrioritizedNStepReplayBuffer

BOX = spaces.Box(-1, 1, (2,), np.float32)
GAMMA = 0.5

# Of each step, "T" ends the episode, "t" ends it by time, "c" cuts it by time though the
# environment goes on. Then, of the transitions that begin there: how many steps are summed, and
# whether what follows counts nothing.
TABLE = {
    "one step": (1, ".T..", "1111", "0100"),
    "two steps": (2, ".....", "22221", "00000"),
    "nothing ends": (3, "......", "333321", "000000"),
    "terminated": (3, "..T...", "321321", "111000"),
    "terminated at once": (3, "T.....", "133321", "100000"),
    "terminated twice": (5, ".T.T....", "21214321", "11110000"),
    "ended by time": (3, "..t...", "321321", "000000"),
    "cut by time": (3, "..c...", "321321", "000000"),
    "terminated last": (3, ".....T", "333321", "000111"),
    "ended by time last": (3, ".....t", "333321", "000000"),
    "longer than the trajectory": (9, "....", "4321", "0000"),
}


def filled(buffer_class, n_steps, trajectories, rows=None):
    """Add one trajectory per environment: observations (step, environment), rewards 2**step."""
    n_envs = len(trajectories)
    kwargs = {"n_steps": n_steps, "gamma": GAMMA} if buffer_class in CLASSES["n_step"] else {}
    buffer = buffer_class(
        n_envs * (rows or len(trajectories[0])), BOX, BOX, "cpu", n_envs, **kwargs
    )
    if hasattr(buffer, "_updates"):  # ours, and not SB3's own
        buffer._updates.warned = True  # that no loss is computed here
    for step, ends in enumerate(zip(*trajectories, strict=True)):
        obs = np.array([(step, environment) for environment in range(len(ends))], np.float32)
        infos = [{"TimeLimit.truncated": end in "tc"} for end in ends]
        reward, done = np.full(len(ends), 2.0**step), np.array([end in "Tt" for end in ends])
        buffer.add(obs, obs + np.float32([1, 0]), np.zeros_like(obs), reward, done, infos)
    return buffer


def transitions(samples):
    """Return {(step, environment): (steps summed, done)}.

    Rewards double as gamma halves, so each step adds as much as the first one.
    """
    found = {}
    columns = (
        samples.observations,
        samples.next_observations,
        samples.rewards,
        samples.dones,
        samples.discounts,
    )
    for (step, environment), following, reward, done, discount in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        n_summed = reward[0] / 2**step
        assert following == [step + n_summed, environment]
        assert discount == [GAMMA**n_summed]
        assert found.setdefault((step, environment), (n_summed, done[0])) == (n_summed, done[0])
    return found


def expected(cases, first=0):
    return {
        (first + step, environment): (float(n_summed), float(done))
        for environment, (summed, dones) in enumerate(cases)
        for step, (n_summed, done) in enumerate(zip(summed, dones, strict=True))
    }


@over_classes("n_step")
@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_sums_as_the_table_says(kind, buffer_class, case):
    n_steps, ends, *summed = case
    buffer = filled(buffer_class, n_steps, [ends])
    assert transitions(buffer.sample(300)) == expected([summed])
    assert transitions(buffer._get_samples(np.arange(len(ends)))) == expected([summed])


@over_classes("n_step")
def test_environments_are_summed_each_by_itself(kind, buffer_class):
    buffer = filled(buffer_class, 3, ["..T...", "....t.", "T..c.."])
    cases = [("321321", "111000"), ("333211", "000000"), ("132121", "100000")]
    assert transitions(buffer.sample(900)) == expected(cases)


@over_classes("n_step")
@pytest.mark.parametrize("n_more", [1, 2, 4, 5])
def test_a_full_buffer_is_cut_at_its_newest_row(kind, buffer_class, n_more):
    buffer = filled(buffer_class, 3, ["." * (5 + n_more)], rows=5)
    assert buffer.full
    assert transitions(buffer.sample(300)) == expected([("33321", "00000")], first=n_more)
    newest = (buffer.pos - 1) % 5
    buffer.dones[newest] = True  # the cut must not hide it
    assert transitions(buffer.sample(300)) == expected([("33321", "00111")], first=n_more)


@over_classes("n_step")
def test_sampling_leaves_the_rows_alone(kind, buffer_class):
    buffer = filled(buffer_class, 3, ["......."], rows=5)
    buffer.sample(50)
    assert not buffer.timeouts.any()
    assert not buffer.dones.any()


@over_classes("n_step")
def test_one_step_is_what_the_plain_buffer_returns(kind, buffer_class):
    plain_class = CLASSES["array"][CLASSES["n_step"].index(buffer_class)]
    n_step, plain = (filled(each, 1, [".T.t.c.."]) for each in (buffer_class, plain_class))
    for ours, theirs in zip(
        *(buffer._get_samples(np.arange(8)) for buffer in (n_step, plain)), strict=True
    ):
        assert ours is theirs is None or theirs is None or torch.equal(ours, theirs)


@over_classes("n_step")
def test_rewards_are_normalized_before_they_are_summed(kind, buffer_class):
    env = VecNormalize(make_vec_env("Pendulum-v1", 1), norm_obs=False, clip_reward=3.0)
    env.ret_rms.var = np.array(4.0)
    samples = filled(buffer_class, 3, ["...."]).sample(200, env=env)
    returns = [0.5 + 0.5 + 0.5, 1 + 1 + 0.75, 2 + 1.5, 3]  # of 1, 2, 4, 8, halved and clipped
    for (step, _), reward in zip(
        samples.observations.tolist(), samples.rewards[:, 0].tolist(), strict=True
    ):
        assert reward == pytest.approx(returns[int(step)], rel=1e-6)


def test_the_priority_is_that_of_the_return():
    buffer = filled(PrioritizedNStepReplayBuffer, 3, ["......"])
    buffer.alpha = 1.0
    samples = buffer.sample(100)
    F.mse_loss(torch.zeros(100, 1), samples.rewards)
    masses = buffer.native.tree.get(np.arange(6))
    np.testing.assert_allclose(masses, 2.0 ** np.arange(6) * [3, 3, 3, 3, 2, 1], rtol=1e-6)


@over_classes("n_step")
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3", "QRDQN"])
def test_training_takes_the_buffers_own_steps_and_gamma(kind, buffer_class, name):
    model = learn(name, buffer_class, n_envs=2, n_steps=4, gamma=0.9, model_kwargs={"gamma": 0.9})
    assert_trained(model)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (4, 0.9)
    exponents = np.log(model.replay_buffer.sample(200).discounts.numpy()) / np.log(0.9)
    assert set(exponents.round(3).ravel()) <= {1, 2, 3, 4}
    assert 4 in exponents.round(3)


def test_sb3_says_that_its_own_n_steps_does_not_reach_the_buffer():
    with pytest.warns(UserWarning, match="`n_steps=5` is ignored"):
        model = DQN(
            "MlpPolicy",
            "CartPole-v1",
            n_steps=5,
            buffer_size=50,
            replay_buffer_class=PrioritizedNStepReplayBuffer,
        )
    assert model.replay_buffer.n_steps == 3
