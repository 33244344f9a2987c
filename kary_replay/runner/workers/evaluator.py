"""The evaluator: plays the same episodes with each policy, without exploring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...algorithms import Algorithm
from ..config import RunnerConfig
from ..environments.vector import EnvironmentFaultError, Environments
from ..failures import DivergedError
from ..messages import Evaluated, Evaluation
from ..policies.player import Player
from ..streams.parameters import load_vector, published
from .worker import Seat

__all__ = ["FIRST_SEED", "Evaluator", "n_together"]

FIRST_SEED = 1_000_000  # of evaluation episodes, whatever the seed of the run
MAX_ENVS = 20  # stepped together


class _GivenUpError(Exception):
    """The run is to end before the evaluation has."""


class Evaluator:
    """Evaluates the policy in intervals, or keeps its parameters and evaluates them at the end.

    Parameters
    ----------
    seat : Seat
        With the stream "parameters". The worker reports what it `Evaluated`.

    Notes
    -----
    Its row's ``parameter_version`` is that of the policy evaluated last, also before the run was
    resumed: no policy is evaluated twice. Once a policy has reached the target no other one is
    evaluated: that policy is the last and the best of the run.
    """

    def __init__(self, seat: Seat) -> None:
        config = seat.config
        self.seat, self.config, self.board, self.row = seat, config, seat.board, seat.row
        self.parameters = seat.streams["parameters"]
        self.algorithm = seat.algorithm()
        self.tensors = published(self.algorithm, config.publishes_all)
        n_envs, name = n_together(config), f"{config.env_name} (evaluator)"
        rng = np.random.default_rng(0)
        self.envs = Environments(seat.env_factory.evaluation, n_envs, rng, name, seat.beat)
        self.due = self._after(self.board.env_steps)
        self.version = 0  # of the parameters kept last
        self.kept: list[tuple[int, int, float, npt.NDArray[np.float32]]] = []
        self.reached_target = False

    def work(self, patience_seconds: float) -> bool:
        """Evaluate, or keep the parameters, if it is time; return False if it is not."""
        self.seat.beat()
        if self.reached_target:
            return False
        is_new = self.board.env_steps >= self.due and self._keep()
        if self.config.evaluate == "after" or not self.kept:
            return is_new
        self._play_kept(self.seat.interrupted)
        return True

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Evaluate the kept parameters and the last ones; ``give_up`` is asked at each step."""
        self._keep()
        self._play_kept(give_up)

    def _keep(self) -> bool:
        """Keep the parameters; return False unless updates have led to them since the last ones."""
        board, version = self.board, self.parameters.version
        newest = self.parameters.newest() if board.updates and version != self.version else None
        if newest is None:
            return False
        self.version, env_steps = version, board.env_steps
        vector, updates = newest
        if not updates:  # those of the first one are not published yet
            return False
        self.due = self._after(env_steps)
        if updates == (self.kept[-1][1] if self.kept else self.row.parameter_version):
            return False
        self.kept.append((env_steps, updates, self.seat.clock.seconds, vector))
        return True

    def _after(self, env_steps: int) -> int:
        """Return the environment steps of the next evaluation."""
        interval = self.config.evaluation_interval
        return (env_steps // interval + 1) * interval

    def _play_kept(self, give_up: Callable[[], bool]) -> None:
        """Evaluate what was kept, in order; what is given up stays, for a run that goes on."""
        config = self.config
        n_episodes, max_steps = config.evaluation_episodes, config.evaluation_max_steps

        def go_on() -> None:
            if give_up():
                raise _GivenUpError

        while self.kept and not give_up():
            env_steps, updates, seconds, vector = self.kept[0]
            load_vector(self.tensors, vector)
            try:
                returns, n_cut = play(self.algorithm, self.envs, n_episodes, max_steps, go_on)
            except _GivenUpError:
                return
            except EnvironmentFaultError:
                if np.isfinite(vector).all():
                    raise
                what = "the parameters of the policy are no longer finite"
                raise DivergedError(what, updates, env_steps, config.options) from None
            del self.kept[0]
            self.row.episodes += len(returns)
            self.row.parameter_version = updates
            mean, target = float(np.mean(returns)), config.target_return
            evaluation = Evaluation(env_steps, updates, seconds, mean, tuple(returns), n_cut)
            self.reached_target = target is not None and mean >= target
            self.seat.report(Evaluated(evaluation, vector))

    def state_dict(self) -> dict[str, Any]:
        """Return all that the evaluator goes on from."""
        kept = [
            (env_steps, updates, seconds, torch.from_numpy(vector))
            for env_steps, updates, seconds, vector in self.kept
        ]
        return {"due": self.due, "interval": self.config.evaluation_interval, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state.

        Policies that were kept while the checkpoint was being made are of its moment: the run's
        time goes on from there.
        """
        interval, last = self.config.evaluation_interval, self.row.parameter_version
        if state.get("interval", interval) == interval:  # else the next one is due by the new one
            self.due = state["due"]
        latest = self.seat.clock.before
        self.kept = [
            (env_steps, updates, min(seconds, latest), vector.numpy())
            for env_steps, updates, seconds, vector in state["kept"]
            if updates > last or not last
        ]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def n_together(config: RunnerConfig) -> int:
    """Return how many episodes are played together.

    The actions of a row depend, by rounding, on how many rows there are: whoever plays the same
    episodes again must play as many together.
    """
    return min(MAX_ENVS, config.evaluation_episodes)


def play(
    algorithm: Algorithm,
    envs: Environments,
    n_episodes: int,
    max_steps: int,
    each_step: Callable[[], None],
) -> tuple[list[float], int]:
    """Play the episodes of an evaluation, whose seeds are 1000000, 1000001, and so on.

    Return the return of each, and how many were cut off after ``max_steps``.
    """
    returns: list[float] = []
    n_cut, player = 0, Player(algorithm, envs.n_envs)
    for first in range(0, n_episodes, envs.n_envs):
        player.begin()
        n = min(envs.n_envs, n_episodes - first)
        seeds = [FIRST_SEED + first + i for i in range(n)]
        played, cut = envs.play(player.act, seeds, max_steps, each_step)
        returns += played
        n_cut += cut
    return returns, n_cut
