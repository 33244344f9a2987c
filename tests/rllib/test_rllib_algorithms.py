"""Whole algorithms: losses, priorities, checkpoints, with one learner and with two."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms import dqn
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from kary_replay.adapters.rllib import (
    ReplayDQN,
    ReplayInCheckpoints,
    ReplaySAC,
    ReplayTQC,
    use,
)
from kary_replay.errors import CheckpointError

GAMMA = 0.9
CONFIGS = {"dqn": DQNConfig, "sac": SACConfig, "tqc": TQCConfig}
CLASSES = {"dqn": ReplayDQN, "sac": ReplaySAC, "tqc": ReplayTQC}


@pytest.fixture(scope="module", autouse=True)
def a_ray() -> Iterator[None]:
    # a name that is short enough for Ray's sockets
    with tempfile.TemporaryDirectory(prefix="kr-") as folder:
        ray.init(
            address="local",  # not one that happens to run here
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
        )
        yield
        ray.shutdown()


def config_of(name: str, **training):
    """A small and quick configuration; learning begins at once."""
    model = DefaultModelConfig(fcnet_hiddens=[16], head_fcnet_hiddens=[16])
    rates = {"lr": 1e-3} if name == "dqn" else {"lr": None, "critic_lr": 1e-3, "actor_lr": 1e-3}
    return (
        CONFIGS[name]()
        .environment("CartPole-v1" if name == "dqn" else "Pendulum-v1")
        .training(
            gamma=GAMMA,
            train_batch_size_per_learner=16,
            num_steps_sampled_before_learning_starts=40,
            **rates,
            **training,
        )
        .rl_module(model_config=model)
        .debugging(seed=1)
        .reporting(min_sample_timesteps_per_iteration=60, min_time_s_per_iteration=0)
    )


@pytest.fixture
def build():
    """Build algorithms that are stopped when the test is over."""
    built = []

    def call(config):
        built.append(config.build_algo())
        return built[-1]

    yield call
    for one in built:
        one.stop()


def masses(buffer) -> np.ndarray:
    native = buffer._steps.native
    return native.tree.get(np.arange(len(native)))


@pytest.mark.parametrize("name", CONFIGS)
def test_it_trains_and_its_checkpoint_has_the_buffer(build, name, tmp_path):
    algorithm = build(use(config_of(name, n_step=2), capacity=500))
    assert type(algorithm) is CLASSES[name]
    for _ in range(2):
        result = algorithm.train()
    assert result["replay_buffer"]["num_env_steps_sampled_lifetime"] > 0
    buffer = algorithm.local_replay_buffer
    assert len(buffer) >= 120 and len(set(masses(buffer).tolist())) > 10  # errors came back
    algorithm.save_to_path(tmp_path / "saved")
    other = build(use(config_of(name, n_step=2), capacity=500))
    other.restore_from_path(tmp_path / "saved")
    np.testing.assert_array_equal(masses(other.local_replay_buffer), masses(buffer))
    assert repr(other.local_replay_buffer) == repr(buffer)
    for a, b in zip(buffer.sample(64), other.local_replay_buffer.sample(64), strict=True):
        for column, values in a.columns.items():
            np.testing.assert_array_equal(values, b.columns[column])
    other.train()


def test_a_checkpoint_of_rllibs_own_has_no_buffer(build, tmp_path, caplog):
    """The fault: what was restored begins with an empty buffer. Ours reads such a one as well."""
    stock = build(config_of("dqn"))
    stock.train()
    assert len(stock.local_replay_buffer) > 0
    stock.save_to_path(tmp_path / "stock")
    again = build(config_of("dqn"))
    again.restore_from_path(tmp_path / "stock")
    assert len(again.local_replay_buffer) == 0
    ours = build(use(config_of("dqn")))
    ours.restore_from_path(tmp_path / "stock")
    assert len(ours.local_replay_buffer) == 0 and "has no replay buffer" in caplog.text
    ours.train()


def test_from_checkpoint_and_tune_find_the_class_and_the_buffer(build, tmp_path):
    algorithm = build(use(config_of("dqn"), capacity=300))
    algorithm.train()
    algorithm.save_checkpoint(str(tmp_path / "saved"))  # as Tune does
    other = ReplayDQN.from_checkpoint(str(tmp_path / "saved"))
    try:
        assert len(other.local_replay_buffer) == len(algorithm.local_replay_buffer) > 0
        other.local_replay_buffer.add([])
        assert other.local_replay_buffer.sample(4)[0].columns["obs"].shape == (4, 4)
    finally:
        other.stop()


def test_a_checkpoint_may_be_at_an_uri(build, tmp_path):
    algorithm = build(use(config_of("dqn"), capacity=300))
    algorithm.train()
    where = f"file://{tmp_path}/saved"
    algorithm.save_to_path(where)
    other = build(use(config_of("dqn"), capacity=300))
    other.restore_from_path(where)
    expected = masses(algorithm.local_replay_buffer)
    np.testing.assert_array_equal(masses(other.local_replay_buffer), expected)


def test_burn_in_is_refused_before_anything_is_made(build):
    config = use(config_of("dqn")).training(burn_in_len=5)
    with pytest.raises(ValueError, match=r"burn_in_len=5, and this buffer draws steps"):
        build(config)


def test_the_buffer_can_be_restored_alone(build, tmp_path):
    algorithm = build(use(config_of("dqn")))
    algorithm.train()
    algorithm.save_to_path(tmp_path)
    expected = masses(algorithm.local_replay_buffer)
    algorithm.train()
    algorithm.restore_from_path(tmp_path / "replay_buffer", component="replay_buffer")
    np.testing.assert_array_equal(masses(algorithm.local_replay_buffer), expected)
    (tmp_path / "replay_buffer" / "state.pkl").write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        algorithm.restore_from_path(tmp_path / "replay_buffer", component="replay_buffer")
    np.testing.assert_array_equal(masses(algorithm.local_replay_buffer), expected)


def test_an_algorithm_of_ones_own_can_have_the_buffer_in_its_checkpoints(build, tmp_path):
    class Mine(ReplayInCheckpoints, dqn.DQN):
        pass

    config = config_of("dqn")
    config.algo_class = Mine
    algorithm = build(use(config))
    algorithm.train()
    algorithm.save_to_path(tmp_path)
    assert (tmp_path / "replay_buffer" / "state.pkl").exists()


# -------------------------------------------------------------------------- losses and priorities


class Update:
    """What was seen of one update."""

    columns: dict  # the rows, as they were handed to the learners
    weights: dict  # of the networks before it
    slots: np.ndarray
    loss: float  # the mean over the learners
    errors: np.ndarray  # TD errors that came back
    masses: np.ndarray  # of these slots after it


def watch(algorithm) -> list[Update]:
    """Note every update from now on."""
    buffer, group, seen = algorithm.local_replay_buffer, algorithm.learner_group, []
    sample, update, learn = buffer.sample, buffer.update_priorities, group.update

    def watched_sample(*args, **kwargs):
        rows = sample(*args, **kwargs)
        seen.append(Update())
        seen[-1].columns, seen[-1].slots = rows[0].columns, buffer._drawn["index"].copy()
        seen[-1].weights = copy.deepcopy(state_of(algorithm))
        return rows

    def watched_learn(**kwargs):
        results = learn(**kwargs)
        losses = [float(result[DEFAULT_MODULE_ID]["qf_loss"].peek()) for result in results]
        seen[-1].loss = float(np.mean(losses))
        return results

    def watched_update(errors, module_id):
        update(errors, module_id)
        seen[-1].errors = np.array(errors)
        seen[-1].masses = buffer._steps.native.tree.get(seen[-1].slots)

    buffer.sample, buffer.update_priorities = watched_sample, watched_update
    group.update = watched_learn
    return seen


def state_of(algorithm) -> dict:
    return algorithm.learner_group.get_state()["learner"]["rl_module"][DEFAULT_MODULE_ID]


def networks(algorithm, weights):
    """A copy of the module with these weights."""
    if algorithm.config.num_learners == 0:
        module = algorithm.learner_group._learner.module[DEFAULT_MODULE_ID]
    else:
        spec = algorithm.config.get_multi_rl_module_spec(
            spaces=algorithm.spaces, inference_only=False
        )
        module = spec.build()[DEFAULT_MODULE_ID]
        module.make_target_networks()
    module = copy.deepcopy(module.unwrapped() if hasattr(module, "unwrapped") else module)
    module.set_state(weights)
    return module


def tensors(columns):
    return {
        name: torch.as_tensor(np.asarray(values)).float()
        for name, values in columns.items()
        if not isinstance(values, dict)
    }


def dqn_errors(module, columns) -> tuple[torch.Tensor, torch.Tensor]:
    """TD errors and targets of double DQN with a dueling network, by its definition."""
    batch = tensors(columns)

    def q(observations, target):
        with torch.no_grad():
            encode = module._target_encoder if target else module.encoder
            advantage = module._target_af if target else module.af
            value = module._target_vf if target else module.vf
            latent = encode({"obs": observations})["encoder_out"]
            a = advantage(latent)
            return value(latent) + a - a.mean(1, keepdim=True)

    now = q(batch["obs"], False).gather(1, batch["actions"].long()[:, None])[:, 0]
    best = q(batch["new_obs"], False).argmax(1, keepdim=True)
    after = q(batch["new_obs"], True).gather(1, best)[:, 0]
    target = batch["rewards"] + GAMMA ** batch["n_step"] * (1 - batch["terminateds"]) * after
    return now, target


@pytest.mark.parametrize("n_learners", [0, 1, 2])
def test_losses_are_weighted_and_errors_come_back_to_their_rows(build, n_learners):
    """An independent computation of each TD error, in the order of the rows, and of the loss."""
    config = config_of("dqn", n_step=3, td_error_loss_fn="huber", grad_clip=40.0)
    config.learners(num_learners=n_learners)
    algorithm = build(use(config, capacity=500, alpha=0.8, beta=0.7, priority_epsilon=1e-3))
    algorithm.train()
    seen = watch(algorithm)
    for _ in range(6):
        algorithm.training_step()
    assert len(seen) == 6
    for one in seen:
        assert len(one.columns["rewards"]) == 16 * max(n_learners, 1) == len(one.errors)
        now, target = dqn_errors(networks(algorithm, one.weights), one.columns)
        expected = (now - target).abs().numpy()
        np.testing.assert_allclose(one.errors, expected, rtol=2e-4, atol=2e-5)
        masses_of = dict(zip(one.slots.tolist(), (one.errors + 1e-3) ** 0.8, strict=True))
        np.testing.assert_allclose(one.masses, [masses_of[i] for i in one.slots], rtol=1e-5)
        each = torch.nn.functional.huber_loss(now, target, reduction="none")
        weighted = torch.as_tensor(one.columns["weights"]) * each
        assert one.loss == pytest.approx(float(weighted.mean()), rel=1e-3)
        assert one.loss != pytest.approx(float(each.mean()), rel=1e-2)


def numbered():
    """A class of environments whose observations say of which one, episode and step they are.

    Made in a function, so that it is pickled as a whole: other processes do not know this file.
    """

    class Numbered(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1e6, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, config=None):
            self._rng = np.random.default_rng()
            self._seen = np.array([self._rng.integers(2**19), 0, 0], np.float32)

        def reset(self, *, seed=None, options=None):
            self._seen += [0, 1, -self._seen[2]]
            self._length = self._rng.integers(1, 12)
            return self._seen.copy(), {}

        def step(self, action):
            self._seen[2] += 1
            return (
                self._seen.copy(),
                float(self._seen[2]),
                bool(self._seen[2] == self._length),
                False,
                {},
            )

    return Numbered


@pytest.mark.parametrize(("n_runners", "n_envs"), [(0, 3), (1, 2)])
def test_steps_of_several_environments_are_told_apart(build, n_runners, n_envs):
    """Also where they are in other processes, and their chunks come in turns."""
    config = config_of("dqn", n_step=3).environment(numbered())
    config.env_runners(
        num_env_runners=n_runners, num_envs_per_env_runner=n_envs, rollout_fragment_length=4
    )
    algorithm = build(use(config, capacity=2_000))
    for _ in range(2):
        algorithm.train()
    (rows,) = algorithm.local_replay_buffer.sample(512, n_step=3, gamma=GAMMA)
    columns = {name: np.asarray(values) for name, values in rows.columns.items()}
    before, after, n = columns["obs"], columns["new_obs"], columns["n_step"]
    assert len(set(before[:, 0])) == max(n_runners, 1) * n_envs and len(set(before[:, 1])) > 2
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    np.testing.assert_array_equal(after[:, 2], before[:, 2] + n)
    assert set(n) == {1, 2, 3}
    expected = [
        sum(GAMMA**k * (t + k + 1) for k in range(m)) for t, m in zip(before[:, 2], n, strict=True)
    ]
    np.testing.assert_allclose(columns["rewards"], expected, rtol=1e-5)


def test_rllibs_own_gives_the_errors_of_two_learners_to_other_rows(build):
    """The fault, in a whole algorithm: few of the priorities are the errors of their rows."""
    config = config_of("dqn").learners(num_learners=2)
    stock = build(config)
    stock.train()
    buffer, seen = stock.local_replay_buffer, {}
    sample, update = buffer.sample, buffer.update_priorities

    def watched_sample(*args, **kwargs):
        seen["rows"] = sample(*args, **kwargs)
        seen["weights"] = copy.deepcopy(state_of(stock))
        return seen["rows"]

    def watched_update(errors, module_id):
        seen["errors"] = np.array(errors)
        update(errors, module_id)

    buffer.sample, buffer.update_priorities = watched_sample, watched_update
    stock.training_step()
    rows = seen["rows"]
    columns = {
        "obs": np.stack([row.get_observations(0) for row in rows]),
        "new_obs": np.stack([row.get_observations(-1) for row in rows]),
        "actions": np.array([row.get_actions(-1) for row in rows]),
        "rewards": np.array([row.get_rewards(-1) for row in rows]),
        "terminateds": np.array([row.is_terminated for row in rows]),
        "n_step": np.ones(len(rows)),
    }
    now, target = dqn_errors(networks(stock, seen["weights"]), columns)
    expected = (now - target).abs().numpy()
    close = np.isclose(seen["errors"], expected, rtol=1e-3, atol=1e-4)
    assert close.mean() < 0.5
    in_their_order = np.concatenate([expected[0::2], expected[1::2]])  # dealt like cards
    np.testing.assert_allclose(seen["errors"], in_their_order, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_the_same_rows_give_the_same_networks_as_by_rllibs_connectors(build, name):
    """Whole batches and lists of episodes: equal bits after twenty updates."""
    states = []
    for whole in (True, False):
        config = use(config_of(name), seed=5)
        config.replay_buffer_config["whole_batches"] = whole
        algorithm = build(config)
        torch.manual_seed(0)
        algorithm.train()
        states.append(copy.deepcopy(state_of(algorithm)))
    first, second = states
    assert set(first) == set(second)
    for key, values in first.items():
        np.testing.assert_array_equal(values, second[key], err_msg=key)


def _recurrent():
    model = DefaultModelConfig(use_lstm=True, max_seq_len=5)
    return use(config_of("dqn")).rl_module(model_config=model)


def _replaced():
    theirs = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 77}
    return use(config_of("dqn")).training(replay_buffer_config=theirs)


def _several_agents():
    def mapping(agent, *_, **__):
        return "one"

    return use(config_of("dqn")).multi_agent(policies={"one"}, policy_mapping_fn=mapping)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_recurrent, "recurrent module"),
        (_replaced, "MultiAgentPrioritizedEpisodeReplayBuffer of RLlib's.*call use.* last"),
        (_several_agents, "several agents"),
    ],
)
def test_what_was_changed_after_use_is_refused_when_it_is_built(build, make, says):
    with pytest.raises(ValueError, match=says):
        build(make())
