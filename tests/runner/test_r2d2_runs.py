"""Runs of R2D2: what rows hold, and what is remembered."""

import numpy as np
import pytest
import torch
from runs import config, hosted, run, worker
from test_recurrent_runs import begin_with_the_next, forget_nothing

from kary_replay.runner import ConfigError, play
from kary_replay.runner.policies.checkpoint_policy import checkpoint_policy
from kary_replay.runner.policies.export import export
from kary_replay.runner.policies.player import Player
from kary_replay.writers.recurrent_steps import RecurrentStepWriter

GREEDY = {"exploration_initial": 0.0, "exploration_final": 0.0}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Workers in processes of their own have one, too."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def rows_of(path, **settings):
    """Return an algorithm, and the rows of actors that act by it alone from the first row on."""
    how = {"total_env_steps": 10_000, "learning_starts": 1, "samples_per_insert": 1e-3}
    how |= {"env_options": {"max_episode_steps": 11}, **settings}
    flow = hosted(config("r2d2", "CartPole-v1", path, {**GREEDY, "burn_in": 0}, **how))
    learner, actor = worker(flow, "learner"), worker(flow, "actor")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # small weights would choose one action alone
        for parameter in learner.algorithm.q.parameters():
            if parameter.dim() == 2:
                parameter.normal_(generator=generator)
    learner.publish()
    others = [worker(flow, "policy_worker")] if settings.get("inference") == "worker" else []
    while actor.row.env_steps < 400:
        for each in (actor, *others):
            each.work(0.0)
    buffer = flow.streams["experience"]._buffer
    rows = {name: buffer.field_view(name)[: len(buffer)].copy() for name in buffer.fields}
    actor.close()
    flow.close()
    return learner.algorithm, {name: column[20:] for name, column in rows.items()}


def mistakes(algorithm, rows):
    """Return how many actions are not those that the stored states lead to, or states not zeros.

    Episodes of 11 steps have a whole row at their beginning, and then one that is not.
    """
    state, found = rows["recurrent_state"], 0
    for t in range(rows["mask"].shape[1]):
        outputs, state = algorithm.outputs_and_state(rows["observation"][:, t], state)
        found += int((outputs.argmax(1) != rows["action"][:, t])[rows["mask"][:, t]].sum())
    return found + int((rows["recurrent_state"][rows["mask"].all(1)] != 0).any(1).sum())


WAYS = {"one group": {"groups": 1}, "two groups": {}, "policy worker": {"inference": "worker"}}


@pytest.mark.parametrize("way", WAYS)
def test_rows_begin_with_what_the_policy_carried(way, tmp_path):
    algorithm, rows = rows_of(tmp_path / "run", **WAYS[way])
    begins = (rows["recurrent_state"] == 0).all(1)
    assert begins.any() and not begins.all() and not rows["mask"].all()
    assert len(set(rows["action"][rows["mask"]])) == 2
    assert mistakes(algorithm, rows) == 0


def begin_with_zeros(monkeypatch):
    add = RecurrentStepWriter.add
    monkeypatch.setattr(
        RecurrentStepWriter, "add", lambda self, state, **step: add(self, state=0 * state, **step)
    )


@pytest.mark.parametrize("fault", [forget_nothing, begin_with_zeros, begin_with_the_next])
def test_faults_of_actors_would_be_noticed(fault, tmp_path, monkeypatch):
    fault(monkeypatch)
    algorithm, rows = rows_of(tmp_path / "run")
    assert mistakes(algorithm, rows) > 0


def recalled(name, path):
    """Return how often the sign is remembered by a policy that was trained for 1,600 episodes."""
    options = {"learning_rate": 0.005, "hidden": (16,), "n_step": 2, "gamma": 0.95, "tau": 0.02}
    options |= {"exploration_fraction": 0.5, "target_interval": 1}
    if name == "r2d2":
        options |= {"burn_in": 0, "lstm_hidden_size": 8}
    how = {"evaluate": "after", "evaluation_interval": 10**6, "evaluation_episodes": 40}
    how |= {"samples_per_insert": 32.0, "envs_per_actor": 8}
    result = run(name, "masked_envs:Recall", path, options, total_env_steps=8_000, **how)
    return result.last_return


def test_what_was_seen_before_is_remembered(tmp_path):
    assert recalled("r2d2", tmp_path / "with") > 0.9
    assert recalled("dqn", tmp_path / "without") < 0.75


@pytest.fixture
def trained(tmp_path):
    """A run whose policy remembers."""
    path = tmp_path / "run"
    how = {"evaluate": "during", "evaluation_interval": 400, "evaluation_episodes": 3}
    run("r2d2", "CartPole-v1", path, {"learning_rate": 0.01}, total_env_steps=1_600, **how)
    return path


def test_play_plays_the_episodes_of_the_evaluation(trained, tmp_path, monkeypatch):
    evaluation = checkpoint_policy(trained).evaluation
    assert evaluation is not None
    found = play.play(trained, episodes=3, output=tmp_path / "film.gif")
    assert found == list(evaluation.returns)
    act = Player.act
    monkeypatch.setattr(Player, "act", lambda self, seen: (self.begin(), act(self, seen))[1])
    policy = checkpoint_policy(trained)
    seen = np.random.default_rng(0).normal(size=(4, 200, 4)).astype(np.float32)
    player = policy.player(200)
    assert all((player.act(one) == policy.act(one)).all() for one in seen)  # which remembers not


def test_an_export_is_refused_by_name(trained):
    pytest.importorskip("stable_baselines3")
    with pytest.raises(ConfigError, match="r2d2"):
        export(trained)


def test_continuous_actions_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="r2d2 needs discrete actions"):
        run("r2d2", "Pendulum-v1", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_episodes_may_be_shorter_than_the_burn_in(tmp_path):
    how = {"env_options": {"max_episode_steps": 4}, "total_env_steps": 1_200}
    result = run("r2d2", "CartPole-v1", tmp_path / "run", {"burn_in": 5}, **how)
    assert result.env_steps == 1_200 and result.updates > 0
    policy = checkpoint_policy(tmp_path / "run")
    fresh = policy.config.new_algorithm(policy.env_factory)
    learned, first = (
        each.q.state_dict()["memory.inputs.weight"] for each in (policy.algorithm, fresh)
    )
    assert not torch.equal(learned, first)


def test_several_learners_and_actors_in_processes(tmp_path):
    how = {"backend": "process", "actors": 2, "learners": 2, "total_env_steps": 2_000}
    result = run("r2d2", "CartPole-v1", tmp_path / "run", **how)
    assert result.env_steps >= 2_000 and result.updates > 0
