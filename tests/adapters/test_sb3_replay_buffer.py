"""The buffer as SB3 sees it, beside SB3's own: what it stores, returns, saves and refuses."""

import copy
import pickle
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from sb3_runs import learn, state_of
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.adapters.sb3 import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

ARRAYS = ("observations", "actions", "rewards", "next_observations", "dones", "timeouts")
BOX = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS = {
    "float32": BOX,
    "float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "image": spaces.Box(0, 255, (1, 5, 5), np.uint8),
    "discrete": spaces.Discrete(7),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(5),
}
ACTIONS = {
    "float32": BOX,
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(3),
}


def transitions(observation_space, action_space, n_envs, steps, seed=0):
    """What SB3 would pass to `add`, step by step; every third episode end is a time limit."""
    rng = np.random.default_rng(seed)
    for space in (observation_space, action_space):
        space.seed(seed)

    def draw(space):
        return np.stack([space.sample() for _ in range(n_envs)])

    for step in range(steps):
        done = rng.random(n_envs) < 0.5
        infos = [
            {"TimeLimit.truncated": bool(end)} if end and step % 3 == 0 else {} for end in done
        ]
        yield (
            draw(observation_space),
            draw(observation_space),
            draw(action_space),
            rng.normal(size=n_envs),
            done,
            infos,
        )


def filled(
    buffer_class=PrioritizedReplayBuffer, size=20, n_envs=1, steps=30, spaces_=(BOX, BOX), **kwargs
):
    buffer = buffer_class(size, *spaces_, "cpu", n_envs, **kwargs)
    buffer.extend(*zip(*transitions(*spaces_, n_envs, steps), strict=True))
    return buffer


def assert_samples_of(samples, stock, slots, env=None):
    """The batch is what SB3's own buffer holds in these slots, field by field, dtype by dtype."""
    rows, envs = np.divmod(slots, stock.n_envs)
    observations, next_observations = (
        stock.observations[rows, envs],
        stock.next_observations[rows, envs],
    )
    expected = {
        "observations": env.normalize_obs(observations) if env else observations,
        "actions": stock.actions[rows, envs],
        "next_observations": env.normalize_obs(next_observations) if env else next_observations,
        "dones": (stock.dones * (1 - stock.timeouts))[rows, envs][:, None],
        "rewards": env.normalize_reward(stock.rewards[rows, envs][:, None])
        if env
        else stock.rewards[rows, envs][:, None],
    }
    for name, array in expected.items():
        tensor = getattr(samples, name).as_subclass(torch.Tensor)
        assert tensor.dtype == torch.tensor(array).dtype, name
        assert torch.equal(tensor, torch.tensor(array)), name


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("observation_space", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
def test_stores_and_returns_what_sb3_does(observation_space, action_space, n_envs):
    made = {
        "size": 22,
        "n_envs": n_envs,
        "steps": 13 if n_envs == 4 else 30,
        "spaces_": (observation_space, action_space),
    }
    ours, stock = filled(**made), filled(ReplayBuffer, **made)
    assert isinstance(ours, ReplayBuffer)
    assert (ours.pos, ours.full, ours.size(), ours.buffer_size) == (
        stock.pos,
        stock.full,
        stock.size(),
        stock.buffer_size,
    )
    assert ours.full
    for name in ARRAYS:
        mine, theirs = getattr(ours, name), getattr(stock, name)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), name
        np.testing.assert_array_equal(mine, theirs)
    assert stock.timeouts.any()
    assert (stock.dones != stock.timeouts).any()
    samples = ours.sample(50)
    assert_samples_of(samples, stock, samples.rewards.batch.handle["index"])
    explicit = []
    for buffer in (ours, stock):
        np.random.seed(5)
        explicit.append(buffer._get_samples(np.arange(5)))
    for mine, theirs in zip(*(samples[:5] for samples in explicit), strict=True):
        assert torch.equal(mine, theirs)


def test_normalizes_as_sb3_does():
    env = VecNormalize(make_vec_env("Pendulum-v1", 2))
    env.reset()
    for _ in range(20):
        env.step(np.zeros((2, 1), np.float32))
    made = {"n_envs": 2, "spaces_": (env.observation_space, env.action_space)}
    ours, stock = filled(**made), filled(ReplayBuffer, **made)
    samples = ours.sample(30, env=env)
    assert_samples_of(samples, stock, samples.rewards.batch.handle["index"], env)


def test_time_limits_can_be_taken_for_terminations():
    ours = filled(handle_timeout_termination=False)
    assert not ours.timeouts.any()
    samples = ours.sample(40)
    slots = samples.rewards.batch.handle["index"]
    np.testing.assert_array_equal(samples.dones.numpy()[:, 0], ours.dones[slots, 0])


@pytest.mark.parametrize("n_envs", [1, 3])
def test_arrays_are_views_that_can_be_written(n_envs):
    buffer = filled(n_envs=n_envs, steps=4)
    for name, field in zip(ARRAYS, buffer.native.fields, strict=True):
        assert np.shares_memory(getattr(buffer, name), buffer.native.field_view(field)), name
    buffer.timeouts[:] = 0
    buffer.dones[buffer.pos - 1] = True
    buffer.dones[: buffer.pos - 1] = False
    samples = buffer.sample(60)
    slots = samples.rewards.batch.handle["index"]
    np.testing.assert_array_equal(samples.dones.numpy()[:, 0], slots // n_envs == buffer.pos - 1)
    assert 0 < samples.dones.sum() < 60


def test_what_was_added_can_be_changed_by_its_owner():
    buffer = PrioritizedReplayBuffer(5, BOX, BOX, "cpu")
    obs = np.ones((1, 3), np.float32)
    buffer.add(obs, obs, obs, np.ones(1), np.zeros(1), [{}])
    obs[:] = 9
    samples = buffer.sample(2)
    samples.observations[:] = 8
    assert (buffer.observations[0] == 1).all()


def test_sampling_follows_priorities_over_all_environments():
    buffer = filled(n_envs=3, size=30, steps=10, alpha=1.0, beta=1.0, uniform_share=0.0)
    masses = np.arange(1.0, 31)
    buffer.native.tree.set(np.arange(30), masses)
    # stratified: 10 draws per unit of mass, give or take one at each edge
    batch = buffer.sample(4650).rewards.batch
    assert np.abs(np.bincount(batch.handle["index"], minlength=30) - 10 * masses).max() <= 1
    np.testing.assert_allclose(
        batch.importance_weight[:, 0], 1 / masses[batch.handle["index"]], rtol=1e-6
    )


def run_on(buffer, n=3):
    """Some sampling, training and adding; the draws."""
    draws = []
    more = transitions(BOX, BOX, buffer.n_envs, n, seed=1)
    for step in more:
        samples = buffer.sample(16)
        draws.append(samples.rewards.batch.handle["index"].copy())
        F.mse_loss(samples.observations[:, :1], samples.rewards)
        buffer.add(*step)
    return np.concatenate(draws)


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))]
)
def test_a_clone_goes_on_alike(clone):
    buffer = filled(n_envs=2, uniform_share=0.1)
    F.mse_loss(torch.zeros(16, 1), buffer.sample(16).rewards)  # not yet written back
    masses = [one.native.tree.get(np.arange(20)) for one in (clone(buffer), buffer)]
    np.testing.assert_array_equal(*masses)
    assert np.unique(masses[0]).size > 5
    twin = clone(buffer)
    np.testing.assert_array_equal(run_on(twin), run_on(buffer))
    assert (twin.pos, twin.full) == (buffer.pos, buffer.full)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(twin, name), getattr(buffer, name))
        assert not np.shares_memory(getattr(twin, name), getattr(buffer, name))
    twin.rewards[0] = 99
    assert twin._native.field_view("reward")[0] == 99


@pytest.mark.parametrize("uniform_share", [0.1, "auto"])
def test_a_saved_run_goes_on_alike(uniform_share, tmp_path):
    model = learn("DQN", PrioritizedReplayBuffer, n_envs=2, uniform_share=uniform_share)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = DQN.load(tmp_path / "model")
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.replay_buffer.device == loaded.device
    loaded.set_logger(model.logger)
    for one in (model, loaded):
        np.random.seed(9)  # uniform draws are of NumPy's stream, which SB3 does not save
        one.train(gradient_steps=6, batch_size=20)
    a, b = state_of(model), state_of(loaded)
    assert all(torch.equal(a[key], b[key]) for key in a)
    masses = [one.replay_buffer.native.tree.get(np.arange(150)) for one in (model, loaded)]
    np.testing.assert_array_equal(*masses)


def test_a_seeded_run_is_reproducible():
    a, b, c = (state_of(learn("DQN", PrioritizedReplayBuffer, seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(not torch.equal(a[key], c[key]) for key in a)


@pytest.mark.parametrize("uniform_share", [0.0, 0.1, 1.0])
def test_draws_follow_numpys_stream_or_the_seed(uniform_share):
    def draws(numpys_seed, **kwargs):
        np.random.seed(numpys_seed)
        return run_on(filled(uniform_share=uniform_share, **kwargs))

    np.testing.assert_array_equal(draws(4), draws(4))
    assert (draws(4) != draws(5)).any()
    np.testing.assert_array_equal(draws(4, seed=8), draws(5, seed=8))
    assert (draws(4, seed=8) != draws(4, seed=9)).any()


@pytest.mark.parametrize(("uniform_share", "seed"), [(0.0, None), (0.1, None), (1.0, 8)])
def test_only_sb3s_own_draws_advance_numpys_stream(uniform_share, seed):
    before = np.random.get_state()
    run_on(filled(uniform_share=uniform_share, seed=seed))
    assert all(map(np.array_equal, before, np.random.get_state()))


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_making_a_buffer_leaves_the_global_streams_alone(generator):
    former = np.random.get_bit_generator()
    np.random.set_bit_generator(generator(3))
    try:
        torch.manual_seed(3)
        filled()
        found = np.random.randint(2**31), torch.randint(2**31, ())
        np.random.set_bit_generator(generator(3))
        torch.manual_seed(3)
        assert found == (np.random.randint(2**31), torch.randint(2**31, ()))
    finally:
        np.random.set_bit_generator(former)


def test_the_default_device_does_not_matter():
    torch.manual_seed(3)
    expected = filled().native.sample(8).index
    torch.manual_seed(3)
    with torch.device("meta"):
        buffer = filled()
    np.testing.assert_array_equal(buffer.native.sample(8).index, expected)


def test_models_without_a_seed_draw_differently():
    first, second = (
        DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=PrioritizedReplayBuffer).replay_buffer
        for _ in range(2)
    )
    for buffer in (first, second):
        buffer.uniform_share = 0.0
        for step in transitions(buffer.observation_space, buffer.action_space, 1, 100):
            buffer.add(*step)
    draws = [buffer.sample(32).rewards.batch.handle["index"] for buffer in (first, second)]
    assert (draws[0] != draws[1]).any()


@pytest.mark.parametrize("steps", [1, 7, 20, 33])
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_clone_with_one_array_for_both_observations_has_the_newest(clone, steps):
    lean = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    ours = filled(steps=steps, n_envs=2, **lean)
    stock = filled(ReplayBuffer, steps=steps, n_envs=2, **lean)
    np.testing.assert_array_equal(clone(ours).observations, stock.observations)


@pytest.mark.parametrize("uniform_share", [0.0, 1.0])
@pytest.mark.parametrize(
    ("batch_size", "error"),
    [(0, ValueError), (-1, ValueError), (2**31, ValueError), (2**40, ValueError)]
    + [(one, TypeError) for one in (2.5, True, "3", None, (3,), np.array([3]), np.bool_(True))],
)
def test_refuses_what_is_no_batch_size(batch_size, error, uniform_share):
    buffer = filled(uniform_share=uniform_share)
    with pytest.raises(error, match="batch_size must be"):
        buffer.sample(batch_size)
    assert buffer.n_sampled == 0


def test_rows_taken_out_by_hand_are_not_drawn():
    buffer = filled(uniform_share=1.0)
    buffer.native.tree.set(np.arange(0, 20, 2), 0.0)
    drawn = buffer.sample(500).rewards.batch.handle["index"]
    assert set(drawn) == set(range(1, 20, 2))


def test_reset_forgets_rows_and_priorities():
    buffer = filled()
    F.mse_loss(torch.full((16, 1), 50.0), buffer.sample(16).rewards)
    buffer.reset()
    assert (buffer.size(), len(buffer.native), buffer.native.total_mass) == (0, 0, 0)
    with pytest.raises(kary_replay.errors.EmptyBufferError):
        buffer.sample(4)
    buffer.extend(*zip(*transitions(BOX, BOX, 1, 3), strict=True))
    np.testing.assert_array_equal(buffer.native.tree.get(np.arange(20)), [1] * 3 + [0] * 17)


def test_exponents_can_be_set():
    buffer = filled(alpha=1.0, beta=0.0, uniform_share=0.1)
    assert (buffer.sample(8).rewards.batch.importance_weight == 1).all()
    buffer.update_priorities(np.arange(8.0))
    before = buffer.native.tree.get(np.arange(20))
    buffer.alpha = 0.5
    buffer.beta = 1.0
    np.testing.assert_allclose(buffer.native.tree.get(np.arange(20)), np.sqrt(before), rtol=1e-12)
    assert (buffer.alpha, buffer.beta) == (0.5, 1.0)
    assert buffer.sample(200).rewards.batch.importance_weight.min() < 1


def test_an_unseen_loss_is_warned_of_once():
    buffer = filled()
    buffer.sample(4)
    buffer.sample(4)
    buffer.sample(4)
    with pytest.warns(UserWarning, match=r"update_priorities\(td_errors\)") as caught:
        buffer.sample(4)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            buffer.sample(4)
    for other in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        with pytest.warns(UserWarning, match=r"update_priorities\(td_errors\)"):
            assert [other.sample(4) for _ in range(4)]


def test_a_batch_drawn_to_look_at_is_no_cause_for_a_warning():
    buffer = filled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            rewards = buffer.sample(4).rewards
            buffer.sample(2)
            F.mse_loss(torch.zeros(4, 1), rewards)
        for _ in range(999):  # by a callback, say, while an episode goes on
            buffer.sample(4)
    with pytest.warns(UserWarning, match="1,000 batches"):
        assert [(buffer.sample(4).rewards - torch.zeros(4, 1)).norm() for _ in range(6)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_errors_of_any_precision(dtype):
    buffer = filled(alpha=1.0, priority_epsilon=0.5, uniform_share=0.0)
    samples = buffer.sample(4)
    F.mse_loss(samples.rewards.to(dtype) + 2, samples.rewards.to(dtype))
    assert buffer.native.max_priority == pytest.approx(2.5, rel=0.05)
    buffer.sample(4)
    buffer.update_priorities(torch.full((4,), 3.0, dtype=dtype))
    assert buffer.native.max_priority == 3.5


def test_no_warning_where_the_loss_is_seen_or_priorities_come_by_hand():
    buffer = filled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.huber_loss(torch.zeros(4, 1), buffer.sample(4).rewards)
        buffer.sample(4)
        buffer.update_priorities(torch.ones(4, 1))
        buffer.sample(4)


def test_priorities_by_hand_replace_those_of_the_loss():
    buffer = filled(alpha=1.0, priority_epsilon=0.5, uniform_share=0.0)
    samples = buffer.sample(4)
    F.mse_loss(torch.full((4, 1), 50.0), samples.rewards)
    buffer.update_priorities(torch.tensor([[1.0], [-2.0], [3.0], [-4.0]], requires_grad=True))
    slots = samples.rewards.batch.handle["index"]
    np.testing.assert_array_equal(buffer.native.tree.get(slots), [1.5, 2.5, 3.5, 4.5])
    assert buffer.native.max_priority == 4.5


def test_losses_of_two_batches_both_arrive():
    buffer = filled(alpha=1.0, beta=0.0)
    buffer._updates.warned = True
    batches = [buffer.sample(3).rewards for _ in range(2)]
    for error, rewards in zip((5.0, 7.0), batches, strict=True):
        F.l1_loss(rewards.as_subclass(torch.Tensor) + error, rewards)
    slots = [rewards.batch.handle["index"] for rewards in batches]
    np.testing.assert_allclose(buffer.native.tree.get(slots[1]), 7, rtol=1e-5)
    np.testing.assert_allclose(
        buffer.native.tree.get(np.setdiff1d(slots[0], slots[1])), 5, rtol=1e-5
    )


def test_overwritten_rows_keep_the_priority_of_the_new_ones():
    buffer = filled(size=4, steps=4, alpha=1.0)
    rewards = buffer.sample(40).rewards
    buffer.extend(*zip(*transitions(BOX, BOX, 1, 2), strict=True))
    F.l1_loss(rewards.as_subclass(torch.Tensor) + 3, rewards)
    np.testing.assert_allclose(buffer.native.tree.get(np.arange(4)), [1, 1, 3, 3], rtol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"alpha": 1.5}, ValueError, "alpha"),
        ({"beta": -0.1}, ValueError, "beta"),
        ({"priority_epsilon": 0.0}, ValueError, "priority_epsilon"),
        ({"seed": "x"}, TypeError, "seed|SeedSequence"),
        ({"optimize_memory_usage": True}, ValueError, "optimize_memory_usage"),
        ({"spaces_": (spaces.Dict({"a": BOX}), BOX)}, TypeError, "PrioritizedDictReplayBuffer"),
    ],
)
def test_refuses_bad_arguments(kwargs, error, message):
    with pytest.raises(error, match=message):
        filled(steps=0, **kwargs)


def test_refuses_bad_calls_and_changes_nothing():
    buffer = filled(steps=5)
    good = next(transitions(BOX, BOX, 1, 1))
    with pytest.raises(
        kary_replay.errors.FieldError, match=r"obs must have shape \(1, 3\), got \(1, 4\)"
    ):
        buffer.add(np.zeros((1, 4)), *good[1:])
    with pytest.raises(ValueError, match="one dict per environment, 1, got 2"):
        buffer.add(*good[:-1], [{}, {}])
    with pytest.raises(kary_replay.errors.FieldError, match="observation"):
        buffer.add(np.full((1, 3), "a"), *good[1:])
    assert (buffer.pos, len(buffer.native)) == (5, 5)
    with pytest.raises(ValueError, match="no batch was sampled"):
        buffer.update_priorities([1.0])
    with pytest.raises(ValueError, match="batch_size"):
        buffer.sample(0)
    buffer.sample(4)
    before = buffer.native.tree.get(np.arange(20))
    with pytest.raises(ValueError, match="one value for each of the 4 rows"):
        buffer.update_priorities(np.ones(3))
    with pytest.raises(ValueError, match="td_errors must be finite, got nan"):
        buffer.update_priorities([1.0, np.nan, 1.0, 1.0])
    np.testing.assert_array_equal(buffer.native.tree.get(np.arange(20)), before)


def test_rows_and_environments_are_never_swapped():
    buffer = PrioritizedReplayBuffer(
        30, spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), "cpu", n_envs=3
    )
    zeros = np.zeros((3, 2), np.float32)
    with pytest.raises(kary_replay.errors.FieldError, match="next_obs must have shape"):
        buffer.add(
            zeros,
            np.zeros((2, 3), np.float32),
            np.zeros((3, 1)),
            np.zeros(3),
            np.zeros(3),
            [{}] * 3,
        )
    assert (buffer.pos, len(buffer.native)) == (0, 0)


@pytest.mark.parametrize(
    "arguments", [{"buffer_size": 0}, {"buffer_size": -3}, {"buffer_size": 1.5}, {"n_envs": 0}]
)
def test_refuses_sizes_that_are_none(arguments):
    (name,) = arguments
    with pytest.raises((ValueError, TypeError), match=name):
        PrioritizedReplayBuffer(
            **{"buffer_size": 10, **arguments},
            observation_space=BOX,
            action_space=BOX,
            device="cpu",
        )


@pytest.mark.parametrize(("available", "expected"), [(4000, 1), (6000, 0)])
def test_warns_of_rows_beyond_memory(available, expected, monkeypatch):
    memory = SimpleNamespace(available=available)  # 100 rows take 4800 bytes
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(virtual_memory=lambda: memory))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filled(size=100, steps=0)
    assert [warning.filename for warning in caught] == [__file__] * expected


def test_what_a_priority_is_can_be_said():
    """A pickle from before it could be said means TD errors."""
    for word, wanted in (("td_error", 7.0), ("gradient", 1.0)):
        buffer = filled(n_envs=1, size=8, steps=8, alpha=1.0, prioritize_by=word)
        batch = buffer.sample(4)
        F.smooth_l1_loss(torch.zeros(4, 1), batch.rewards * 0 + 7.0)
        slots = batch.rewards.batch.handle["index"]
        assert buffer.native.tree.get(slots) == pytest.approx(wanted, abs=1e-5)
        buffer.reset()
        assert pickle.loads(pickle.dumps(buffer)).prioritize_by == word
        assert buffer._updates.is_by_gradient == (word == "gradient")
    state = buffer.__getstate__()
    del state["prioritize_by"]
    old = PrioritizedReplayBuffer.__new__(PrioritizedReplayBuffer)
    old.__setstate__(state)
    assert old.prioritize_by == "td_error" and not old._updates.is_by_gradient
    with pytest.raises(ValueError, match="prioritize_by must be 'td_error' or 'gradient', got 'x'"):
        filled(n_envs=1, size=8, steps=1, prioritize_by="x")


@pytest.mark.parametrize("n_envs", [1, 2])
def test_the_position_follows_the_rows(n_envs):
    buffer = filled(n_envs=n_envs, size=20, steps=7)
    for name, value in (("pos", 0), ("full", True)):
        with pytest.raises(AttributeError, match=rf"{name} is .* reset\(\) forgets all rows"):
            setattr(buffer, name, value)
    assert (buffer.pos, buffer.full, buffer.size()) == (7, False, 7)
    buffer.pos, buffer.full = 7, False  # what they are
    buffer.reset()
    assert (buffer.pos, buffer.full, buffer.size()) == (0, False, 0)
    n_rows = 20 // n_envs
    buffer.extend(*zip(*transitions(BOX, BOX, n_envs, n_rows), strict=True))
    assert (buffer.pos, buffer.full, buffer.size()) == (0, True, n_rows)
    buffer.extend(*zip(*transitions(BOX, BOX, n_envs, 3), strict=True))
    for twin in (buffer, copy.deepcopy(buffer)):
        assert (twin.pos, twin.full, twin.size()) == (3, True, n_rows)


def test_a_position_of_a_file_of_former_versions():
    buffer = filled(size=10, steps=7)
    buffer.reset()
    buffer.extend(*zip(*transitions(BOX, BOX, 1, 4), strict=True))
    state = buffer.__getstate__()
    assert (state["pos"], state["full"]) == (4, False)
    del state["_n_added_before"]
    twin = PrioritizedReplayBuffer.__new__(PrioritizedReplayBuffer)
    twin.__setstate__(state)
    assert (twin.pos, twin.full) == (4, False)
    twin.extend(*zip(*transitions(BOX, BOX, 1, 8), strict=True))
    assert (twin.pos, twin.full) == (2, True)


@pytest.mark.parametrize("lean", [False, True])
def test_an_interrupt_after_the_rows_are_in_leaves_the_position_right(lean, monkeypatch):
    """Ctrl-C during the native call is raised when it returns."""
    lean_options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = filled(size=10, steps=7, **(lean_options if lean else {}))
    native, add = buffer._native, buffer._native.add

    def interrupted(**columns):
        add(**columns)
        raise KeyboardInterrupt

    class Interrupted:
        def __getattr__(self, name):
            return interrupted if name == "add" else getattr(native, name)

    step = next(transitions(BOX, BOX, 1, 1))
    monkeypatch.setitem(buffer.__dict__, "_native", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        buffer.add(*step)
    monkeypatch.undo()
    assert (buffer.pos, len(buffer._native)) == (8, 8)
    buffer.add(*step)
    assert buffer.pos == 9
    np.testing.assert_array_equal(buffer.observations[8], step[0])


def test_arrays_that_are_assigned_are_stored():
    buffer = filled(n_envs=2, size=20, steps=12)
    relabelled = buffer.rewards + 100.0
    view = buffer.rewards
    buffer.rewards = relabelled.astype(np.float64)
    np.testing.assert_array_equal(view, relabelled)
    assert (buffer.sample(30).rewards > 50).all()
    before = buffer.actions.copy()
    for name, value, error in (
        ("rewards", relabelled[:3], ValueError),
        ("rewards", 0.0, ValueError),
        ("actions", before.astype(complex), TypeError),
    ):
        with pytest.raises(error, match=name):
            setattr(buffer, name, value)
    np.testing.assert_array_equal(buffer.rewards, relabelled)
    lean_options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    lean = filled(**lean_options)
    assert not hasattr(lean, "next_observations")
    with pytest.raises(AttributeError, match="next_observations"):
        lean.next_observations = before


@pytest.mark.parametrize("prioritize_by", ["td_error", "gradient"])
def test_no_loss_replaces_priorities_by_hand(prioritize_by):
    by_hand = np.array([1.0, 2.0, 3.0, 4.0])
    options = {"alpha": 1.0, "priority_epsilon": 0.5, "uniform_share": 0.0}
    buffer = filled(prioritize_by=prioritize_by, **options)
    samples = buffer.sample(4)
    prediction = torch.full((4, 1), 50.0, requires_grad=True)
    loss = ((prediction - samples.rewards) ** 2).mean()  # its backward pass comes later
    buffer.update_priorities(by_hand)
    loss.backward()
    F.mse_loss(torch.full((4, 1), 70.0), samples.rewards)
    slots = samples.rewards.batch.handle["index"]
    np.testing.assert_array_equal(buffer.native.tree.get(slots), by_hand + 0.5)
    buffer.update_priorities(2 * by_hand)
    np.testing.assert_array_equal(buffer.native.tree.get(slots), 2 * by_hand + 0.5)


def test_prioritize_by_may_be_set():
    buffer = filled(prioritize_by="td_error", alpha=1.0, uniform_share=0.0)

    def masses_after_a_loss():
        samples = buffer.sample(4)
        prediction = (samples.rewards + 3.0).detach().clone().requires_grad_()
        F.smooth_l1_loss(prediction, samples.rewards).backward()
        return buffer.native.tree.get(samples.rewards.batch.handle["index"])

    np.testing.assert_allclose(masses_after_a_loss(), 3.0, rtol=1e-5)
    with pytest.raises(ValueError, match="prioritize_by must be 'td_error' or 'gradient'"):
        buffer.prioritize_by = "error"
    buffer.prioritize_by = "gradient"
    for one in (buffer, pickle.loads(pickle.dumps(buffer))):
        assert one.prioritize_by == "gradient"
    np.testing.assert_allclose(masses_after_a_loss(), 1.0, rtol=1e-5)
    buffer.reset()
    assert buffer.prioritize_by == "gradient"


def dict_buffer(kind):
    space = spaces.Dict({"a": spaces.Box(-9, 9, (3,), np.float32), "b": spaces.Discrete(4)})
    buffer = kind(20, space, spaces.Discrete(2), device="cpu", n_envs=1)
    for number in range(20):
        step = {
            "a": np.full((1, 3), 1, np.float32),
            "b": np.array([1]),
            "c": "no part of the space",
        }
        buffer.add(step, step, np.array([[0]]), np.array([float(number)]), np.array([False]), [{}])
    return buffer


@pytest.mark.parametrize("kind", [DictReplayBuffer, PrioritizedDictReplayBuffer])
def test_parts_of_observations_are_written_as_those_of_a_dict(kind):
    """Whichever method of a dict that is; what the space lacks is left out, as by stock."""
    buffer = dict_buffer(kind)
    for value, change in enumerate(
        (
            lambda parts, part: parts.update(a=part),
            lambda parts, part: parts.update({"a": part}),
            lambda parts, part: parts.__setitem__("a", part),
            lambda parts, part: parts.__ior__({"a": part}),
        )
    ):
        change(buffer.observations, np.full((20, 1, 3), value, np.float32))
        assert (buffer.sample(8).observations["a"] == value).all()
    buffer.observations |= {"a": np.full((20, 1, 3), 7, np.float32)}
    assert (buffer.sample(8).observations["a"] == 7).all()
    for copied in (
        copy.copy(buffer.observations),
        copy.deepcopy(buffer.observations),
        pickle.loads(pickle.dumps(buffer.observations)),
    ):
        assert type(copied) is dict and (copied["a"] == 7).all() and (copied["b"] == 1).all()


def test_parts_are_checked_before_any_is_written():
    buffer = dict_buffer(PrioritizedDictReplayBuffer)
    parts = {"a": np.full((20, 1, 3), 5, np.float32), "b": np.zeros((3, 1, 1), np.int64)}
    with pytest.raises(ValueError, match="the part 'b' must have the shape"):
        buffer.observations.update(parts)
    assert (buffer.sample(8).observations["a"] == 1).all()
