"""The rollouts of the actors of one machine, which the learner on another one asks for.

Actors write into the memory of their machine, by the rules of `rollout`. What is complete stays
there until it was used, so it can be sent again. The learner is told which rollouts of a group it
gets by a *stay*, the time that the group's environments are in one part of the run: stays are
numbered, and rollouts go on being numbered from one stay to the next.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...algorithms import Algorithm
from ...core.ordered import load, store
from ...errors import ShardError
from ...shards import SocketTransport
from ...shards.messages import Kind, Message, pack, unpack
from ...version import VERSION
from .inference import Inference
from .looking import found_within
from .members import PATIENCE_SECONDS, MemberAnswerer
from .parameters import Parameters
from .rollout import LOST, USED, WRITTEN, HostedRollouts, Rollouts, RolloutSink
from .rollout_messages import Found, news_of, parts_of, signature
from .stream import Hosted, Medium, Numbers, Part, Peer

__all__ = ["HostedRolloutShard", "Progress", "RolloutService", "ShardRolloutSink", "Stay", "Stays"]

NONE = 0  # no stay: stays are numbered from 1
LOOK_SECONDS = 100e-6  # between two looks at whether a rollout is complete
MOST_BYTES = 64 << 20  # of an answer, unless one rollout has more


class Stay(NamedTuple):
    """What a part is to know of a group that comes: its stay, and rollouts complete before it."""

    number: int
    n_complete: int


class Progress(NamedTuple):
    """What a part tells of a group: its stay, and steps written and lost, as `Rollouts` counts."""

    stay: int
    written: int
    lost: int


class Stays:
    """The stay of every group; picklable to the workers of a machine.

    Parameters
    ----------
    numbers : Numbers [n_groups]
        The memory.
    """

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.words: npt.NDArray[np.int64] = numbers.array.view(np.int64)

    def of(self, group: int) -> int:
        """Return the number of a group's stay, and see what was written before it was set."""
        return load(self.words, group)

    def set(self, group: int, number: int) -> None:
        """Set it."""
        store(self.words, group, number)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stays, (self._numbers,)


class HostedRolloutShard(HostedRollouts):
    """The part of a rollout stream that is in the memory of a machine without learners.

    Parameters
    ----------
    rollouts : Rollouts
        The memory. Its counts of used rollouts are the learner's own, as it told them last.
    medium : Medium
        Where there is more.
    part : Part
        Which part it is.
    """

    def __init__(self, rollouts: Rollouts, medium: Medium, part: Part) -> None:
        super().__init__(rollouts)
        rollouts.n_updates = -1  # actors begin when the learner has told how many there are
        self._stays, self._part = Stays(medium.numbers(rollouts.stream.n_groups)), part
        self._coming: dict[int, Stay] = {}
        self._parameters: Parameters | None = None

    def meet(self, streams: Mapping[str, Hosted]) -> None:
        """Note who has the parameters, which come with the counts of used rollouts."""
        self._parameters = streams["parameters"].sink()

    def sink(self) -> ShardRolloutSink:
        """Return the actors' end."""
        return ShardRolloutSink(self._rollouts, self._stays, dict(self._coming))

    def heard(self, peer: Peer, told: Any) -> None:
        """Note which stays begin here; who is started next gets to know them."""
        self._coming.update(told)

    def told(self, peer: Peer) -> Any:
        """Return the progress of the groups that are here."""
        rollouts, stays = self._rollouts, self._stays
        progress: dict[int, Progress] = {}
        for group, coming in self._coming.items():
            counts = rollouts.number(group, WRITTEN), rollouts.number(group, LOST)
            if stays.of(group) == coming.number:
                progress[group] = Progress(coming.number, *counts)
        return progress or None

    def answerer(self) -> RolloutAnswerer:
        """Return who answers for these rollouts."""
        assert self._parameters is not None
        service = RolloutService(self._rollouts, self._stays, self._parameters)
        return RolloutAnswerer(service, self._part.token)


class ShardRolloutSink(RolloutSink):
    """The actors' end.

    Parameters
    ----------
    rollouts, stays : Rollouts, Stays
        The memory.
    coming : mapping
        The stays that begin, by their groups.
    """

    def __init__(self, rollouts: Rollouts, stays: Stays, coming: Mapping[int, Stay]) -> None:
        super().__init__(rollouts)
        self._stays, self._coming = stays, coming

    def writer(
        self,
        algorithm: Algorithm,
        n_envs: int,
        group: int,
        inference: Inference,
        priority: Any = None,
    ) -> Any:
        """Return what turns the steps of a group into rows; the group's stay begins, if it has not.

        The caller's process is the only one that writes for the group here.
        """
        stay, stays, rollouts = self._coming[group], self._stays, self._rollouts
        if stays.of(group) != stay.number:
            stays.set(group, NONE)  # who has begun to copy what was here before notices
            rollouts.set(group, LOST, 0)
            rollouts.set(group, WRITTEN, stay.n_complete * rollouts.stream.length)
            stays.set(group, stay.number)
        return super().writer(algorithm, n_envs, group, inference, priority)

    def may_choose(self, group: int) -> bool:
        """Return whether the group has room for a step, and there are parameters to choose by."""
        return self._rollouts.n_updates >= 0 and super().may_choose(group)


class RolloutService:
    """Answers the learner about the rollouts of this machine; picklable to the process that does.

    Parameters
    ----------
    rollouts, stays : Rollouts, Stays
        The memory.
    parameters : Parameters
        Where the parameters go that come.

    Notes
    -----
    Any number of threads may call `answer` at once.
    """

    def __init__(self, rollouts: Rollouts, stays: Stays, parameters: Parameters) -> None:
        self._rollouts, self._stays, self._parameters = rollouts, stays, parameters
        self._publishing = threading.Lock()
        self._serial = -1  # of the newest news

    def __reduce__(self) -> tuple[Any, ...]:
        return RolloutService, (self._rollouts, self._stays, self._parameters)

    def answer(self, request: bytes | bytearray | memoryview) -> list[Any]:
        """Do what a message asks for; return the answer as buffers. It raises nothing."""
        try:
            message = unpack(request)
            if message.kind == Kind.TAKE:
                parts = self._take(message)
            elif message.kind == Kind.PUBLISH:
                parts = self._publish(message)
            elif message.kind == Kind.HELLO:
                parts = self._hello(message)
            else:
                raise ShardError(f"who has rollouts takes no message of kind {message.kind.name}")
            return pack(Kind.DONE, *parts)
        except Exception as error:  # whatever it is, whoever asked must not wait for ever
            return pack(Kind.FAILED, type(error).__name__.encode(), str(error).encode())

    def close(self) -> None:
        """Do nothing."""

    def _hello(self, message: Message) -> list[Any]:
        """Compare versions and columns."""
        ours = VERSION, signature(self._rollouts.stream)
        theirs = message.text(0), message.text(1)
        if ours != theirs:
            raise ShardError(f"the rollouts here are {ours}, and you have {theirs}")
        return []

    def _take(self, message: Message) -> list[Any]:
        """Wait for a rollout that is complete; return all that are."""
        n_groups = self._rollouts.stream.n_groups
        stays, had = (message.array(i, np.int64, (n_groups,)) for i in range(2))
        (patience,) = message.array(2, np.float64, (1,)).tolist()
        found = found_within(patience, lambda: self._complete(stays, had) or None, LOOK_SECONDS)
        if found is None:
            return []
        parts = parts_of(self._rollouts, found)
        # An actor may have come meanwhile that writes where those were of another stay.
        if all(self._stays.of(one.group) == one.stay for one in found):
            return parts
        return []

    def _complete(self, stays: npt.NDArray[np.int64], had: npt.NDArray[np.int64]) -> list[Found]:
        """Return the rollouts that are complete, as many as one answer may have."""
        rollouts, stream = self._rollouts, self._rollouts.stream
        n_complete = rollouts.counts[WRITTEN] // stream.length
        groups = np.flatnonzero((self._stays.words == stays) & (n_complete > had))
        found: list[Found] = []
        for group in groups.tolist():
            stay = self._stays.of(group)
            complete, _ = rollouts.position(group)  # and sees what was written before
            if stay == stays[group] == self._stays.of(group):
                numbers = range(max(int(had[group]), complete - stream.n_slots), complete)
                found += [Found(group, stay, number) for number in numbers]
        one = sum(array[0, 0].nbytes for array in rollouts.arrays.values())
        return found[: max(1, MOST_BYTES // one)]

    def _publish(self, message: Message) -> list[Any]:
        """Take over the parameters, and then give back the places of what was used."""
        rollouts = self._rollouts
        news = news_of(message, rollouts.stream.n_groups)
        with self._publishing:
            if news.serial <= self._serial:
                return []
            self._serial = news.serial
            if len(news.parameters):
                self._parameters.publish(news.parameters, news.parameter_updates)
            rollouts.n_updates = news.n_updates
            for group, used in enumerate(news.used.tolist()):
                rollouts.set(group, USED, used)
        return []


class RolloutAnswerer(MemberAnswerer):
    """Answers the learner for the rollouts of a machine."""

    def __init__(self, service: RolloutService, token: bytes) -> None:
        super().__init__(token)
        self._service = service

    def service(self) -> RolloutService:
        """Return who answers for the rollouts."""
        return self._service

    def greet(self, transport: SocketTransport) -> None:
        """Say hello; any answer will do."""
        transport.send(pack(Kind.HELLO)).result(PATIENCE_SECONDS)
