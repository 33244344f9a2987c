"""Inference by policy workers: actors show them observations, and get back what networks say.

A policy worker answers for all groups of environments that have asked, with one pass through the
networks. What random numbers decide is decided by the actor, so that its actions are those that it
would have chosen itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...algorithms import Algorithm
from ...core.ordered import load, store
from ...fields import map_leaves
from ...types import Field
from .columns import arrays_in, n_numbers, nested, put
from .looking import found_within
from .stream import Checkpoint, Hosted, Medium, Numbers

__all__ = [
    "HostedInference",
    "InferenceSink",
    "InferenceSource",
    "InferenceStream",
    "RemoteInference",
    "Requests",
]

FILE = "inference.npz"
# Of each group: how often it has asked, which its actor sets; how often it was answered, and by
# parameters of how many updates, which its policy worker sets.
ASKED, ANSWERED, VERSION = COUNTS = "asked", "answered", "version"


@dataclass(frozen=True)
class InferenceStream:
    """Observations on their way to policy workers, and what these answer.

    Parameters
    ----------
    observation : Field, or mapping of them
        Of one environment.
    n_outputs : int
        Numbers that the networks say of an observation: k of `Algorithm.outputs`.
    n_envs, n_groups : int
        Environments of a group, and groups of all actors.
    n_workers : int
        Policy workers; the i-th answers every n-th group, beginning with the i-th.
    state_size : int
        Numbers that the policy carries from step to step, as `Algorithm` has them.
    """

    observation: Any
    n_outputs: int
    n_envs: int
    n_groups: int
    n_workers: int = 1
    state_size: int = 0

    @property
    def columns(self) -> dict[str, Any]:
        """What there is of each environment."""
        outputs = Field((self.n_outputs,), np.float32)
        columns = {"observation": self.observation, "outputs": outputs}
        if self.state_size:
            state = Field((self.state_size,), np.float32)
            columns |= {"state": state, "next_state": state}
        return columns

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedInference:
        """Make room for a request of each group, or take up those of a checkpoint.

        Only where all workers take turns in one process, a checkpoint has those of one moment.
        """
        rows = medium.numbers(n_numbers(self.columns, (self.n_groups, self.n_envs)))
        counts = medium.numbers(len(COUNTS) * self.n_groups + 2 * self.n_workers)
        saved = None if checkpoint.folder is None else checkpoint.folder / FILE
        goes_on = saved is not None and saved.exists() and not medium.is_shared
        if saved is not None and goes_on:
            with np.load(saved) as file:
                rows.array[:], counts.array[:] = file["rows"], file["counts"]
        return HostedInference(Requests(self, rows, counts, goes_on))


class Requests:
    """The memory of an inference stream, as all workers see it; picklable to them.

    Attributes
    ----------
    columns : dict of (nested) arrays [n_groups, n_envs, ...]
        ``observation`` and ``state``, which are asked with, and ``outputs`` and ``next_state``,
        which answer.
    counts : dict of str to int64 [n_groups]
        See COUNTS. Each has one worker that sets it.
    work : float64 [n_workers, 2]
        Passes through the networks that each policy worker has made, and rows that these had.
    """

    def __init__(
        self, stream: InferenceStream, rows: Numbers, counts: Numbers, goes_on: bool = False
    ) -> None:
        self.stream, self._memory = stream, (rows, counts)
        self.goes_on = goes_on
        """Whether these are requests and answers of a checkpoint."""
        shape = stream.n_groups, stream.n_envs
        nothing = np.zeros((*shape, 0), np.float32)
        self.columns = {
            **{"state": nothing, "next_state": nothing},
            **nested(stream.columns, arrays_in(rows.array, stream.columns, shape)),
        }
        words, n = counts.array.view(np.int64), stream.n_groups
        self.counts = {name: words[i * n : (i + 1) * n] for i, name in enumerate(COUNTS)}
        self.work = counts.array[len(COUNTS) * n :].reshape(stream.n_workers, 2)

    def __reduce__(self) -> tuple[Any, ...]:
        return Requests, (self.stream, *self._memory)

    def number(self, group: int, name: str) -> int:
        """Return one of a group's counts, and see what was written before it was set."""
        return load(self.counts[name], group)

    def save(self, path: Path) -> None:
        """Write all of it."""
        rows, counts = self._memory
        np.savez(path, rows=rows.array, counts=counts.array)

    def is_open(self, group: int) -> bool:
        """Return whether a group waits for an answer."""
        return self.number(group, ASKED) != self.number(group, ANSWERED)


class HostedInference(Hosted):
    """An inference stream in the memory of this machine."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def sink(self) -> InferenceSink:
        """Return the actors' end."""
        return InferenceSink(self._requests)

    def source(self) -> InferenceSource:
        """Return the policy workers' end."""
        return InferenceSource(self._requests)

    def save(self, folder: Path) -> None:
        """Write requests and answers."""
        self._requests.save(folder / FILE)

    def figures(self) -> dict[str, float]:
        """Return how many rows a pass through the networks has had, on average."""
        passes, rows = self._requests.work.sum(0).tolist()
        return {"rows_together": rows / passes if passes else 0.0}


class InferenceSink:
    """The actors' end of an inference stream."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def client(self, seat: Any, algorithm: Algorithm, rng: np.random.Generator) -> RemoteInference:
        """Return what an actor asks for its actions."""
        first = seat.index * seat.config.groups
        return RemoteInference(self._requests, algorithm, rng, first)


class RemoteInference:
    """An actor's requests, and what it makes of the answers.

    Parameters
    ----------
    requests : Requests
        The memory.
    algorithm : Algorithm
        Decides by what the networks say; its own networks are not used.
    rng : numpy.random.Generator
        Draws what is decided at random.
    first_group : int
        The actor's first group among those of all actors.
    """

    def __init__(
        self, requests: Requests, algorithm: Algorithm, rng: np.random.Generator, first_group: int
    ) -> None:
        self._requests, self.algorithm, self._rng = requests, algorithm, rng
        self._first = first_group
        self._exploration: dict[int, npt.NDArray[np.float32]] = {}
        self.updates = 0

    def request(
        self,
        group: int,
        observation: Any,
        exploration: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Show a policy worker the observations of a group."""
        requests, number = self._requests, self._first + group
        self._exploration[group] = exploration
        put(requests.columns["observation"], number, observation)
        put(requests.columns["state"], number, 0.0 if state is None else state)
        # One that was there before may have asked for something else, which is still on its way.
        store(requests.counts[ASKED], number, requests.number(number, ASKED) + 1)

    def ask_again(
        self,
        group: int,
        observation: Any,
        exploration: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Ask for what was asked before a checkpoint, unless that has the request, too."""
        if self._requests.goes_on:
            self._exploration[group] = exploration
        else:
            self.request(group, observation, exploration, state)

    def is_ready(self, group: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether there is an answer."""
        number = self._first + group
        closed = found_within(patience_seconds, lambda: not self._requests.is_open(number) or None)
        return closed is not None

    def collect(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """Decide by the answer, which must be there."""
        requests, number = self._requests, self._first + group
        self.updates = requests.number(number, VERSION)
        outputs = requests.columns["outputs"][number].copy()
        chosen = self.algorithm.decide(outputs, self._exploration.pop(group), self._rng)
        if requests.stream.state_size:
            chosen["next_state"] = requests.columns["next_state"][number].copy()
        return chosen


class InferenceSource:
    """The policy workers' end of an inference stream."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def gather(self, worker: int, patience_seconds: float) -> tuple[list[int], Any, Any]:
        """Wait at most so long for a request.

        Return all groups of a policy worker that have asked, and their observations and states
        together, [n, ...].
        """
        requests = self._requests
        mine = range(worker, requests.stream.n_groups, requests.stream.n_workers)
        groups = found_within(
            patience_seconds, lambda: list(filter(requests.is_open, mine)) or None
        )
        if groups is None:
            return [], None, None
        self._asked = [requests.number(group, ASKED) for group in groups]
        read = {name: requests.columns[name] for name in ("observation", "state")}
        rows = map_leaves(read, lambda column: np.concatenate(column[groups]))
        return groups, rows["observation"], rows["state"]

    def answer(
        self,
        worker: int,
        groups: Sequence[int],
        outputs: npt.NDArray[np.float32],
        next_state: npt.NDArray[np.float32],
        updates: int,
    ) -> None:
        """Give groups what the networks say, [n, k], and the next states, after so many updates."""
        requests, n_envs = self._requests, self._requests.stream.n_envs
        requests.work[worker] += 1, len(outputs)
        for i, (group, asked) in enumerate(zip(groups, self._asked, strict=True)):
            mine = slice(i * n_envs, (i + 1) * n_envs)
            requests.columns["outputs"][group] = outputs[mine]
            requests.columns["next_state"][group] = next_state[mine]
            store(requests.counts[VERSION], group, updates)
            store(requests.counts[ANSWERED], group, asked)
