"""RLlib's algorithms, with the replay buffer in their checkpoints."""

from __future__ import annotations

import logging
import pathlib
import tempfile
import uuid
from typing import Any, NoReturn

from pyarrow import fs
from ray.rllib.algorithms import dqn, sac, tqc
from ray.rllib.algorithms.algorithm import Algorithm

from kary_replay.adapters.rllib.checkpoint import file_system_of
from kary_replay.adapters.rllib.replay_buffer import PrioritizedEpisodeReplayBuffer

COMPONENT = "replay_buffer"  # the folder in a checkpoint
logger = logging.getLogger(__name__)


class ReplayInCheckpoints(Algorithm):
    """Saves and restores the replay buffer with the algorithm.

    RLlib leaves the buffer out, so that a restored algorithm begins with an empty one. Inherit from
    this before your own algorithm, as ReplayDQN, ReplaySAC and ReplayTQC do::

        class MyDQN(ReplayInCheckpoints, ray.rllib.algorithms.dqn.DQN): ...

    A checkpoint without the buffer is restored all the same: the buffer stays as it is, and a
    warning says so.

    Raises
    ------
    ValueError
        When it is built, if the configuration has another replay buffer by now, several agents, or
        a recurrent module.
    """

    def setup(self, config: Any) -> None:
        """Set up RLlib's algorithm, and refuse what our buffer cannot serve."""
        if self.config.is_multi_agent:
            self._refuse("several agents, and this buffer keeps the episodes of one")
        burn_in = getattr(self.config, "burn_in_len", 0)
        if burn_in:
            self._refuse(f"burn_in_len={burn_in}, and this buffer draws steps, not sequences")
        super().setup(config)
        found = type(self.local_replay_buffer)
        if not issubclass(found, PrioritizedEpisodeReplayBuffer):
            self.cleanup()
            self._refuse(
                f"a {found.__name__} of RLlib's: what was set after use(config) has replaced its "
                "replay_buffer_config; call use(config) last"
            )
        if self._module_is_stateful:
            self.cleanup()
            self._refuse("a recurrent module, and this buffer draws steps, not sequences")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"the configuration of this {type(self).__name__} has {what}")

    def save_to_path(
        self,
        path: str | pathlib.Path | None = None,
        *,
        state: Any = None,
        filesystem: Any = None,
        **kwargs: Any,
    ) -> str:
        """Save the buffer in the folder ``replay_buffer``, and what RLlib saves beside it.

        With ``state``, RLlib saves that alone, and the buffer is left out. Returns the path. Raises
        OSError if it cannot be written.
        """
        if path is None:
            path = pathlib.Path(tempfile.gettempdir()) / str(uuid.uuid4())
        if state is None:
            self.local_replay_buffer.save_to_path(_folder(path), filesystem=filesystem)
        saved: str = super().save_to_path(path, state=state, filesystem=filesystem, **kwargs)
        return saved

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
        if component is not None:  # RLlib takes None for a name
            kwargs["component"] = component
        super().restore_from_path(path, *args, filesystem=filesystem, **kwargs)
        if component is not None:
            return
        there, where = file_system_of(_folder(path), filesystem)
        if there.get_file_info(where).type == fs.FileType.Directory:
            buffer.restore_from_path(_folder(path), filesystem=filesystem)
        else:
            logger.warning("'%s' has no replay buffer: %r stays as it is.", path, buffer)


class ReplayDQN(ReplayInCheckpoints, dqn.DQN):
    """RLlib's DQN, with its replay buffer in its checkpoints."""


class ReplaySAC(ReplayInCheckpoints, sac.SAC):
    """RLlib's SAC, with its replay buffer in its checkpoints."""


class ReplayTQC(ReplayInCheckpoints, tqc.TQC):
    """RLlib's TQC, with its replay buffer in its checkpoints."""


# Tune knows algorithms by the names of their classes, so ours have names of their own.
OURS = {dqn.DQN: ReplayDQN, sac.SAC: ReplaySAC, tqc.TQC: ReplayTQC}


def _folder(path: str | pathlib.Path) -> str:
    """Return where in a checkpoint the buffer is. The path may be a URI, which has no Path."""
    return f"{str(path).rstrip('/')}/{COMPONENT}"
