"""Prioritized replay for unmodified Tianshou, which takes it as the buffer of a collector.

>>> from kary_replay.adapters.tianshou import PrioritizedVectorReplayBuffer
>>> buffer = PrioritizedVectorReplayBuffer(100_000, buffer_num=8, alpha=0.6, beta=0.4)
"""

from kary_replay.adapters.tianshou.replay_buffer import PrioritizedReplayBuffer
from kary_replay.adapters.tianshou.segment_tree import SegmentTree
from kary_replay.adapters.tianshou.vector_replay_buffer import PrioritizedVectorReplayBuffer

__all__ = ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer", "SegmentTree"]
