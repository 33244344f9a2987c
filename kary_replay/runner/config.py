"""The settings of a run: each with its unit, its default, and what is wrong with a bad value."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import torch

from ..algorithms import ALGORITHMS, Algorithm, Options, Share, find
from ..algorithms.normalization import Normalization, Normalized
from ..core.shared_memory import is_supported
from ..prefetch.prefetcher import MAX_DEPTH
from ..types import UniformShare
from .presets import preset
from .streams.rollout import rollouts_of_a_group

__all__ = [
    "FOREIGN",
    "ConfigError",
    "RunnerConfig",
    "as_json",
    "check_algorithm",
    "check_kind",
    "from_json",
    "suggestion",
]


class ConfigError(ValueError):
    """A run cannot start with this configuration. Nothing has been created."""


PRESET: Any = None  # to be filled in
FOREIGN = {
    "replay": ("max_staleness",),
    "rollouts": (
        "envs_per_actor",
        "buffer_capacity",
        "learning_starts",
        "samples_per_insert",
        "samples_per_insert_error",
        "alpha",
        "beta",
        "uniform_share",
        "initial_priority",
        "exploration_spread",
        "prefetch",
    ),
}
"""Settings that algorithms do not have which learn from replay, or from rollouts."""
INSTEAD = {
    "envs_per_actor": "n_envs of the options is over all actors",
    "buffer_capacity": "n_envs · rollout_length of the options says what an update learns from",
    "samples_per_insert": "n_epochs of the options says how often rows are used",
    "max_staleness": "samples_per_insert says how far actors and learners may be apart",
}
EVALUATIONS = 50  # of a run, by default
MOST_STEPS = 2**53  # float64 counts them


@dataclass(frozen=True)
class RunnerConfig:
    """Settings of a run.

    What is not given comes from the preset of the algorithm and environment: see presets.py.
    """

    algorithm: str
    """dqn, rainbow, r2d2, ddpg, td3, sac, a2c, ppo, impala, appo, or "module:Class"."""
    env: str | Callable[..., Any]
    """A gymnasium id, "module:function" for what makes an environment, or in Python a function."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment."""
    eval_env_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment in evaluations and play, beside or instead of those."""
    options: Options = PRESET
    """Hyperparameters of the algorithm."""
    actors: int | Literal["auto"] = "auto"
    """Processes that step environments.

    auto: measured, see docs/runner.md; 1 with backend="serial"."""
    learners: int = 1
    """Processes that train."""
    optimization: Literal["synchronous", "asynchronous"] = "synchronous"
    """How several learners train.

    Synchronous: each takes its part of every batch, and they average gradients. Asynchronous: each
    does updates of its own, and adds them to shared weights without waiting for the others."""
    backend: Literal["process", "serial", "ray"] = field(
        default_factory=lambda: "process" if is_supported() else "serial"
    )
    """Where workers run.

    In processes of this machine (Linux), taking turns in this process, or on all nodes of a Ray
    cluster. Only "serial" is reproducible bit for bit."""
    ray_address: str | None = None
    """HOST:PORT of the Ray cluster for backend ray; auto: the one that this machine is a node of.

    None: that of $RAY_ADDRESS, which a job of the cluster has; else auto; else a new one here."""
    seed: int = 0
    """Seed of everything random: weights, environments, exploration, draws from the buffer."""
    total_env_steps: int = PRESET
    """Environment steps of the whole run, over all actors."""
    target_return: float | None = None
    """End the run as soon as an evaluation reaches this mean return."""
    envs_per_actor: int = PRESET
    """Environments that each actor steps."""
    groups: int = PRESET
    """Groups of an actor's environments that take turns.

    One group is stepped while actions for another are awaited. By default 1 for a2c and ppo, and
    where an actor's environments are an odd number; else 2."""
    buffer_capacity: int = PRESET
    """Rows kept: transitions, and with r2d2 sequences of them."""
    learning_starts: int = PRESET
    """Rows from steps at random before the first update."""
    samples_per_insert: float = PRESET
    """Rows drawn per row added: updates per environment step, times the batch size.

    Where rows are sequences, as with r2d2: updates per sequence, times the batch size."""
    samples_per_insert_error: float | None = None
    """How many drawn rows actors or learners may be ahead of each other.

    None: 32 batches, or 1 % of the run if that is less (0 with backend="serial"), but no less than
    a batch, and than twice what is due for a step of a group."""
    alpha: float = PRESET
    """How much priorities count, 0 (uniform replay) to 1."""
    beta: float = PRESET
    """Exponent of the importance weights at the beginning, 0 to 1; 1 at the end."""
    uniform_share: UniformShare = PRESET
    """Share of draws that go to all rows alike, 0 to 1; auto: 0.1, or 1 where all err alike."""
    initial_priority: Literal["max", "td_error"] = PRESET
    """Priority of new transitions: the largest seen, or the actor's own |TD error|."""
    exploration_spread: float = PRESET
    """How much environments differ in exploring; Ape-X has 7.

    Of N environments the i-th explores by the schedule's value to the power of
    1 + spread · i / (N - 1); a single one as the middle of many. SAC and noisy networks explore by
    noise of their own, which this leaves as it is."""
    max_staleness: int = PRESET
    """Updates that may lie between the choice of an action and the one that learns from it.

    For algorithms that learn from rollouts; what is older is dropped. With 0 actors wait for each
    update."""
    normalize_observations: bool = PRESET
    """Shift and scale observations to mean 0 and standard deviation 1 over all that actors saw."""
    normalize_rewards: bool = PRESET
    """Divide rewards by the standard deviation of the discounted returns that actors saw."""
    publish_interval: int = 1
    """Updates between two publications of parameters to the actors."""
    evaluate: Literal["during", "after", "never"] = "during"
    """When to play evaluation episodes: during the run, after it, or never.

    After it they are played with copies of the parameters that were made during it."""
    evaluation_interval: int = PRESET
    """Environment steps between two evaluations."""
    evaluation_episodes: int = PRESET
    """Episodes of one evaluation, with the same seeds every time."""
    evaluation_max_steps: int = 27_000
    """Steps after which an evaluation episode is cut off, for some never end.

    No episode of Atari is longer than the default."""
    checkpoint_interval_seconds: float = PRESET
    """Seconds between two checkpoints; 0: only at the end."""
    checkpoint_interval_env_steps: int = 0
    """Environment steps between two checkpoints; 0: by time only."""
    directory: str | None = None
    """Folder of the run, new or empty.

    None: runs/ALGORITHM_ENV_sSEED, with a number if that is taken."""
    inference: Literal["local", "worker"] = "local"
    """Who computes what networks say when actions are chosen: each actor, or policy workers.

    A policy worker answers all groups that have asked with one pass through the networks. It pays
    for large networks, and for networks on a GPU."""
    policy_workers: int | None = None
    """Processes that do so, with inference worker, on each machine of a run; None: 1."""
    inference_device: str | None = None
    """Where they compute, as torch names it; None: cpu. With cuda each has a GPU of its own."""
    device: str = "cpu"
    """Where learners compute, as torch names it: cpu, cuda:1, or cuda.

    With cuda each learner has a GPU of its own."""
    prefetch: int | None = None
    """Batches that a thread of the learner draws ahead; None: one for a GPU, none for a CPU.

    Resumption is not exact with such a thread."""
    learner_threads: int = 1
    """Threads of each learner, of torch and of native programs; actors have one."""
    environment_timeout_seconds: float = 60.0
    """An actor stuck for longer in one step of its environments is killed and started anew.

    With backend="serial" nobody notices."""
    on_environment_error: Literal["restart", "stop"] = "restart"
    """What an error of an environment does: start its actor anew, or end the run.

    With backend="serial" it always ends the run."""
    max_restarts: int = 5
    """Restarts of an actor in a row, with no episode in between, before the run ends.

    Where its environment was not at fault, as when it was killed, a step in between is enough.

    With backend="serial" nothing is started anew: the first failure of a worker ends the run."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # such as seeds from np.arange
                object.__setattr__(self, name, value.item())
        check_algorithm(self.algorithm)
        if not (isinstance(self.env, str) or callable(self.env)):
            raise ConfigError(
                "env must be a gymnasium id, module:function, or a function that makes one, "
                f"got {self.env!r}"
            )
        given, options = self.env, self.env_options
        is_dict = isinstance(options, Mapping)
        if (
            isinstance(given, functools.partial)
            and not given.args
            and is_dict
            and _survives_json([given.keywords, options])
        ):
            object.__setattr__(self, "env", given.func)  # so that config.json can name it
            object.__setattr__(self, "env_options", {**given.keywords, **options})
        if self.directory is not None:
            object.__setattr__(self, "directory", _as_directory(self.directory))
        names = FOREIGN[self.learns_from]
        check_kind(self.algorithm, [name for name in names if getattr(self, name) is not None])
        env_options = options if is_dict else {}
        _check_options(self)
        found = preset(self.algorithm, self.env_name, env_options, self.options)
        if self.envs_per_actor is not None:
            _check(self, "envs_per_actor", *AT_LEAST_1)
        found["groups"] = math.gcd(found["groups"], _environments(self, found["options"]))
        for name, value in found.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.inference == "worker":
            for name, value in (("policy_workers", 1), ("inference_device", "cpu")):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)
        if self.evaluation_interval is None:
            _check(self, "total_env_steps", *AT_LEAST_1)
            object.__setattr__(
                self, "evaluation_interval", max(1, self.total_env_steps // EVALUATIONS)
            )
        _check_values(self)
        for name in ("env_options", "eval_env_options"):  # whose owner may change them
            object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)))))

    @property
    def algorithm_class(self) -> type[Algorithm]:
        """The algorithm."""
        return find(self.algorithm)

    def new_algorithm(
        self, spaces: Any, device: str = "cpu", share: Share | None = None
    ) -> Algorithm:
        """Return the algorithm, for ``spaces.observation_space`` and ``spaces.action_space``."""
        observation_space = spaces.observation_space
        algorithm = self.algorithm_class(
            observation_space,
            spaces.action_space,
            self.options,
            seed=self.seed,
            device=device,
            share=share,
        )
        if not self.normalizes:
            return algorithm
        what = self.normalize_observations, self.normalize_rewards
        normalization = Normalization(observation_space, *what, algorithm.device)
        return cast("Algorithm", Normalized(algorithm, normalization))

    @property
    def learns_from(self) -> Literal["replay", "rollouts"]:
        """Which settings the run has."""
        return self.algorithm_class.learns_from

    @property
    def rows_per_update(self) -> int:
        """Rows of one update: of all learners together, or of each on its own."""
        options: Any = self.options
        if self.learns_from == "replay":
            return int(options.batch_size)
        return int(options.rows_per_update // (self.learners // self.learners_per_update))

    @property
    def learners_per_update(self) -> int:
        """Learners that make an update together: all of them, or each on its own."""
        return self.learners if self.optimization == "synchronous" else 1

    def n_envs(self, n_actors: int) -> int:
        """Return how many environments each of some actors steps."""
        if self.learns_from == "rollouts":
            options: Any = self.options
            return int(options.n_envs // n_actors)
        return self.envs_per_actor

    @property
    def normalizes(self) -> bool:
        """Whether observations or rewards are normalized."""
        return self.normalize_observations or self.normalize_rewards

    @property
    def publishes_all(self) -> bool:
        """Whether actors need all networks, not only the policy."""
        return self.initial_priority == "td_error"

    @property
    def env_name(self) -> str:
        """The environment, as messages name it."""
        if isinstance(self.env, str):
            return self.env
        # functools.partial has no name
        named = self.env if hasattr(self.env, "__qualname__") else type(self.env)
        return f"{named.__module__}:{named.__qualname__}"


def _check_options(config: RunnerConfig) -> None:
    """Raise ConfigError unless the options, if given, are those of the algorithm."""
    wanted = config.algorithm_class.options_class
    if config.options is not None and type(config.options) is not wanted:
        raise ConfigError(
            f"options must be {wanted.__name__} for {config.algorithm}, "
            f"got {type(config.options).__name__}; dataclasses.replace(RunnerConfig("
            f"{config.algorithm!r}, ...).options, learning_rate=...) changes some of a preset's"
        )


def _check_values(config: RunnerConfig) -> None:
    """Raise ConfigError naming the first value that is wrong."""
    for name in (
        "learners",
        "total_env_steps",
        "groups",
        "publish_interval",
        "evaluation_interval",
        "evaluation_episodes",
        "evaluation_max_steps",
        "learner_threads",
    ):
        _check(config, name, *AT_LEAST_1)
    _check(
        config,
        "actors",
        lambda n: n == "auto" or (isinstance(n, int) and n >= 1),
        "'auto' or an integer of at least 1",
    )
    for name in ("seed", "checkpoint_interval_env_steps", "max_restarts"):
        _check(config, name, *COUNT_FROM_0)
    _check(config, "seed", lambda n: n < 2**63, "below 2**63")
    _check(config, "total_env_steps", lambda n: n <= MOST_STEPS, f"at most {MOST_STEPS}")
    _check(config, "ray_address", lambda a: a is None or (isinstance(a, str) and a != ""), "text")
    _check(
        config, "target_return", lambda x: x is None or math.isfinite(x), "None or a finite number"
    )
    _check(config, "environment_timeout_seconds", *ABOVE_0)
    _check(config, "checkpoint_interval_seconds", *NUMBER_FROM_0)
    for name in ("normalize_observations", "normalize_rewards"):
        if type(getattr(config, name)) is not bool:
            raise ConfigError(f"{name} must be True or False, got {getattr(config, name)!r}")
    choices = {
        "backend": ("process", "serial", "ray"),
        "evaluate": ("during", "after", "never"),
        "inference": ("local", "worker"),
        "optimization": ("synchronous", "asynchronous"),
        "on_environment_error": ("restart", "stop"),
    }
    for name, allowed in choices.items():
        _check_choice(config, name, allowed)
    _check_kinds(config)
    _check_together(config)
    _check_inference(config)
    if config.learns_from == "replay":
        _check_replay(config)
    else:
        _check_rollouts(config)


def _check_device(config: RunnerConfig, name: str) -> None:
    try:
        torch.device(getattr(config, name))
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"{name} must be one of torch's, such as 'cpu' or 'cuda:0', "
            f"got {getattr(config, name)!r}"
        ) from None


def _check_inference(config: RunnerConfig) -> None:
    """Raise ConfigError naming the first setting of inference that is wrong."""
    if config.inference == "local":
        for name in ("policy_workers", "inference_device"):
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"{name} is for inference='worker', got inference='local': set that, or leave "
                    f"{name} out"
                )
        return
    _check(config, "policy_workers", *AT_LEAST_1)
    _check_device(config, "inference_device")
    if config.backend == "ray" and config.inference_device != "cpu":
        raise ConfigError(
            f"inference_device must be 'cpu' with backend='ray', got {config.inference_device!r}: "
            "policy workers are on all nodes, which may have no GPU"
        )
    if config.publishes_all:
        raise ConfigError(
            f"initial_priority={config.initial_priority!r} needs inference='local': actors compute "
            "TD errors by networks of their own"
        )
    n_workers = config.policy_workers or 0
    if config.actors != "auto" and n_workers > config.actors * config.groups:
        raise ConfigError(
            f"policy_workers must be at most actors · groups = {config.actors * config.groups}, "
            f"got {n_workers}: there is nothing for more to answer"
        )


def check_kind(algorithm: str, given: Iterable[str]) -> None:
    """Raise ConfigError if something is given that algorithms of this kind do not have."""
    kind = find(algorithm).learns_from
    other = "rollouts" if kind == "replay" else "replay"
    for name in FOREIGN[kind]:
        if name in given:
            instead = f"; {INSTEAD[name]}" if name in INSTEAD else ""
            raise ConfigError(
                f"{name} is a setting of algorithms that learn from {other}, and {algorithm} "
                f"learns from {kind}: leave it out{instead}"
            )


def _check_replay(config: RunnerConfig) -> None:
    """Raise ConfigError naming the first setting of replay that is wrong."""
    options: Any = config.options
    for name in ("envs_per_actor", "buffer_capacity", "learning_starts"):
        _check(config, name, *AT_LEAST_1)
    _check(
        config,
        "prefetch",
        lambda n: n is None or (isinstance(n, int) and 0 <= n <= MAX_DEPTH),
        f"None or an integer from 0 to {MAX_DEPTH}",
    )
    _check(
        config,
        "samples_per_insert_error",
        lambda x: x is None or 0 < x < math.inf,
        "None or a finite number above 0",
    )
    _check(config, "samples_per_insert", *ABOVE_0)
    for name in ("alpha", "beta"):
        _check(config, name, lambda x: 0 <= x <= 1, "a number from 0 to 1")
    share = "auto or a number from 0 to 1"
    _check(config, "uniform_share", lambda x: x == "auto" or 0 <= x <= 1, share)
    _check(config, "exploration_spread", *NUMBER_FROM_0)
    _check_choice(config, "initial_priority", ("max", "td_error"))
    is_divided = config.optimization == "synchronous"
    if is_divided and options.batch_size % config.learners:
        raise ConfigError(
            f"learners must divide batch_size={options.batch_size}, so that each has as many rows, "
            f"got {config.learners}: choose another number of learners or another batch size"
        )
    if config.envs_per_actor % config.groups:
        raise ConfigError(
            f"groups must divide envs_per_actor={config.envs_per_actor}, got {config.groups}: "
            "groups=1 always does"
        )
    due = max(
        options.batch_size, config.envs_per_actor // config.groups * config.samples_per_insert
    )
    if config.samples_per_insert_error is not None and not config.samples_per_insert_error >= due:
        raise ConfigError(
            f"samples_per_insert_error must be at least {due:g}, "
            f"got {config.samples_per_insert_error}: a batch, or what is due for one step of a "
            "group of environments, moves the balance by so much"
        )
    if config.learning_starts > config.buffer_capacity:
        raise ConfigError(
            f"learning_starts must be at most buffer_capacity={config.buffer_capacity}, "
            f"got {config.learning_starts}: learning would never start"
        )
    if config.backend == "ray" and config.prefetch:
        raise ConfigError(
            f"prefetch must be None or 0 with backend='ray', got {config.prefetch}: "
            "batches are asked for ahead in any case"
        )


def _check_rollouts(config: RunnerConfig) -> None:
    """Raise ConfigError naming the first setting of rollouts that is wrong."""
    options: Any = config.options
    _check(config, "max_staleness", *COUNT_FROM_0)
    if config.publish_interval != 1:
        raise ConfigError(
            f"publish_interval must be 1 for {config.algorithm}, got {config.publish_interval}: "
            "what is learned from was chosen by the newest parameters"
        )
    envs = "n_envs" if options.envs_per_update is None else "envs_per_update"
    if getattr(options, envs) % config.learners:
        raise ConfigError(
            f"learners must divide {envs}={getattr(options, envs)}, so that each has as many, "
            f"got {config.learners}: choose another number of learners or of environments"
        )
    together = options.envs_per_update or options.n_envs
    is_asynchronous = config.optimization == "asynchronous"
    updates = math.ceil(options.n_envs / together)  # which learn from all environments
    if is_asynchronous:
        updates *= config.learners  # which all count
        if config.max_staleness < updates:
            raise ConfigError(
                f"optimization='asynchronous' with learners={config.learners} and updates from "
                f"{together} of n_envs={options.n_envs} environments needs max_staleness of at "
                f"least {updates}, got {config.max_staleness}: the others' updates come in "
                "between, and what has waited for too many would be dropped"
            )
    elif config.max_staleness < updates - 1:
        raise ConfigError(
            f"envs_per_update={together} of n_envs={options.n_envs} needs max_staleness of at "
            f"least {updates - 1}, got {config.max_staleness}: while some environments are learned "
            "from, those that wait become older, and would be dropped"
        )
    room = rollouts_of_a_group(config.max_staleness, updates)
    needed = room * options.n_envs * options.rollout_length
    if config.total_env_steps < needed:
        raise ConfigError(
            f"total_env_steps={config.total_env_steps} must be at least {needed}, the steps that "
            f"n_envs={options.n_envs} environments may take before the first update: perhaps "
            "nothing would be learned"
        )
    steps = getattr(options, "batch_size", config.rows_per_update)
    rows = config.rows_per_update
    if is_asynchronous and rows % steps:
        others = sorted({math.gcd(rows, steps), rows} - {1})
        raise ConfigError(
            f"batch_size={steps} must divide the {rows} rows that each of "
            f"learners={config.learners} learns from: {' or '.join(map(str, others))} would do"
        )
    parts = config.learners_per_update
    if getattr(options, "normalize_advantage", False) and steps == parts:
        raise ConfigError(
            f"normalize_advantage=True needs a batch_size above learners={config.learners}, got "
            f"{steps}: one advantage has no spread"
        )
    if steps % parts:
        raise ConfigError(
            f"learners must divide batch_size={steps}, so that each has as many rows, "
            f"got {config.learners}: choose another number of learners or another batch size"
        )
    if getattr(options, "lstm_hidden_size", None) and steps // parts % options.rollout_length:
        raise ConfigError(
            f"learners={config.learners} must divide the {steps // options.rollout_length} "
            f"sequences of batch_size={steps}, so that each has whole ones, which lstm_hidden_size "
            "needs: choose another number of learners or another batch size"
        )
    if options.n_envs % config.groups:
        raise ConfigError(
            f"groups must divide n_envs={options.n_envs}, so that each has as many environments, "
            f"got {config.groups}: choose another number of groups or of environments"
        )
    if config.actors != "auto" and options.n_envs % (config.actors * config.groups):
        raise ConfigError(
            f"actors · groups = {config.actors * config.groups} must divide "
            f"n_envs={options.n_envs}, so that each group has as many environments: choose another "
            "number of actors or of environments"
        )


def _environments(config: RunnerConfig, options: Any) -> int:
    """Return how many environments of an actor groups share; 0 where the preset says how many."""
    if config.learns_from == "replay" or not hasattr(options, "n_envs"):
        return config.envs_per_actor or 0
    n_envs, actors = int(options.n_envs), config.actors  # of all actors
    divides = isinstance(actors, int) and actors > 0 and n_envs % actors == 0
    return n_envs // int(actors) if divides else n_envs


def _survives_json(value: Any) -> bool:
    """Return whether JSON gives back the same, as it does not for tuples."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _check_kinds(config: RunnerConfig) -> None:
    for name in ("env_options", "eval_env_options"):
        value = getattr(config, name)
        if not (isinstance(value, Mapping) and _survives_json(dict(value))):
            raise ConfigError(
                f"{name} must be a dict of what JSON has, for config.json keeps it, "
                f"got {value!r}: write tuples as lists, keys as text and numbers of NumPy as "
                "Python's; make anything else, and NaN, in a function, and give it as env"
            )
    _check_device(config, "device")


def _check_together(config: RunnerConfig) -> None:
    if config.backend != "serial" and not is_supported():
        raise ConfigError(
            f"backend={config.backend!r} needs the shared memory of Linux: "
            "use backend='serial' here"
        )
    if config.backend != "ray" and config.ray_address is not None:
        raise ConfigError(
            f"ray_address is for backend='ray', got backend={config.backend!r}: leave it out"
        )
    if config.backend == "serial" and config.learners > 1:
        raise ConfigError(
            f"learners must be 1 with backend='serial', got {config.learners}: "
            "several need processes"
        )
    if config.optimization == "asynchronous":
        if config.learners == 1:
            raise ConfigError(
                "optimization='asynchronous' needs learners of at least 2: one does not wait for "
                "others in any case"
            )
        if config.backend == "ray":
            raise ConfigError(
                "optimization='asynchronous' is for backend='process': with backend='ray' learners "
                "average gradients"
            )
    if config.target_return is not None and config.evaluate != "during":
        raise ConfigError(
            f"target_return needs evaluate='during', got evaluate={config.evaluate!r}"
        )


def check_algorithm(name: Any) -> None:
    """Raise ConfigError, with the nearest names, if there is no such algorithm."""
    if isinstance(name, str) and ":" in name:
        try:
            find(name)
        except Exception as error:
            raise ConfigError(
                f"algorithm={name!r} cannot be used: {type(error).__name__}: {error}"
            ) from None
    elif not isinstance(name, str) or name not in ALGORITHMS:
        raise ConfigError(
            f"algorithm must be one of {', '.join(ALGORITHMS)}, or module:Class, "
            f"got {name!r}{suggestion(name, ALGORITHMS)}"
        )


def suggestion(name: Any, known: Any) -> str:
    """Return a question with the known names nearest to ``name``, or nothing."""
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(str(name).lower(), list(lower), n=3, cutoff=0.5)
    return f": did you mean {' or '.join(lower[other] for other in near)}?" if near else ""


Rule = tuple[Callable[[Any], bool], str]
AT_LEAST_1: Rule = (lambda n: isinstance(n, int) and n >= 1), "an integer of at least 1"
COUNT_FROM_0: Rule = (lambda n: isinstance(n, int) and n >= 0), "an integer of at least 0"
ABOVE_0: Rule = (lambda x: 0 < x < math.inf), "a finite number above 0"
NUMBER_FROM_0: Rule = (lambda x: 0 <= x < math.inf), "a finite number of at least 0"


def _as_directory(path: Any) -> str:
    """Return the name of a folder; ConfigError if there can be none, also for TensorBoard."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str):
        raise ConfigError(f"directory must be a path, got {path!r}")
    if not name or "\0" in name:
        raise ConfigError(f"directory must be the name of a folder, got {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"directory must be text that UTF-8 can have, got {name!r}") from None
    return name


def _check_choice(config: RunnerConfig, name: str, allowed: tuple[str, ...]) -> None:
    if getattr(config, name) not in allowed:
        raise ConfigError(
            f"{name} must be one of {', '.join(allowed)}, got {getattr(config, name)!r}"
        )


def _check(config: RunnerConfig, name: str, fits: Callable[[Any], bool], wanted: str) -> None:
    value = getattr(config, name)
    try:
        good = not isinstance(value, bool) and fits(value)
    except TypeError:
        good = False
    if not good:
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def as_json(config: RunnerConfig) -> dict[str, Any]:
    """Return a complete configuration for config.json."""
    return {**dataclasses.asdict(config), "env": config.env_name}


def from_json(content: Mapping[str, Any]) -> RunnerConfig:
    """Return the configuration that `as_json` wrote."""
    check_algorithm(content.get("algorithm"))
    options_class = find(content["algorithm"]).options_class
    try:
        options = options_class.from_saved(content["options"])
        is_replay = find(content["algorithm"]).learns_from == "replay"
        before = {"uniform_share": 0.0} if is_replay else {}
        return RunnerConfig(**{**before, **content, "options": options})
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"config.json has other settings than {content['algorithm']} has here, so it was "
            "changed, or is of another version of kary-replay: "
            f"{type(error).__name__}: {error}"
        ) from None
