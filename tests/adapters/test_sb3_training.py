"""Training as users set it up, with SB3's buffers and ours.

Noise, frequencies, images, dicts, normalizers, seeds and devices.
"""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_runs import (
    ALGORITHMS,
    CLASSES,
    DISCRETE,
    ENV,
    arrays_of,
    assert_trained,
    environment,
    first_difference,
    learn,
    learn_with,
    over_classes,
)
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.noise import (
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import (
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
    is_vecenv_wrapped,
)

NOISE = {
    "normal": NormalActionNoise(np.zeros(1), np.full(1, 0.1)),
    "Ornstein-Uhlenbeck": OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.1)),
}
TINY_CNN = {"features_extractor_kwargs": {"features_dim": 8}, "net_arch": [8]}


@pytest.fixture(autouse=True)
def no_user_warning():
    """A warning of ours, or one that SB3 would not give its own buffer, is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@over_classes("array")
@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
@pytest.mark.parametrize("name", ["DDPG", "TD3", "SAC"])
def test_action_noise(kind, buffer_class, name, noise):
    model = learn(
        name, buffer_class, n_envs=2, steps=160, model_kwargs={"action_noise": copy.deepcopy(noise)}
    )
    assert isinstance(model.action_noise, VectorizedActionNoise)
    assert_trained(model)


@over_classes("array")
@pytest.mark.parametrize(
    "options",
    [
        {"ent_coef": 0.01},
        {"ent_coef": "auto_0.01"},
        {"policy_kwargs": {"net_arch": [8], "n_critics": 1}},
        {"policy_kwargs": {"net_arch": [8], "n_critics": 3}},
        {"use_sde": True, "sde_sample_freq": 4, "use_sde_at_warmup": True},
    ],
    ids=str,
)
def test_variants_of_sac(kind, buffer_class, options):
    assert_trained(learn("SAC", buffer_class, steps=120, model_kwargs=options))


@over_classes()
@pytest.mark.parametrize("device", ["cpu", "auto", "cuda"])
def test_batches_are_on_the_device_of_the_model(kind, buffer_class, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = learn_with(kind, buffer_class, "SAC", steps=80, model_kwargs={"device": device})
    assert_trained(model)
    for value in model.replay_buffer.sample(5, model.get_vec_normalize_env()):
        for tensor in value.values() if isinstance(value, dict) else (value,):
            assert tensor is None or tensor.device.type == get_device(device).type


@over_classes()
@pytest.mark.parametrize("gradient_steps", [-1, 1, 4])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_every_gradient_step_is_taken(kind, buffer_class, n_envs, gradient_steps):
    frequency = {"learning_starts": 4 * n_envs, "train_freq": 5, "gradient_steps": gradient_steps}
    model = learn_with(
        kind, buffer_class, "DQN", n_envs=n_envs, steps=10 * n_envs, model_kwargs=frequency
    )
    assert model._n_updates == model.logger.name_to_value["train/n_updates"]
    assert model._n_updates == 2 * (5 * n_envs if gradient_steps == -1 else gradient_steps)
    if buffer_class is CLASSES[kind][0]:
        assert model.replay_buffer.n_sampled == 25 * model._n_updates


@over_classes("array")
@pytest.mark.parametrize("train_freq", [4, (4, "step"), (1, "episode")])
def test_train_frequency(kind, buffer_class, train_freq, tmp_path):
    env = environment(kind, "SAC", max_episode_steps=30)
    model = learn(
        "SAC",
        buffer_class,
        steps=90,
        env=env,
        model_kwargs={"train_freq": train_freq, "gradient_steps": 1},
    )
    model.save(tmp_path / "model")
    for options in ({}, {"train_freq": train_freq}):
        model = SAC.load(tmp_path / "model", env=env, **options)
        model.learn(90)
        assert_trained(model)


@over_classes("array")
@pytest.mark.parametrize("train_freq", ["4", ("1", "episode"), "often", (1, "minute")])
def test_refuses_a_frequency_that_is_none(kind, buffer_class, train_freq):
    with pytest.raises(ValueError, match="train_freq"):
        learn("SAC", buffer_class, model_kwargs={"train_freq": train_freq})


@over_classes("array", "dict", "n_step")
@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_time_limits_are_terminations_only_if_not_handled(kind, buffer_class, n_envs, handled):
    env = environment(kind, "TD3", n_envs, max_episode_steps=20)
    buffer = learn_with(
        kind, buffer_class, "TD3", env=env, steps=90 * n_envs, handle_timeout_termination=handled
    ).replay_buffer
    assert buffer.dones.any()
    np.testing.assert_array_equal(buffer.timeouts, buffer.dones * handled)
    assert buffer.sample(400).dones.any() != handled


@over_classes("array")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_seeded_run_repeats_itself(kind, buffer_class, name):
    runs = []
    for _ in range(2):
        noise = {} if name in DISCRETE else {"action_noise": copy.deepcopy(NOISE["normal"])}
        model = learn(name, buffer_class, n_envs=2, steps=160, seed=0, model_kwargs=noise)
        obs, seen = model.get_env().reset(), []
        for _ in range(30):
            # not deterministic: torch's and NumPy's streams must be in the same place, too
            action, _ = model.predict(obs)
            obs, reward, _, _ = model.get_env().step(action)
            seen += [action, reward]
        runs.append((model, seen))
    (model, seen), (again, seen_again) = runs
    for one, other in zip(seen, seen_again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert first_difference(model, again) is None
    for one, other in zip(
        arrays_of(model.replay_buffer).values(),
        arrays_of(again.replay_buffer).values(),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    if buffer_class is CLASSES["array"][0]:
        masses = [one.replay_buffer.native.tree.get(np.arange(150)) for one in (model, again)]
        np.testing.assert_array_equal(*masses)


@over_classes("array")
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_images(kind, buffer_class, name, lean, channels_first, tmp_path):
    env = FakeImageEnv(
        screen_height=36,
        screen_width=36,
        n_channels=1,
        discrete=name in DISCRETE,
        channel_first=channels_first,
    )
    model = learn(
        name,
        buffer_class,
        env=env,
        steps=70,
        batch_size=8,
        handle_timeout_termination=not lean,
        model_kwargs={
            "policy": "CnnPolicy",
            "policy_kwargs": TINY_CNN,
            "optimize_memory_usage": lean,
            "gradient_steps": 2,
        },
    )
    assert is_vecenv_wrapped(model.get_env(), VecTransposeImage) != channels_first
    assert (model.replay_buffer.observations.dtype, model.replay_buffer.observations.shape[2:]) == (
        np.uint8,
        (1, 36, 36),
    )
    assert_trained(model)
    observation = env.reset()[0]
    model.save(tmp_path / "model")
    actions = [
        one.predict(observation, deterministic=True)[0]
        for one in (model, ALGORITHMS[name].load(tmp_path / "model"))
    ]
    np.testing.assert_array_equal(*actions)


class Mixed(gym.Env):
    """An image, a vector and a number at once, drawn at random."""

    def __init__(self, discrete, channels_last=False):
        shape = (36, 36, 1) if channels_last else (1, 36, 36)
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, shape, np.uint8),
                "vector": spaces.Box(-1, 1, (2,)),
                "number": spaces.Discrete(4),
            }
        )
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2, 2))
        self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.n_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.n_steps += 1
        observation = self.observation_space.sample()
        return observation, float(observation["vector"][0]), False, self.n_steps == 20, {}


def learn_from_dicts(name, buffer_class, env, **kwargs):
    options = {"policy": "MultiInputPolicy", "gradient_steps": 2}
    options["policy_kwargs"] = {"net_arch": [8], "features_extractor_kwargs": {"cnn_output_dim": 8}}
    return learn(
        name, buffer_class, env=env, steps=80, batch_size=8, model_kwargs=options, **kwargs
    )


@over_classes("dict")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_dicts_of_everything(kind, buffer_class, name, channels_last):
    env = make_vec_env(lambda: Mixed(name in DISCRETE, channels_last), 2)
    model = learn_from_dicts(name, buffer_class, env)
    assert_trained(model)
    samples = model.replay_buffer.sample(10)
    dtypes = {"image": torch.uint8, "vector": torch.float32, "number": torch.int64}
    for observations in (samples.observations, samples.next_observations):
        assert {key: tensor.dtype for key, tensor in observations.items()} == dtypes
        assert observations["image"].shape == (10, 1, 36, 36)
        assert observations["number"].shape == (10, 1)


@over_classes("dict")
def test_stacked_frames_in_dicts(kind, buffer_class):
    env = make_vec_env(
        lambda: SimpleMultiObsEnv(random_start=True, discrete_actions=True, channel_last=False), 1
    )
    model = learn_from_dicts(
        "DQN", buffer_class, VecFrameStack(env, 3, channels_order={"vec": None, "img": "first"})
    )
    assert_trained(model)
    assert model.replay_buffer.observations["img"].shape[2:] == (3, 64, 64)


@over_classes("dict", "her")
def test_environments_in_processes(kind, buffer_class):
    def env():
        return Mixed(discrete=True) if kind == "dict" else BitFlippingEnv(n_bits=4)

    envs = make_vec_env(env, 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    try:
        assert_trained(learn_from_dicts("DQN", buffer_class, envs))
    finally:
        envs.close()


@pytest.mark.parametrize("whose", [0, 1], ids=["ours", "SB3's"])
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_dict_of_one_is_learned_like_an_array(name, whose):
    class One(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = spaces.Dict({"all": env.observation_space})

        def observation(self, observation):
            return {"all": observation}

    models = [
        learn_with(
            kind, CLASSES[kind][whose], name, env=make_vec_env(ENV[name], 2, wrapper_class=wrapper)
        )
        for kind, wrapper in (("dict", One), ("array", None))
    ]
    assert first_difference(*models) is None
    np.testing.assert_array_equal(
        models[0].replay_buffer.observations["all"], models[1].replay_buffer.observations
    )


class Floats(gym.ObservationWrapper):
    """The bits of goals as floats, which can be normalized."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict(
            {key: spaces.Box(0, 1, box.shape) for key, box in env.observation_space.items()}
        )

    def observation(self, observation):
        return {key: bits.astype(np.float32) for key, bits in observation.items()}


@over_classes()
def test_normalization_happens_in_the_batch_not_in_the_buffer(kind, buffer_class):
    plain = (
        make_vec_env(lambda: Floats(BitFlippingEnv(n_bits=4, continuous=True)), 2)
        if kind == "her"
        else None
    )
    env = VecNormalize(plain or environment(kind, "SAC", 2))
    model = learn_with(kind, buffer_class, "SAC", env=env)
    assert_trained(model)
    buffer, twin = model.replay_buffer, copy.deepcopy(model.replay_buffer)
    np.testing.assert_array_equal(buffer.rewards[buffer.pos - 1], env.get_original_reward())
    if kind == "her":
        twin.set_env(env)
    batches = []
    for one, normalizer in ((twin, None), (buffer, env)):
        np.random.seed(4)
        batches.append(one.sample(50, env=normalizer))
    for name in ("observations", "next_observations"):
        raw, normalized = (as_arrays(getattr(batch, name)) for batch in batches)
        np.testing.assert_equal(normalized, env.normalize_obs(raw))
    if kind != "n_step":  # where each step's reward is normalized
        raw, normalized = (as_arrays(batch.rewards) for batch in batches)
        np.testing.assert_array_equal(normalized, env.normalize_reward(raw).astype(np.float32))


def as_arrays(tensors):
    return (
        {key: as_arrays(tensor) for key, tensor in tensors.items()}
        if isinstance(tensors, dict)
        else np.asarray(tensors)
    )
