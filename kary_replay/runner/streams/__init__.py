"""What flows between workers: transitions, parameters; later requests for actions, and rollouts."""

from .parameters import ParameterStream
from .replay import ReplayStream

__all__ = ["ParameterStream", "ReplayStream"]
