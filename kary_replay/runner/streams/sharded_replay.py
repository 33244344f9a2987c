"""Transitions on their way from actors on many machines to the learners: a shard on each machine.

Actors add to the shard of their machine. The learners draw from all shards, as from one buffer, and
the rate limiter counts what is added anywhere and what all learners draw.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ...algorithms import Share
from ...buffers.frame_replay_buffer import FrameReplayBuffer
from ...buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ...buffers.rate_limiter import RateLimiter
from ...errors import EmptyBufferError, ShardError, ShardLostError
from ...shards import RemoteShard, ShardService, SocketTransport
from ...shards.sharded_replay_buffer import ShardedReplayBuffer
from ...types import Batch
from .members import PATIENCE_SECONDS, Connections, MemberAnswerer, Members
from .replay import ReplaySink, ReplayStream, blank, may, with_whole_stacks
from .stream import Checkpoint, Hosted, Medium, Numbers, Part, Peer

__all__ = ["HostedShard", "ShardSink", "ShardSource"]

EMPTY_SECONDS = 0.01  # between two looks at shards that have lost all their rows
FEWEST, MOST, UNDER_WAY = 4, 16, 2  # batches in one request, by the shards; requests ahead
FEWEST_BATCHES = 100  # that rows make, before batches are asked for ahead: priorities change faster
AGAIN_SECONDS = 1.0  # between two tries to save all shards
SAVE_SECONDS = 120.0  # of tries after the first; the run notices sooner if a machine is gone
RETRY_SECONDS = 5.0  # between two tries to reach a shard
LOG = logging.getLogger("kary_replay")
FIGURES = (
    "beta",
    "uniform_share",
    "relative_noise",
    "least_noise",
    "distance",
    "shards_lost",
    "updates_refused",
)  # which the first learner knows


class Count(NamedTuple):
    """What is known of the rows of a part."""

    n_added: int
    size: int


class Counts:
    """What a rate limiter counts, where rows are added on several machines.

    Parameters
    ----------
    capacity : int
        Of all shards together.
    shard : PrioritizedReplayBuffer
        The shard of this machine.
    elsewhere : Numbers [2]
        Rows added to the others, and rows that they have.
    drawn : Numbers [learners]
        Rows drawn by each learner.
    """

    def __init__(
        self, capacity: int, shard: PrioritizedReplayBuffer, elsewhere: Numbers, drawn: Numbers
    ) -> None:
        self.capacity = capacity
        self._shard, self._elsewhere, self._drawn = shard, elsewhere, drawn

    @property
    def n_added(self) -> int:
        """Rows ever added, also those of machines that are gone."""
        return self._shard.n_added + int(self._elsewhere.array[0])

    @property
    def n_sampled(self) -> int:
        """Rows ever drawn."""
        return int(self._drawn.array.sum())

    def __len__(self) -> int:
        """Return the rows that there would be if no machine had been lost.

        Learning begins with so many, and does not wait for those again that went with a machine;
        only if all have gone, so that actors may add without waiting for draws.
        """
        has_rows = len(self._shard) or self._elsewhere.array[1]
        return min(self.n_added, self.capacity) if has_rows else 0


class Shards(Members):
    """Where the shards of other machines answer."""

    def reach(self, address: tuple[str, int]) -> RemoteShard:
        """Return the shard at an address; ConnectionError if it does not answer."""
        return RemoteShard(self.connect(address), PATIENCE_SECONDS)


class ShardAnswerer(MemberAnswerer):
    """Answers other machines for a shard."""

    def __init__(self, shard: PrioritizedReplayBuffer, token: bytes) -> None:
        super().__init__(token)
        self._shard = shard

    def service(self) -> ShardService:
        """Return who answers for the shard."""
        return ShardService(self._shard)

    def greet(self, transport: SocketTransport) -> None:
        """Ask what there is of the shard."""
        RemoteShard(transport, PATIENCE_SECONDS)


class HostedShard(Hosted):
    """The part of a replay stream that is in the memory of this machine.

    Parameters
    ----------
    stream : ReplayStream
        The stream.
    medium : Medium
        The memory.
    part : Part
        Which part it is. That of number 0, where the learners are, knows where all others are, and
        saves and loads them all.
    checkpoint : Checkpoint
        What the run goes on from. Its rows are added when all parts have joined.
    """

    def __init__(
        self, stream: ReplayStream, medium: Medium, part: Part, checkpoint: Checkpoint
    ) -> None:
        self._stream, self._part = stream, part
        self._shard = stream.new_shard(max(1, -int(-stream.capacity * part.share // 1)))
        self._elsewhere, self._drawn = medium.numbers(2), medium.numbers(stream.n_learners)
        self._figures = medium.numbers(len(FIGURES))
        self._figures.array[0] = stream.beta
        counters = checkpoint.counters
        self._drawn.array[0] = counters.get("n_sampled", 0)
        self._counts = Counts(stream.capacity, self._shard, self._elsewhere, self._drawn)
        origin = counters.get("origin")
        self._limiter = RateLimiter(
            self._counts,
            stream.samples_per_insert,
            stream.min_size,
            stream.error,
            origin=tuple(origin) if origin else None,
        )
        self._members = Shards(medium.numbers(1), medium.folder() / "shards.json", part.token)
        self._saved = None if checkpoint.folder is None else checkpoint.folder / "replay"
        self._n_added_before = int(counters.get("n_added", 0))
        self._addresses: dict[int, tuple[str, int]] = {}
        self._known: dict[int, Count] = {}
        self._n_added_gone = 0  # of machines that are gone, and of former sessions
        self._n_sources = 0
        self._reached: dict[int, RemoteShard] = {}  # while all are loaded or saved

    def sink(self) -> ShardSink:
        """Return the actors' end."""
        return ShardSink(self._shard, self._counts, self._limiter)

    def source(self) -> ShardSource:
        """Return the end of one more learner."""
        self._n_sources += 1
        return ShardSource(
            self._stream,
            self._shard,
            self._limiter,
            self._members,
            self._drawn,
            self._figures,
            self._n_sources - 1,
        )

    # ------------------------------------------------------------------------- the other parts

    def begin(self) -> None:
        """Add the rows of a checkpoint to all shards; CheckpointError if it is damaged."""
        if self._saved is None:
            return
        with self._all() as shards:
            shards.load(self._saved)
            n_rows = shards.n_added
        self._n_added_gone = self._n_added_before - n_rows
        self._sum_up()
        self._saved = None

    def told(self, peer: Peer) -> Any:
        """Return rows added and rows that there are, but for those of the peer; and rows drawn."""
        others = [count for number, count in self._known.items() if number != peer.number]
        n_added = self._shard.n_added + self._n_added_gone + sum(one.n_added for one in others)
        size = len(self._shard) + sum(count.size for count in others)
        return n_added, size, self._counts.n_sampled

    def heard(self, peer: Peer, told: Any) -> None:
        """Take over what a peer says of its rows, and, away from the learners, how many they drew.

        What a peer has added only grows, and so does what all have: answers come in order.
        """
        n_added, size, n_sampled = told
        self._known[peer.number] = Count(n_added, size)
        self._sum_up()
        if self._part.number:
            self._drawn.array[0] = n_sampled

    def _sum_up(self) -> None:
        n_added = sum(count.n_added for count in self._known.values())
        size = sum(count.size for count in self._known.values())
        self._elsewhere.array[:] = self._n_added_gone + n_added, size

    def answerer(self) -> ShardAnswerer | None:
        """Return who answers for this shard; nobody where the learners are, who reach it."""
        return ShardAnswerer(self._shard, self._part.token) if self._part.number else None

    def joined(self, number: int, address: tuple[str, int] | None) -> None:
        """Let the learners draw from one more shard; OSError if it cannot be reached from here."""
        assert address is not None
        try:
            self._members.reach(address).close()
        except OSError as error:
            host, port = address
            raise OSError(
                f"its shard at {host}:{port} cannot be reached: {error}; "
                "are ports open between the machines?"
            ) from error
        self._addresses[number] = address
        self._known[number] = Count(0, 0)
        self._members.write(self._addresses)

    def left(self, number: int) -> None:
        """Let the learners do without a shard, whose rows are gone."""
        self._n_added_gone += self._known.pop(number, Count(0, 0)).n_added
        self._sum_up()
        if self._addresses.pop(number, None) is not None:
            self._members.write(self._addresses)
        shard = self._reached.get(number)
        if shard is not None:  # somebody waits for it
            shard.transport.close()

    def _all(self) -> ShardedReplayBuffer:
        """Return a buffer over all shards, to be closed after use.

        ShardLostError, a ConnectionError, if one cannot be reached.
        """
        here = type(self._shard).attach(self._shard.descriptor)
        try:
            addresses = dict(self._addresses)
            self._reached = {n: self._members.reach(where) for n, where in addresses.items()}
            there = self._reached.values()
            return ShardedReplayBuffer([here, *there], beta=self._stream.beta)
        except BaseException:
            here.close()
            raise

    # -------------------------------------------------------------------- records and the end

    def save(self, folder: Path) -> None:
        """Write all shards: one that does not answer, once it does, or is known to be gone.

        OSError if that does not help; the run goes on without the checkpoint.
        """
        deadline = math.inf
        while True:
            try:
                with self._all() as shards:
                    if shards.lost:
                        raise ShardLostError("a shard was lost before it was saved")
                    shards.save(folder / "replay")
                return
            except Exception as error:  # of another machine
                deadline = min(deadline, time.monotonic() + SAVE_SECONDS)
                may_answer = isinstance(error, (ConnectionError, ShardError))  # another process
                if not may_answer or time.monotonic() > deadline:
                    raise OSError(f"the shards could not be saved: {error}") from error
                time.sleep(AGAIN_SECONDS)

    def counters(self) -> dict[str, Any]:
        """Return where the limiter began to count, and how far it has come."""
        return {
            "origin": list(self._limiter.origin),
            "n_added": self._counts.n_added,
            "n_sampled": self._counts.n_sampled,
        }

    def figures(self) -> dict[str, float]:
        """Return size, samples_per_insert, the number of shards, and what the learner knows."""
        known = dict(zip(FIGURES, self._figures.array.tolist(), strict=True))
        return {
            "size": len(self._shard) + float(self._elsewhere.array[1]),
            "samples_per_insert": self._limiter.ratio,
            "shards": len(self._addresses) + 1,
            **known,
        }

    def is_used_up(self) -> bool:
        """Return whether the limiter allows no further update."""
        return self._limiter.allowed_samples() < self._stream.batch_size

    def close(self) -> None:
        """Let go of the memory."""
        self._shard.close()


class ShardSink(ReplaySink):
    """The end of actors that work beside a shard."""

    def __init__(
        self, shard: PrioritizedReplayBuffer, counts: Counts, limiter: RateLimiter
    ) -> None:
        super().__init__(shard, limiter)
        self._counts = counts

    @property
    def has_begun(self) -> bool:
        """Whether there are as many rows as learning starts with."""
        return len(self._counts) >= self._limiter.min_size

    @property
    def _target(self) -> Any:
        """Where writers add to: they know no more of a shard than of a buffer."""
        if isinstance(self._buffer, FrameReplayBuffer):
            return self._buffer
        return ShardedReplayBuffer([self._buffer])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the writers go on with these steps; with frames they begin anew.

        A checkpoint's frames lie elsewhere in shards than where they were saved.
        """
        if not isinstance(self._buffer, FrameReplayBuffer):
            super().load_state_dict(state)


class ShardSource:
    """A learner's end: draws from all shards, as the members of the run come and go.

    Parameters
    ----------
    stream, shard, limiter, members, drawn, figures
        As `HostedShard` has them.
    number : int
        Of the learner, whose draws are its own.
    """

    draws_tensors = False

    def __init__(
        self,
        stream: ReplayStream,
        shard: PrioritizedReplayBuffer,
        limiter: RateLimiter,
        members: Shards,
        drawn: Numbers,
        figures: Numbers,
        number: int,
    ) -> None:
        self._stream, self._shard, self._limiter = stream, shard, limiter
        self._drawn, self._figures = drawn, figures
        self._number, self._batch_size = number, 0
        self._shards: ShardedReplayBuffer | None = None
        self._places: dict[int, int] = {}  # of the parts among the shards
        self._connections = Connections(members, members.reach, RETRY_SECONDS, "shard")
        self._ahead: Iterator[Batch] | None = None
        self._per_request = FEWEST
        self._untold: list[tuple[Any, Any]] = []  # handles and errors that are to be told together

    def prepare(
        self, batch_size: int, device: torch.device, n_ahead: int, share: Share, index: int
    ) -> None:
        """Say how many rows `draw` returns. Batches are asked for ahead in any case."""
        history = self._stream.seed, self._number, int(self._drawn.array[0])
        (seed,) = np.random.SeedSequence(history).generate_state(1, np.uint64)
        self._batch_size = batch_size
        self._shards = ShardedReplayBuffer(
            [self._shard],
            beta=self._stream.beta,
            uniform_share=self._stream.uniform_share,
            seed=int(seed),
        )

    def blank(self, n: int) -> Batch:
        """Return a batch of ``n`` rows of zeros."""
        return blank(self._stream.columns, n)

    def may_draw(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether ``n`` rows may be drawn now."""
        return may(self._limiter.await_sample, n, patience_seconds)

    def draw(self) -> Batch:
        """Draw a batch by priority, or take one that was asked for ahead."""
        shards = self._shards
        assert shards is not None
        while True:
            self._look_around(shards)
            try:
                batch = self._next(shards)
                break
            except EmptyBufferError:  # machines have gone, and all rows with them
                self._ahead = None
                time.sleep(EMPTY_SECONDS)
        self._drawn.array[self._number] += self._batch_size
        return batch if self._stream.stacking is None else with_whole_stacks(batch)

    def _next(self, shards: ShardedReplayBuffer) -> Batch:
        if self._ahead is None:
            is_early = len(shards) < FEWEST_BATCHES * self._batch_size
            if is_early or not self._places:
                return shards.sample(self._batch_size)
            # The more shards there are, the more does a request cost, whatever it asks for.
            self._per_request = min(max(FEWEST, len(self._places) + 1), MOST)
            self._ahead = shards.batches(
                self._batch_size, per_request=self._per_request, under_way=UNDER_WAY
            )
        return next(self._ahead)

    def _look_around(self, shards: ShardedReplayBuffer) -> None:
        """Draw from the shards that are there: some may have come, or gone."""
        places, before = self._places, dict(self._places)
        self._forget_lost(shards)
        come, gone = self._connections.changes()
        for number in gone:
            shards.leave(places.pop(number))
        for number, shard in come.items():
            self._forget_lost(shards)  # another join may have found one, and takes its place
            try:
                places[number] = shards.join(shard)
            except (OSError, ShardError) as error:
                shard.close()
                self._connections.lost(number)
                LOG.warning("the learner cannot draw from shard %d: %s", number, error)
        if places != before:
            self._ahead = None

    def _forget_lost(self, shards: ShardedReplayBuffer) -> None:
        """Have shards that are lost reached anew."""
        lost = shards.lost
        for number, place in list(self._places.items()):
            if place in lost:  # the driver will find out, too, unless it is no loss
                self._connections.lost(number)
                del self._places[number]

    def learned(self, batch: Batch, td_error: Any) -> None:
        """Set the priorities of a batch's rows; ValueError if an error is not finite.

        While batches are asked for ahead, priorities are told for as many batches at a time.
        """
        if not np.isfinite(td_error).all():
            raise ValueError("td_error must be finite")
        self._untold.append((batch.handle, td_error))
        if self._ahead is None or len(self._untold) >= self._per_request:
            self._tell()

    def _tell(self) -> None:
        """Set the priorities that have not been set yet; of a row that comes twice, the last."""
        if self._untold:
            handles, errors = zip(*self._untold, strict=True)
            self._untold.clear()
            assert self._shards is not None
            self._shards.update_priorities(
                np.concatenate(handles), np.concatenate([one.reshape(-1) for one in errors])
            )

    def release(self, updates: int) -> None:
        """Do nothing: batches are copies."""

    def advance(self, progress: float) -> None:
        """Set beta, which rises to 1 with the share of the run that is done, and show figures."""
        shards = self._shards
        assert shards is not None
        shards.beta = self._stream.beta + progress * (1 - self._stream.beta)
        if self._number:
            return
        self._figures.array[:] = (
            shards.beta,
            shards.uniform_share,
            shards.relative_noise,
            shards.least_noise,
            shards.distance,
            len(shards.lost),
            shards.n_refused,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: rows may be drawn again."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Let go of the connections; the shard of this machine is its host's."""
        self._tell()
        for place in self._places.values():
            assert self._shards is not None
            self._shards.leave(place)
        self._places.clear()
