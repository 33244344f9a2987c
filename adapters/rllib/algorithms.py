"""RLlib's algorithms, with the replay buffer in their checkpoints."""

from __future__ import annotations

import pathlib
from typing import Any

from pyarrow import fs
from ray.rllib.algorithms import dqn, sac, tqc
from ray.rllib.algorithms.algorithm import Algorithm

from kary_replay.adapters.rllib.replay_buffer import PrioritizedEpisodeReplayBuffer, file_system_of

COMPONENT = "replay_buffer"  # the folder in a checkpoint


class ReplayInCheckpoints(Algorithm):
    """Saves and restores the replay buffer with the algorithm.

    RLlib leaves the buffer out, so that a restored algorithm begins with an empty one. Inherit from
    this before your own algorithm, as DQN, SAC and TQC here do::

        class MyDQN(ReplayInCheckpoints, ray.rllib.algorithms.dqn.DQN): ...

    A checkpoint without the buffer is restored all the same, and the buffer stays as it is.
    """

    def save_to_path(
        self, path: str | pathlib.Path | None = None, *, filesystem: Any = None, **kwargs: Any
    ) -> str:
        """Save what RLlib saves, and the buffer in the folder ``replay_buffer``.

        Returns the path. Raises OSError if the buffer cannot be written.
        """
        where: str = super().save_to_path(path, filesystem=filesystem, **kwargs)
        if isinstance(self.local_replay_buffer, PrioritizedEpisodeReplayBuffer):
            self.local_replay_buffer.save_to_path(
                _folder(where if path is None else path), filesystem=filesystem
            )
        return where

    def restore_from_path(
        self,
        path: str | pathlib.Path,
        *args: Any,
        component: str | None = None,
        filesystem: Any = None,
        **kwargs: Any,
    ) -> None:
        """Restore what RLlib restores, and the buffer if it was saved.

        ``component="replay_buffer"`` restores the buffer alone, of a checkpoint's folder of that
        name. Raises CheckpointError, a ValueError, if the buffer's folder is damaged.
        """
        buffer = self.local_replay_buffer
        if component == COMPONENT:
            buffer.restore_from_path(path, filesystem=filesystem)
            return
        super().restore_from_path(path, *args, component=component, filesystem=filesystem, **kwargs)
        if component is None and isinstance(buffer, PrioritizedEpisodeReplayBuffer):
            there, where = file_system_of(_folder(path), filesystem)
            if there.get_file_info(where).type == fs.FileType.Directory:
                buffer.restore_from_path(_folder(path), filesystem=filesystem)


class DQN(ReplayInCheckpoints, dqn.DQN):
    """RLlib's DQN, with its replay buffer in its checkpoints."""


class SAC(ReplayInCheckpoints, sac.SAC):
    """RLlib's SAC, with its replay buffer in its checkpoints."""


class TQC(ReplayInCheckpoints, tqc.TQC):
    """RLlib's TQC, with its replay buffer in its checkpoints."""


OURS = {dqn.DQN: DQN, sac.SAC: SAC, tqc.TQC: TQC}


def _folder(path: str | pathlib.Path) -> str:
    """Return where in a checkpoint the buffer is. The path may be an URI, which has no Path."""
    return f"{str(path).rstrip('/')}/{COMPONENT}"
