"""Beta as a schedule, the callback, and the schedule itself."""

import pickle
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from sb3_runs import learn
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

import kary_replay as kr
from kary_replay.adapters.sb3 import PrioritizedReplayBuffer, PrioritizedReplayCallback


def test_a_schedule_follows_the_transitions_drawn():
    buffer = learn(
        "DQN", PrioritizedReplayBuffer, beta=kr.LinearSchedule(0.2, 1.0, 10_000)
    ).replay_buffer
    drawn = buffer.n_sampled
    assert drawn % 25 == 0
    assert drawn >= 25 * 25
    assert buffer.beta == pytest.approx(0.2 + 0.8 * (drawn - 25) / 10_000)
    buffer.beta = 0.5
    buffer.sample(10)
    assert buffer.beta == 0.5
    buffer.beta = kr.LinearSchedule(0.0, 1.0, 2 * buffer.n_sampled)
    assert buffer.beta == 0.5


def test_the_annealed_beta_reaches_the_weights():
    options = {"beta": lambda n: float(n >= 2000), "uniform_share": 0.0}
    buffer = learn("DQN", PrioritizedReplayBuffer, **options).replay_buffer
    buffer.n_sampled = 0
    assert (buffer.sample(64).rewards.batch.importance_weight == 1).all()
    buffer.n_sampled = 2000
    batch = buffer.sample(64).rewards.batch
    mass = buffer._native.tree.get(batch.handle["index"])
    np.testing.assert_allclose(batch.importance_weight[:, 0], mass.min() / mass, rtol=1e-5)


@pytest.mark.parametrize("beta", [1.5, lambda n: 2.0, "x"])
def test_refuses_a_beta_out_of_range(beta):
    with pytest.raises((ValueError, TypeError), match="beta"):
        learn("DQN", PrioritizedReplayBuffer, beta=beta)


def test_the_callback_anneals_and_logs():
    seen = []

    class Output(KVWriter):
        def write(self, values, excluded, step=0):
            seen.append(dict(values))

        def close(self):
            pass

    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=PrioritizedReplayBuffer,
        buffer_size=300,
        device="cpu",
        seed=0,
    )
    model.set_logger(Logger(None, [Output()]))
    model.learn(600, callback=PrioritizedReplayCallback(final_beta=0.9, every=50), log_interval=1)
    assert model.replay_buffer.beta == pytest.approx(0.9)
    betas = [values["replay/beta"] for values in seen if "replay/beta" in values]
    assert len(betas) >= 5
    assert betas == sorted(betas)
    assert 0.4 <= betas[0] < 0.5
    last = [values for values in seen if "replay/priority_p10" in values][-1]
    assert last["replay/uniform_share"] in (0.1, 1)
    assert 0 < last["replay/least_noise"] <= last["replay/relative_noise"]
    assert (
        last["replay/priority_p10"]
        <= last["replay/priority_p50"]
        <= last["replay/priority_p90"]
        <= last["replay/max_priority"]
    )


def annealed(callback, *calls, **options):
    """Train by several calls of learn; return beta after each of them, and the model."""
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=PrioritizedReplayBuffer,
        buffer_size=300,
        device="cpu",
        seed=0,
    )
    betas = []
    for n_steps in calls:
        model.learn(n_steps, callback=callback, reset_num_timesteps=False, **options)
        betas.append(model.replay_buffer.beta)
    return betas, model


def test_the_callback_anneals_over_several_calls_of_learn():
    callback = PrioritizedReplayCallback(every=10, total_timesteps=800)
    betas, model = annealed(callback, 200, 400, 200, 100)
    assert betas == pytest.approx([0.55, 0.85, 1.0, 1.0])
    assert model.num_timesteps == 900
    # One of its own for each call, as after loading a model, goes on where the one before ended.
    again = [PrioritizedReplayCallback(every=10, total_timesteps=800) for _ in range(2)]
    model.replay_buffer.beta, model.num_timesteps = 0.4, 0
    for callback, beta in zip(again, (0.55, 0.85), strict=True):
        model.learn(200 if beta < 0.6 else 400, callback=callback, reset_num_timesteps=False)
        assert model.replay_buffer.beta == pytest.approx(beta)


def test_without_a_total_the_callback_anneals_over_the_call_of_learn():
    betas, _ = annealed(PrioritizedReplayCallback(every=10, final_beta=0.8), 200, 200)
    assert betas == pytest.approx([0.8, 0.8])


def test_beta_is_final_where_the_total_is_behind():
    _, model = annealed(None, 100)
    seen = []

    class Look(BaseCallback):
        def _on_step(self):
            seen.append(self.model.replay_buffer.beta)
            return True

    callbacks = [PrioritizedReplayCallback(every=1000, total_timesteps=100), Look()]
    model.learn(20, callback=callbacks, reset_num_timesteps=False)
    assert seen == [1.0] * 20


def test_the_callback_refuses_another_buffer():
    with pytest.raises(
        TypeError, match="needs a prioritized replay buffer, the model has ReplayBuffer"
    ):
        DQN("MlpPolicy", "CartPole-v1", buffer_size=100).learn(
            5, callback=PrioritizedReplayCallback()
        )


@pytest.mark.parametrize(
    "kwargs",
    [
        {"final_beta": 1.5},
        {"final_beta": "x"},
        {"final_beta": True},
        {"every": 0},
        {"every": 1.5},
        {"every": None},
        {"total_timesteps": 0},
        {"total_timesteps": 1e5},
        {"total_timesteps": True},
    ],
)
def test_the_callback_refuses_bad_arguments(kwargs):
    with pytest.raises((ValueError, TypeError), match=next(iter(kwargs))):
        PrioritizedReplayCallback(**kwargs)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((np.nan, 1, 5), "start"), ((0, "x", 5), "end"), ((0, 1, 0), "duration")],
)
def test_the_schedule_refuses_bad_arguments(arguments, name):
    with pytest.raises((ValueError, TypeError), match=name):
        kr.LinearSchedule(*arguments)


def test_the_callback_does_not_silently_replace_a_schedule():
    options = {"replay_buffer_class": PrioritizedReplayBuffer, "buffer_size": 500}
    schedule = kr.LinearSchedule(0.4, 0.6, 1000)
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"beta": schedule}, **options)
    with pytest.raises(ValueError, match="final_beta=None"):
        model.learn(10, callback=PrioritizedReplayCallback())
    model.learn(10, callback=PrioritizedReplayCallback(final_beta=None, every=np.int64(5)))
    assert model.replay_buffer.beta_schedule is schedule


def test_a_further_training_anneals_anew():
    _, model = annealed(None, 10)
    for first in (0.4, 0.4, 0.2):  # as made; as it was; set by hand
        if first == 0.2:
            model.replay_buffer.beta = first
        seen = []

        class Look(BaseCallback):
            def _on_step(self, seen=seen):
                seen.append(self.model.replay_buffer.beta)
                return True

        model.learn(100, callback=[PrioritizedReplayCallback(every=10), Look()])
        assert seen[0] == pytest.approx(first, abs=0.02) and seen == sorted(seen)
        assert model.replay_buffer.beta == 1.0 and model.replay_buffer.first_beta == first


def test_a_schedule_that_cannot_be_pickled_is_noticed_at_once():
    def made(beta):
        box = spaces.Box(-1, 1, (3,), np.float32)
        return PrioritizedReplayBuffer(8, box, box, device="cpu", beta=beta)

    with pytest.warns(UserWarning, match="save_replay_buffer will fail: pass a function of a modu"):
        buffer = made(lambda n: 0.4)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for beta in (schedule_of_a_module, kr.LinearSchedule(0.4, 1.0, 100), 0.4):
            assert pickle.loads(pickle.dumps(made(beta))).beta == 0.4
            buffer.beta = beta
            pickle.dumps(buffer)


def schedule_of_a_module(n_drawn):
    return 0.4
