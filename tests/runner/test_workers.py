"""Workers alone, on a flow of their own: how far actors explore, and who waits for whom."""

import functools

import faulty_envs
import numpy as np
import pytest
import torch
from runs import config, hosted, run, worker

from kary_replay import Field, PrioritizedReplayBuffer
from kary_replay.algorithms import Share
from kary_replay.runner.environments.vector import Environments
from kary_replay.runner.failures import DivergedError
from kary_replay.runner.workers import evaluator

COLUMNS = {
    "observation": Field((4,), np.float32),
    "action": Field((), np.int64),
    "reward": Field((), np.float32),
    "next_observation": Field((4,), np.float32),
    "discount": Field((), np.float32),
}


@pytest.fixture
def flow_of(tmp_path):
    flows = []

    def make(n_actors=1, **settings):
        settings = config("dqn", "CartPole-v1", tmp_path / "run", actors=n_actors, **settings)
        flows.append(hosted(settings, n_actors))
        return flows[-1]

    yield make
    for flow in flows:
        flow.close()


def asked_for(actor, monkeypatch):
    """What the networks of an actor are asked for: a list of exploration, [N] each."""
    seen, decide = [], actor.algorithm.decide

    def spy(outputs, exploration, rng):
        seen.append(exploration)
        return decide(outputs, exploration, rng)

    monkeypatch.setattr(actor.algorithm, "decide", spy)
    return seen


@pytest.mark.parametrize("spread", [0.0, 7.0])
def test_actors_explore_by_the_schedule_and_their_rank(spread, flow_of, monkeypatch):
    """Ape-X, section 4.1: epsilon to the power of 1 + spread · i / (N - 1), over all actors."""
    options = {"exploration_fraction": 0.9}
    flow = flow_of(
        2,
        options=options,
        exploration_spread=spread,
        total_env_steps=400,
        samples_per_insert_error=1e6,
    )
    for index in range(2):
        actor = worker(flow, "actor", index)
        seen = asked_for(actor, monkeypatch)
        steps = []
        while flow.board.env_steps < 200 * (index + 1):
            steps.append(flow.board.env_steps)
            assert actor.work(0)
        exponent = 1 + spread * (4 * index + np.arange(4)) / 7
        # each was asked for when its group had been stepped, two pieces of work before
        for number in range(2, len(seen)):
            epsilon = actor.algorithm.exploration(min(1.0, steps[number - 1] / 400))
            rows = slice(0, 2) if number % 2 == 0 else slice(2, 4)
            np.testing.assert_allclose(seen[number], epsilon ** exponent[rows], rtol=1e-5)
        assert len({tuple(row) for row in seen}) > 1
        actor.close()


def test_a_single_environment_explores_as_the_middle_of_many(flow_of, monkeypatch):
    options = {"exploration_initial": 0.4, "exploration_final": 0.4}
    alone = {"envs_per_actor": 1, "groups": 1, "samples_per_insert_error": 1e6}
    flow = flow_of(options=options, exploration_spread=7.0, **alone)
    actor = worker(flow, "actor")
    seen = asked_for(actor, monkeypatch)
    while len(seen) < 3:
        assert actor.work(0)
    np.testing.assert_allclose(seen, 0.4**4.5, rtol=1e-5)
    actor.close()


def test_actions_are_explored_as_asked(flow_of):
    """With a network that always wants action 0, the share of the other one is half of epsilon."""
    options = {"exploration_initial": 0.4, "exploration_final": 0.4}
    flow = flow_of(options=options, total_env_steps=10_000, samples_per_insert_error=1e6)
    learner, actor = worker(flow, "learner"), worker(flow, "actor")
    with torch.no_grad():
        learner.algorithm.q.advantage[-1].bias.copy_(torch.tensor([1e3, -1e3]))
    learner.publish()
    while flow.board.env_steps < 5_000:
        assert actor.work(0)
    action = flow.streams["experience"]._buffer.field_view("action")[
        100:5_000
    ]  # the first ones are all random
    assert action.mean() == pytest.approx(0.2, abs=6 * 0.4 / 70)
    actor.close()


def test_an_actor_that_has_not_begun_has_no_episodes_to_go_on_with(flow_of):
    flow = flow_of(total_env_steps=400)
    first, second = (worker(flow, "actor") for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert not second.started and second.work(0)
    assert (
        len(set(second.groups[0].state_dict()["seeds"] + second.groups[1].state_dict()["seeds"]))
        == 4
    )
    assert first.rng.bit_generator.state != second.rng.bit_generator.state
    first.close()
    second.close()


def test_an_actor_that_is_started_anew_has_other_episodes(flow_of):
    """Also one of a run that goes on, where the number of starts begins at 0 again."""
    flow, seen = flow_of(), []
    role = next(role for role in flow.roles if role.kind == "actor")
    for incarnation, env_steps in ((0, 0), (1, 0), (0, 40), (0, 0)):
        flow.board.row("actor", 0).env_steps = env_steps
        actor = role.worker(flow.seat(role, 0, incarnation))
        actor.groups[0].reset()
        seen.append(tuple(actor.groups[0].state_dict()["seeds"]))
        actor.close()
    assert len(set(seen)) == 3 and seen[0] == seen[3]


def test_a_row_without_an_error_has_a_priority(flow_of):
    flow = flow_of(initial_priority="td_error")
    actor = worker(flow, "actor")
    for tensor in actor.algorithm.minimizers["q"].flat, actor.algorithm.targets["q"]:
        tensor.zero_()
    rows = {name: np.zeros((3, *field.shape), field.dtype) for name, field in COLUMNS.items()}
    rows["reward"][1] = 0.5
    epsilon = flow.streams["experience"]._buffer.priority_epsilon
    np.testing.assert_allclose(actor.priority(rows), [epsilon, 0.5 + epsilon, epsilon])
    assert epsilon > 0
    actor.close()


def test_evaluations_of_more_episodes_than_environments(tmp_path):
    """Every episode has a seed of its own, begins without a memory, and may be cut off."""

    class Memory:
        state_size, states = 1, []

        def initial_state(self, n):
            return np.zeros((n, 1), np.float32)

        def choose(self, observation, exploration, rng, state):
            self.states.append(state[0, 0])
            return {"action": np.zeros(len(state), np.int64), "next_state": state + 1}

    seeds = []

    class Seeded(faulty_envs.Faulty):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    envs = Environments(Seeded, 3, np.random.default_rng(0), "Seeded")
    returns, n_cut = evaluator.play(Memory(), envs, 7, 4, lambda: None)
    assert len(returns) == n_cut == 7
    assert sorted(set(seeds)) == [evaluator.FIRST_SEED + i for i in range(7)]
    assert Memory.states == [0, 1, 2, 3] * 3


def test_actors_wait_for_the_learner_and_it_for_them(flow_of):
    flow = flow_of(total_env_steps=10_000, samples_per_insert=32.0, samples_per_insert_error=640.0)
    actor, learner = worker(flow, "actor"), worker(flow, "learner")
    assert not learner.work(0)  # there is nothing to draw
    while actor.work(0):
        pass
    # what learning starts with, and as far as they may be ahead
    assert flow.streams["experience"]._buffer.n_added == 100 + 640 / 32
    while learner.work(0):
        pass
    assert flow.board.updates == 2 * 640 / 32
    assert not learner.work(0) and actor.work(0)
    actor.close()


def test_a_learner_may_draw_ahead(tmp_path):
    result = run(
        "dqn",
        "CartPole-v1",
        tmp_path / "run",
        prefetch=2,
        total_env_steps=400,
        samples_per_insert=32.0,
    )
    # one for each step after the first 100, but for batches that lay ready in the end
    assert result.updates >= 290


def test_a_learner_sets_priorities_and_anneals_beta(flow_of):
    flow = flow_of(total_env_steps=400, samples_per_insert_error=1e6)
    actor, learner = worker(flow, "actor"), worker(flow, "learner")
    while flow.board.env_steps < 200:
        assert actor.work(0)
    assert (
        flow.streams["experience"]._buffer.total_mass == 200
    )  # every row has the largest priority, 1
    for _ in range(100):
        assert learner.work(0)
    assert flow.streams["experience"]._buffer.total_mass < 190
    assert flow.streams["experience"]._buffer.beta == pytest.approx(0.4 + 0.5 * (1 - 0.4))
    actor.close()


def test_actors_act_by_what_was_published_last(flow_of):
    flow = flow_of(total_env_steps=400, publish_interval=10, samples_per_insert_error=1e6)
    actor, learner = worker(flow, "actor"), worker(flow, "learner")
    while flow.board.env_steps < 200:
        assert actor.work(0)
    for _ in range(25):
        assert learner.work(0)
    before = learner.algorithm.minimizers["q"].flat.clone()
    assert actor.work(0) and actor.row.parameter_version == 20
    assert not torch.equal(actor.algorithm.minimizers["q"].flat, before)
    learner.publish()
    assert actor.work(0) and actor.row.parameter_version == 25
    assert torch.equal(actor.algorithm.minimizers["q"].flat, before)
    actor.close()


@pytest.mark.parametrize("target", [5.0, 501.0])
def test_a_run_ends_when_its_target_is_reached(target, tmp_path):
    settings = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 2}
    result = run(
        "dqn",
        "CartPole-v1",
        tmp_path / "run",
        total_env_steps=600,
        target_return=target,
        **settings,
    )
    assert (result.env_steps < 600) == (target == 5.0)
    assert (result.last_return >= target) == (target == 5.0) and len(result.evaluations) == (
        1 if target == 5.0 else 4
    )


@pytest.mark.parametrize("final", [1.0, 0.2, 0.0])
def test_the_learning_rate_falls_with_the_steps_that_are_done(final, flow_of):
    options = {"learning_rate": 1e-3, "learning_rate_final_share": final}
    flow = flow_of(options=options, total_env_steps=400, samples_per_insert=16.0)
    actor, learner = worker(flow, "actor"), worker(flow, "learner")
    minimizer, rates = learner.algorithm.minimizers["q"], {}
    while actor.work(0) | (worked := learner.work(0)):
        if worked and learner.row.updates % 100 == 0:
            rates[flow.board.env_steps / 400] = minimizer.learning_rate
    assert rates
    for done, rate in rates.items():
        assert rate == pytest.approx(1e-3 * (1 - done * (1 - final)))
    again = worker(flow, "learner")
    again.load_state_dict(learner.state_dict())
    assert again.algorithm.minimizers["q"].learning_rate == minimizer.learning_rate
    state = learner.state_dict()
    del state["progress"]  # as in a run of 0.1.0
    again.load_state_dict(state)
    assert again.algorithm.minimizers["q"].learning_rate == 1e-3


def test_learners_agree_on_the_learning_rate(flow_of):
    """They look at the steps one after another, and must take the same step."""
    flow = flow_of(options={"learning_rate_final_share": 0.0}, total_env_steps=400)
    learner = worker(flow, "learner")
    learner.algorithm.share = Share(0, 2, lambda numbers: numbers.add_(0.5).div_(2))
    learner._advance()
    assert learner.algorithm.progress == 0.25


def test_a_learner_whose_td_errors_are_not_finite_says_that_it_diverged(flow_of):
    """And writes no checkpoint of parameters that are not finite."""
    flow = flow_of(total_env_steps=400, samples_per_insert_error=1e6)
    actor, learner = worker(flow, "actor"), worker(flow, "learner")
    while flow.board.env_steps < 200:
        assert actor.work(0)
    assert learner.work(0) and learner.state_dict()["updates"] == 1
    with torch.no_grad():
        learner.algorithm.minimizers["q"].flat[3] = float("nan")
    with pytest.raises(
        DivergedError,
        match="training diverged: the parameters of q are no longer finite after 1 updates",
    ):
        learner.state_dict()
    message = (
        "training diverged: TD errors are no longer finite after 1 updates, "
        "at environment step 200. Try a new run with"
    )
    with pytest.raises(DivergedError, match=message):
        learner.work(0)
    actor.close()


def without_arrays(sample, n, out=None):
    """Draw a batch of its own, whatever arrays are offered."""
    return sample(n)


def test_batches_are_drawn_into_the_same_tensors(tmp_path, monkeypatch):
    """And the updates are those of batches of their own, to the bit."""
    drawn, trained = [], []
    for is_kept in (True, False):
        flow = hosted(config("dqn", "CartPole-v1", tmp_path / str(is_kept), samples_per_insert=64))
        learner, actor = worker(flow, "learner"), worker(flow, "actor")
        if not is_kept:
            anew = functools.partial(without_arrays, learner.experience._buffer.sample)
            monkeypatch.setattr(PrioritizedReplayBuffer, "sample", anew)
        seen = []
        while actor.row.env_steps < 400:
            actor.work(0.0)
            while learner.work(0.0):
                seen.append({name: id(tensor) for name, (_, tensor) in learner._last.items()})
        monkeypatch.undo()
        assert len(seen) > 20
        drawn.append(seen)
        trained.append(learner.algorithm.minimizers["q"].flat.clone())
        actor.close()
        learner.close()
        flow.close()
    assert all(one == drawn[0][0] for one in drawn[0])
    assert torch.equal(*trained)
