"""What the learner and the machines of the actors say to each other about rollouts.

TAKE [stays, had, patience] asks for the rollouts that are complete: of each group those of a stay,
beginning with the one whose number is in ``had``. The answer comes when there is one, or when the
patience, in seconds, is at an end. PUBLISH [head, used, parameters] says how many rollouts of each
group are used, and has the newest parameters, or none where they are known. HELLO asks for nothing
but that both sides are of the same kind. See `kary_replay.shards.messages` for what travels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import ShardError
from ...shards.layout import signature_of
from ...shards.messages import Kind, Message, pack, unpack
from .rollout import Rollouts, RolloutStream

__all__ = ["Found", "News", "answer_of", "found_in", "publishing", "put_found", "signature"]

HEADS = ("group", "stay", "number")  # of each rollout in an answer
AFTER = "next_observation"


class Found(NamedTuple):
    """Which rollout it is: the group, its stay, and its number among all of the group."""

    group: int
    stay: int
    number: int


class News(NamedTuple):
    """What the actors of a machine are to know.

    The ``serial`` number grows, so that what was under way for long is not taken for the newest.
    """

    serial: int
    n_updates: int
    used: npt.NDArray[np.int64]
    parameters: npt.NDArray[np.float32]
    parameter_updates: int


def signature(stream: RolloutStream) -> str:
    """Return as text what both sides must have alike."""
    return "; ".join(f"{signature_of(fields)} {shape}" for fields, shape in Rollouts.parts(stream))


def publishing(news: News) -> list[Any]:
    """Return a message that says what is new."""
    head = np.array([news.serial, news.n_updates, news.parameter_updates], np.int64)
    return pack(Kind.PUBLISH, head, news.used, news.parameters)


def news_of(message: Message, n_groups: int) -> News:
    """Return what a message says is new; MessageError if it cannot be."""
    serial, n_updates, parameter_updates = message.array(0, np.int64, (3,)).tolist()
    used = message.array(1, np.int64, (n_groups,))
    return News(serial, n_updates, used, message.array(2, np.float32), parameter_updates)


def answer_of(data: memoryview) -> Message:
    """Return an answer that has come; ShardError if the other side could not do what was asked."""
    message = unpack(data)
    if message.kind == Kind.FAILED:
        raise ShardError(f"{message.text(0)}: {message.text(1)}")
    return message


def parts_of(rollouts: Rollouts, found: list[Found]) -> list[Any]:
    """Return copies of some rollouts, as the parts of an answer.

    Of what follows a step, only that is sent which the learner needs.
    """
    where = [(one.group, one.number % rollouts.stream.n_slots) for one in found]
    parts: list[Any] = [np.array(found, np.int64).reshape(-1, len(HEADS))]
    for path, array in rollouts.arrays.items():
        rows: Iterable[npt.NDArray[Any]] = (array[place] for place in where)
        if _is_after(path):
            truncated = rollouts.arrays["truncated"]
            rows = (array[place][_needed(truncated[place])] for place in where)
            parts.append(np.concatenate(list(rows)))
        else:
            parts.append(np.stack(list(rows)))
    return parts


def found_in(message: Message) -> list[Found]:
    """Return which rollouts an answer has, if any."""
    if not message.parts:
        return []
    heads = message.array(0, np.int64).reshape(-1, len(HEADS))
    return [Found(*head) for head in heads.tolist()]


def put_found(
    message: Message, found: list[Found], rollouts: Rollouts, is_wanted: list[bool]
) -> None:
    """Write those rollouts of an answer into their places that are wanted.

    MessageError if the answer cannot be; nothing, or a part of what nobody reads yet, is written.
    """
    arrays = dict(rollouts.arrays)
    truncated = arrays["truncated"]
    number_of = {path: 1 + i for i, path in enumerate(arrays)}
    cut = message.array(number_of["truncated"], truncated.dtype, (len(found), *truncated.shape[2:]))
    needed = [_needed(one) for one in cut]
    ends = np.cumsum([0, *(int(one.sum()) for one in needed)])
    for path, array in arrays.items():
        n, shape = (ends[-1], array.shape[3:]) if _is_after(path) else (len(found), array.shape[2:])
        column = message.array(number_of[path], array.dtype, (n, *shape))
        for i, one in enumerate(found):
            if not is_wanted[i]:
                continue
            place = array[one.group, one.number % rollouts.stream.n_slots]
            if _is_after(path):
                place[needed[i]] = column[ends[i] : ends[i + 1]]
            else:
                place[...] = column[i]


def _is_after(path: str) -> bool:
    """Return whether a column has what follows a step."""
    return path == AFTER or path.startswith(f"{AFTER}.")


def _needed(truncated: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return of which steps [length] of a rollout the writer has kept what follows them."""
    needed = np.array(truncated.reshape(len(truncated), -1).any(axis=1))
    needed[-1] = True
    return needed
