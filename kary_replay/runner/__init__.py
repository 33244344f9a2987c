"""The parallel actor/learner runner: ``kary-replay train`` from Python."""

from .callback import RunnerCallback
from .config import ConfigError, RunnerConfig
from .messages import Evaluation
from .runner import RunFailedError, Runner, RunResult

__all__ = [
    "ConfigError",
    "Evaluation",
    "RunFailedError",
    "RunResult",
    "Runner",
    "RunnerCallback",
    "RunnerConfig",
]
