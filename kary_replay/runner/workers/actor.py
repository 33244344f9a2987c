"""The actor: steps its environments, and adds what happened to the replay stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..environments.environments import EnvironmentFaultError, Environments, random_actions
from ..failures import DivergedError
from ..plan import Ended, Plan
from ..streams.inference import Inference, LocalInference, as_tensors

__all__ = ["Actor"]


class Actor:
    """Steps several environments in groups that take turns.

    Parameters
    ----------
    plan : Plan
        The run.
    index : int
        Which actor this is.
    report : function
        Is told about every episode that ends.
    incarnation : int
        How often this actor has been started anew; each draws other random numbers.

    Notes
    -----
    One piece of work is one step of one group: observations and actions of the others stay as they
    are. Rows are written straight into the shared buffer; only `Ended` reports are pickled.
    """

    def __init__(
        self, plan: Plan, index: int, report: Callable[[Any], None], incarnation: int = 0
    ) -> None:
        config = plan.config
        self.plan, self.report = plan, report
        self.row = plan.board.row("actor", index)
        self.rng = plan.rng("actor", index, incarnation, int(self.row.env_steps))
        self.algorithm = plan.algorithm()
        self.inference: Inference = LocalInference(
            self.algorithm, plan.parameters, self.rng, plan.config.publishes_all
        )
        n = config.envs_per_actor // config.groups
        name = f"{config.env_name} (actor {index})"
        self.groups = [
            Environments(plan.make, n, self.rng, name, self.row.alive) for _ in range(config.groups)
        ]
        priority = self.priority if config.initial_priority == "td_error" else None
        self.writers = [
            plan.replay.writer(n, config.options.n_step, config.options.gamma, priority)
            for _ in self.groups
        ]
        self.turn = 0
        # Ape-X (arXiv:1803.00933), section 4.1.
        n_all = plan.n_actors * config.envs_per_actor
        rank = index * config.envs_per_actor + np.arange(config.envs_per_actor)
        self.exponent = (1 + config.exploration_spread * rank / max(1, n_all - 1)).reshape(
            config.groups, n
        )
        self.exploration = [np.zeros(n, np.float32) for _ in self.groups]  # asked for
        self.started = False

    def work(self, patience_seconds: float) -> bool:
        """Step one group of environments; return False if that had to wait for longer than ``patience_seconds``."""
        plan, group = self.plan, self.groups[self.turn]
        self.row.alive()
        if plan.board.env_steps >= plan.config.total_env_steps:
            return False
        if not self.row.wait(plan.replay.may_add, group.n_envs, patience_seconds):
            return False
        if not self.started:
            self._start()
        if not self.row.first_step:
            self.row.first_step = time.monotonic()
        action = self._actions()
        try:
            steps = group.step(action)
        except EnvironmentFaultError:
            if np.isfinite(action).all():
                raise
            what = "the policy chooses actions that are no longer finite"
            updates = int(self.row.parameter_version)
            raise DivergedError(what, updates, plan.board.env_steps, plan.config.options) from None
        self.row.env_steps += group.n_envs
        self.writers[self.turn].add(**steps._asdict(), action=action)
        if group.ended:
            for ended in group.ended:
                self.report(Ended(plan.board.env_steps, ended.episode_return, ended.length))
            self.row.episodes += len(group.ended)
            group.ended.clear()
        self._request(self.turn)
        self.turn = (self.turn + 1) % len(self.groups)
        return True

    def priority(self, rows: Mapping[str, Any]) -> npt.NDArray[np.float64]:
        """Return the initial priorities of rows: |TD error| + epsilon, by the parameters in use here."""
        batch = {name: as_tensors(column) for name, column in rows.items()}
        error: npt.NDArray[np.float64] = self.algorithm.td_error(batch).abs().double().numpy()
        return error + self.plan.replay.buffer.priority_epsilon

    def state_dict(self) -> dict[str, Any]:
        """Return all that the actor goes on from."""
        return {
            "rng": self.rng.bit_generator.state,
            "turn": self.turn,
            "exploration": [value.tolist() for value in self.exploration],
            "groups": [group.state_dict() for group in self.groups] if self.started else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state: play the running episodes again, if any had begun."""
        if not state["groups"]:
            self.rng.bit_generator.state = state["rng"]
            return
        for group, writer, saved in zip(self.groups, self.writers, state["groups"], strict=True):
            group.load_state_dict(saved, writer, writer.n_step - 1)
        self.rng.bit_generator.state = state["rng"]  # last: episodes that begin anew draw from it
        self.turn = state["turn"]
        self._begin()
        for turn, exploration in enumerate(state["exploration"]):
            self._request(turn, np.array(exploration, np.float32))

    def close(self) -> None:
        """Close the environments."""
        for group in self.groups:
            group.close()

    def _start(self) -> None:
        for group in self.groups:
            group.reset()
        self._begin()

    def _begin(self) -> None:
        self.started = True
        for turn in range(len(self.groups)):
            self._request(turn)

    def _request(self, turn: int, exploration: npt.NDArray[np.float32] | None = None) -> None:
        """Ask for the actions of a group."""
        if exploration is None:
            progress = self.plan.board.env_steps / self.plan.config.total_env_steps
            exploration = (
                self.algorithm.exploration(min(1.0, progress)) ** self.exponent[turn]
            ).astype(np.float32)
        self.exploration[turn] = exploration
        self.inference.request(turn, self.groups[turn].observation, exploration)

    def _actions(self) -> npt.NDArray[Any]:
        action = self.inference.collect(self.turn)
        self.row.parameter_version = self.inference.updates
        if len(self.plan.replay.buffer) < self.plan.replay.limiter.min_size:
            return random_actions(self.plan.action_space, self.groups[self.turn].n_envs, self.rng)
        return action
