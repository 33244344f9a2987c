"""`use`: what it sets, what it refuses, and what others may do with the configuration then."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from ray import tune
from ray.rllib.algorithms import dqn, ppo, sac, tqc
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.utils.from_config import from_config
from ray.rllib.utils.replay_buffers import ReplayBuffer
from ray.tune.search.variant_generator import generate_variants

from kary_replay.adapters.rllib import (
    PrioritizedEpisodeReplayBuffer,
    ReplayDQN,
    ReplaySAC,
    ReplayTQC,
    use,
)

CONFIGS = [
    (dqn.DQNConfig, ReplayDQN),
    (sac.SACConfig, ReplaySAC),
    (tqc.TQCConfig, ReplayTQC),
]


def made_by(config):
    return from_config(ReplayBuffer, config.replay_buffer_config)


@pytest.mark.parametrize(("kind", "algorithm"), CONFIGS)
def test_it_sets_the_buffer_the_connector_and_the_algorithm(kind, algorithm):
    config = kind()
    assert use(config, capacity=123, alpha=0.7, seed=3) is config
    assert config.algo_class is algorithm
    one = made_by(config)
    assert isinstance(one, PrioritizedEpisodeReplayBuffer) and one.whole_batches
    assert (one.capacity, one._options["alpha"], one.beta) == (123, 0.7, 0.4)


@pytest.mark.parametrize(("kind", "algorithm"), CONFIGS)
def test_what_the_configuration_says_stays(kind, algorithm):
    theirs = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 77, "alpha": 1.0, "beta": 0.0}
    one = made_by(use(kind().training(replay_buffer_config=theirs)))
    assert (one.capacity, one._options["alpha"], one.beta) == (77, 1.0, 0.0)
    defaults = kind().replay_buffer_config
    assert made_by(use(kind())).capacity == defaults["capacity"]


def test_settings_may_be_search_spaces_of_tune():
    config = dqn.DQNConfig().training(replay_buffer_config={"capacity": tune.choice([50, 60])})
    use(config, alpha=tune.grid_search([0.3, 0.7]), beta=tune.uniform(0.2, 0.3))
    use(config, seed=5)
    found = [variant["replay_buffer_config"] for _, variant in generate_variants(config.to_dict())]
    made = [from_config(ReplayBuffer, settings) for settings in found]
    assert [one._options["alpha"] for one in made] == [0.3, 0.7]
    assert all(settings["seed"] == 5 for settings in found)
    for one in made:
        assert isinstance(one, PrioritizedEpisodeReplayBuffer)
        assert one.capacity in (50, 60) and 0.2 <= one.beta <= 0.3
    with pytest.raises(ValueError, match="capacity"):
        use(config, capacity=0)
    with pytest.raises(ValueError, match="whole_batches must be True or False, got a search space"):
        use(config, whole_batches=tune.choice([False, True]))


def test_whatever_else_the_configuration_has_of_its_buffer_stays():
    more = {"extra_model_outputs": ["action_logp"], "batch_size_B": 64, "mine": 1}
    config = use(dqn.DQNConfig().training(replay_buffer_config=more))
    assert more.items() <= config.replay_buffer_config.items()
    made = made_by(config)
    assert made.extra_model_outputs == ("action_logp",) and made.batch_size_B == 64


def test_a_uniform_buffer_stays_one_unless_it_is_said():
    theirs = {"type": "EpisodeReplayBuffer", "capacity": 1_000}
    for given, alpha in (({}, 0.0), ({"alpha": 0.5}, 0.5)):
        config = sac.SACConfig()
        config.replay_buffer_config = dict(theirs)
        made = made_by(use(config, **given))
        assert (made.capacity, made._options["alpha"]) == (1_000, alpha)
    config.replay_buffer_config = {"type": "PrioritizedEpisodeReplayBuffer"}
    made = made_by(use(config))
    assert (made.capacity, made._options["alpha"]) == (10_000, 0.6)


def test_copies_pickles_and_later_changes_keep_it():
    config = use(dqn.DQNConfig(), capacity=99)
    for one in (config.copy(), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        one.training(replay_buffer_config={"alpha": 0.3})
        made = made_by(one)
        assert isinstance(made, PrioritizedEpisodeReplayBuffer)
        assert (made.capacity, made._options["alpha"]) == (99, 0.3)
        assert one.algo_class is ReplayDQN
    assert json.dumps(config.replay_buffer_config["type"]) == '"PrioritizedEpisodeReplayBuffer"'


def test_said_again_it_keeps_what_was_said_before():
    config = use(dqn.DQNConfig().debugging(seed=3), uniform_share=0.2, priority_epsilon=1e-3)
    made = made_by(use(config, alpha=0.5))
    wanted = {"alpha": 0.5, "uniform_share": 0.2, "priority_epsilon": 1e-3, "seed": 3}
    assert wanted.items() <= made._options.items()


def test_the_names_of_the_classes_are_not_rllibs():
    """Tune knows algorithms by them."""
    for kind, algorithm in CONFIGS:
        assert algorithm.__name__ != kind().algo_class.__name__


def test_an_algorithm_of_ones_own_stays():
    class Mine(dqn.DQN):
        pass

    assert use(dqn.DQNConfig(algo_class=Mine)).algo_class is Mine


def _old_stack():
    return dqn.DQNConfig().api_stack(
        enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False
    )


def _several_agents():
    return dqn.DQNConfig().multi_agent(
        policies={"a", "b"}, policy_mapping_fn=lambda agent, *_, **__: agent
    )


def _frozen():
    config = dqn.DQNConfig()
    config.freeze()
    return config


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ppo.PPOConfig(), TypeError, "DQNConfig, SACConfig, TQCConfig.*got PPOConfig"),
        (lambda: {"capacity": 5}, TypeError, "got dict"),
        (_old_stack, ValueError, "old API stack"),
        (_several_agents, ValueError, "several agents"),
        (lambda: CQLConfig().offline_data(input_=["data"]), ValueError, "offline"),
        (lambda: CQLConfig(), ValueError, "offline"),
        (_frozen, ValueError, "frozen"),
    ],
)
def test_what_cannot_use_it_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        use(make())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"capacity": 0}, "capacity"),
        ({"alpha": -1}, "alpha"),
        ({"beta": 2}, "beta"),
        ({"uniform_share": "never"}, "uniform_share"),
    ],
)
def test_settings_out_of_range_change_nothing(settings, says):
    config = sac.SACConfig()
    before = dict(config.replay_buffer_config)
    with pytest.raises((ValueError, TypeError), match=says):
        use(config, **settings)
    assert config.replay_buffer_config == before and config.algo_class is sac.SAC
    assert config._learner_connector is None
