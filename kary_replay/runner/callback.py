"""What a run tells the program that started it."""

from __future__ import annotations

from pathlib import Path

from .messages import Evaluation

__all__ = ["RunnerCallback"]


class RunnerCallback:
    """Is told how a run goes; derive from it, and override what you want to hear of.

    Notes
    -----
    Methods are called one after another, in the thread of `Runner.run`. Workers go on meanwhile. If
    one raises, none is called any more; the run ends with a checkpoint and a `RunFailedError` that
    names the method. `Runner.stop` ends a run without an error.

    Examples
    --------
    >>> from kary_replay.runner import RunnerCallback
    >>> class Listener(RunnerCallback):
    ...     def on_evaluation(self, evaluation):
    ...         print(evaluation.env_steps, evaluation.mean_return)
    """

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Take note of an evaluation, whose policy and records have been kept."""

    def on_checkpoint(self, folder: Path) -> None:
        """Take note of a checkpoint; its folder is there until the next one is made."""
