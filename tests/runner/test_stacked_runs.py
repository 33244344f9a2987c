"""Runs whose observations are stacks of frames, which are stored once."""

import gymnasium
import numpy as np
import pytest
import stacked_envs
import torch
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    MaxAndSkipObservation,
    RecordEpisodeStatistics,
    TimeLimit,
)
from runs import config, hosted, run, worker
from stacked_envs import STACK, Dimmed, Numbered, check_stacks, make

from kary_replay import Batch, Field, FrameReplayBuffer, FrameStackWriter, NStepWriter
from kary_replay.algorithms import ALGORITHMS, DQN
from kary_replay.errors import FieldError
from kary_replay.runner import ConfigError, Runner
from kary_replay.runner.environments.stacking import Stacking, stacking_of
from kary_replay.writers.stacked_steps import StackedStepWriter

ENV = "stacked_envs:make"


def buffer_of(flow):
    return flow.streams["experience"]._buffer


@pytest.fixture(params=[(1, "reset"), (3, "reset"), (3, "zero")], ids=str)
def flow(request, tmp_path):
    n_step, padding = request.param
    how = {"env_options": {"padding": padding}, "learning_starts": 5_000}
    made = hosted(config("dqn", ENV, tmp_path / "run", {"n_step": n_step}, **how))
    actor = worker(made, "actor")
    for _ in range(200):
        actor.work(0.0)
    yield made
    actor.close()
    made.close()


def test_what_is_drawn_is_what_was_seen(flow):
    buffer, options = buffer_of(flow), flow.config.options
    assert isinstance(buffer, FrameReplayBuffer)
    assert (buffer.stack, buffer.n_step) == (STACK, options.n_step)
    batch = buffer.sample(512)
    check_stacks(batch, options.n_step, flow.config.env_options["padding"])
    assert len(np.unique(batch.index)) > 250


@pytest.mark.parametrize("env", ["CartPole-v1", ENV])
def test_rows_have_what_a_policy_carried_to_their_first_step(env, tmp_path, monkeypatch):
    """An algorithm that remembers needs no writer of its own to learn from replay."""
    monkeypatch.setattr(DQN, "state_size", 2)
    monkeypatch.setattr(
        DQN, "outputs_and_state", lambda self, seen, state: (self.outputs(seen), state + 1)
    )
    how = {"envs_per_actor": 1, "groups": 1, "learning_starts": 5_000}
    made = hosted(config("dqn", env, tmp_path / "run", {"n_step": 1}, **how))
    actor = worker(made, "actor")
    for _ in range(200):
        actor.work(0.0)
    batch = buffer_of(made).sample(2_000)  # all of them, so often that none is missed
    carried = batch["state"][np.unique(batch["index"], return_index=True)[1]]
    assert (carried[:, 0] == carried[:, 1]).all() and carried.max() > 5
    moves = np.diff(carried[:, 0])
    assert ((moves == 1) | (carried[1:, 0] == 0)).all() and (carried[1:, 0] == 0).any()
    actor.close()
    made.close()
    assert run("dqn", env, tmp_path / "whole", total_env_steps=300, groups=1).updates > 0


def test_what_is_drawn_ahead_are_tensors_of_whole_stacks(tmp_path):
    """Two tensors, each in memory of its own; on a GPU, where runs draw ahead, too."""
    how = {"backend": "process", "prefetch": 1, "learning_starts": 100}
    made = hosted(config("dqn", ENV, tmp_path / "run", **how))
    actor, learner = worker(made, "actor"), worker(made, "learner")
    while not learner.experience.may_draw(32, 0.0):
        actor.work(0.0)
    batch = learner.experience.draw()
    for name in ("observation", "next_observation"):
        assert isinstance(batch[name], torch.Tensor) and batch[name].is_contiguous()
    assert learner.as_tensors(batch)["observation"] is batch["observation"]
    check_stacks(Batch({name: np.asarray(batch[name]) for name in batch}), 1, "reset")
    assert learner.work(1.0)
    actor.close()
    learner.close()
    made.close()


def as_bytes(column):
    """Return the bytes of each row of a column, which may be a dict of them."""
    parts = column.values() if isinstance(column, dict) else [column]
    return [
        b"".join(map(bytes, row)) for row in zip(*map(np.ascontiguousarray, parts), strict=True)
    ]


@pytest.mark.parametrize("env", [ENV, "stacked_envs:make_watched"])
@pytest.mark.parametrize(("n_step", "padding"), [(1, "zero"), (3, "reset")])
def test_the_rows_are_those_of_whole_observations(env, n_step, padding, tmp_path, monkeypatch):
    columns, found = ("observation", "action", "reward", "next_observation", "discount"), []
    where = "kary_replay.runner.environments.env_factory.stacking_of"
    monkeypatch.setattr(where, lambda env: None)
    for name in ("whole", "frames"):
        how = {"env_options": {"padding": padding}, "learning_starts": 5_000, "groups": 1}
        made = hosted(config("dqn", env, tmp_path / name, {"n_step": n_step}, **how))
        actor = worker(made, "actor")
        for _ in range(100):
            actor.work(0.0)
        buffer = buffer_of(made)
        assert isinstance(buffer, FrameReplayBuffer) == (name == "frames")
        n = len(buffer) if name == "whole" else len(found[0])
        batch = buffer.sample(n, unique=True)
        rows = zip(*(as_bytes(batch[column]) for column in columns), strict=True)
        found.append(sorted(map(b"".join, rows)))
        actor.close()
        made.close()
        monkeypatch.undo()
    assert len(found[0]) > 380 and found[0] == found[1]


def test_stacks_that_wrappers_change_are_stored_whole(tmp_path):
    result = run("dqn", "stacked_envs:make_forgetful", tmp_path / "run", total_env_steps=200)
    assert result.updates > 0


def stacks(first, n_envs=2):
    """Stacks of frames of one pixel: first, first + 1, …, each environment 100 further."""
    base = np.arange(first, first + STACK, dtype=np.uint8) + 100 * np.arange(n_envs)[:, None]
    return base.astype(np.uint8)


def pixels(**options):
    """A buffer of such frames, and what writes whole stacks to it."""
    fields = {"action": Field((), "int64")}
    buffer = FrameReplayBuffer(100, Field((), "uint8"), fields, stack=STACK, seed=0, **options)
    return buffer, StackedStepWriter(FrameStackWriter(buffer, 2, 0.9))


def step(writer, first, following=None):
    following = stacks(first + 1) if following is None else following
    columns = {"action": [0, 1], "reward": [1.0, 2.0]}
    ends = {"terminated": [False, False], "truncated": [False, False]}
    writer.add(observation=stacks(first), next_observation=following, **columns, **ends)


def seen(buffer):
    batch = buffer.sample(64)
    pairs = zip(batch.observation.tolist(), batch.next_observation.tolist(), strict=True)
    return {tuple(map(tuple, pair)) for pair in pairs}


def expected(*firsts):
    return {
        (tuple(stacks(first)[env].tolist()), tuple(stacks(first + 1)[env].tolist()))
        for first in firsts
        for env in range(2)
    }


def test_a_step_that_does_not_lead_on_by_one_frame_is_refused():
    buffer, writer = pixels()
    step(writer, 5)
    with pytest.raises(FieldError, match="next_observation must have the frames of observation"):
        step(writer, 6, stacks(8))
    assert seen(buffer) == expected(5)
    step(writer, 6)
    assert seen(buffer) == expected(5, 6)


@pytest.mark.parametrize("padding", ["repeat", "zeros"])
def test_an_episode_may_begin_with_any_stack(padding):
    """As after a wrapper that takes steps in reset."""
    buffer, writer = pixels(padding=padding)
    step(writer, 5)
    step(writer, 6)
    writer.reset()
    step(writer, 20)
    assert seen(buffer) == expected(5, 6, 20)


@pytest.mark.parametrize("first", [7, 40])
def test_going_on_elsewhere_than_before_a_checkpoint_writes_all_frames(first, tmp_path):
    """As where an episode that is played again takes another course."""
    buffer, writer = pixels()
    for number in (5, 6):
        step(writer, number)
    state = writer.state_dict()
    size = len(buffer)
    again = StackedStepWriter(FrameStackWriter(buffer, 2, 0.9))
    again.load_state_dict(state)
    step(again, first)
    assert seen(buffer) == expected(5, 6, first)
    assert len(buffer) == size + 2 * (1 if first == 7 else 1 + STACK)


class Odd(DQN):
    """Has a column of its own."""

    def columns(self):
        return {**super().columns(), "coin": Field((), "float32")}

    def decide(self, outputs, exploration, rng):
        chosen = super().decide(outputs, exploration, rng)
        return {**chosen, "coin": rng.random(len(outputs), np.float32)}


class Plain(Odd):
    """Has a writer of its own."""

    def writer(self, target, n_envs, priority=None):
        return NStepWriter(target, n_envs, self.options.n_step, self.options.gamma, priority)


@pytest.mark.parametrize(("kind", "stores_frames"), [(Odd, True), (Plain, False)])
def test_algorithms_with_columns_or_writers_of_their_own(
    kind, stores_frames, tmp_path, monkeypatch
):
    monkeypatch.setitem(ALGORITHMS, "odd", kind)
    made = config("odd", ENV, tmp_path / "run", total_env_steps=400)
    flow = hosted(made)
    assert isinstance(buffer_of(flow), FrameReplayBuffer) == stores_frames
    assert "coin" in buffer_of(flow).fields
    flow.close()
    assert Runner(made).run().updates > 0


def test_a_buffer_without_room_for_the_frames_is_refused(tmp_path):
    how = {"buffer_capacity": 47, "learning_starts": 5, "envs_per_actor": 4}
    with pytest.raises(ConfigError, match="buffer_capacity must be at least 48 for 4 environments"):
        run("dqn", ENV, tmp_path / "run", {"n_step": 3}, **how)
    assert not (tmp_path / "run").exists()
    enough = {**how, "buffer_capacity": 48, "total_env_steps": 200}
    assert run("dqn", ENV, tmp_path / "run", {"n_step": 3}, **enough).updates > 0


@pytest.mark.parametrize(
    ("algorithm", "env"), [("dqn", ENV), ("ppo", ENV), ("dqn", "stacked_envs:make_watched")]
)
def test_runs_in_processes_end_and_go_on(algorithm, env, tmp_path):
    directory = tmp_path / "run"
    how = {"backend": "process", "actors": 2, "evaluate": "after", "evaluation_interval": 400}
    result = run(algorithm, env, directory, total_env_steps=800, **how)
    assert result.updates > 0 and result.evaluations
    again = Runner.resume(directory, total_env_steps=1_200).run()
    assert again.env_steps >= 1_200 and again.updates > result.updates


WRAPPED = [
    (lambda: make(), Stacking(STACK, "repeat")),
    (lambda: make("zero"), Stacking(STACK, "zeros")),
    (lambda: stacked_envs.make_watched(), Stacking(STACK, "repeat")),
    (lambda: TimeLimit(RecordEpisodeStatistics(make()), 5), Stacking(STACK, "repeat")),
    (lambda: FrameStackObservation(Dimmed(Numbered()), 4), Stacking(4, "repeat")),
    (lambda: MaxAndSkipObservation(make(), 2), None),
    (lambda: stacked_envs.make_forgetful(), None),
    (lambda: Dimmed(make()), None),
    (lambda: FlattenObservation(make()), None),
    (lambda: make(np.zeros((2, 3), np.uint8)), None),
    (Numbered, None),
    (lambda: gymnasium.make("CartPole-v1"), None),
]


@pytest.mark.parametrize(("make_env", "stacking"), WRAPPED)
def test_which_environments_stack_frames(make_env, stacking):
    assert stacking_of(make_env()) == stacking
