"""Shards on disk: each in a directory of its own, and one manifest that names them.

checkpoint.json          what counts; see checkpoint_files.py
data-0123456789abcdef/
shard-0000/          what the buffer's own `save` writes, and so on
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..buffers.checkpoint import named
from ..buffers.checkpoint_files import DATA, MANIFEST, new_data, read_manifest
from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..errors import CheckpointError
from ..validation import as_count, as_fraction
from ..version import VERSION
from .layout import Layout

__all__ = ["SavedShards", "save_shards", "saved_shards"]

FORMAT = 1
KIND = "ShardedReplayBuffer"
CHUNK_ROWS = 4096  # handed over at once


@contextlib.contextmanager
def save_shards(
    folder: Path, layout: Layout, state: dict[str, Any]
) -> Iterator[Callable[[Callable[[Path], None]], None]]:
    """Yield a function that saves one shard: it is given one that writes into a folder.

    At the end the saved shards replace the checkpoint that is there. After an error the former one
    remains.
    """
    with new_data(folder) as (data, content):
        names: list[str] = []

        def one(save: Callable[[Path], None]) -> None:
            names.append(f"shard-{len(names):04d}")
            save(data / names[-1])

        yield one
        content.update(
            format=FORMAT,
            version=VERSION,
            byte_order=sys.byteorder,
            kind=KIND,
            fields=layout.text(),
            shards=names,
            **state,
        )


@contextlib.contextmanager
def saved_shards(folder: Path, layout: Layout) -> Iterator[SavedShards]:
    """Give the shards of a checkpoint, read whole and checked."""
    content = read_manifest(folder)
    with contextlib.ExitStack() as close:
        shards = []
        for path in _checked(folder, content, layout.text()):
            shards.append(close.enter_context(layout.kind.load(path)))
            found = Layout.of(shards[-1]).text()
            if found != layout.text():
                raise CheckpointError(
                    f"'{path}' has the fields {found}, the shards {layout.text()}"
                )
        yield SavedShards(folder, content, shards)


class SavedShards:
    """The shards of a checkpoint."""

    def __init__(
        self, folder: Path, content: dict[str, Any], shards: list[PrioritizedReplayBuffer]
    ) -> None:
        self._path, self.shards = folder / MANIFEST, shards
        self.state = content

    @property
    def settings(self) -> dict[str, float]:
        """What all shards have alike."""
        return {name: getattr(self.shards[0], name) for name in ("alpha", "priority_epsilon")}

    @property
    def max_priority(self) -> float:
        """The largest priority seen in any shard."""
        return max(shard.max_priority for shard in self.shards)

    def rows(self) -> Iterator[tuple[dict[str, Any], npt.NDArray[np.float64]]]:
        """Yield all rows, by the names of the leaves, and their priorities.

        The oldest come first, as far as can be told: of each shard the same part at a time.
        """
        names = Layout.of(self.shards[0]).names
        held = [shard._slots.by_age() for shard in self.shards]
        n_chunks = -(-sum(len(slots) for slots, _ in held) // CHUNK_ROWS)
        for chunk in range(n_chunks):
            parts = []
            for shard, (slots, priority) in zip(self.shards, held, strict=True):
                first, stop = (len(slots) * one // n_chunks for one in (chunk, chunk + 1))
                if first < stop:
                    drawn = shard._reader.take(slots[first:stop])
                    age = (np.arange(first, stop) + 0.5) / len(slots)
                    parts.append((age, drawn, priority[first:stop]))
            order = np.argsort(np.concatenate([age for age, _, _ in parts]), kind="stable")
            rows = {
                name: np.concatenate([drawn[name] for _, drawn, _ in parts])[order]
                for name in names
            }
            yield rows, np.concatenate([priority for _, _, priority in parts])[order]

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Raise CheckpointError where the manifest contradicts itself."""
        return named(self._path)


def _checked(folder: Path, content: dict[str, Any], signature: str) -> list[Path]:
    """Return where the shards of a manifest are; CheckpointError if it is none of theirs."""
    path = folder / MANIFEST
    with named(path):
        if content["kind"] != KIND:
            raise CheckpointError(
                f"'{folder}' holds a {content['kind']}: load it with {content['kind']}.load"
            )
        if as_count("format", content["format"]) != FORMAT:
            raise CheckpointError(
                f"'{path}' was saved by kary-replay {content['version']} in format "
                f"{content['format']}; version {VERSION} reads format {FORMAT}"
            )
        if content["fields"] != signature:
            raise CheckpointError(
                f"'{folder}' has the fields {content['fields']}, the shards here {signature}"
            )
        as_fraction("beta", content["beta"])
        names = content["shards"]
        if not DATA.fullmatch(content["data"]) or not names:
            raise ValueError("it names no data, or no shards")
        if names != [f"shard-{number:04d}" for number in range(len(names))]:
            raise ValueError(f"the shards are named {names}")
        return [folder / content["data"] / name for name in names]
