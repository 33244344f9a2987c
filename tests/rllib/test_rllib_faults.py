"""Faults of RLlib's own buffer: each test shows it there, and not in ours.

If one of RLlib's is mended, its half of the test fails, and documentation has to be changed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.from_config import from_config
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as RllibBuffer
from ray.rllib.utils.replay_buffers import ReplayBuffer
from rllib_episodes import episode

from kary_replay.adapters.rllib import PrioritizedEpisodeReplayBuffer, use


def both(capacity: int = 1_000, **options):
    ours = PrioritizedEpisodeReplayBuffer(capacity, seed=0, **options)
    return ours, RllibBuffer(capacity, **options)


def drawn_times(buffer, n_step, n=600):
    rows = buffer.sample(n, n_step=n_step, gamma=0.9, beta=0.4)
    return Counter(row.t_started for row in rows), rows


def test_the_last_steps_of_an_episode_are_drawn_with_n_steps():
    ours, theirs = both()
    for one in (ours, theirs):
        one.add(episode(0, 0, 10, terminated=True))
    assert set(drawn_times(theirs, 3)[0]) == set(range(8))  # 8 and 9 never
    found, rows = drawn_times(ours, 3)
    assert set(found) == set(range(10))
    assert all(abs(count - 60) < 30 for count in found.values())
    for row in rows:
        assert row.is_terminated == (row.t_started >= 7)


def test_an_episode_shorter_than_n_is_drawn():
    ours, theirs = both()
    for one in (ours, theirs):
        one.add([episode(0, 0, 2, terminated=True), episode(1, 0, 8)])
    seen = {int(row.get_observations(0)[0]) for row in drawn_times(theirs, 3)[1]}
    assert seen == {1}
    assert {int(row.get_observations(0)[0]) for row in drawn_times(ours, 3)[1]} == {0, 1}


def test_a_range_of_n_includes_its_upper_end():
    ours, theirs = both()
    for one in (ours, theirs):
        one.add(episode(0, 0, 500))
    used = [
        {int(row.get_extra_model_outputs("n_step", -1)) for row in drawn_times(one, (2, 5))[1]}
        for one in (theirs, ours)
    ]
    assert used[0] == {2, 3, 4}
    assert used[1] >= {2, 3, 4, 5}


@pytest.mark.parametrize("n_learners", [2, 3])
def test_errors_of_several_learners_reach_the_rows_that_they_are_of(n_learners):
    """Each learner returns the errors of the rows it was dealt; RLlib concatenates them."""

    def right(buffer, rows) -> float:
        dealt = [part.episodes for part, _ in TrainingData(episodes=rows).shard(n_learners)]
        errors = np.concatenate([_error_of(one) for part in dealt for one in part])
        buffer.update_priorities(errors)
        found = _priorities(buffer)
        drawn = np.concatenate([_error_of(one) for one in rows])
        return float(np.mean([abs(found[int(e) - 1] - e) < 1e-3 for e in drawn]))

    theirs = RllibBuffer(100)
    ours = PrioritizedEpisodeReplayBuffer(100, seed=0, whole_batches=True)
    for one in (theirs, ours):
        one.add(episode(0, 0, 60))
    assert right(theirs, theirs.sample(24, beta=0.4)) < 0.5
    assert right(ours, ours.sample(24, beta=0.4)) == 1.0


def _error_of(rows) -> np.ndarray:
    """An error that says of which step it is."""
    if hasattr(rows, "columns"):
        return 1.0 + rows.columns["obs"][:, 1]
    return np.array([1.0 + rows.t_started])


def _priorities(buffer) -> list[float]:
    """The priority of each step of the only episode; alpha is 1."""
    if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
        return buffer._steps.native.tree.get(np.arange(60)).tolist()
    return [buffer._sum_segment[leaf] for _, _, leaf in buffer._indices]


def test_a_full_buffer_takes_the_rest_of_an_episode_whose_beginning_has_left():
    ours, theirs = both(20)
    for one in (ours, theirs):
        one.add(episode(0, 0, 10))
        one.add(episode(1, 0, 8, terminated=True))
        one.add(episode(0, 10, 14))
    assert {int(row.get_observations(0)[0]) for row in theirs.sample(200, beta=0.4)} == {1}
    seen = [tuple(map(int, row.get_observations(0))) for row in ours.sample(400)]
    assert {(0, t) for t in range(10, 14)} <= set(seen)


def _set_up(config):
    """What the algorithms ask of their configuration."""
    config.validate()
    return "EpisodeReplayBuffer" in config.replay_buffer_config["type"]


@pytest.mark.parametrize("config", [DQNConfig, SACConfig])
def test_a_class_can_be_given(config):
    """RLlib's validation or its making of the buffer refuses classes."""
    given = config().training(replay_buffer_config={"type": RllibBuffer, "capacity": 100})
    with pytest.raises((TypeError, ValueError)):
        _set_up(given.environment("CartPole-v1"))
    ours = use(config().environment("CartPole-v1"), capacity=100)
    assert _set_up(ours)
    made = from_config(ReplayBuffer, ours.replay_buffer_config)
    assert isinstance(made, PrioritizedEpisodeReplayBuffer) and made.capacity == 100


def test_a_dotted_name_can_be_given_to_dqn():
    name = "kary_replay.adapters.rllib.PrioritizedEpisodeReplayBuffer"
    made = from_config(ReplayBuffer, {"type": name, "capacity": 77, "alpha": 0.5, "beta": 0.4})
    assert isinstance(made, PrioritizedEpisodeReplayBuffer) and made.capacity == 77
