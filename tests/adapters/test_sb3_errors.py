"""What SB3's buffers refuse, ours refuse with the same type, for a caller's `except` to work."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_runs import CLASSES, environment, over_classes
from stable_baselines3 import DQN

from kary_replay.adapters.sb3 import PrioritizedReplayCallback

BOX = spaces.Box(-1, 1, (3,), np.float32)
DICT = spaces.Dict({"box": BOX, "number": spaces.Discrete(4)})


def made(kind, buffer_class, **kwargs):
    """A buffer of 20 rows for 2 environments, but for what is given."""
    if kind == "her":
        env = environment("her", "SAC", 2)
        given = {
            "buffer_size": 40,
            "observation_space": env.observation_space,
            "action_space": env.action_space,
            "env": env,
        }
    else:
        given = {
            "buffer_size": 40,
            "observation_space": DICT if kind == "dict" else BOX,
            "action_space": BOX,
        }
    return buffer_class(**{**given, "device": "cpu", "n_envs": 2, **kwargs})


def added(kind, buffer_class, **changed):
    """A buffer to which two rows were added, the second one with something changed."""
    buffer = made(kind, buffer_class)
    box, number = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    obs = {"box": box, "number": number} if kind == "dict" else box
    row = {
        "obs": obs,
        "next_obs": obs,
        "action": box,
        "reward": np.zeros(2),
        "done": np.zeros(2, bool),
        "infos": [{}, {}],
    }
    for step in (row, row | changed):
        buffer.add(
            **{
                name: value.copy() if hasattr(value, "copy") else value
                for name, value in step.items()
            }
        )
    return buffer


CONSTRUCTION = {
    "lean and time limits": (ValueError, {"optimize_memory_usage": True}),
    "unknown keyword": (TypeError, {"wrong": 1}),
    "size as text": (TypeError, {"buffer_size": "40"}),
    "size as float": (TypeError, {"buffer_size": 1e3}),
    "no size": (TypeError, {"buffer_size": None}),
    "environments as text": (TypeError, {"n_envs": "2"}),
    "tuple of spaces": (NotImplementedError, {"observation_space": spaces.Tuple((BOX, BOX))}),
    "actions in a dict": (NotImplementedError, {"action_space": DICT}),
    "unknown device": (RuntimeError, {"device": "nonsense"}),
}
ADDING = {
    "long action": (ValueError, {"action": np.zeros((2, 4))}),
    "long observation": (ValueError, {"obs": np.zeros((2, 4))}),
    "more environments": (ValueError, {"next_obs": np.zeros((3, 3))}),
    "text for numbers": (ValueError, {"obs": np.full((2, 3), "a")}),
    "rewards of three": (ValueError, {"reward": np.zeros(3)}),
    "text for rewards": (ValueError, {"reward": np.array(["a", "b"])}),
    "objects for rewards": (TypeError, {"reward": np.array([None, {}])}),
    "ends of three": (ValueError, {"done": np.zeros(3)}),
    "infos of three": (ValueError, {"infos": [{}, {}, {}]}),
    "no infos": (TypeError, {"infos": None}),
    "limit as text": (ValueError, {"infos": [{"TimeLimit.truncated": "x"}] * 2}),
    "limit as object": (TypeError, {"infos": [{"TimeLimit.truncated": {}}] * 2}),
    "limits of two": (
        ValueError,
        {"infos": [{"TimeLimit.truncated": torch.tensor([False, True])}] * 2},
    ),
}
OF_A_KIND = {
    "no dict": ("dict", AssertionError, {"observation_space": BOX}),
    "lean dict": ("dict", AssertionError, {"optimize_memory_usage": True}),
    "dict in a dict": ("dict", TypeError, {"observation_space": spaces.Dict({"a": DICT})}),
    "lean n-step": (
        "n_step",
        NotImplementedError,
        {"optimize_memory_usage": True, "handle_timeout_termination": False},
    ),
    "leaner n-step": ("n_step", ValueError, {"optimize_memory_usage": True}),
    "lean hindsight": ("her", AssertionError, {"optimize_memory_usage": True}),
    "no goals": ("her", AssertionError, {"observation_space": BOX}),
    "unknown strategy": ("her", KeyError, {"goal_selection_strategy": "past"}),
    "strategy as number": ("her", AssertionError, {"goal_selection_strategy": 3}),
    "number of goals as text": ("her", TypeError, {"n_sampled_goal": "x"}),
}


@over_classes("array", "n_step")
@pytest.mark.parametrize("case", CONSTRUCTION.values(), ids=CONSTRUCTION)
def test_construction(kind, buffer_class, case):
    error, kwargs = case
    with pytest.raises(error):
        made(kind, buffer_class, **kwargs)


NAMED = {
    "discount as text": ("n_step", TypeError, {"gamma": "0.99"}),
    "discounts": ("n_step", TypeError, {"gamma": np.ones(2)}),
    "discount above 1": ("n_step", ValueError, {"gamma": 1.5}),
    "discount NaN": ("n_step", ValueError, {"gamma": np.nan}),
    "steps as text": ("n_step", TypeError, {"n_steps": "3"}),
    "goals as text": ("her", TypeError, {"n_sampled_goal": "4"}),
    "fewer than no goals": ("her", ValueError, {"n_sampled_goal": -1}),
    "goals without end": ("her", ValueError, {"n_sampled_goal": np.inf}),
    "strategy": ("her", KeyError, {"goal_selection_strategy": "past"}),
    "space without goals": ("her", ValueError, {"observation_space": DICT}),
    "meaning of priorities": ("array", ValueError, {"prioritize_by": "error"}),
    "meanings of priorities": ("array", ValueError, {"prioritize_by": ["gradient"]}),
}


@pytest.mark.parametrize("case", NAMED.values(), ids=NAMED)
def test_what_is_wrong_is_named(case):
    kind, error, kwargs = case
    (name,) = kwargs
    with pytest.raises(error, match=f"{name} must "):
        made(kind, CLASSES[kind][0], **kwargs)


@pytest.mark.parametrize("value", ["1", 1.5, np.nan, np.ones(2), True])
def test_the_callback_names_final_beta(value):
    with pytest.raises((TypeError, ValueError), match="final_beta must be a number from 0 to 1"):
        PrioritizedReplayCallback(final_beta=value)


@pytest.mark.parametrize("whose", [0, 1], ids=["ours", "SB3's"])
@pytest.mark.parametrize("case", OF_A_KIND.values(), ids=OF_A_KIND)
def test_construction_of_a_kind(case, whose):
    kind, error, kwargs = case
    with pytest.raises(error):
        made(kind, CLASSES[kind][whose], **kwargs)


@over_classes("array", "n_step")
@pytest.mark.parametrize("case", ADDING.values(), ids=ADDING)
def test_adding(kind, buffer_class, case):
    error, changed = case
    with pytest.raises(error):
        added(kind, buffer_class, **changed)


@pytest.mark.parametrize(
    "changed", [{"done": None}, {"infos": [{"TimeLimit.truncated": None}, {}]}], ids=str
)
def test_ends_that_sb3_would_take_for_nan(changed):
    with pytest.raises(TypeError, match=r"must be numbers, got .*None"):
        added("array", CLASSES["array"][0], **changed)


@over_classes("dict")
@pytest.mark.parametrize(
    "box", [np.zeros((2, 4)), np.full((2, 3), "a"), np.zeros((3, 3))], ids=["long", "text", "three"]
)
def test_adding_dicts(kind, buffer_class, box):
    with pytest.raises(ValueError, match=r"box|array|float"):
        added(kind, buffer_class, obs={"box": box, "number": np.zeros(2, np.int64)})


@over_classes("array", "dict", "n_step")
def test_extending_and_sampling(kind, buffer_class):
    with pytest.raises(TypeError, match="missing"):
        made(kind, buffer_class).add(1, 2)
    with pytest.raises(ValueError, match="longer"):
        made(kind, buffer_class).extend([], [], [], [], [1], [])
    with pytest.raises(ValueError, match=r"high <= 0|no row to draw"):
        made(kind, buffer_class).sample(3)
    with pytest.raises(ValueError, match=r"negative|at least 1"):
        added(kind, buffer_class).sample(-1)
    for size in ("x", 2.5):
        with pytest.raises(TypeError):
            added(kind, buffer_class).sample(size)


@over_classes("her")
def test_hindsight(kind, buffer_class):
    buffer = made(kind, buffer_class)
    with pytest.raises(RuntimeError, match="learning_starts"):
        buffer.sample(3)
    with pytest.raises(ValueError, match="already initialized"):
        buffer.set_env(buffer.env)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'env'"):
        buffer_class(40, buffer.observation_space, buffer.action_space)


@over_classes("dict", "her")
def test_a_policy_without_dicts(kind, buffer_class):
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        DQN(
            "MlpPolicy", environment(kind, "DQN"), replay_buffer_class=buffer_class, buffer_size=100
        )


# ------------------------------------------ methods that are overridden in stock buffers


HOOKS = [
    (kind, name)
    for kind in CLASSES
    for name in ("_get_samples", "to_torch", "_get_real_samples", "_get_virtual_samples")
    if hasattr(CLASSES[kind][0], name)
]


def overriding(base, *names):
    def method(self, *args, **kwargs):
        raise AssertionError("was called")

    return type("Mine", (base,), {**dict.fromkeys(names, method), "__module__": "mine"})


@pytest.mark.parametrize(("kind", "name"), HOOKS)
def test_a_method_that_would_not_be_called_is_refused(kind, name):
    ours = CLASSES[kind][0]
    for mine in (overriding(ours, name), overriding(overriding(ours, name))):
        with pytest.raises(TypeError, match=rf"Mine overrides {name}, .*: override sample"):
            made(kind, mine)
    with pytest.raises(TypeError, match=rf"Mine overrides {name}"):  # of another parent
        made(kind, type("Mine", (overriding(object, name), ours), {"__module__": "mine"}))
    made(kind, overriding(ours, name, "sample"))  # which may call it


def test_a_method_that_would_not_be_called_is_refused_when_loading():
    buffer = made("array", CLASSES["array"][0])
    mine = overriding(type(buffer), "_get_samples")
    with pytest.raises(TypeError, match="Mine overrides _get_samples"):
        mine.__new__(mine).__setstate__(buffer.__getstate__())


def test_what_the_message_recommends_works():
    class Doubled(CLASSES["array"][0]):
        def sample(self, batch_size, env=None):
            samples = super().sample(batch_size, env)
            return samples._replace(observations=2 * samples.observations)

    buffer = added("array", Doubled, obs=np.ones((2, 3), np.float32))
    assert set(buffer.sample(50).observations.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("name", ["_normalize_obs", "_normalize_reward", "size", "_sample_goals"])
def test_other_methods_may_be_overridden(name):
    made("her", overriding(CLASSES["her"][0], name))


EMPTY = spaces.Box(-1, 1, (0,), np.float32)


@pytest.mark.parametrize("kind", ["array", "dict"])
def test_observations_that_hold_nothing(kind):
    parts = spaces.Dict({"a": BOX, "b": EMPTY})
    space, part = (parts, r"\['b'\]") if kind == "dict" else (EMPTY, "")
    with pytest.raises(ValueError, match=rf"observation_space{part} has .* \(0,\).*leave it out"):
        CLASSES[kind][0](10, space, BOX, device="cpu")
