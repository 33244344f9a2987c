"""A shard whose memory is mapped in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from .layout import HIDDEN, Layout
from .numbered_rows import NumberedRows
from .service import refuse_unfit, set_common
from .vitals import vitals_of

__all__ = ["LocalShard"]


class LocalShard:
    """A buffer as those who use shards see it; `RemoteShard` has the same methods.

    Parameters
    ----------
    buffer : PrioritizedReplayBuffer or FrameReplayBuffer
        Made here or attached to, with or without what `ShardService` keeps beside the fields.
    """

    is_lost = False

    def __init__(self, buffer: PrioritizedReplayBuffer) -> None:
        refuse_unfit(buffer, "shards")
        self.buffer = buffer
        self.layout = Layout.of(buffer)
        self.names = self.layout.names
        self.reader = buffer._reader
        self._hidden = [name for name in HIDDEN if name in buffer.fields]
        self._numbered = NumberedRows(buffer)

    def refuse_closed(self) -> None:
        """Raise ClosedError if somebody has closed the buffer."""
        len(self.buffer)

    @property
    def vitals(self) -> Any:
        """What a shard elsewhere says of itself: a record of VITALS_DTYPE."""
        return vitals_of(self.buffer._slots)[0]

    @property
    def max_priority(self) -> float:
        """The largest priority seen."""
        return self.buffer.max_priority

    @property
    def n_sent(self) -> int:
        """Rows with frames that this object has added."""
        return len(self._numbered)

    def add(self, columns: dict[str, Any], priority: npt.ArrayLike | None) -> None:
        """Add rows, whose columns go by the names of the leaves; with frames as NumberedRows do."""
        if self.layout.stacks:
            self._numbered.add(columns, priority)
            return
        n = len(columns[self.names[0]])
        hidden = {name: np.zeros(n, HIDDEN[name].dtype) for name in self._hidden}
        self.buffer._writer.add({**columns, **hidden}, priority)

    def update(self, handle: npt.NDArray[np.void], td_error: npt.NDArray[np.float64]) -> int:
        """Set priorities; return of how many rows."""
        return self.buffer.update_priorities(handle, td_error)

    def set(self, name: str, value: float) -> None:
        """Set one of the settings that all shards have in common."""
        set_common(self.buffer, name, value)

    def settle(self) -> None:
        """Do nothing: all has been done when a call returns."""

    def look(self) -> None:
        """Do nothing: `vitals` are always current."""

    def reset(self) -> None:
        """Forget all rows."""
        self.buffer.reset()
        self._numbered = NumberedRows(self.buffer)

    def save(self, directory: Path) -> None:
        """Write the shard to a directory."""
        self.buffer.save(directory)

    def check_invariants(self) -> None:
        """Raise AssertionError if something in the shard is not as it must be."""
        self.buffer.check_invariants()

    def close(self) -> None:
        """Let go of the memory."""
        self.buffer.close()
