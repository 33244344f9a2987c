"""The actor: steps its environments, and writes what happened to the stream of experience."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..environments.vector import EnvironmentFaultError, Environments, Steps, random_actions
from ..failures import DivergedError
from ..messages import EpisodeEnded
from ..streams.experience import Sink
from ..streams.inference import Inference, as_tensors
from .worker import Seat

__all__ = ["Actor"]


class Actor:
    """Steps several environments in groups that take turns.

    Parameters
    ----------
    seat : Seat
        With the streams "experience", to write to, and "inference"; and "statistics", to write to,
        if observations or rewards are normalized.

    Notes
    -----
    One piece of work is one step of one group: observations and actions of the others stay as they
    are. Rows are written straight into the stream; only `EpisodeEnded` reports are pickled.
    """

    def __init__(self, seat: Seat) -> None:
        config, board = seat.config, seat.board
        self.seat, self.config, self.board, self.row = seat, config, board, seat.row
        self.experience: Sink = seat.streams["experience"]
        self.rng = seat.rng(seat.incarnation, int(self.row.env_steps))
        self.algorithm = seat.algorithm()
        client = seat.streams["inference"].client
        self.inference: Inference = client(seat, self.algorithm, self.rng)
        n = seat.n_envs // config.groups
        name = f"{config.env_name} (actor {seat.index})"
        self.groups = [
            Environments(seat.env_factory, n, self.rng, name, seat.beat)
            for _ in range(config.groups)
        ]
        priority = self.priority if config.initial_priority == "td_error" else None
        self.first_group = seat.index * config.groups  # among those of all actors
        self.writers = [
            self.experience.writer(self.algorithm, n, group, self.inference, priority)
            for group in range(self.first_group, self.first_group + config.groups)
        ]
        self.statistics = seat.streams.get("statistics")
        self.returns = np.zeros((config.groups, n))  # discounted, of running episodes
        self.turn = 0
        # Ape-X (arXiv:1803.00933), section 4.1.
        n_all = seat.n_workers * seat.n_envs
        rank = seat.index * seat.n_envs + np.arange(seat.n_envs)
        place = rank / (n_all - 1) if n_all > 1 else np.full(1, 0.5)
        exponent = 1 + (config.exploration_spread or 0.0) * place
        self.exponent = exponent.reshape(config.groups, n)
        self.exploration = [np.zeros(n, np.float32) for _ in self.groups]  # asked for
        self.is_asked = [False] * config.groups
        # what the policy carries to the present observations
        self.state = [self.algorithm.initial_state(n) for _ in self.groups]
        self.started = False

    def work(self, patience_seconds: float) -> bool:
        """Step one group of environments; return False if it might not within the patience."""
        self.seat.beat()
        if self.board.env_steps >= self.config.total_env_steps:
            return False
        if not self.row.wait(patience_seconds, self._may_step):
            return False
        group = self.groups[self.turn]
        if not self.started:
            self._start()
        if not self.is_asked[self.turn]:
            self._request(self.turn)
        if not self.row.wait(patience_seconds, self.inference.is_ready, self.turn):
            return False
        self.row.has_stepped = 1
        chosen = self._chosen()
        try:
            steps = group.step(chosen["action"])
        except EnvironmentFaultError:
            if np.isfinite(chosen["action"]).all():
                raise
            what = "the policy chooses actions that are no longer finite"
            updates, options = int(self.row.parameter_version), self.config.options
            raise DivergedError(what, updates, self.board.env_steps, options) from None
        if self.algorithm.state_size:
            next_state = chosen.pop("next_state")
            next_state[group.begins] = 0.0
            chosen["state"], self.state[self.turn] = self.state[self.turn], next_state
        self.writers[self.turn].add(**steps._asdict(), **chosen)
        self.row.env_steps += group.n_envs
        if self.statistics is not None:
            self._count(steps)
        for episode in group.ended:
            report = EpisodeEnded(self.board.env_steps, episode.episode_return, episode.length)
            self.seat.report(report)
        self.row.episodes += len(group.ended)
        group.ended.clear()
        self.is_asked[self.turn] = False
        self._request_if_due(self.turn)
        self.turn = (self.turn + 1) % len(self.groups)
        return True

    def _may_step(self, patience_seconds: float) -> bool:
        """Wait at most so long for a group that may step, beginning with that whose turn it is."""
        n = len(self.groups)
        order = [self.first_group + (self.turn + i) % n for i in range(n)]
        found = self.experience.next_group(order, self.groups[0].n_envs, patience_seconds)
        if found is None:
            return False
        self.turn = found - self.first_group
        return True

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Do nothing: running episodes are kept by the checkpoint."""

    def priority(self, rows: Mapping[str, Any]) -> npt.NDArray[np.float64]:
        """Return the priorities of new rows: |TD error| + epsilon, by the actor's parameters."""
        batch = {name: as_tensors(column) for name, column in rows.items()}
        algorithm: Any = self.algorithm
        error: npt.NDArray[np.float64] = algorithm.td_error(batch).abs().double().numpy()
        epsilon: float = self.experience.priority_epsilon
        return error + epsilon

    def state_dict(self) -> dict[str, Any]:
        """Return all that the actor goes on from."""
        state = {
            "rng": self.rng.bit_generator.state,
            "turn": self.turn,
            "exploration": [
                value.tolist() if asked else None
                for value, asked in zip(self.exploration, self.is_asked, strict=True)
            ],
            "groups": [group.state_dict() for group in self.groups] if self.started else [],
            "experience": self.experience.state_dict(),
        }
        if self.algorithm.state_size:
            state["state"] = [torch.from_numpy(carried.copy()) for carried in self.state]
        return state if self.statistics is None else {**state, "returns": self.returns.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state: play the running episodes again, if any had begun."""
        if not state["groups"]:
            self.rng.bit_generator.state = state["rng"]
            return
        n_envs = [len(saved["seeds"]) for saved in state["groups"]]
        if n_envs != [group.n_envs for group in self.groups]:  # with another number of actors
            return
        self.experience.load_state_dict(state.get("experience", {}))  # which 0.1.0 did not have
        all_played = [
            group.load_state_dict(saved, writer)
            for group, writer, saved in zip(self.groups, self.writers, state["groups"], strict=True)
        ]
        self.rng.bit_generator.state = state["rng"]  # last: episodes that begin anew draw from it
        self.turn = state["turn"]
        if self.statistics is not None:
            self.returns[...] = state["returns"]
            for group, so_far in zip(self.groups, self.returns, strict=True):
                so_far[group.begins] = 0.0  # where an episode could not be played again
        if self.algorithm.state_size:
            self.state = [carried.numpy() for carried in state["state"]]
            for group, carried in zip(self.groups, self.state, strict=True):
                carried[group.begins] = 0.0  # there, too
        self.started = True
        for turn, exploration in enumerate(state["exploration"]):
            if exploration is not None:
                # What was asked before is of no use where an episode has begun anew.
                goes_on = all_played[turn]
                self._request(turn, np.array(exploration, np.float32), goes_on)

    def close(self) -> None:
        """Close the environments."""
        for group in self.groups:
            group.close()

    def _start(self) -> None:
        for group in self.groups:
            group.reset()
        self.started = True
        for turn in range(len(self.groups)):
            self._request_if_due(turn)

    def _request_if_due(self, turn: int) -> None:
        """Ask for the actions of a group, unless newer parameters are to choose them."""
        if self.experience.may_choose(self.first_group + turn):
            self._request(turn)

    def _request(
        self,
        turn: int,
        exploration: npt.NDArray[np.float32] | None = None,
        goes_on: bool = False,
    ) -> None:
        """Ask for the actions of a group; or go on from what was asked before a checkpoint."""
        if exploration is None:
            progress = min(1.0, self.board.env_steps / self.config.total_env_steps)
            explored = self.algorithm.exploration(progress) ** self.exponent[turn]
            exploration = explored.astype(np.float32)
        self.exploration[turn], self.is_asked[turn] = exploration, True
        ask = self.inference.ask_again if goes_on else self.inference.request
        ask(turn, self.groups[turn].observation, exploration, self.state[turn])

    def _count(self, steps: Steps) -> None:
        """Add what a group has seen in a step to the statistics."""
        normalization, returns = self.algorithm.normalization, self.returns[self.turn]
        assert normalization is not None and self.statistics is not None
        returns *= self.config.options.gamma
        returns += steps.reward
        self.statistics.add(self.seat.index, normalization.numbers(steps.observation, returns))
        returns[steps.terminated | steps.truncated] = 0.0

    def _chosen(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the group does next, and what is to be known of it."""
        chosen = self.inference.collect(self.turn)
        self.row.parameter_version = self.inference.updates
        if not self.experience.has_begun:
            space, n = self.seat.env_factory.action_space, self.groups[self.turn].n_envs
            chosen["action"] = random_actions(space, n, self.rng)
        return chosen
