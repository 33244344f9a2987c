"""What the rows of a shard are: their fields, and how stacks of frames are made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..buffers.frame_replay_buffer import FrameReplayBuffer, frames_of_row
from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..errors import ShardError
from ..fields import leaves_of, map_leaves, names_of
from ..types import Field
from .messages import LONGEST

__all__ = ["HIDDEN", "Layout", "signature_of"]

# Which writer added a row, and its number among that writer's rows. They lie in the rows
# themselves, so they are there whoever dies: a row that was published before its writer learned of
# it is not added again. Rows with frames lack them, for these are added where the shard is.
HIDDEN: dict[str, Field] = {"_writer": Field((), np.uint64), "_sequence": Field((), np.uint64)}
STACKING = "stack", "n_step", "padding"  # options of a FrameReplayBuffer


@dataclass(frozen=True)
class Layout:
    """What shards have to have alike, so that batches can be drawn from all of them.

    Parameters
    ----------
    fields : dict
        Of a row as it is stored, without those that shards keep for themselves.
    stacking : dict, optional
        How a FrameReplayBuffer makes stacks: its stack, n_step and padding.
    """

    fields: dict[str, Any]
    stacking: dict[str, Any] | None = None

    @classmethod
    def of(cls, buffer: PrioritizedReplayBuffer) -> Layout:
        """Return the layout of a shard."""
        if isinstance(buffer, FrameReplayBuffer):
            return cls(buffer.fields, {name: getattr(buffer, name) for name in STACKING})
        return cls({name: field for name, field in buffer.fields.items() if name not in HIDDEN})

    @classmethod
    def read(cls, text: str) -> Layout:
        """Return the layout that `text` returned; ShardError if it did not."""
        try:
            said = json.loads(text)
            stacking, leaves = said if isinstance(said, list) else (None, said)
            layout = cls(
                map_leaves(leaves, lambda leaf: Field(tuple(leaf[0]), np.dtype(leaf[1]))), stacking
            )
            row_nbytes = sum(math.prod(one.shape) * one.dtype.itemsize for one in layout.drawn)
            if row_nbytes > LONGEST:
                raise ValueError(f"a row has {row_nbytes} bytes")
            layout.template().close()
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise ShardError(f"a shard says that its fields are {text[:200]!r}: {error}") from None
        return layout

    def text(self) -> str:
        """Return the layout as text, which both sides compare."""
        fields = signature_of(self.fields)
        return f"[{json.dumps(self.stacking)}, {fields}]" if self.stacks else fields

    @property
    def stacks(self) -> bool:
        """Whether observations are stacks of frames that are stored once."""
        return self.stacking is not None

    @property
    def kind(self) -> type[PrioritizedReplayBuffer]:
        """The type of the shards."""
        return FrameReplayBuffer if self.stacks else PrioritizedReplayBuffer

    @property
    def names(self) -> list[str]:
        """The names of the leaves."""
        return names_of([path for path, _ in leaves_of(self.fields)])

    @property
    def leaves(self) -> list[Field]:
        """The fields of a row as it is stored, in the order of the names."""
        return [field for _, field in leaves_of(self.fields)]

    @property
    def drawn(self) -> list[Field]:
        """The fields of a row as it is drawn, with all its frames, in the order of the names."""
        if self.stacking is None:
            return self.leaves
        n_frames = frames_of_row(self.stacking["stack"], self.stacking["n_step"])
        return [
            Field((n_frames, *field.shape), field.dtype) if path[0] == "frame" else field
            for path, field in leaves_of(self.fields)
        ]

    def template(self) -> PrioritizedReplayBuffer:
        """Return a small buffer without rows, which arranges what is drawn from shards."""
        options = self.stacking or {}
        capacity = options["stack"] + options["n_step"] if options else 1
        checked = self.kind._checked_layout(capacity, self.fields, options)
        made = self.kind.__new__(self.kind)
        made._open(checked, seed=0)
        return made


def signature_of(fields: Mapping[str, Any]) -> str:
    """Return fields as text, which both sides compare, and from which fields can be made again."""
    return json.dumps(map_leaves(fields, lambda field: [list(field.shape), field.dtype.str]))
