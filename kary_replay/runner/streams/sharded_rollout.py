"""Rollouts on their way from actors on many machines to the learners.

Where the learners are, a memory has room for the rollouts of all groups, as on one machine. The
actors there write into it; the first learner puts the rollouts of the others into it, which it asks
their machines for, and tells these what is used, and the newest parameters. So all rules are those
of `rollout`: what is on its way from another machine is as if its actor were still writing it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...errors import ShardError
from ...shards.messages import Message
from .board import STEPS, Board
from .members import PATIENCE_SECONDS, Connections, Members
from .parameters import HostedParameters, Parameters
from .rollout import (
    FILE,
    LOST,
    WRITTEN,
    HostedRollouts,
    Rollouts,
    RolloutSource,
    RolloutStream,
)
from .rollout_link import RolloutLink
from .rollout_messages import found_in, put_found
from .rollout_shard import HostedRolloutShard, Progress, Stay, Stays
from .stream import Checkpoint, Hosted, Medium, Numbers, Part, Peer

__all__ = ["HostedShardedRollouts", "ShardedRolloutSource", "host_part"]

RETRY_SECONDS = 0.25  # between two tries to reach a machine
LOG = logging.getLogger("kary_replay")


def host_part(
    stream: RolloutStream, medium: Medium, part: Part, checkpoint: Checkpoint
) -> HostedRollouts:
    """Give a stream its place in a part of a run; see `RolloutStream.host`."""
    rollouts = Rollouts.new(stream, medium)
    if part.number:
        return HostedRolloutShard(rollouts, medium, part)
    rollouts.n_updates = checkpoint.counters.get("updates", 0)
    if checkpoint.folder is not None:
        rollouts.load(checkpoint.folder / FILE)
    return HostedShardedRollouts(rollouts, medium, part)


class HostedShardedRollouts(HostedRollouts):
    """A rollout stream where the learners are.

    Parameters
    ----------
    rollouts : Rollouts
        The memory. What was written for a group is set by its actor, or by the first learner if
        that is elsewhere.
    medium : Medium
        Where there is more.
    part : Part
        Which part of the run it is.

    Notes
    -----
    What an actor of another machine has done, and the learner does not get any more, is counted
    when the actor is started elsewhere: it is what the board says that it did, less what came.
    """

    def __init__(self, rollouts: Rollouts, medium: Medium, part: Part) -> None:
        super().__init__(rollouts)
        stream = rollouts.stream
        self._stays = Stays(medium.numbers(stream.n_groups))
        (self._placing,) = medium.locks(1)  # while a learner takes in rollouts, or stays change
        self._members = Members(medium.numbers(1), medium.folder() / "rollouts.json", part.token)
        self._unreached = medium.numbers(1)
        self._addresses: dict[int, tuple[str, int]] = {}
        self._places: dict[int, int] = {}  # parts of the actors that have been placed
        self._progress: dict[int, Progress] = {}  # of groups elsewhere, as it was told last
        self._lost_before = np.zeros(stream.n_groups, np.int64)  # their stays
        self._board: Board | None = None
        self._parameters: Parameters | None = None
        self._before: list[int] = []  # what is missing of each actor's steps from the beginning

    def meet(self, streams: Mapping[str, Hosted]) -> None:
        """Note the board, and who has the parameters, which go with the counts of used rollouts.

        What a checkpoint has of unfinished rollouts is dropped, and what it lacks is counted. Its
        rollouts may be of a later moment than its board: then what they have was done.
        """
        parameters = streams["parameters"]
        assert isinstance(parameters, HostedParameters)
        self._parameters, self._board = parameters.carried(), streams["board"].source()
        rollouts, n_actors = self._rollouts, len(self._board.column(STEPS, "env_steps"))
        self._before = [0] * n_actors
        for group in range(rollouts.stream.n_groups):
            rollouts.drop_unfinished(group)
        missing = sum(self._n_missing(actor) for actor in range(n_actors))
        rollouts.add(0, LOST, max(0, missing))
        self._board.row(STEPS, 0).env_steps += max(0, -missing)
        self._before = [self._n_missing(actor) for actor in range(n_actors)]

    def source(self) -> ShardedRolloutSource:
        """Return the learners' end."""
        assert self._parameters is not None
        return ShardedRolloutSource(
            self._rollouts,
            self._stays,
            self._placing,
            self._members,
            self._parameters,
            self._unreached,
        )

    # ------------------------------------------------------------------------- the other parts

    def placed(self, worker: tuple[str, int], number: int) -> None:
        """Begin a stay of an actor's groups if it comes from another part.

        What it has done there, and what is not here, is dropped, and counted.
        """
        kind, actor = worker
        if kind != STEPS or self._places.get(actor) == number:
            return
        assert self._board is not None
        rollouts, groups = self._rollouts, self._groups_of(actor)
        with self._nobody_takes_in():
            for group in groups:
                self._stays.set(group, self._stays.of(group) + 1)
                self._progress.pop(group, None)
                rollouts.drop_unfinished(group)
            missing = self._n_missing(actor)
            rollouts.add(groups[0], LOST, max(0, missing))
            # What has come was done, also if the part was lost before it could tell.
            self._board.row(STEPS, actor).env_steps += max(0, -missing)
            for group in groups:
                self._lost_before[group] = rollouts.number(group, LOST)
            self._places[actor] = number

    @contextlib.contextmanager
    def _nobody_takes_in(self) -> Iterator[None]:
        """Keep learners from taking in rollouts; one that has died meanwhile ends the run."""
        is_mine = self._placing.acquire(timeout=PATIENCE_SECONDS)
        try:
            yield
        finally:
            if is_mine:
                self._placing.release()

    def _groups_of(self, actor: int) -> range:
        """Return the groups of an actor."""
        n = self._rollouts.stream.n_groups // len(self._before)
        return range(actor * n, (actor + 1) * n)

    def _n_missing(self, actor: int) -> int:
        """Return steps of an actor that are neither in the memory nor counted as lost."""
        assert self._board is not None
        rollouts, n_envs = self._rollouts, self._rollouts.stream.n_envs
        known = sum(
            rollouts.number(group, WRITTEN) * n_envs + rollouts.number(group, LOST)
            for group in self._groups_of(actor)
        )
        return int(self._board.row(STEPS, actor).env_steps) - known - self._before[actor]

    def told(self, peer: Peer) -> Any:
        """Return the stays of the groups that are going to be there."""
        followed = [actor for kind, actor in peer.followed if kind == STEPS]
        rollouts = self._rollouts
        return {
            group: Stay(self._stays.of(group), rollouts.position(group)[0])
            for actor in followed
            for group in self._groups_of(actor)
        } or None

    def heard(self, peer: Peer, told: Any) -> None:
        """Take over how far the groups are that are there."""
        rollouts = self._rollouts
        for group, progress in told.items():
            if progress.stay == self._stays.of(group):
                self._progress[group] = progress
                rollouts.set(group, LOST, int(self._lost_before[group]) + progress.lost)

    def joined(self, number: int, address: tuple[str, int] | None) -> None:
        """Have the learner ask one more machine; OSError if it cannot be reached from here."""
        assert address is not None
        try:
            self._members.connect(address).close()
        except OSError as error:
            host, port = address
            raise OSError(
                f"its rollouts at {host}:{port} cannot be reached: {error}; "
                "are ports open between the machines?"
            ) from error
        self._addresses[number] = address
        self._members.write(self._addresses)

    def left(self, number: int) -> None:
        """Let the learner do without a machine, whose unfinished rollouts are gone."""
        for actor, place in self._places.items():
            if place == number:
                for group in self._groups_of(actor):
                    self._progress.pop(group, None)
        if self._addresses.pop(number, None) is not None:
            self._members.write(self._addresses)

    # -------------------------------------------------------------------- records and the end

    def figures(self) -> dict[str, float]:
        """Return those of `HostedRollouts`; machines, and how many are not reached at present."""
        machines = {
            "machines": 1.0 + len(self._addresses),
            "machines_lost": float(self._unreached.array[0]),
        }
        return {**super().figures(), **machines}

    def is_ready(self, group: int) -> bool:
        """Return whether a rollout waits here, or is complete where its actor is."""
        if super().is_ready(group):
            return True
        progress, (n_complete, _) = self._progress.get(group), self._rollouts.position(group)
        length = self._rollouts.stream.length
        return progress is not None and progress.written // length > n_complete


class ShardedRolloutSource(RolloutSource):
    """The learners' end. The first one gets the rollouts of other machines whenever it looks.

    Parameters
    ----------
    rollouts, stays : Rollouts, Stays
        The memory.
    placing : lock
        Is held while rollouts are taken in.
    members : Members
        Where the other machines answer.
    parameters : Parameters
        Those that they are to get.
    unreached : Numbers [1]
        How many of them are not reached.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        stays: Stays,
        placing: Any,
        members: Members,
        parameters: Parameters,
        unreached: Numbers,
    ) -> None:
        super().__init__(rollouts)
        self._stays, self._placing = stays, placing
        self._parameters, self._unreached = parameters, unreached
        self._links: dict[int, RolloutLink] = {}
        reach = partial(RolloutLink.to, members, stream=rollouts.stream)
        self._connections = Connections(members, reach, RETRY_SECONDS, "part")
        self._n_told = 0

    def release(self, updates: int) -> None:
        """Let actors fill the place of what was drawn; the current parameters are published."""
        super().release(updates)
        if self._share.index == 0:
            self._tell()

    def close(self) -> None:
        """Let go of the connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _ready(self) -> list[int]:
        """Return the groups whose rollouts wait, once what has come is here."""
        self._look_around()
        self._take()
        ready = super()._ready()
        self._tell()
        return ready

    def _take(self) -> None:
        """Take in what has come, and ask for more."""
        for number, link in list(self._links.items()):
            try:
                message = link.take()
                if message is not None:
                    self._take_in(message)
                if link.is_idle:
                    n_complete = self._rollouts.counts[WRITTEN] // self._rollouts.stream.length
                    link.ask(self._stays.words.copy(), n_complete)
            except (OSError, ShardError) as error:
                self._lose(number, error)

    def _take_in(self, message: Message) -> None:
        """Write the rollouts of a message into the memory, but for those that it has had before.

        A stay does not end meanwhile, so that whoever begins the next one knows what has come.
        """
        found, rollouts = found_in(message), self._rollouts
        if not found:
            return
        with self._placing:
            n_complete: dict[int, int] = {}
            is_new = []
            for one in found:
                n = n_complete.get(one.group, rollouts.position(one.group)[0])
                is_new.append(one.number == n and one.stay == self._stays.of(one.group))
                if is_new[-1]:
                    n_complete[one.group] = n + 1
            put_found(message, found, rollouts, is_new)
            for group, n in n_complete.items():
                rollouts.set(group, WRITTEN, n * rollouts.stream.length)

    def _tell(self) -> None:
        """Tell all machines what they do not know yet of rollouts used, and the parameters."""
        for number, link in list(self._links.items()):
            self._n_told += 1
            try:
                link.tell(self._n_told, self._rollouts, self._parameters)
            except (OSError, ShardError) as error:
                self._lose(number, error)

    # ---------------------------------------------------------------------------- connections

    def _look_around(self) -> None:
        """Connect to machines that have come, and let go of those that have gone; never wait."""
        come, gone = self._connections.changes()
        for number in gone:
            self._links.pop(number).close()
        self._links.update(come)
        self._unreached.array[0] = self._connections.n_missing

    def _lose(self, number: int, error: Exception) -> None:
        """Let go of a connection that has failed; nothing is lost with it."""
        self._links.pop(number).close()
        self._connections.lost(number)
        self._unreached.array[0] = self._connections.n_missing
        LOG.warning("the learner has lost the connection to part %d: %s", number, error)
