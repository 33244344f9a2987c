"""n-step returns, which are folded while transitions are written.

A window of n steps becomes one row. It starts where its first step starts, and ends where its last
step ends.

    step        0    1    2    3    4           n_step = 3; step 4 ends the episode
    window 0    [r0 + γ r1 + γ² r2]             discount γ³
    window 1         [r1 + γ r2 + γ² r3]        discount γ³
    window 2              [r2 + γ r3 + γ² r4]   discount γ³ if truncated, 0 if terminated
    window 3                   [r3 + γ r4]      discount γ² if truncated, 0 if terminated
    window 4                        [r4]        discount γ  if truncated, 0 if terminated

Windows 2 to 4 are written together when step 4 arrives. No window holds steps of two episodes.

>>> import kary_replay as kr
>>> number = kr.Field((), "int64")
>>> fields = {
...     "observation": number,
...     "action": number,
...     "reward": kr.Field((), "float32"),
...     "next_observation": number,
...     "discount": kr.Field((), "float32"),
... }
>>> buffer = kr.PrioritizedReplayBuffer(1000, fields, seed=0)
>>> writer = kr.NStepWriter(buffer, n_envs=1, n_step=3, gamma=0.5)
>>> for t in range(5):
...     index = writer.add(
...         observation=t,
...         action=0,
...         reward=1.0,
...         next_observation=t + 1,
...         terminated=False,
...         truncated=t == 4,
...     )
...     print(t, index)
0 []
1 []
2 [0]
3 [1]
4 [2 3 4]
>>> for name in "observation", "next_observation", "reward", "discount":
...     print(f"{name:16}", buffer.field_view(name)[:5])
observation      [0 1 2 3 4]
next_observation [3 4 5 5 5]
reward           [1.75 1.75 1.75 1.5  1.  ]
discount         [0.125 0.125 0.125 0.25  0.5  ]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.windows import fold
from ..errors import FieldError
from ..fields import leaves_of, name_of
from ..types import Field
from ..validation import as_count, as_fraction
from .steps import (
    FLAGS,
    Buffer,
    PriorityFunction,
    Step,
    StepReader,
    StepWriter,
    fields_of,
)

__all__ = ["NStepWriter"]

REQUIRED = ("observation", "action", "reward", "next_observation", "discount")
SCALARS = ("reward", "discount", "terminated", "truncated")
LARGEST = np.finfo(np.float64).max


class NStepWriter(StepWriter):
    """Folds the steps of ``n_envs`` environments into n-step transitions and adds them to a buffer.

    Parameters
    ----------
    buffer : ReplayBuffer or PrioritizedReplayBuffer
        A buffer with at least the fields observation, action, reward, next_observation and
        discount. Reward and discount are floating scalars. The buffer may have further fields, and
        observations may be dicts.
    n_envs : int
        The number of environments, at least 1. The steps of each are one stream.
    n_step : int
        The number of steps in a window, from 1 to the buffer's capacity.
    gamma : float
        The discount of one step, from 0 to 1.
    priority : None or function
        A function that is given the rows about to be written (a dict of arrays with a leading axis
        B, as ``buffer.add`` takes them) and returns their raw priorities, float [B], above 0: for
        instance the actor's own |TD error| + epsilon (Horgan et al. 2018). With None a new row gets
        the largest priority seen, so that every row is soon drawn once.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, or the buffer lacks a field. Nothing
        has been created then.
    MemoryError
        If the system refuses the memory, about ``n_envs * n_step`` times the bytes of a row.

    Notes
    -----
    A window of k steps becomes a row with these values:

    - reward is r[0] + gamma r[1] + … + gamma^(k-1) r[k-1], summed in float64 and then cast to the
      field's precision.
    - discount is gamma^k · (1 - terminated). The learner's target is reward + discount ·
      value(next_observation).
    - next_observation, terminated, truncated, and every other field named ``next_…`` are those of
      the last step.
    - All other fields are those of the first step.

    k is n_step, or what is left of the episode if it ends earlier. Truncation ends a window as
    termination does, but the target still bootstraps: the discount is gamma^k.

    One thread at a time may use a writer. Any number of writers, each with its own environments,
    may write to one buffer at once, while other threads sample from it. Pending windows belong to
    the writer: the buffer does not save them, but `state_dict` has them.

    Sources: Sutton (1988), Learning to predict by the methods of temporal differences. For n-step
    targets in replay, Hessel et al. (2018), Rainbow, arXiv:1710.02298. For initial priorities,
    Horgan et al. (2018), Ape-X, arXiv:1803.00933, algorithm 1.

    Examples
    --------
    >>> import kary_replay as kr
    >>> fields = {
    ...     "observation": kr.Field((2,), "float32"),
    ...     "action": kr.Field((), "int64"),
    ...     "reward": kr.Field((), "float32"),
    ...     "next_observation": kr.Field((2,), "float32"),
    ...     "discount": kr.Field((), "float32"),
    ... }
    >>> buffer = kr.PrioritizedReplayBuffer(1000, fields)
    >>> writer = kr.NStepWriter(buffer, n_envs=2, n_step=3, gamma=0.99)
    >>> writer.add(
    ...     observation=[[0, 1], [2, 3]],
    ...     action=[0, 1],
    ...     reward=[0.5, 1.0],
    ...     next_observation=[[1, 1], [3, 3]],
    ...     terminated=[False, True],
    ...     truncated=[False, False],
    ... )
    array([0])
    """

    def __init__(
        self,
        buffer: Buffer,
        n_envs: int,
        n_step: int,
        gamma: float,
        priority: PriorityFunction | None = None,
    ) -> None:
        fields = _checked_fields(buffer)
        self._n_step = as_count("n_step", n_step)
        if self._n_step > buffer.capacity:
            raise ValueError(
                f"n_step must be at most the buffer's capacity, {buffer.capacity}, got {n_step}"
            )
        self._gamma = as_fraction("gamma", gamma)
        # Rewards are summed in float64, because rounding errors of the field's dtype would add up.
        step = {name: field for name, field in fields.items() if name not in (*FLAGS, "discount")}
        step["reward"] = Field((), np.float64)
        super().__init__(buffer, fields, StepReader(step, n_envs, computed="discount"), priority)
        shape = self.n_envs, self._n_step
        # Slot j of a stream holds the window that began at step j (mod n_step) of the episode.
        # At most n_step - 1 windows are pending between two steps, so the next step's slot is free.
        self._first = {
            path: np.empty((*shape, *field.shape), field.dtype)
            for path, field in self._reader.leaves.items()
            if not (path[0] == "reward" or path[0].startswith("next_"))
        }
        self._return = np.zeros(shape)
        self._power = np.array([self._gamma**k for k in range(self._n_step + 1)])
        self._limit = _least_beyond(fields["reward"].dtype)
        self._paths = [path for path, _ in leaves_of(fields)]

    @property
    def n_step(self) -> int:
        """The number of steps in a window."""
        return self._n_step

    @property
    def gamma(self) -> float:
        """The discount of one step."""
        return self._gamma

    @property
    def n_pending(self) -> npt.NDArray[np.int64]:
        """The number of pending windows of each environment: int64 [n_envs], 0 to n_step - 1."""
        return np.minimum(self._n_steps, self._n_step - 1)

    def __repr__(self) -> str:
        sizes = f"n_envs={self.n_envs}, n_step={self.n_step}, gamma={self.gamma}"
        return f"NStepWriter({sizes}, buffer={self._buffer!r})"

    def add(
        self,
        /,
        *,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        env: npt.ArrayLike | None = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """Take one step of every environment, or of some, and add the windows that it completes.

        Parameters
        ----------
        terminated, truncated : bool [M]
            Whether the episode ended in a terminal state, and whether it was cut off. If both are
            true, the episode counts as terminated.
        env : None, int or distinct ints [M]
            The environments that stepped. None means all of them, and then M = n_envs.
        **fields
            Every field of the buffer except discount, terminated and truncated. Each has the
            leading axis M, in the order of ``env``; if M is 1, the leading axis may be left out.
            ``next_observation`` is the observation that the step led to. At the end of an episode,
            too, it is not the one that a reset returned.

        Returns
        -------
        int64 [B], or None from a ShardedReplayBuffer, whose rows have no slots
            The slots of the buffer that were written, by environment in the order of ``env``, then
            by first step. B is 0 while no window is complete, and M once each has n_step steps. An
            environment whose episode ended writes all its pending windows.

        Raises
        ------
        FieldError, ValueError, TypeError
            If an argument does not fit, a return exceeds its field's precision or float64, or the
            priorities are wrong. The step has not been taken then, and nothing has been written.

        Notes
        -----
        The cost is O(M · n_step + bytes of the steps and rows): some 30 microseconds for a few
        environments and fields. Other threads may use the buffer meanwhile, but not this writer. In
        gymnasium's next-step autoreset mode the step after the end of an episode is not a real one:
        use ``env`` to leave its environment out.
        """
        step = self._reader.read(env, fields, terminated, truncated)
        streams, reward = step.streams, step.columns["reward",]
        try:
            n_steps, returns, places, row, first, value, discount = fold(
                streams,
                self._n_steps,
                self._return,
                self._power,
                self._limit,
                reward,
                step.terminated,
                step.truncated,
            )
        except OverflowError as error:
            what, i = error.args
            raise self._refusal(what, reward[i]) from None
        # Up to here nothing has changed, and now only free slots do, so the step has not been taken
        # if the buffer refuses the rows.
        for path, ring in self._first.items():
            _flat(ring)[places] = step.columns[path]
        index = self._write(step, row, first, value, discount)
        self._return[streams] = returns
        self._n_steps[streams] = n_steps
        return index

    def _state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that changes from step to step."""
        first = {f"first {name_of(path)}": ring for path, ring in self._first.items()}
        return {"n_steps": self._n_steps, "return": self._return, **first}

    def _settings(self) -> dict[str, float]:
        """Return the arguments on which the meaning of a state depends."""
        return {"n_step": self._n_step, "gamma": self._gamma}

    def _refusal(self, what: str, reward: float) -> FieldError:
        """Return the error of a number that is beyond its precision, as `fold` says it."""
        if what == "return":
            return FieldError(
                f"the n-step sum of reward is beyond {LARGEST}, the largest float64, with reward "
                f"{reward} and gamma {self._gamma}: scale it"
            )
        name = "reward" if what == "reward" else "the n-step sum of reward"
        dtype = self._fields["reward"].dtype
        return FieldError(f"{name} is beyond {np.finfo(dtype).max}, the largest {dtype}: scale it")

    def _write(
        self,
        step: Step,
        row: npt.NDArray[np.int64],  # [B] which of the M environments
        first: npt.NDArray[np.int64],  # [B] where its first step lies in a column of all rings
        value: npt.NDArray[np.float64],  # [B] its return
        discount: npt.NDArray[np.float64],  # [B]
    ) -> npt.NDArray[np.int64]:
        """Add B complete windows to the buffer."""
        if not len(row):
            return np.empty(0, np.int64)
        made = {
            "reward": value.astype(self._fields["reward"].dtype),
            "discount": discount.astype(self._fields["discount"].dtype),
            **{name: getattr(step, name)[row] for name in FLAGS if name in self._fields},
        }
        columns = []
        for path in self._paths:
            if path[0] in made:
                columns.append(made[path[0]])
            elif path in self._first:
                columns.append(_flat(self._first[path])[first])
            else:
                columns.append(step.columns[path][row])
        return self._add_rows(columns)


def _flat(ring: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the slots of all rings one after another."""
    return ring.reshape(-1, *ring.shape[2:])


def _least_beyond(dtype: np.dtype[Any]) -> float:
    """Return the least float64 that becomes infinite in a precision."""
    of = np.finfo(dtype)
    if of.bits >= np.finfo(np.float64).bits:
        return np.inf
    return float(of.max) + 2.0 ** (of.maxexp - 1 - of.nmant) / 2


def _checked_fields(buffer: Any) -> dict[str, Any]:
    """Return the buffer's fields; raise if a window cannot be written to them."""
    fields = fields_of(buffer)
    missing = [name for name in REQUIRED if name not in fields]
    if "discount" in missing:
        has_terminated = "terminated" in fields
        instead = ", which replaces terminated in the learner's target" if has_terminated else ""
        remedy = f'; add "discount": Field((), "float32"){instead}: gamma^k · (1 - terminated)'
    else:
        remedy = f"; give it at least {', '.join(REQUIRED)}"
    if missing:
        raise ValueError(f"buffer lacks the fields {', '.join(missing)}{remedy}")
    for name in SCALARS:
        field = fields.get(name)
        is_flag = name in FLAGS
        is_scalar = isinstance(field, Field) and field.shape == ()
        if field is None or (is_scalar and (is_flag or field.dtype.kind == "f")):
            continue
        kind, dtype = ("boolean", "bool") if is_flag else ("floating", "float32")
        raise ValueError(
            f'buffer must have {name} as a {kind} scalar, Field((), "{dtype}"), got {field}'
        )
    return fields
