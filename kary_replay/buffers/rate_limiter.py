"""The limiter that keeps draws in step with additions, in both directions.

The balance is the number of rows that may be drawn for what has been added, less the rows drawn:

    balance = (rows added beyond the first min_size) · samples_per_insert − rows drawn

Adders wait where they would push it above +error, and samplers where they would push it below
−error. Both counts live in the buffer, for all its processes. The limiter has no state that changes
and nothing to lock, so a process that is killed at any moment leaves nothing locked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import RateLimiterTimeoutError
from ..validation import as_count, as_positive, as_timeout

__all__ = ["RateLimiter"]

FIRST_SLEEP_SECONDS = 20e-6
LONGEST_SLEEP_SECONDS = 2e-3
SLEEP_GROWTH = 1.5
LOOK_SECONDS = 0.02  # between two questions to shards elsewhere
SLACK = 1e-6  # of error: rounding must not hold back both sides at once
DEFAULT_BATCH, DEFAULT_ADD = 1024, 64  # rows of one call for which the default error has room


class _Side(NamedTuple):
    """How messages name who waits, and whom they wait for."""

    name: str
    verb: str
    drive: str  # what the others have not done
    culprit: str


ADDER = _Side("adder", "add", "drawn", "the learner")
SAMPLER = _Side("sampler", "draw", "added", "every actor")


class RateLimiter:
    """Holds the rows drawn per row added near a ratio.

    The faster of learners and actors waits for the slower.

    Parameters
    ----------
    buffer : ReplayBuffer or PrioritizedReplayBuffer
        Whose ``n_added``, ``n_sampled``, ``capacity`` and length count. Of a FrameReplayBuffer,
        rows that hold a frame alone count in the length, and not in ``n_added``: so choose a
        min_size beyond the frames that episodes begin with, and begin to draw when
        `allowed_samples` says so, not when there are min_size rows. Of a ShardedReplayBuffer, what
        this object has drawn counts, and its shards elsewhere are asked while somebody waits.
    samples_per_insert : float
        Rows drawn per row added, above 0: with one batch of 256 per added row, 256.
    min_size : int
        No row is drawn while the buffer has fewer rows, 1 … capacity. The rows that first bring it
        there are free: none need be drawn for them.
    error : float, optional
        By how many drawn rows the balance may be off, to either side. It must be at least the rows
        of one batch, and at least the rows due for one call that adds. By default there is room for
        batches of 1024 rows and for adding 64 rows at once.
    origin : (int, int), optional
        `origin` of another limiter, to count from the same point. By default counting starts now.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind; if error has no room for one row added
        or drawn.

    Notes
    -----
    Any number of threads and processes may wait at once. A limiter for a shared buffer can be
    handed to a process that is being spawned, as the buffer can: it attaches there and counts from
    the same origin. A process that attaches by descriptor makes its own limiter, with ``origin``.

    **How far off the balance can be.** A caller passes before its rows are counted, and others may
    look in between. Each caller can have passed with at most one call that is not counted yet. So
    with A callers that add at most a rows at once and S that draw at most b at once, the balance
    stays within

        −error − (S − 1) · b   …   error + (A − 1) · a · samples_per_insert

    up to a millionth for rounding. Rows added or drawn without asking come on top. While the buffer
    has fewer than min_size rows after a ``reset``, adders pass whatever the balance is, for nobody
    could go on otherwise. A row that is being overwritten does not count: leave room between
    min_size and the capacity for the rows that all adders write at once.

    The two sides cannot wait for each other. For that, a · samples_per_insert + b would have to be
    above 2 · error, and no call is accepted whose rows alone move the balance by more than error.

    Reverb's SampleToInsertRatio (Cassirer et al. 2021, arXiv:2102.04736, section 3.4) has the idea.

    Examples
    --------
    >>> import kary_replay as kr
    >>> buffer = kr.ReplayBuffer(1000, {"reward": kr.Field((), "float32")}, seed=0)
    >>> limiter = kr.RateLimiter(buffer, samples_per_insert=8, min_size=100, error=64)
    >>> limiter.allowed_adds(), limiter.allowed_samples()
    (108, 0)
    >>> index = buffer.add(reward=[0.0] * 104)
    >>> limiter.balance, limiter.allowed_adds(), limiter.allowed_samples()
    (32.0, 4, 96)
    >>> limiter.await_sample(32)
    True
    >>> batch = buffer.sample(32)
    >>> limiter.balance
    0.0
    >>> limiter.await_add(16, timeout_seconds=0.1)
    Traceback (most recent call last):
    ValueError: n must be at most 8 rows at once: ...
    """

    def __init__(
        self,
        buffer: Any,
        samples_per_insert: float,
        min_size: int = 1,
        error: float | None = None,
        *,
        origin: tuple[int, int] | None = None,
    ) -> None:
        missing = [
            name
            for name in ("n_added", "n_sampled", "capacity", "__len__")
            if not hasattr(buffer, name)
        ]
        if missing:
            raise TypeError(
                "buffer must count what is added and drawn, "
                f"got {type(buffer).__name__} without {missing[0]}"
            )
        ratio = as_positive("samples_per_insert", samples_per_insert)
        if error is None:
            error = max(DEFAULT_BATCH, DEFAULT_ADD * ratio)
        error, least = as_positive("error", error), max(1.0, ratio)
        if error < least:
            raise ValueError(
                f"error must be at least {least:g}, what one row added or drawn moves the balance "
                f"by with samples_per_insert={ratio:g}, got {error:g}: nobody could ever go on"
            )
        capacity = buffer.capacity
        self._min_size = as_count("min_size", min_size)
        if self._min_size > capacity:
            raise ValueError(
                f"min_size must be at most the capacity, {capacity}, got {min_size}: "
                "the buffer never has so many"
            )
        self._buffer, self._ratio = buffer, ratio
        self._error, self._bound = error, error * (1 + SLACK)
        if origin is None:
            origin = buffer.n_added + max(0, self._min_size - len(buffer)), buffer.n_sampled
        else:
            added, sampled = origin
            origin = (
                as_count("origin[0]", added, least=0),
                as_count("origin[1]", sampled, least=0),
            )
        self._origin: tuple[int, int] = origin

    @property
    def samples_per_insert(self) -> float:
        """Rows to be drawn per row added."""
        return self._ratio

    @property
    def min_size(self) -> int:
        """Rows the buffer must have before any is drawn."""
        return self._min_size

    @property
    def error(self) -> float:
        """By how many drawn rows the balance may be off, to either side."""
        return self._error

    @property
    def origin(self) -> tuple[int, int]:
        """The counts at which the balance is 0.

        They are the buffer's ``n_added``, with the rows still missing to min_size, and its
        ``n_sampled``.
        """
        return self._origin

    @property
    def balance(self) -> float:
        """Rows still to be drawn for those added; below 0 if more were drawn. Any recent value."""
        return self._balance(SAMPLER)

    @property
    def ratio(self) -> float:
        """Rows drawn per row added so far, the first min_size aside; NaN before that."""
        n_added, n_sampled = self._counts()
        return n_sampled / n_added if n_added > 0 else math.nan

    def allowed_adds(self) -> int:
        """Return how many rows one caller may add now without waiting, in one call or several."""
        room = math.floor((self._bound - self._balance(ADDER)) / self._ratio)
        return max(room, self._min_size - len(self._buffer), 0)

    def allowed_samples(self) -> int:
        """Return how many rows one caller may draw now without waiting, in one call or several."""
        if len(self._buffer) < self._min_size:
            return 0
        return max(0, math.floor(self._balance(SAMPLER) + self._bound))

    def await_add(
        self,
        n: int = 1,
        timeout_seconds: float | None = None,
        *,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait until ``n`` rows may be added. Add them next, for asking alone counts nothing.

        Parameters
        ----------
        n : int
            Rows of the call that follows, at least 1.
        timeout_seconds : float, optional
            How long to wait at most; 0 only looks. By default it waits for ever.
        should_stop : callable, optional
            Asked every few milliseconds; True ends the wait.

        Returns
        -------
        bool
            True, or False if should_stop ended the wait.

        Raises
        ------
        RateLimiterTimeoutError
            A TimeoutError: the samplers lag. Waiting may be tried again.
        ValueError, TypeError
            If ``n`` rows at once move the balance by more than error, and so might wait for ever;
            or if an argument is wrong.
        ClosedError
            If the buffer is closed, also while waiting.

        Notes
        -----
        It costs microseconds if there is nothing to wait for. Otherwise it looks again after sleeps
        that grow from 20 µs to 2 ms, and holds nothing meanwhile. Ctrl-C ends a wait at once.
        """
        n = as_count("n", n)
        if n * self._ratio > self._bound:
            most = math.floor(self._bound / self._ratio)
            raise ValueError(
                f"n must be at most {most} rows at once: each moves the balance by "
                f"samples_per_insert={self._ratio:g}, and error is {self._error:g}; got {n}: "
                f"add fewer, or make error at least {n * self._ratio:g}"
            )
        return self._wait(ADDER, n, timeout_seconds, should_stop)

    def await_sample(
        self,
        n: int,
        timeout_seconds: float | None = None,
        *,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait until ``n`` rows, a batch, may be drawn. Draw them next: asking counts nothing.

        Parameters, results and errors are those of `await_add`. It also waits while the buffer has
        fewer than min_size rows.
        """
        n = as_count("n", n)
        if n > self._bound:
            raise ValueError(
                f"n must be at most error, {self._error:g}, got {n}: "
                f"draw fewer, or make error at least {n}"
            )
        return self._wait(SAMPLER, n, timeout_seconds, should_stop)

    def __repr__(self) -> str:
        return (
            f"RateLimiter(samples_per_insert={self._ratio:g}, min_size={self._min_size}, "
            f"error={self._error:g}, origin={self._origin})"
        )

    def _counts(self) -> tuple[int, int]:
        """Return the rows added and drawn since the origin."""
        return self._buffer.n_added - self._origin[0], self._buffer.n_sampled - self._origin[1]

    def _balance(self, side: _Side) -> float:
        """Return the balance for a caller of one side, who may wait too long but never too short.

        Both counts only grow, and others move them between the two looks. The count that holds the
        caller back is read last, so that the balance is off towards waiting.
        """
        if side is ADDER:
            n_sampled = self._buffer.n_sampled
            n_added = self._buffer.n_added
        else:
            n_added = self._buffer.n_added
            n_sampled = self._buffer.n_sampled
        return float((n_added - self._origin[0]) * self._ratio - (n_sampled - self._origin[1]))

    def _may_pass(self, side: _Side, n: int) -> bool:
        if side is ADDER:
            return n <= self.allowed_adds() or len(self._buffer) < self._min_size
        return n <= self.allowed_samples()

    def _wait(
        self,
        side: _Side,
        n: int,
        timeout_seconds: float | None,
        should_stop: Callable[[], bool] | None,
    ) -> bool:
        timeout_seconds = as_timeout(timeout_seconds)
        if self._may_pass(side, n):
            return True
        started = moved = time.monotonic()
        others, sleep = self._others(side), FIRST_SLEEP_SECONDS
        look, looked = getattr(self._buffer, "look", None), -math.inf
        while not self._may_pass(side, n):
            if should_stop is not None and should_stop():
                return False
            if look is not None and time.monotonic() >= looked + LOOK_SECONDS:
                look()  # what the shards elsewhere have is known from their answers alone
                looked = time.monotonic()
            now = time.monotonic()
            if others != (others := self._others(side)):
                moved = now
            left = math.inf if timeout_seconds is None else started + timeout_seconds - now
            if left <= 0:
                raise RateLimiterTimeoutError(self._complaint(side, n, now - started, now - moved))
            time.sleep(min(sleep, left))
            sleep = min(sleep * SLEEP_GROWTH, LONGEST_SLEEP_SECONDS)
        return True

    def _others(self, side: _Side) -> int:
        """Return the count that the other side moves."""
        return int(self._buffer.n_sampled if side is ADDER else self._buffer.n_added)

    def _complaint(self, side: _Side, n: int, waited: float, idle: float) -> str:
        """Return what a time-out says: who waits, since when, for what, and who is to blame."""
        size, (n_added, n_sampled) = len(self._buffer), self._counts()
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        if idle >= 0.9 * waited:
            blame = f"no row was {side.drive} for {idle:.3g} s: has {side.culprit} stopped?"
        else:
            blame = (
                f"rows are being {side.drive}, the last {idle:.3g} s ago, but too slowly: "
                "a longer time-out may do."
            )
        if side is SAMPLER and size < self._min_size:
            blame = f"the buffer has {size} of min_size={self._min_size} rows; {blame}"
        return (
            f"the {side.name} has waited {waited:.3g} s, since {since}, to {side.verb} {n} rows: "
            f"{blame} Since counting began {max(0, n_added)} rows beyond min_size were added and "
            f"{n_sampled} drawn, {self.ratio:.4g} per row instead of {self._ratio:g}; the balance "
            f"is {self._balance(side):g}, and may be {-self._error:g} … {self._error:g}"
        )
