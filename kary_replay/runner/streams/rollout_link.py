"""The learner's connection to the rollouts of another machine."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from ...shards import SocketTransport
from ...shards.messages import Kind, Message, pack
from ...version import VERSION
from .members import PATIENCE_SECONDS, Members
from .parameters import Parameters
from .rollout import USED, Rollouts, RolloutStream
from .rollout_messages import News, answer_of, publishing, signature

__all__ = ["RolloutLink"]

TAKE_SECONDS = 1.0  # after which a machine without complete rollouts says so
NOTHING = np.zeros(0, np.float32)


class RolloutLink:
    """One machine's rollouts, as the learner reaches them.

    One connection waits for rollouts; news go by another one, which is not held up. Neither is
    waited for: who does not answer in time has failed.

    Parameters
    ----------
    taking, telling : SocketTransport
        The connections.
    """

    def __init__(self, taking: SocketTransport, telling: SocketTransport) -> None:
        self._taking, self._telling = taking, telling
        self._taken: Any = None  # the answers that are under way
        self._told: Any = None
        self._asked_at = self._told_at = 0.0
        self._version = 0  # of the parameters that were sent last
        self._used: npt.NDArray[np.int64] | None = None

    @classmethod
    def to(cls, members: Members, address: tuple[str, int], stream: RolloutStream) -> RolloutLink:
        """Return a link to the machine at an address.

        ConnectionError or TimeoutError if it does not answer, ShardError if it is another one.
        """
        taking = members.connect(address)
        try:
            hello = pack(Kind.HELLO, VERSION.encode(), signature(stream).encode())
            answer_of(taking.send(hello).result(PATIENCE_SECONDS))
            return cls(taking, members.connect(address))
        except BaseException:
            taking.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether no answer to `ask` is under way."""
        return self._taken is None

    def ask(self, stays: npt.NDArray[np.int64], had: npt.NDArray[np.int64]) -> None:
        """Ask for the rollouts of some stays that follow those that there are."""
        message = pack(Kind.TAKE, stays, had, np.array([TAKE_SECONDS]))
        self._taken, self._asked_at = self._taking.send(message), time.monotonic()

    def take(self) -> Message | None:
        """Return the answer to `ask` if it has come; OSError or ShardError if it will not."""
        if self._taken is None or not _has_come(
            self._taken, self._asked_at, TAKE_SECONDS + PATIENCE_SECONDS
        ):
            return None
        pending, self._taken = self._taken, None
        return answer_of(pending.result(PATIENCE_SECONDS))

    def tell(self, serial: int, rollouts: Rollouts, parameters: Parameters) -> None:
        """Say what is new since this was said last, unless that is still under way."""
        used = rollouts.counts[USED]
        if self._told is not None:
            if not _has_come(self._told, self._told_at, PATIENCE_SECONDS):
                return
            pending, self._told = self._told, None
            answer_of(pending.result(PATIENCE_SECONDS))
        version = parameters.version
        is_newer = version != self._version
        if not is_newer and self._used is not None and np.array_equal(used, self._used):
            return
        newest = parameters.newest() if is_newer else (NOTHING, 0)
        if newest is None:  # there are none yet
            return
        news = News(serial, rollouts.n_updates, used.copy(), *newest)
        self._told, self._told_at = self._telling.send(publishing(news)), time.monotonic()
        self._version, self._used = version, news.used

    def close(self) -> None:
        """Cut both connections."""
        self._taking.close()
        self._telling.close()


def _has_come(pending: Any, since: float, patience_seconds: float) -> bool:
    """Return whether an answer has come; TimeoutError if the patience is at an end."""
    if pending.has_come():
        return True
    silent = time.monotonic() - since
    if silent > patience_seconds:
        raise TimeoutError(f"nothing has come for {silent:.1f} seconds")
    return False
