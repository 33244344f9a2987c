"""One line that gives a configuration of RLlib our replay buffer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.cql import CQL
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.tune.search.sample import Domain

from kary_replay.adapters.rllib.algorithms import OURS
from kary_replay.adapters.rllib.replay_buffer import PrioritizedEpisodeReplayBuffer
from kary_replay.adapters.rllib.replay_columns import ReplayColumns
from kary_replay.types import UniformShare

Config = TypeVar("Config", bound=AlgorithmConfig)


def use(
    config: Config,
    *,
    capacity: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    priority_epsilon: float | None = None,
    uniform_share: UniformShare | None = None,
    seed: int | None = None,
    storage_directory: str | os.PathLike[str] | None = None,
    whole_batches: bool | None = None,
) -> Config:
    """Let an algorithm of RLlib draw its batches from our buffer, and save it in its checkpoints.

    Call it last: a ``replay_buffer_config`` or a ``learner_connector`` that is set afterwards takes
    the place of ours.

    Parameters
    ----------
    config : DQNConfig, SACConfig or TQCConfig
        On the new API stack, for a single agent and a module that is not recurrent. It is changed:
        ``replay_buffer_config`` and the learner connectors, to which ReplayColumns is added as the
        first one, and the class of the algorithm, which becomes `ReplayDQN`, `ReplaySAC` or
        `ReplayTQC`. Of an algorithm of your own the class stays; to have the buffer in its
        checkpoints, let it inherit from `ReplayInCheckpoints`.
    capacity, alpha, beta, priority_epsilon, uniform_share, storage_directory
        See `PrioritizedEpisodeReplayBuffer`. None: what the configuration has, from an earlier
        call, too; else 10,000, 0.6 (0 if it has a buffer of RLlib's that draws uniformly), 0.4,
        1e-6, 0 and no directory. Whatever else ``replay_buffer_config`` has, stays. Each may be a
        search space of Ray Tune; what it chooses is checked when the trial's buffer is made.
    seed : None or int
        Of the draws; None: the seed that the configuration has now, if it has one.
    whole_batches : bool
        False: batches are lists of episodes, as RLlib's own, for learner connectors that read
        episodes. These cost RLlib's loops over them, and with several learners the TD errors come
        back to wrong rows. None: as in an earlier call; else True.

    Returns
    -------
    config
        The same, so that calls can be chained.

    Raises
    ------
    TypeError, ValueError
        If it is the configuration of another algorithm, of the old API stack, of several agents, or
        of one that reads offline data; if an argument is out of range; ValueError as well if RLlib
        has frozen it because an algorithm was built of it. Nothing is changed then.

    Examples
    --------
    >>> from ray.rllib.algorithms.sac import SACConfig
    >>> from kary_replay.adapters.rllib import use
    >>> config = use(SACConfig().environment("Pendulum-v1"), capacity=100_000)
    >>> algorithm = config.build_algo()  # doctest: +SKIP
    """
    _check(config)
    theirs = dict(config.replay_buffer_config)
    kind = theirs.pop("type", "")
    is_uniform = "Prioritized" not in getattr(kind, "__name__", str(kind))
    defaults = {
        "capacity": 10_000,
        "alpha": 0.0 if is_uniform else 0.6,
        "beta": 0.4,
        "priority_epsilon": 1e-6,
        "uniform_share": 0.0,
        "storage_directory": None,
        "whole_batches": True,
    }
    given = {
        "capacity": capacity,
        "alpha": alpha,
        "beta": beta,
        "priority_epsilon": priority_epsilon,
        "uniform_share": uniform_share,
        "storage_directory": storage_directory,
        "whole_batches": whole_batches,
    }
    given = {name: value for name, value in given.items() if value is not None}
    settings = {**defaults, **theirs, **given, "seed": config.seed if seed is None else seed}
    chosen_later = {name for name, value in settings.items() if _is_search_space(value)}
    if "whole_batches" in chosen_later:
        raise ValueError(
            "whole_batches must be True or False, got a search space: connectors are chosen now"
        )
    now = {name: value for name, value in settings.items() if name not in chosen_later}
    PrioritizedEpisodeReplayBuffer(**now)  # says now what is wrong; memory comes later
    connectors = config._learner_connector
    if isinstance(connectors, _ColumnsFirst):
        connectors = connectors.others
    first = _ColumnsFirst(connectors) if settings["whole_batches"] else connectors
    config.replay_buffer_config = {"type": _BufferType(), **settings}
    config.learners(learner_connector=first)
    config.algo_class = OURS.get(config.algo_class, config.algo_class)
    return config


def _check(config: Any) -> None:
    """Raise TypeError or ValueError for a configuration that cannot use the buffer."""
    found = getattr(config, "algo_class", None)
    if not isinstance(config, AlgorithmConfig) or not (
        isinstance(found, type) and issubclass(found, tuple(OURS))
    ):
        names = ", ".join(f"{theirs.__name__}Config" for theirs in OURS)
        raise TypeError(
            f"config must be one of {names}, or of an algorithm that inherits from theirs, got "
            f"{type(config).__name__}: other algorithms have no prioritized replay"
        )
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise ValueError(
            "config is of RLlib's old API stack; set config.api_stack("
            "enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)"
        )
    if config.is_multi_agent:
        raise ValueError(
            "config is of several agents, and this buffer keeps the episodes of one; leave "
            "replay_buffer_config at RLlib's MultiAgentPrioritizedEpisodeReplayBuffer"
        )
    if config.is_offline or issubclass(found, CQL):
        raise ValueError("config reads offline data, and fills no replay buffer")
    if config._is_frozen:
        raise ValueError(
            "config is frozen, for an algorithm was built of it: use(config.copy("
            "copy_frozen=False)) gives one of its own"
        )


def _is_search_space(value: Any) -> bool:
    """Return whether Ray Tune chooses the value, for each trial another one."""
    return isinstance(value, Domain) or (isinstance(value, Mapping) and "grid_search" in value)


class _BufferType(str):
    """The name of RLlib's buffer, which makes ours when it is called.

    SAC and TQC accept no other names than those of RLlib's own buffers, and no classes. RLlib calls
    what can be called before it looks for a class of that name.
    """

    __slots__ = ()

    def __new__(cls) -> _BufferType:
        return super().__new__(cls, "PrioritizedEpisodeReplayBuffer")

    def __call__(self, *args: Any, **kwargs: Any) -> PrioritizedEpisodeReplayBuffer:
        return PrioritizedEpisodeReplayBuffer(*args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        """RLlib asserts that what it has made is an instance of this."""
        return isinstance(instance, PrioritizedEpisodeReplayBuffer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _BufferType, ()


class _ColumnsFirst:
    """Makes ReplayColumns, and after it the connectors that there were before."""

    def __init__(self, others: Callable[..., Any] | None) -> None:
        self.others = others

    def __call__(self, *spaces: Any) -> Sequence[ConnectorV2]:
        made = self.others(*spaces) if self.others else []
        if isinstance(made, ConnectorV2):
            made = [made]
        if not isinstance(made, (list, tuple)):
            raise ValueError(f"learner_connector must return connectors, got {made!r}")
        return [ReplayColumns(), *made]
