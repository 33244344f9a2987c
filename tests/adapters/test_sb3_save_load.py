"""Models, buffers and checkpoints are saved, loaded and copied, and other versions are refused."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from sb3_runs import (
    ALGORITHMS,
    CLASSES,
    arrays_of,
    assert_trained,
    environment,
    first_difference,
    learn_with,
    over_classes,
)
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

each_of_ours = pytest.mark.parametrize(
    ("kind", "buffer_class"), [(kind, ours) for kind, (ours, _) in CLASSES.items()]
)


def assert_alike(buffer, other):
    assert (buffer.pos, buffer.full, buffer.n_envs) == (other.pos, other.full, other.n_envs)
    assert_same_rows(buffer, other)


def assert_same_rows(buffer, other):
    for (name, array), theirs in zip(
        arrays_of(buffer).items(), arrays_of(other).values(), strict=True
    ):
        np.testing.assert_array_equal(array, theirs, err_msg=name)
        assert not np.shares_memory(array, theirs), name


@over_classes()
@pytest.mark.parametrize("name", ["DQN", "TQC"])
def test_a_saved_model_learns_on(kind, buffer_class, name, tmp_path):
    model = learn_with(kind, buffer_class, name, n_envs=2)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = ALGORITHMS[name].load(tmp_path / "model", env=model.get_env())
    assert loaded.replay_buffer.size() == 0
    loaded.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    assert_alike(loaded.replay_buffer, model.replay_buffer)
    assert first_difference(loaded, model) is None
    observation = model.get_env().reset()
    choices = [one.predict(observation, deterministic=True)[0] for one in (model, loaded)]
    np.testing.assert_array_equal(*choices)
    loaded.learn(80, reset_num_timesteps=False)
    assert loaded.num_timesteps >= 250
    assert first_difference(loaded, model) is not None
    assert_trained(loaded)


@over_classes("array", "her")
def test_a_model_loads_with_another_environment_and_number_of_them(kind, buffer_class, tmp_path):
    model = learn_with(kind, buffer_class, "SAC")
    model.set_env(environment(kind, "SAC"))
    model.learn(80)
    with pytest.raises(AssertionError):
        model.set_env(environment(kind, "SAC", 3))
    model.save(tmp_path / "model")
    again = ALGORITHMS["SAC"].load(tmp_path / "model", env=environment(kind, "SAC", 3))
    assert again.replay_buffer.n_envs == 3
    again.learn(120)
    assert_trained(again)


@over_classes("array")
def test_a_model_can_take_its_buffer_along(kind, buffer_class, tmp_path):
    model = learn_with(kind, buffer_class, "DQN")
    model.save(tmp_path / "model", include=["replay_buffer"])
    loaded = DQN.load(tmp_path / "model")
    assert type(loaded.replay_buffer) is buffer_class
    assert_alike(loaded.replay_buffer, model.replay_buffer)


@over_classes()
def test_a_buffer_is_saved_to_a_path_or_a_stream(kind, buffer_class, tmp_path):
    model = learn_with(kind, buffer_class, "DQN", n_envs=2)
    kept = model.replay_buffer
    stream = io.BytesIO()
    for target in (tmp_path / "deeper" / "path.pkl", str(tmp_path / "name"), stream):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Path .* does not exist. Will create it")
            model.save_replay_buffer(target)
        model.replay_buffer = None
        stream.seek(0)
        model.load_replay_buffer(target, truncate_last_traj=False)
        assert_alike(model.replay_buffer, kept)
    assert (tmp_path / "name.pkl").exists()
    model.learn(80, reset_num_timesteps=False)
    assert_trained(model)


@over_classes()
def test_a_loaded_buffer_is_on_the_models_device(kind, buffer_class, tmp_path):
    model = learn_with(kind, buffer_class, "DQN")
    model.save_replay_buffer(tmp_path / "buffer")
    for device in ("cuda", "cpu"):  # without a GPU, too: only the name is looked at
        model.device = torch.device(device)
        model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
        assert model.replay_buffer.device == model.device


@over_classes("array", "n_step")
def test_a_buffer_is_extended_by_the_rows_of_another(kind, buffer_class):
    buffer = learn_with(
        kind, buffer_class, "SAC", env=environment("array", "SAC"), steps=250
    ).replay_buffer
    assert buffer.timeouts.any()
    old = copy.deepcopy(buffer)
    # an array of one, each
    infos = [[{"TimeLimit.truncated": truncated}] for truncated in old.timeouts]
    buffer.reset()
    buffer.extend(
        old.observations, old.next_observations, old.actions, old.rewards, old.dones, infos
    )
    assert buffer.full and buffer.pos == 0
    assert_same_rows(buffer, old)


@over_classes()
def test_a_deep_copy_stands_alone(kind, buffer_class):
    model = learn_with(kind, buffer_class, "TD3", n_envs=2)
    twin = copy.deepcopy(model.replay_buffer)
    assert_alike(twin, model.replay_buffer)
    before = twin.actions.copy()
    model.learn(80, reset_num_timesteps=False)
    np.testing.assert_array_equal(twin.actions, before)
    assert (model.replay_buffer.actions != before).any()


@each_of_ours
@pytest.mark.parametrize(
    "clone",
    [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))],
    ids=["copy", "pickle"],
)
def test_a_clone_draws_alike(kind, buffer_class, clone):
    model = learn_with(kind, buffer_class, "SAC", n_envs=2)
    buffers = model.replay_buffer, clone(model.replay_buffer)
    if kind == "her":
        buffers[1].set_env(model.get_env())
    for _ in range(3):
        drawn = []
        for buffer in buffers:
            np.random.seed(6)  # of which goals are drawn
            samples = buffer.sample(20)
            buffer.update_priorities(np.linspace(0, 3, 20))
            drawn.append(
                (
                    samples.rewards.batch.handle["index"],
                    samples.rewards,
                    samples.rewards.batch.importance_weight,
                )
            )
        for one, other in zip(*drawn, strict=True):
            np.testing.assert_array_equal(one, other)


@over_classes()
def test_checkpoints_hold_the_buffer(kind, buffer_class, tmp_path):
    env = VecNormalize(environment(kind, "DQN"), norm_obs=kind != "her")
    model = learn_with(kind, buffer_class, "DQN", env=env, steps=0)
    every = CheckpointCallback(70, tmp_path, save_replay_buffer=True, save_vecnormalize=True)
    model.learn(140, callback=every)
    assert len(list(tmp_path.glob("rl_model_replay_buffer_*_steps.pkl"))) == 2
    again = DQN.load(tmp_path / "rl_model_140_steps", env=env)
    again.load_replay_buffer(
        tmp_path / "rl_model_replay_buffer_140_steps", truncate_last_traj=False
    )
    # SB3 calls back before it adds
    assert (again.num_timesteps, again.replay_buffer.size()) == (140, 139)
    again.learn(60, reset_num_timesteps=False)
    assert_trained(again)


@over_classes("array")
@pytest.mark.parametrize("lean", [False, True])
def test_learning_again_warns_only_where_a_trajectory_is_cut(kind, buffer_class, lean, recwarn):
    kwargs = {
        "handle_timeout_termination": not lean,
        "model_kwargs": {"optimize_memory_usage": lean},
    }
    model = learn_with(kind, buffer_class, "DQN", steps=150, **kwargs)
    model.learn(60, reset_num_timesteps=False)
    assert not [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    position = model.replay_buffer.pos
    model.replay_buffer.dones[:] = 0
    model.learn(1)
    found = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    assert len(found) == lean
    assert all("trajectory in the replay buffer will be truncated" in message for message in found)
    assert model.replay_buffer.dones[position - 1] == lean


@over_classes("her")
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("cut", [False, True])
def test_a_loaded_hindsight_buffer_may_go_on_or_be_cut(
    kind, buffer_class, n_envs, cut, tmp_path, recwarn
):
    model = learn_with(kind, buffer_class, "SAC", n_envs=n_envs, steps=82 * n_envs)
    before = copy.deepcopy(model.replay_buffer)
    running = before._current_ep_start != before.pos
    assert running.any()
    model.save_replay_buffer(tmp_path / "buffer")
    recwarn.clear()
    model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=cut)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == cut
    assert all(
        "last trajectory in the replay buffer will be truncated" in message for message in messages
    )
    after = model.replay_buffer
    last = after.pos - 1
    assert (after.dones[last, running] == cut).all()
    assert (after.timeouts[last, running] == cut).all()
    assert ((after.ep_length[last, running] > 0) == cut).all()
    after.dones[last], after.timeouts[last] = before.dones[last], before.timeouts[last]
    assert_alike(after, before)
    with pytest.raises(ValueError, match="already initialized"):
        after.set_env(model.get_env())
    model.learn(80, reset_num_timesteps=cut)
    assert_trained(model)


@each_of_ours
def test_another_version_is_named(kind, buffer_class):
    buffer = learn_with(kind, buffer_class, "DQN", steps=100).replay_buffer
    state = buffer.__getstate__()
    for there, said in (
        ({"_format": 99, "_version": "7.2"}, "kary-replay 7.2"),
        ({"_format": 1}, "kary-replay before 0.1.0"),
    ):
        other = {name: value for name, value in state.items() if name != "_version"} | there
        with pytest.raises(
            ValueError,
            match=rf"{buffer_class.__name__} was saved by {said} in format .*load it with {said}",
        ):
            buffer_class.__new__(buffer_class).__setstate__(other)
    assert state["_version"] == kary_replay.__version__


def test_a_beta_schedule_is_saved_along(tmp_path):
    model = learn_with(
        "array", PrioritizedReplayBuffer, "DQN", beta=kary_replay.LinearSchedule(0.2, 1.0, 1000)
    )
    model.save_replay_buffer(tmp_path / "buffer")
    buffer, drawn = model.replay_buffer, model.replay_buffer.n_sampled
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer is not buffer
    assert (model.replay_buffer.n_sampled, model.replay_buffer.beta) == (drawn, buffer.beta)
    model.replay_buffer.n_sampled = 500
    model.replay_buffer.sample(10)
    assert model.replay_buffer.beta == pytest.approx(0.6)
