"""A run as a flow: which workers there are, and which streams lie between them.

An algorithm names the function that makes its flow; `flows` has those of all algorithms here. A
backend decides where the workers are. `HostedFlow` is a flow whose streams have places; from it
every worker gets its `Seat`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .clock import Clock
from .config import ConfigError, RunnerConfig
from .environments.env_factory import EnvFactory
from .streams import BoardStream, Checkpoint, Medium, Stream
from .streams.board import Board
from .workers import Seat, Worker

__all__ = ["Flow", "HostedFlow", "Role", "device_of", "flow_of"]


@dataclass(frozen=True)
class Role:
    """What workers of one kind do in a run, and what becomes of the run when one fails.

    Parameters
    ----------
    kind : str
        The name of the role, such as actor.
    worker : class
        The class of the workers; each is made of a `Seat`.
    random_stream : int
        A number of the role's own, from which the random numbers of its workers come.
    count : int
        How many workers there are.
    reads, writes : tuples of str
        The streams of which the workers have the source, and those of which they have the sink.
    device : str
        Where they compute; with "cuda" each has a GPU of its own.
    threads : int
        Threads of torch in each worker.
    on_failure : "restart", "end" or "continue"
        Whether a worker that fails is started anew and the run ends if it goes on failing; whether
        the run ends at once; or whether it is started anew and the run goes on without it at last.
    steps_environments : bool
        Whether a worker that is silent, or whose process ends without a word, accuses the
        environment. Otherwise it accuses an update that does not end.
    saved : "each", "first" or "at once"
        Whether a checkpoint has the state of each worker, of the first one for all of them, or only
        of those that answer at once.
    is_anywhere : bool
        Whether the workers may be on other machines than those of the other roles.
    is_everywhere : bool
        Whether each machine with workers that may be anywhere has as many of its own.
    provides, holds : str
        What a run lacks that goes on without the role, and what is lost with a worker of it.
    """

    kind: str
    worker: Callable[[Seat], Worker]
    random_stream: int
    count: int = 1
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int = 1
    on_failure: Literal["restart", "end", "continue"] = "restart"
    steps_environments: bool = False
    saved: Literal["each", "first", "at once"] = "each"
    is_anywhere: bool = False
    is_everywhere: bool = False
    provides: str = ""
    holds: str = ""


@dataclass(frozen=True)
class Flow:
    """The streams of a run by name, and its roles in the order in which workers are made."""

    streams: Mapping[str, Stream]
    roles: tuple[Role, ...]


def flow_of(config: RunnerConfig, env_factory: EnvFactory, n_actors: int) -> Flow:
    """Return the flow that the algorithm of a run names."""
    module, _, function = config.algorithm_class.flow.partition(":")
    flow: Flow = getattr(importlib.import_module(module), function)(config, env_factory, n_actors)
    return flow


class HostedFlow:
    """A flow whose streams have places: what the supervisor and the monitor know of a run.

    Parameters
    ----------
    config : RunnerConfig
        The settings of the run.
    env_factory : EnvFactory
        Makes its environments.
    n_actors : int
        How many workers step environments in training.
    medium : Medium
        Where the streams are to be, as the backend offers it.
    checkpoint : Checkpoint
        What the run goes on from.

    Raises
    ------
    ConfigError
        If there is not enough memory, or the checkpoint is damaged.
    """

    def __init__(
        self,
        config: RunnerConfig,
        env_factory: EnvFactory,
        n_actors: int,
        medium: Medium,
        checkpoint: Checkpoint,
    ) -> None:
        self.config, self.env_factory = config, env_factory
        self.checkpoint, self.medium = checkpoint, medium
        self.clock = Clock(float(checkpoint.counters.get("seconds", 0.0)))
        self._is_complete = False
        flow = flow_of(config, env_factory, n_actors)
        self.roles = [role for role in flow.roles if role.count]
        board = BoardStream(
            {role.kind: role.count for role in flow.roles}, config.optimization == "asynchronous"
        )
        self.streams: dict[str, Any] = {}
        try:
            for name, stream in {**flow.streams, "board": board}.items():
                self.streams[name] = stream.host(medium, checkpoint)
        except BaseException as cause:
            self.close()
            is_new = checkpoint.folder is None
            if isinstance(cause, MemoryError) or (is_new and isinstance(cause, ValueError)):
                raise _no_room(config, cause) from None
            if is_new and isinstance(cause, OSError):
                raise ConfigError(f"the run cannot be set up: {cause}") from None
            if is_new or not isinstance(cause, (OSError, ValueError, KeyError)):
                raise
            raise ConfigError(f"the checkpoint {checkpoint.folder} is damaged: {cause}") from None
        self.board: Board = self.streams["board"].source()
        for stream in self.streams.values():
            stream.meet(self.streams)

    def seat(self, role: Role, index: int, incarnation: int = 0) -> Seat:
        """Return what a worker is made of."""
        streams = {name: self.streams[name].source() for name in role.reads}
        streams.update({name: self.streams[name].sink() for name in role.writes})
        return Seat(
            self.config,
            self.env_factory,
            role.kind,
            index,
            role.count,
            role.random_stream,
            device_of(role.device, index),
            self.board,
            self.clock,
            streams,
            incarnation,
            self.medium.part.number if self.medium.part else 0,
        )

    @property
    def is_complete(self) -> bool:
        """Whether all steps are done, and all that they allow others to do.

        It stays so: steps that were under way then come too late to allow anything.
        """
        is_over = self.board.env_steps >= self.config.total_env_steps
        self._is_complete |= is_over and all(one.is_used_up() for one in self.streams.values())
        return self._is_complete

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of the stream of experience, by name."""
        figures: dict[str, float] = self.streams["experience"].figures()
        return figures

    def counters(self) -> dict[str, Any]:
        """Return what checkpoint.json keeps of the streams."""
        counters: dict[str, Any] = {}
        for stream in self.streams.values():
            counters.update(stream.counters())
        return counters

    def waited(self) -> dict[str, float]:
        """Return the share of their time that workers waited for each other, by their kinds."""
        seconds = self.clock.session_seconds
        return {
            f"{role.kind}s": float(self.board.column(role.kind, "waited_seconds").mean()) / seconds
            if seconds
            else 0.0
            for role in self.roles
            if role.on_failure != "continue"
        }

    def save(self, folder: Path) -> None:
        """Write what the streams hold; workers may go on meanwhile."""
        for stream in self.streams.values():
            stream.save(folder)

    def close(self) -> None:
        """Let go of the streams' memory."""
        for stream in self.streams.values():
            stream.close()
        self.medium.close()


def device_of(device: str, index: int) -> str:
    """Return where one of several workers computes: with "cuda" each has a GPU of its own."""
    return f"cuda:{index}" if device == "cuda" else device


def _no_room(config: RunnerConfig, cause: BaseException) -> ConfigError:
    what, remedy = f"buffer_capacity={config.buffer_capacity}", "choose a smaller one"
    if config.learns_from == "rollouts":
        what = f"n_envs · rollout_length = {config.rows_per_update}"
        remedy = "choose fewer environments or shorter rollouts"
    needed = str(cause).partition(";")[0]  # what follows are remedies of a buffer alone
    return ConfigError(f"{what} is more than memory has room for: {needed}; {remedy}")
