"""Runs of policies that remember: who carries what, and that learners evaluate what was acted."""

import json

import numpy as np
import pytest
import torch
from runs import config, hosted, parameters, run, worker

from kary_replay.runner import ConfigError, play
from kary_replay.runner.environments.vector import Environments
from kary_replay.runner.policies.checkpoint_policy import checkpoint_policy
from kary_replay.runner.policies.export import export
from kary_replay.runner.policies.player import Player
from kary_replay.runner.streams.rollout import RolloutWriter
from kary_replay.runner.workers.actor import Actor

LSTM = {"lstm_hidden_size": 6}
SHORT = {"env_options": {"max_episode_steps": 7}}  # and rollouts have 10 steps
WAYS = {
    "actors that take turns": {"actors": 2},
    "one group": {"groups": 1},
    "policy worker": {"inference": "worker"},
    "normalized": {"normalize_observations": True},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Workers in processes of their own have one, too."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


class Together:
    """The workers of a flow, taking turns in this process."""

    def __init__(self, algorithm, path, n_actors=1, **settings):
        options = {**LSTM, "learning_rate": 0.01, **settings.pop("options", {})}
        how = {"total_env_steps": 10_000, **SHORT, **settings}
        self.flow = hosted(config(algorithm, "CartPole-v1", path, options, **how), n_actors)
        self.learner = worker(self.flow, "learner")
        others = [worker(self.flow, "actor", index) for index in range(n_actors)]
        if settings.get("inference") == "worker":
            others.append(worker(self.flow, "policy_worker"))
        self.others, self.actors = others, others[:n_actors]

    def batches(self, n):
        """Yield the batch of each update as the learner sees it, before it learns from it."""
        for _ in range(n):
            while not self.learner.experience.may_draw(0, 0.0):
                for other in self.others:
                    other.work(0.0)
            batch = self.learner.experience.draw()
            yield self.learner.as_tensors(batch)
            assert self.learner.work(0.0)  # draws the same again

    def close(self):
        for actor in self.actors:
            actor.close()
        self.flow.close()


def apart(algorithm, batch):
    """Return by how much log pi(a|s) of what was done differs from what the actor told, at most."""
    if algorithm.normalization is not None:
        batch = algorithm.normalization.batch(batch)
        algorithm = algorithm.algorithm
    rows = algorithm.evaluated(batch)
    with torch.no_grad():
        outputs, _ = algorithm.network(rows["observation"])
    log_pi = algorithm.network.distribution.log_prob(outputs, rows["action"])
    return float((log_pi - batch["log_prob"].reshape(-1)).abs().max())


@pytest.mark.parametrize("way", WAYS)
def test_learners_evaluate_rollouts_as_they_were_acted(way, tmp_path):
    """Also such as began within an episode, and of episodes that end in them."""
    settings = dict(WAYS[way])
    together = Together("a2c", tmp_path / "run", settings.pop("actors", 1), **settings)
    within = []
    for batch in together.batches(8):
        within.append((batch["state"] != 0).any(2)[0].tolist())
        assert apart(together.learner.algorithm, batch) < 1e-5
    assert not any(within[0]) and all(within[1])
    assert not all(within[7])  # after 70 steps episodes of 7 begin
    together.close()


def forget_nothing(monkeypatch):
    monkeypatch.setattr(Environments, "begins", property(lambda self: np.zeros(self.n_envs, bool)))


def begin_with_zeros(monkeypatch):
    add = RolloutWriter.add
    monkeypatch.setattr(
        RolloutWriter, "add", lambda self, state, **row: add(self, state=0 * state, **row)
    )


def begin_with_the_next(monkeypatch):
    chosen = Actor._chosen

    def later(self):
        found = chosen(self)
        self.state[self.turn] = found["next_state"]
        return found

    monkeypatch.setattr(Actor, "_chosen", later)


@pytest.mark.parametrize("fault", [forget_nothing, begin_with_zeros, begin_with_the_next])
def test_faults_of_actors_would_be_noticed(fault, tmp_path, monkeypatch):
    fault(monkeypatch)
    together = Together("ppo", tmp_path / "run")
    assert max(apart(together.learner.algorithm, b) for b in together.batches(4)) > 1e-4
    together.close()


def test_an_actor_goes_on_with_what_its_policy_remembers(tmp_path, monkeypatch):
    """But from zeros where an episode cannot be played again."""
    first = Together("ppo", tmp_path / "run")
    (actor,) = first.actors
    for _ in range(9):
        assert actor.work(0.0)
    state = actor.state_dict()
    carried = [group.clone() for group in state["state"]]
    assert all((group != 0).any() for group in carried)
    state["groups"][1]["actions"][0] = None  # as of an episode that is too long
    again = Together("ppo", tmp_path / "again")
    again.actors[0].load_state_dict(state)
    found = again.actors[0].state
    np.testing.assert_array_equal(found[0], carried[0])
    np.testing.assert_array_equal(found[1][1], carried[1][1])
    assert (found[1][0] == 0).all() and (carried[1][0] != 0).any()
    for together in (first, again):
        together.close()


def test_an_actor_asks_anew_where_an_episode_begins_anew(tmp_path, monkeypatch):
    """What was asked before the checkpoint was for the old episode."""
    first = Together("ppo", tmp_path / "run")
    for _ in range(4):
        assert first.actors[0].work(0.0)
    state = first.actors[0].state_dict()
    state["exploration"] = [[0.0] * len(group["seeds"]) for group in state["groups"]]
    state["groups"][1]["actions"][0] = None  # as of an episode that is too long
    again = Together("ppo", tmp_path / "again")
    (actor,) = again.actors
    asked = []
    for name in "request", "ask_again":
        monkeypatch.setattr(
            actor.inference, name, lambda group, *_, name=name: asked.append((group, name))
        )
    actor.load_state_dict(state)
    assert asked == [(0, "ask_again"), (1, "request")]
    for together in (first, again):
        together.close()


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_several_learners_have_the_sequences_of_their_environments(name, tmp_path):
    how = {"backend": "process", "actors": 2, "groups": 1, "learners": 2, "max_staleness": 0}
    result = run(name, "CartPole-v1", tmp_path / "run", LSTM, total_env_steps=400, **how, **SHORT)
    assert result.updates == 10 and result.env_steps >= 400
    assert all(torch.isfinite(one).all() for one in parameters(tmp_path / "run").values())


def test_the_columns_of_rollouts_have_one_state_for_each_environment(tmp_path):
    together = Together("ppo", tmp_path / "run", max_staleness=1)
    rollouts = together.flow.streams["experience"]._rollouts
    assert rollouts.arrays["state"].shape == (2, 2, 1, 2, 12)
    assert rollouts.arrays["log_prob"].shape == (2, 2, 10, 2)
    together.close()
    without = hosted(config("ppo", "CartPole-v1", tmp_path / "other"))
    assert "state" not in without.streams["experience"]._rollouts.arrays
    without.close()


# --------------------------------------------------------------------------------- what it is for


def recalled(name, path, lstm_hidden_size):
    """Return how often the sign is remembered by a policy that was trained for 1,200 episodes."""
    options = {"lstm_hidden_size": lstm_hidden_size, "hidden": (), "n_envs": 8}
    options |= {"learning_rate": 0.02, "gae_lambda": 0.9}
    if "ppo" in name:
        options |= {"batch_size": 40, "n_epochs": 4}
    how = {"evaluate": "after", "evaluation_interval": 10**6, "evaluation_episodes": 40}
    result = run(
        name, "masked_envs:Recall", path, options, total_env_steps=6_000, max_staleness=0, **how
    )
    return result.last_return


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "appo"])
def test_what_was_seen_before_is_remembered(name, tmp_path):
    assert recalled(name, tmp_path / "with", 8) > 0.9
    assert recalled(name, tmp_path / "without", None) < 0.75


# --------------------------------------------------------------------------- policies that are kept


@pytest.fixture
def trained(tmp_path):
    """A run whose policy remembers, and has learned so fast that this matters."""
    path = tmp_path / "run"
    options = {**LSTM, "learning_rate": 0.01, "gae_lambda": 0.8}
    how = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 3}
    run("ppo", "CartPole-v1", path, options, total_env_steps=800, **how)
    return path


def test_play_plays_the_episodes_of_the_evaluation(trained, tmp_path, monkeypatch):
    evaluation = checkpoint_policy(trained).evaluation
    assert evaluation is not None
    found = play.play(trained, episodes=3, output=tmp_path / "film.gif")
    assert found == list(evaluation.returns)
    act = Player.act
    monkeypatch.setattr(Player, "act", lambda self, seen: (self.begin(), act(self, seen))[1])
    assert play.play(trained, episodes=3, output=tmp_path / "film.gif") != found


def test_a_player_remembers_its_episode(trained):
    policy, rng = checkpoint_policy(trained), np.random.default_rng(0)
    flat = policy.algorithm.minimizers["policy_and_value"].flat
    flat += torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
    seen = rng.normal(size=(6, 50, 4)).astype(np.float32)
    player = policy.player(50)
    played = [player.act(one) for one in seen]
    algorithm, state = policy.algorithm, None
    for one, action in zip(seen, played, strict=True):
        chosen = algorithm.choose(torch.from_numpy(one), np.zeros(50, np.float32), rng, state)
        state = chosen["next_state"]
        assert (chosen["action"] == action).all()
    assert any((policy.act(one) != action).any() for one, action in zip(seen, played, strict=True))
    player.begin()
    assert (player.act(seen[0]) == played[0]).all()


def test_an_export_is_refused_by_name(trained):
    pytest.importorskip("stable_baselines3")
    with pytest.raises(ConfigError, match="PPO has no place for networks with lstm_hidden_size=6"):
        export(trained)


def test_config_json_names_the_option(trained):
    assert json.loads((trained / "config.json").read_text())["options"]["lstm_hidden_size"] == 6


def test_learners_without_whole_sequences_are_refused(tmp_path):
    how = {"learners": 2, "backend": "process"}
    with pytest.raises(ConfigError, match="learners=2 must divide the 1 sequences of batch_size=1"):
        config("ppo", "CartPole-v1", tmp_path / "run", {**LSTM, "batch_size": 10}, **how)
    assert not (tmp_path / "run").exists()
