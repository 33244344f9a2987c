"""Runs that normalize: all who read observations do so by the same statistics, which are kept."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import config, hosted, parameters, run, worker

from kary_replay.algorithms import PPO, Share
from kary_replay.algorithms.normalization import moments_of
from kary_replay.runner import ConfigError, Runner, play
from kary_replay.runner.backends.memory import OwnMemory
from kary_replay.runner.policies.checkpoint_policy import checkpoint_algorithm, checkpoint_policy
from kary_replay.runner.policies.export import export
from kary_replay.runner.records.run_directory import load_state
from kary_replay.runner.streams import Checkpoint, StatisticsStream

BOTH = {"normalize_observations": True, "normalize_rewards": True}
EVALUATED = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 3}
ENVS = {"dqn": "CartPole-v1"}


class Still(gymnasium.Env):
    """Observations are always the same, and all rewards 0."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return np.array([0.1, 0.0], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([0.1, 0.0], np.float32), 0.0, self.left == 0, False, {}


class Far(gymnasium.Env):
    """Observations that are large beside their spread."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, offset):
        self.offset = offset

    def _observation(self):
        return (self.offset + self.np_random.standard_normal(2)).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self._observation(), {}

    def step(self, action):
        self.left -= 1
        return self._observation(), float(action[0]), self.left == 0, False, {}


@pytest.fixture(autouse=True)
def no_film(monkeypatch):
    monkeypatch.setattr(play, "_rendered", lambda make, mode, seed: (make(), "no film"))


def counters(directory):
    return json.loads((directory / "checkpoint.json").read_text())


@pytest.mark.parametrize("algorithm", ["dqn", "ddpg", "td3", "sac", "ppo", "a2c"])
def test_play_and_export_normalize_as_the_evaluations_did(algorithm, tmp_path):
    pytest.importorskip("stable_baselines3")
    path, env = tmp_path / "run", ENVS.get(algorithm, "Pendulum-v1")
    result = run(algorithm, env, path, total_env_steps=600, **EVALUATED, **BOTH)
    found = checkpoint_policy(path)
    assert (
        not torch.equal(found.algorithm.normalization.vector, parameters(path)["normalization"])
        or result.best == result.last
    )
    for which, evaluation in (("best", result.best), ("last", result.last)):
        assert tuple(play.play(path, episodes=3, which=which)) == evaluation.returns
        export(path, which=which)  # which compares the actions for raw observations


def test_a_model_is_checked_where_its_policy_acts(tmp_path):
    """Raw observations are added up in float32, where small differences of large ones are lost."""
    pytest.importorskip("stable_baselines3")
    for offset in (100.0, 1e6):
        settings = {"env_options": {"offset": offset}, "total_env_steps": 400, **BOTH}
        run("sac", "test_normalized_runs:Far", tmp_path / f"{offset:g}", **settings)
    assert export(tmp_path / "100").exists()
    with pytest.raises(ConfigError, match="subtract an offset"):
        export(tmp_path / "1e+06")
    assert not list((tmp_path / "1e+06").glob("*.zip"))


@pytest.mark.parametrize("initial_priority", ["max", "td_error"])
@pytest.mark.parametrize("ent_coef", [None, 0.2])
def test_exported_critics_are_those_of_the_checkpoint(ent_coef, initial_priority, tmp_path):
    """They are for raw observations and rewards; the policy and its statistics are older."""
    sb3 = pytest.importorskip("stable_baselines3")
    path, options = tmp_path / "run", {"ent_coef": ent_coef}
    settings = {"initial_priority": initial_priority, "total_env_steps": 400, **EVALUATED}
    run("sac", "Pendulum-v1", path, options, **settings, **BOTH)
    older = load_state(path / "last_policy.pt")
    Runner.resume(path, total_env_steps=800).run()
    torch.save({**older, "mean_return": 1e6}, path / "best_policy.pt")
    found = checkpoint_policy(path)
    ours, older = checkpoint_algorithm(found), found.algorithm.normalization
    factor = float(ours.normalization.reward_factor)
    assert factor not in (1, float(older.reward_factor))
    model = sb3.SAC.load(export(path))
    observation, action = 5 * torch.randn(8, 3), torch.rand(8, 1)
    with torch.no_grad():
        q = ours.critic(ours.normalization.observation(observation), action) / factor
        exported = torch.cat(model.critic(observation, action), 1)
        # by the largest, for the offsets that the statistics become are as large
        assert (exported - q).abs().max() < 1e-4 * q.abs().max()
        worth = ours.alpha() / factor
    coefficient = model.ent_coef_tensor if ent_coef else model.log_ent_coef.exp()
    torch.testing.assert_close(coefficient.detach().reshape(1), worth)


@pytest.mark.parametrize(("algorithm", "clip"), [("ppo", 0.3), ("ppo", None), ("a2c", None)])
def test_exported_losses_weigh_their_parts_as_ours(algorithm, clip, tmp_path):
    """Rewards are raw there: a policy's part of the loss grows with them, and values' twice."""
    sb3 = pytest.importorskip("stable_baselines3")
    path, own = tmp_path / "run", {"ent_coef": 0.01, "vf_coef": 0.4, "max_gradient_norm": 0.6}
    if algorithm == "ppo":
        own |= {"normalize_advantage": clip is not None, "clip_range_vf": clip}
    run(algorithm, "Pendulum-v1", path, own, total_env_steps=200, **EVALUATED, **BOTH)
    scale = 1 / float(checkpoint_algorithm(checkpoint_policy(path)).normalization.reward_factor)
    assert scale > 1.5
    model = getattr(sb3, algorithm.upper()).load(export(path))
    grows = 1 if clip else scale
    found = model.ent_coef, model.max_grad_norm, model.vf_coef * scale**2
    assert found == pytest.approx((0.01 * grows, 0.6 * grows, 0.4 * grows))
    if clip:
        assert model.clip_range_vf(1.0) == pytest.approx(clip * scale)


def test_statistics_are_those_of_all_that_actors_have_seen(tmp_path, monkeypatch):
    settings = config("dqn", "CartPole-v1", tmp_path / "run", actors=2, **BOTH)
    flow = hosted(settings, n_actors=2)
    actors = [worker(flow, "actor", index) for index in range(2)]
    learner, seen = worker(flow, "learner"), []
    count = actors[0].statistics.add
    for actor in actors:
        monkeypatch.setattr(
            actor.statistics, "add", lambda index, rows: (seen.append(rows), count(index, rows))
        )
    for _ in range(100):
        for actor in actors:
            actor.work(0)
    learner.work(0)
    total = actors[0].statistics.total()
    np.testing.assert_allclose(total, moments_of(np.concatenate(seen)), rtol=1e-9)
    assert (total[0] == flow.board.env_steps).all()
    # What the learner has taken up is what it publishes, and what the actors then act by.
    actors[1].work(0)
    vectors = [one.algorithm.normalization.vector for one in (learner, actors[1])]
    assert torch.equal(*vectors) and not torch.equal(vectors[0], vectors[0].round())
    flow.close()


def test_rewards_are_scaled_by_discounted_returns_which_begin_anew_with_episodes(tmp_path):
    path, starts = tmp_path / "run", {"learning_starts": 1_000}
    settings = config("dqn", "test_normalized_runs:Still", path, **starts, **BOTH)
    flow, rows = hosted(settings), []
    actor = worker(flow, "actor")
    actor.statistics.add = lambda index, found: rows.append(found[:, -1].copy())
    for group in actor.groups:
        step = group.step
        group.step = lambda action, step=step: step(action)._replace(reward=np.ones(2))
    for _ in range(2 * 41):
        actor.work(0)
    sums = np.array(rows[::2])  # of the first group
    once = np.cumsum(settings.options.gamma ** np.arange(20))
    np.testing.assert_allclose(sums, np.concatenate([once, once, once[:1]])[:, None].repeat(2, 1))
    flow.close()


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_statistics_are_of_the_observations_in_rows(end, tmp_path):
    """Not of those that episodes end with, which nobody acts by."""
    path, starts = tmp_path / "run", {"learning_starts": 1_000, "groups": 1}
    settings = config("dqn", "test_normalized_runs:Still", path, **starts, **BOTH)
    flow, seen, rows = hosted(settings), [], []
    actor = worker(flow, "actor")
    actor.statistics.add = lambda index, found: seen.append(found.copy())
    [group], [writer] = actor.groups, actor.writers
    step, add = group.step, writer.add

    def ended(action):
        steps = step(action)
        numbers = np.random.default_rng(len(rows)).standard_normal(steps.observation.shape)
        over = steps.terminated | steps.truncated
        flags = {"terminated": over & False, "truncated": over & False, end: over}
        observation = steps.observation + numbers.astype(np.float32)
        return steps._replace(observation=observation, reward=np.ones(4), **flags)

    def noted(**columns):
        rows.append(columns["observation"].copy())
        return add(**columns)

    group.step, writer.add = ended, noted
    for _ in range(45):
        actor.work(0)
    np.testing.assert_allclose([found[:, :-1] for found in seen], rows)
    once = np.cumsum(settings.options.gamma ** np.arange(20))
    sums = np.concatenate([once, once, once[:5]])
    np.testing.assert_allclose([found[:, -1] for found in seen], sums[:, None].repeat(4, 1))
    flow.close()


def test_returns_begin_anew_where_an_episode_cannot_be_played_again(tmp_path):
    flow = hosted(config("ppo", "CartPole-v1", tmp_path / "run", **BOTH))
    actor = worker(flow, "actor")
    for _ in range(9):
        assert actor.work(0)
    state = actor.state_dict()
    flow.close()
    state["groups"][1]["actions"][0] = None  # as of an episode that is too long
    flow = hosted(config("ppo", "CartPole-v1", tmp_path / "again", **BOTH))
    again = worker(flow, "actor")
    again.load_state_dict(state)
    expected = np.array(state["returns"])
    assert expected[1, 0] > 0
    expected[1, 0] = 0.0
    np.testing.assert_array_equal(again.returns, expected)
    flow.close()


def test_figures_are_of_observations_normalized_as_the_update_had_them(tmp_path, monkeypatch):
    seen, update, figures = [], PPO.update, PPO.figures

    def update_and_note(self, batch):
        seen.append(batch["observation"].clone())
        return update(self, batch)

    def note_and_tell(self, batch):
        seen.append(batch["observation"].clone())
        return figures(self, batch)

    monkeypatch.setattr(PPO, "update", update_and_note)
    monkeypatch.setattr(PPO, "figures", note_and_tell)
    run("ppo", "CartPole-v1", tmp_path / "run", total_env_steps=40, **BOTH)
    assert len(seen) == 2 and torch.equal(*seen)


def test_rewards_of_0_and_constant_observations_are_defined(tmp_path):
    result = run(
        "dqn",
        "test_normalized_runs:Still",
        tmp_path / "run",
        total_env_steps=600,
        **EVALUATED,
        **BOTH,
    )
    assert result.best_return == 0
    vector = parameters(tmp_path / "run")["normalization"]
    torch.testing.assert_close(vector, torch.tensor([0.1, 0.0, 1.0, 1.0, 1.0]))


def test_several_learners_normalize_by_the_mean_of_what_they_found(tmp_path):
    """They look one after another, and must hold the same numbers."""
    flow = hosted(config("dqn", "CartPole-v1", tmp_path / "run", **BOTH))
    learner, others = worker(flow, "learner"), torch.arange(9.0)
    flow.streams["statistics"].sink().add(0, np.random.default_rng(0).normal(3, 5, (50, 5)))
    share = Share(0, 2, lambda vector: vector.add_(others).div_(2))
    learner._normalize()
    alone = learner.algorithm.normalization.vector.clone()
    learner.algorithm.algorithm.share = share
    learner._normalize()
    assert torch.equal(learner.algorithm.normalization.vector, (alone + others) / 2)
    flow.close()


def test_several_actors_and_learners_normalize(tmp_path):
    path = tmp_path / "run"
    settings = {"backend": "process", "learners": 2, "actors": 2, "total_env_steps": 2_000}
    run("dqn", "CartPole-v1", path, samples_per_insert=8.0, **settings, **BOTH)
    saved = np.array(counters(path)["statistics"])
    assert saved.shape == (2, 3, 5)
    # an actor may be about to add the last ones
    assert counters(path)["env_steps"] - saved[:, 0, 0].sum() in range(2 * 2 + 1)
    assert (parameters(path)["normalization"][4:] != 1).all()


def test_statistics_go_on_with_another_number_of_actors():
    parts = [moments_of(np.random.default_rng(i).standard_normal((9 + i, 4))) for i in range(3)]
    checkpoint = Checkpoint(None, {"statistics": [part.tolist() for part in parts]})
    totals = [
        StatisticsStream(4, n).host(OwnMemory(), checkpoint).source().total() for n in (1, 2, 3, 5)
    ]
    for total in totals:
        np.testing.assert_allclose(total, totals[2], rtol=1e-12)
    with pytest.raises(ValueError, match="reshape"):
        StatisticsStream(5, 3).host(OwnMemory(), checkpoint)


@pytest.mark.parametrize("name", BOTH)
def test_what_is_no_yes_or_no_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=f"{name} must be True or False, got 'yes'"):
        config("dqn", "CartPole-v1", tmp_path / "run", **{name: "yes"})


def test_observations_without_numbers_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="normalize_observations=True needs observations with"):
        run("dqn", "FrozenLake-v1", tmp_path / "run", normalize_observations=True)
    assert not (tmp_path / "run").exists()
