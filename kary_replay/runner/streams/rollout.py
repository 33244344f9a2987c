"""Rollouts on their way from the actors to the learners, each of which is used in one update.

A rollout is what a group of environments did in some steps, one after another. Every group has room
for one, or for two of which it fills one while the other waits to be learned from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch

from ...algorithms import Algorithm, Share
from ...core.ordered import load, store
from ...types import Batch, Field
from .board import STEPS
from .columns import arrays_in, leaves, n_numbers, nested, put
from .inference import Inference
from .looking import found_within
from .stream import Checkpoint, Hosted, Medium, Numbers

__all__ = ["HostedRollouts", "RolloutSink", "RolloutSource", "RolloutStream", "RolloutWriter"]

FILE = "rollouts.npz"
# Of each group, set by its actor: steps that are written, one after another into its rollouts, and
# steps of its environments that are lost with an unfinished one. Set by a learner: rollouts that
# are used, and steps of those that were too old.
WRITTEN, LOST, USED, EXPIRED = COUNTS = "written", "lost", "used", "expired"
SAVE_TRIES = 10  # to copy a group's rollouts while no learner gives their places back


def rollouts_of_a_group(max_staleness: int, updates: int) -> int:
    """Return for how many rollouts a group has room: two if neither gets too old while it waits.

    One of each group is used up in so many updates of all learners.
    """
    return 2 if max_staleness >= 2 * updates - 1 else 1


@dataclass(frozen=True)
class RolloutStream:
    """Rollouts of groups of environments, oldest first, by policies that are not too old.

    Parameters
    ----------
    columns : mapping
        The fields of a step of one environment, by name, as `OnPolicy.columns` has them.
    length : int
        Steps of a rollout, T.
    n_envs, n_groups : int
        Environments of a group, and groups of all actors.
    n_together : int
        Rollouts of an update; at most ``n_groups``.
    max_staleness : int
        Updates that may lie between the choice of an action and the one that learns from it. With
        0, and rollouts of all groups in each update, actors wait for every update. Rollouts that
        have become older while they waited are dropped, and counted.
    n_learners : int
        How many learners share an update; each has as many of its environments.
    n_parts : int
        How many learners do updates of their own; the i-th of them learns from every n-th group,
        beginning with the i-th.
    first_columns : mapping
        Fields of which only the first step of a rollout is kept, such as the state of a policy.
    """

    columns: Mapping[str, Any]
    length: int
    n_envs: int
    n_groups: int
    n_together: int
    max_staleness: int
    n_learners: int = 1
    n_parts: int = 1
    first_columns: Mapping[str, Any] = field(default_factory=dict)

    def groups_of(self, part: int) -> range:
        """Return the groups that a learner learns from which does updates of its own."""
        return range(part, self.n_groups, self.n_parts)

    @property
    def n_slots(self) -> int:
        """Rollouts for which each group has room."""
        cycles = math.ceil(self.n_groups / (self.n_parts * self.n_together))
        return rollouts_of_a_group(self.max_staleness, cycles * self.n_parts)

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedRollouts:
        """Make room for the rollouts, and take up those that a checkpoint has.

        Raises MemoryError if there is no room for them; OSError, ValueError or KeyError if what was
        saved cannot be read.
        """
        if medium.part is not None:
            from .sharded_rollout import host_part

            return host_part(self, medium, medium.part, checkpoint)
        rollouts = Rollouts.new(self, medium)
        rollouts.n_updates = checkpoint.counters.get("updates", 0)
        if checkpoint.folder is not None:
            rollouts.load(checkpoint.folder / FILE)
        return HostedRollouts(rollouts)


class Rollouts:
    """The memory of a rollout stream, as all workers see it; picklable to them.

    Parameters
    ----------
    stream : RolloutStream
        What there is room for.
    rows, counts : Numbers
        Memory for the columns, and for the counts.

    Attributes
    ----------
    arrays : dict of str to array [n_groups, n_slots, length, n_envs, ...]
        Columns by their paths; besides the stream's, the ``version`` of the parameters by which an
        action was chosen. Of first columns the length is 1.
    counts : dict of str to int64 [n_groups]
        See COUNTS. Each has one worker that sets it.
    """

    def __init__(self, stream: RolloutStream, rows: Numbers, counts: Numbers) -> None:
        self.stream, self._memory = stream, (rows, counts)
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        begin = 0
        for fields, shape in self.parts(stream):
            self.arrays |= arrays_in(rows.array[begin:], fields, shape)
            begin += n_numbers(fields, shape)
        words, n = counts.array.view(np.int64), stream.n_groups
        self.counts = {name: words[i * n : (i + 1) * n] for i, name in enumerate(COUNTS)}
        self.chosen = words[len(COUNTS) * n :][: stream.n_together]
        """Which groups' rollouts an update learns from: the update times n_groups, plus a group."""
        self._updates = words[-3:-2]
        self.staleness = counts.array[-2:]
        """Of the last update: the mean and the largest staleness of its rows."""

    @staticmethod
    def parts(stream: RolloutStream) -> list[tuple[dict[str, Any], tuple[int, ...]]]:
        """Return all columns: those of each step and those of first ones, and how shapes begin."""
        groups, n_envs = (stream.n_groups, stream.n_slots), stream.n_envs
        columns = {**stream.columns, "version": Field((), np.int64)}
        first = dict(stream.first_columns)
        return [(columns, (*groups, stream.length, n_envs)), (first, (*groups, 1, n_envs))]

    @classmethod
    def new(cls, stream: RolloutStream, medium: Medium) -> Rollouts:
        """Make room."""
        n_words = len(COUNTS) * stream.n_groups + stream.n_together + 3
        n_rows = sum(n_numbers(*part) for part in cls.parts(stream))
        return cls(stream, medium.numbers(n_rows), medium.numbers(n_words))

    def __reduce__(self) -> tuple[Any, ...]:
        return Rollouts, (self.stream, *self._memory)

    @property
    def n_steps(self) -> int:
        """Steps of the environments in one rollout."""
        return self.stream.length * self.stream.n_envs

    def number(self, group: int, name: str) -> int:
        """Return one of a group's counts, and see what was written before it was set."""
        return load(self.counts[name], group)

    def set(self, group: int, name: str, value: int) -> None:
        """Set one of a group's counts."""
        store(self.counts[name], group, value)

    def position(self, group: int) -> tuple[int, int]:
        """Return how many rollouts a group has completed, and steps of the one that it fills."""
        return divmod(self.number(group, WRITTEN), self.stream.length)

    def waiting(self, group: int) -> int:
        """Return how many rollouts of a group are complete and not used."""
        return self.position(group)[0] - self.number(group, USED)

    def oldest(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the oldest rollout that waits, each [length, n_envs, ...]."""
        slot = self.number(group, USED) % self.stream.n_slots
        return {path: array[group, slot] for path, array in self.arrays.items()}

    def version(self, group: int) -> int:
        """Return the version of the parameters by which that one was begun."""
        return int(self.oldest(group)["version"].flat[0])

    def use(self, group: int) -> None:
        """Give the place of that one back to its actor."""
        self.add(group, USED, 1)

    @property
    def n_updates(self) -> int:
        """Updates that the parameters have had which were published last."""
        return int(self._updates[0])

    @n_updates.setter
    def n_updates(self, updates: int) -> None:
        self._updates[0] = updates

    def add(self, group: int, name: str, n: int) -> None:
        """Add to one of a group's counts."""
        self.set(group, name, self.number(group, name) + n)

    def drop_unfinished(self, group: int) -> None:
        """Drop what there is of the rollout that a group fills."""
        _, filled = self.position(group)
        self.add(group, LOST, filled * self.stream.n_envs)
        self.add(group, WRITTEN, -filled)

    @property
    def n_dropped(self) -> int:
        """Steps that nobody has learned from, nor ever will."""
        return int(self.counts[LOST].sum() + self.counts[EXPIRED].sum())

    def save(self, path: Path) -> None:
        """Write all of it; workers may go on."""
        counts = {name: count.copy() for name, count in self.counts.items()}
        rows = {name: np.zeros_like(array) for name, array in self.arrays.items()}
        for group in range(self.stream.n_groups):
            self._copy(group, counts, rows)
        everything: dict[str, Any] = {**counts, **{f"rows.{name}": a for name, a in rows.items()}}
        np.savez(path, **everything)

    def _copy(self, group: int, counts: dict[str, Any], rows: dict[str, npt.NDArray[Any]]) -> None:
        """Copy what a group has at one moment.

        What is written stays as it is until a learner gives its place back.
        """
        for _ in range(SAVE_TRIES):
            found = {name: self.number(group, name) for name in COUNTS}
            for name, array in self.arrays.items():
                rows[name][group] = array[group]
            if self.number(group, USED) == found[USED]:
                break
        else:
            n_left = found[WRITTEN] - found[USED] * self.stream.length
            found[LOST] += n_left * self.stream.n_envs
            found[WRITTEN] -= n_left
        for name, value in found.items():
            counts[name][group] = value

    def load(self, path: Path) -> None:
        """Take up what was saved; OSError, ValueError or KeyError if it is damaged.

        If the groups are others now, what waited is dropped: learners would not get as many of
        each. So is what was done by newer parameters than the learners go on from.
        """
        try:
            with np.load(path) as file:
                saved = dict(file)
        except (BadZipFile, EOFError) as error:
            raise ValueError(f"{path.name} cannot be read: {error}") from error
        _, _, length, n_envs = saved["rows.version"].shape[:4]
        left = saved[WRITTEN] - saved[USED] * length
        if any(saved[f"rows.{name}"].shape != array.shape for name, array in self.arrays.items()):
            lost = (saved[LOST] + saved[EXPIRED] + left * n_envs).sum()
            self.add(0, LOST, int(lost))
            return
        for name, array in self.arrays.items():
            array[...] = saved[f"rows.{name}"]
        for name, count in self.counts.items():
            count[...] = saved[name]
        for group in range(self.stream.n_groups):
            self._forget_newer(group)

    def _forget_newer(self, group: int) -> None:
        """Drop what a group has written, if some of it is by newer parameters than there are."""
        length, written = self.stream.length, self.number(group, WRITTEN)
        used = self.number(group, USED) * length
        steps = np.arange(used, written)
        versions = self.arrays["version"][group, steps // length % self.stream.n_slots]
        if (versions[np.arange(len(steps)), steps % length] > self.n_updates).any():
            self.add(group, LOST, len(steps) * self.stream.n_envs)
            self.set(group, WRITTEN, used)


class HostedRollouts(Hosted):
    """A rollout stream in the memory of this machine."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def meet(self, streams: Mapping[str, Hosted]) -> None:
        """Count what a checkpoint's rollouts have that its board has not: they were saved later."""
        board, counts = streams["board"].source(), self._rollouts.counts
        n_done = int(counts[WRITTEN].sum() * self._rollouts.stream.n_envs + counts[LOST].sum())
        board.row(STEPS, 0).env_steps += max(0, n_done - board.env_steps)

    def sink(self) -> RolloutSink:
        """Return the actors' end."""
        return RolloutSink(self._rollouts)

    def source(self) -> RolloutSource:
        """Return the learners' end."""
        return RolloutSource(self._rollouts)

    def save(self, folder: Path) -> None:
        """Write the rollouts."""
        self._rollouts.save(folder / FILE)

    def figures(self) -> dict[str, float]:
        """Return rollouts waiting, staleness (mean and max) of the last update, steps dropped."""
        rollouts = self._rollouts
        mean, largest = rollouts.staleness.tolist()
        return {
            "waiting": float(sum(map(rollouts.waiting, range(rollouts.stream.n_groups)))),
            "staleness": mean,
            "max_staleness": largest,
            "dropped_steps": float(rollouts.n_dropped),
        }

    def is_used_up(self) -> bool:
        """Return whether there are fewer rollouts than an update learns from."""
        stream = self._rollouts.stream
        ready = (sum(map(self.is_ready, stream.groups_of(part))) for part in range(stream.n_parts))
        return max(ready) < stream.n_together

    def is_ready(self, group: int) -> bool:
        """Return whether a rollout of a group waits to be learned from."""
        return self._rollouts.waiting(group) > 0


class RolloutSink:
    """The actors' end of a rollout stream."""

    has_begun = True  # actions are those of the policy from the beginning
    priority_epsilon = 0.0

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._writers: dict[int, RolloutWriter] = {}

    def writer(
        self,
        algorithm: Algorithm,
        n_envs: int,
        group: int,
        inference: Inference,
        priority: Any = None,
    ) -> Any:
        """Return what turns the steps of a group into rows, as the algorithm does."""
        self._writers[group] = RolloutWriter(self._rollouts, group, inference)
        return algorithm.writer(self._writers[group], n_envs)

    def next_group(self, groups: Sequence[int], n: int, patience_seconds: float) -> int | None:
        """Wait at most so long; return the first of some groups that has room for a step."""
        return found_within(patience_seconds, lambda: next(filter(self.may_choose, groups), None))

    def may_choose(self, group: int) -> bool:
        """Return whether the group has room for a step, which it gets with newer parameters."""
        return self._rollouts.waiting(group) < self._rollouts.stream.n_slots

    def state_dict(self) -> dict[str, Any]:
        """Return where the rollouts of the writers are."""
        return {str(group): writer.state_dict() for group, writer in self._writers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the writers go on with their rollouts."""
        for group, writer in self._writers.items():
            if str(group) in state:
                writer.load_state_dict(state[str(group)])


class RolloutWriter:
    """Writes the steps of one group into its rollouts.

    Parameters
    ----------
    rollouts : Rollouts
        The memory.
    group : int
        Whose steps they are.
    inference : Inference
        Knows by which parameters actions were chosen.

    Notes
    -----
    A rollout that another process has begun, and did not complete, is dropped at the first step.
    """

    def __init__(self, rollouts: Rollouts, group: int, inference: Inference) -> None:
        self._rollouts, self._group, self._inference = rollouts, group, inference
        self._n_filled = 0  # steps of the rollout that are this writer's
        arrays = {path: array[group] for path, array in rollouts.arrays.items()}
        self._version = arrays.pop("version")
        self._columns = nested(rollouts.stream.columns, arrays)
        self._after = self._columns.pop("next_observation")
        self._first = nested(rollouts.stream.first_columns, arrays)

    def add(self, next_observation: Any, truncated: Any, **columns: Any) -> None:
        """Write a step of all environments of the group.

        What follows it is kept only where the next step's observation is another episode's or the
        next rollout's.
        """
        rollouts, group, stream = self._rollouts, self._group, self._rollouts.stream
        complete, step = rollouts.position(group)
        if step != self._n_filled:
            self._begin_anew()
            step = 0
        columns["truncated"] = truncated
        where = complete % stream.n_slots, step
        for name, column in self._columns.items():
            put(column, where, columns[name])
        if step == 0:
            for name, column in self._first.items():
                put(column, where, columns[name])
        self._version[where] = self._inference.updates
        is_last = step == stream.length - 1
        if is_last or truncated.any():
            put(self._after, where, next_observation)
        self._n_filled = 0 if is_last else step + 1
        rollouts.add(group, WRITTEN, 1)

    def _begin_anew(self) -> None:
        """Drop what there is of the rollout."""
        self._rollouts.drop_unfinished(self._group)
        self._n_filled = 0

    def reset(self, i: int) -> None:
        """Begin anew: an environment has not come back to where it was."""
        self._begin_anew()

    def state_dict(self) -> dict[str, int]:
        """Return where the writer is."""
        return {"written": self._rollouts.number(self._group, WRITTEN)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the rollout if it is as it was; else it is dropped at the first step."""
        written = self._rollouts.number(self._group, WRITTEN)
        is_same = state["written"] == written
        self._n_filled = written % self._rollouts.stream.length if is_same else -1


class RolloutSource:
    """The learners' end of a rollout stream."""

    draws_tensors = False

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts, self._share, self._part = rollouts, Share(), 0
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._groups: list[int] = []  # whose rollouts were drawn last
        self._n_drawn = 0
        # By which rollouts are old: those that there were when enough of them waited. Others may
        # do updates of their own before these are drawn.
        self._updates = 0

    def prepare(
        self, batch_size: int, device: torch.device, n_ahead: int, share: Share, index: int
    ) -> None:
        """Say which learner this is."""
        self._share = share
        self._part = index if share.count == 1 else 0

    def blank(self, n: int) -> Batch:
        """Return the learner's part of a batch of zeros, [T, N, ...]; of first columns T is 1."""
        stream = self._rollouts.stream
        n_envs = stream.n_together * stream.n_envs // stream.n_learners
        self._columns = {
            path: np.zeros((length, n_envs, *field.shape), field.dtype)
            for fields, (_, _, length, _) in Rollouts.parts(stream)
            for path, field in leaves(fields)
        }
        return self._batch()

    def may_draw(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether there are rollouts enough for an update.

        Those that are too old by now are dropped. The first learner alone calls it.
        """

        def enough() -> bool | None:
            self._updates = self._rollouts.n_updates
            return len(self._ready()) >= self._rollouts.stream.n_together or None

        return found_within(patience_seconds, enough) is not None

    def draw(self) -> Batch:
        """Return the learner's part of the oldest rollouts, which the first learner chooses.

        The next call overwrites it.
        """
        rollouts, stream = self._rollouts, self._rollouts.stream
        self._n_drawn += 1
        if self._share.index == 0:
            self._groups = sorted(self._ready(), key=rollouts.version)[: stream.n_together]
        if self._share.count > 1:
            self._agree()
        n = stream.n_envs
        mine = self._share.rows(n * stream.n_together // stream.n_learners)
        for i, group in enumerate(self._groups):
            begin, end = max(mine.start, i * n), min(mine.stop, (i + 1) * n)
            if begin >= end:
                continue
            whose, where = slice(begin - i * n, end - i * n), slice(begin, end)
            for path, column in rollouts.oldest(group).items():
                into = self._columns[path]
                into[:, where.start - mine.start : where.stop - mine.start] = column[:, whose]
        if self._share.index == 0:
            versions = np.stack([rollouts.oldest(group)["version"] for group in self._groups])
            staleness = self._updates - versions
            rollouts.staleness[:] = staleness.mean(), staleness.max()
        return self._batch()

    def _batch(self) -> Batch:
        stream = self._rollouts.stream
        return Batch(nested({**stream.columns, **stream.first_columns}, self._columns))

    def learned(self, batch: Batch, error: Any) -> None:
        """Raise ValueError if an error is not finite."""
        if not np.isfinite(error).all():
            raise ValueError("errors must be finite")

    def release(self, updates: int) -> None:
        """Let actors fill the place of what was drawn; the current parameters are published."""
        if self._share.index == 0:
            self._rollouts.n_updates = updates
            for group in self._groups:
                self._rollouts.use(group)
            self._groups = []

    def advance(self, progress: float) -> None:
        """Do nothing: nothing changes with the share of the run that is done."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is used of each group, and what was too old."""
        counts = self._rollouts.counts
        return {name: counts[name].tolist() for name in (USED, EXPIRED)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count what has been used since as dropped: these parameters have not learned from it."""
        rollouts, stream = self._rollouts, self._rollouts.stream
        if self._share.index or len(state.get(USED, ())) != stream.n_groups:
            return
        for group in stream.groups_of(self._part):
            n_used = rollouts.number(group, USED) - state[USED][group]
            n_expired = rollouts.number(group, EXPIRED) - state[EXPIRED][group]
            rollouts.add(group, EXPIRED, max(0, n_used * rollouts.n_steps - n_expired))

    def close(self) -> None:
        """Do nothing."""

    def _ready(self) -> list[int]:
        """Return the groups whose rollouts wait, once those are dropped that are too old."""
        rollouts, stream = self._rollouts, self._rollouts.stream
        ready = []
        for group in stream.groups_of(self._part):
            while rollouts.waiting(group) > 0:
                if self._updates - rollouts.version(group) <= stream.max_staleness:
                    ready.append(group)
                    break
                rollouts.add(group, EXPIRED, rollouts.n_steps)
                rollouts.use(group)
        return ready

    def _agree(self) -> None:
        """Have all learners learn from the groups that the first one has chosen."""
        chosen, n_groups = self._rollouts.chosen, self._rollouts.stream.n_groups
        for i, group in enumerate(self._groups if self._share.index == 0 else ()):
            store(chosen, i, self._n_drawn * n_groups + group)

        def told() -> list[int] | None:
            words = [load(chosen, i) for i in range(len(chosen))]
            is_new = all(word // n_groups == self._n_drawn for word in words)
            return [word % n_groups for word in words] if is_new else None

        self._groups = found_within(math.inf, told) or []
