"""Prioritized experience replay that is fast, exact and safe under concurrency.

>>> import kary_replay as kr
>>> fields = {"observation": kr.Field((4,), "float32"), "reward": kr.Field((), "float32")}
>>> buffer = kr.PrioritizedReplayBuffer(1000, fields, seed=0)
>>> index = buffer.add(observation=[0, 1, 2, 3], reward=1)
>>> batch = buffer.sample(32)
>>> buffer.update_priorities(batch.handle, td_error=batch.reward - 0.5)
32
"""

from typing import TYPE_CHECKING

from . import errors, former_names
from .buffers.frame_replay_buffer import FrameReplayBuffer
from .buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from .buffers.rate_limiter import RateLimiter
from .buffers.replay_buffer import ReplayBuffer
from .buffers.schedules import LinearSchedule
from .core.sum_tree import SumTree
from .types import HANDLE_DTYPE, SHARDED_HANDLE_DTYPE, Batch, Field
from .version import VERSION
from .writers.frame_stack_writer import FrameStackWriter
from .writers.n_step import NStepWriter
from .writers.sequence_writer import SequenceWriter
from .writers.sequences import sequence_fields, sequence_priority, split_burn_in

if TYPE_CHECKING:
    from .shards.sharded_replay_buffer import ShardedReplayBuffer

former_names.install()

__version__ = VERSION
__all__ = [
    "HANDLE_DTYPE",
    "SHARDED_HANDLE_DTYPE",
    "Batch",
    "Field",
    "FrameReplayBuffer",
    "FrameStackWriter",
    "LinearSchedule",
    "NStepWriter",
    "PrioritizedReplayBuffer",
    "RateLimiter",
    "ReplayBuffer",
    "SequenceWriter",
    "ShardedReplayBuffer",
    "SumTree",
    "errors",
    "sequence_fields",
    "sequence_priority",
    "split_burn_in",
]
