"""The named edges between workers; `stream` says what a stream is.

Public are the descriptions of the streams, of which a flow is made. Workers get their ends from
their seat, backends only host them.
"""

from .board import BoardStream
from .gradients import GradientStream
from .inference import LocalInferenceStream
from .parameters import ParameterStream
from .remote_inference import InferenceStream
from .replay import ReplayStream
from .rollout import RolloutStream
from .statistics import StatisticsStream
from .stream import Checkpoint, Hosted, Medium, Part, Peer, Stream
from .weights import WeightStream

__all__ = [
    "BoardStream",
    "Checkpoint",
    "GradientStream",
    "Hosted",
    "InferenceStream",
    "LocalInferenceStream",
    "Medium",
    "ParameterStream",
    "Part",
    "Peer",
    "ReplayStream",
    "RolloutStream",
    "StatisticsStream",
    "Stream",
    "WeightStream",
]
