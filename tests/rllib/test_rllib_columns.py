"""What reaches the learner: the same columns as RLlib's own connectors make of the same rows."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.connectors.learner import (
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
)
from ray.rllib.core.learner.training_data import TrainingData
from rllib_episodes import episode

from kary_replay.adapters.rllib import (
    DrawnRows,
    PrioritizedEpisodeReplayBuffer,
    ReplayColumns,
    use,
)

SPACES = (gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), gym.spaces.Discrete(10_000))


class Module:
    """As much of a module as connectors look at."""

    framework = "torch"

    def is_stateful(self):
        return False


def pipeline(config):
    made = config.build_learner_connector(*SPACES)
    from ray.rllib.connectors.common import AddObservationsFromEpisodesToBatch

    made.insert_after(
        AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch()
    )
    return made


def train_batch(config, episodes):
    return pipeline(config)(rl_module=Module(), batch={}, episodes=episodes, shared_data={})


def drawn(whole: bool, n: int = 32, **options):
    one = PrioritizedEpisodeReplayBuffer(1_000, seed=0, beta=0.4, whole_batches=whole, **options)
    one.add(
        [episode(0, 0, 40, terminated=True), episode(1, 0, 3, truncated=True), episode(2, 0, 9)]
    )
    one.sample(n)
    one.update_priorities(np.arange(float(n)))
    return one.sample(n, n_step=(1, 3))


@pytest.mark.parametrize("n", [1, 32, 257])
def test_columns_are_those_of_the_default_connectors(n):
    plain = train_batch(DQNConfig(), drawn(False, n))
    whole = train_batch(use(DQNConfig()), drawn(True, n))
    assert set(plain) == set(whole) >= {"obs", "new_obs", "actions", "rewards", "weights", "n_step"}
    for name, tensor in plain.items():
        assert torch.is_tensor(whole[name]) and whole[name].dtype == tensor.dtype, name
        assert torch.equal(whole[name], tensor), name


def test_other_episodes_pass_as_they_are():
    episodes = [episode(0, 0, 5), episode(1, 0, 2)]
    for name, tensor in train_batch(DQNConfig(), episodes).items():
        assert torch.equal(train_batch(use(DQNConfig()), episodes)[name], tensor), name


def test_rows_and_episodes_do_not_mix():
    with pytest.raises(ValueError, match="1 of 2 are no rows"):
        train_batch(use(DQNConfig()), [*drawn(True), episode(0, 0, 3)])


def test_without_the_connector_it_says_what_is_missing():
    with pytest.raises(ValueError, match=r"not an episode.*ReplayColumns is the first"):
        train_batch(DQNConfig(), drawn(True))


def test_connectors_that_read_episodes_are_told_what_to_do():
    with_infos = DQNConfig().learners(
        learner_connector=lambda *spaces: AddInfosFromEpisodesToTrainBatch()
    )
    with pytest.raises(ValueError, match="whole_batches=False"):
        train_batch(use(with_infos.copy()), drawn(True))
    config = use(with_infos, whole_batches=False)
    assert len(train_batch(config, drawn(False))["infos"]) == 32
    assert not config.replay_buffer_config["whole_batches"]
    use(config, alpha=0.3)
    assert not config.replay_buffer_config["whole_batches"]
    use(config, whole_batches=True)  # and back
    assert len(config._learner_connector(*SPACES)) == 2


def test_a_connector_factory_that_returns_nothing_is_refused():
    config = use(DQNConfig().learners(learner_connector=lambda *spaces: None))
    with pytest.raises(ValueError, match="must return connectors, got None"):
        config._learner_connector(*SPACES)


def test_connectors_that_were_there_come_after_ours():
    class Doubled(ReplayColumns):
        def __call__(self, *, batch, **kwargs):
            (key,) = batch["rewards"]
            batch["rewards"][key][0] *= 2
            return batch

    config = DQNConfig().learners(learner_connector=lambda *spaces: Doubled())
    plain, doubled = (train_batch(use(one), drawn(True)) for one in (DQNConfig(), config))
    assert torch.equal(plain["rewards"] * 2, doubled["rewards"])
    assert len(use(use(config))._learner_connector(*SPACES)) == 2  # said twice, done once


@pytest.mark.parametrize("n_learners", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [5, 32, 33])
def test_learners_get_consecutive_rows(n_learners, n):
    (rows,) = drawn(True, n)
    dealt = [part for part, _ in TrainingData(episodes=[rows]).shard(n_learners)]
    lengths = [sum(map(len, part.episodes)) for part in dealt]
    assert sum(lengths) == n and max(lengths) - min(lengths) <= 1
    parts = [np.concatenate([r.columns["obs"] for r in part.episodes]) for part in dealt]
    np.testing.assert_array_equal(np.concatenate(parts), rows.columns["obs"])


def test_rows_travel_to_other_processes():
    (rows,) = drawn(True, 8)
    sent = pickle.loads(pickle.dumps(rows))
    assert isinstance(sent, DrawnRows) and len(sent) == 8 and "8 rows of obs" in repr(sent)
    for name, values in rows.columns.items():
        np.testing.assert_array_equal(sent.columns[name], values)
    assert len(sent[:3]) == 3 and len(sent[3:]) == 5
    assert len(copy.deepcopy(sent)) == 8
    with pytest.raises(TypeError, match="by slices"):
        sent[3]
