"""The evaluator: plays episodes with the policy as it is, always the same ones, without exploring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...algorithms import Algorithm
from ..config import RunnerConfig
from ..environments.environments import EnvironmentFaultError, Environments
from ..failures import DivergedError
from ..plan import Evaluated, Evaluation, Plan
from ..streams.inference import as_tensors, published
from ..streams.parameters import load_vector

__all__ = ["FIRST_SEED", "Evaluator", "n_together"]

FIRST_SEED = 1_000_000  # of evaluation episodes, whatever the seed of the run
MAX_ENVS = 20  # stepped together


class Evaluator:
    """Evaluates every so many environment steps, or keeps the parameters and does it when all is over.

    Parameters
    ----------
    plan : Plan
        The run.
    index : int
        0.
    report : function
        Is told what was `Evaluated`.

    Notes
    -----
    Its row's ``updates`` are those of the policy that was evaluated last, also before the run was
    resumed: none is evaluated twice. Once a policy has reached the target no other one is
    evaluated: that policy is the last and the best of the run.
    """

    def __init__(self, plan: Plan, index: int, report: Callable[[Any], None]) -> None:
        self.plan, self.report = plan, report
        self.row = plan.board.row("evaluator", index)
        self.algorithm = plan.algorithm()
        self.tensors = published(self.algorithm, plan.config.publishes_all)
        n_envs, name = n_together(plan.config), f"{plan.config.env_name} (evaluator)"
        self.envs = Environments(plan.make, n_envs, np.random.default_rng(0), name, self.row.alive)
        self.due = self._after(plan.board.env_steps)
        self.version = 0  # of the parameters kept last
        self.kept: list[tuple[int, int, float, npt.NDArray[np.float32]]] = []
        self.reached_target = False

    def work(self, patience_seconds: float) -> bool:
        """Evaluate, or keep the parameters, if it is time; return False if it is not."""
        self.row.alive()
        if self.reached_target or self.plan.board.env_steps < self.due or not self._keep():
            return False
        if self.plan.config.evaluate == "during":
            self._play_kept()
        return True

    def finish(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Evaluate the parameters that were kept, and the last ones; ``give_up`` is asked before each of them."""
        self._keep()
        self._play_kept(give_up)

    def _keep(self) -> bool:
        """Keep the parameters; return False if there are none that updates have led to and that were not kept before."""
        board, version = self.plan.board, self.plan.parameters.version
        newest = self.plan.parameters.fetch() if board.updates and version != self.version else None
        if newest is None:
            return False
        self.version, env_steps = version, board.env_steps
        self.due = self._after(env_steps)
        vector, updates = newest
        if updates == self.row.updates > 0:
            return False
        self.kept.append((env_steps, updates, self.plan.seconds, vector))
        return True

    def _after(self, env_steps: int) -> int:
        """Return the environment steps of the next evaluation."""
        interval = self.plan.config.evaluation_interval
        return (env_steps // interval + 1) * interval

    def _play_kept(self, give_up: Callable[[], bool] = lambda: False) -> None:
        while self.kept and not give_up():
            env_steps, updates, seconds, vector = self.kept.pop(0)
            load_vector(self.tensors, vector)
            config = self.plan.config
            try:
                returns, n_cut = play(
                    self.algorithm,
                    self.envs,
                    config.evaluation_episodes,
                    config.evaluation_max_steps,
                )
            except EnvironmentFaultError:
                if np.isfinite(vector).all():
                    raise
                what = "the parameters of the policy are no longer finite"
                raise DivergedError(what, updates, env_steps, config.options) from None
            self.row.episodes += len(returns)
            self.row.updates = updates
            evaluation = Evaluation(
                env_steps, updates, seconds, float(np.mean(returns)), tuple(returns), n_cut
            )
            self.reached_target = (
                config.target_return is not None and evaluation.mean_return >= config.target_return
            )
            self.report(Evaluated(evaluation, vector))

    def state_dict(self) -> dict[str, Any]:
        """Return all that the evaluator goes on from."""
        kept = [
            (env_steps, updates, seconds, torch.from_numpy(vector))
            for env_steps, updates, seconds, vector in self.kept
        ]
        return {"due": self.due, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.due, last = state["due"], self.row.updates
        self.kept = [
            (env_steps, updates, seconds, vector.numpy())
            for env_steps, updates, seconds, vector in state["kept"]
            if updates > last or not last
        ]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def n_together(config: RunnerConfig) -> int:
    """Return how many episodes are played together; the actions of a row depend, by rounding, on how many rows there are."""
    return min(MAX_ENVS, config.evaluation_episodes)


def play(
    algorithm: Algorithm, envs: Environments, n_episodes: int, max_steps: int
) -> tuple[list[float], int]:
    """Play episodes with the seeds 1000000, 1000001, and so on; return their returns, and how many were cut off."""
    returns: list[float] = []
    n_cut = 0
    rng = np.random.default_rng(0)
    for first in range(0, n_episodes, envs.n_envs):
        n = min(envs.n_envs, n_episodes - first)
        played, cut = envs.play(
            lambda observation: algorithm.act(
                as_tensors(observation), np.zeros(envs.n_envs, np.float32), rng
            ),
            [FIRST_SEED + first + i for i in range(n)],
            max_steps,
        )
        returns += played
        n_cut += cut
    return returns, n_cut
