"""SAC updates per second of a learner's own loop, its batches drawn by a thread or in between.

Two cores, torch on one thread; nobody adds meanwhile. The loop without replay, which trains on one
batch again and again, says how much there is to gain at all.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn

from bench.rivals.ours import OurBuffer
from bench.rivals.rows import ACTION, OBSERVATION
from kary_replay import Batch
from kary_replay.prefetch import Prefetcher

SLOTS, BATCH, WIDTH = 1_000_000, 256, 256
GAMMA, TAU = 0.99, 0.005
PLAIN, NO_REPLAY = "buffer.sample in between", "one batch again and again"


def network(n_inputs: int, n_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_inputs, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, n_outputs),
    )


class Sac:
    """Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), its entropy weight learned."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.actor = network(OBSERVATION, 2 * ACTION)
        self.critics = nn.ModuleList([network(OBSERVATION + ACTION, 1) for _ in range(2)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.optimizers = [
            torch.optim.Adam(p, lr=0.0)
            for p in (self.actor.parameters(), self.critics.parameters())
        ]
        # as costly as any, and the networks stay finite
        self.optimizers.append(torch.optim.Adam([self.log_alpha], lr=0.0))

    def act(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.actor(observation).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(1)

    def step(self, which: int, loss: torch.Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()

    def update(self, batch: Any) -> torch.Tensor:
        """One gradient step of each; returns the TD errors."""
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = self.act(batch.next_observation)
            inputs = torch.cat([batch.next_observation, action], 1)
            value = (
                torch.min(self.targets[0](inputs), self.targets[1](inputs)).squeeze(1)
                - alpha * log_prob
            )
            target = batch.reward + GAMMA * (~batch.terminated) * value
        inputs = torch.cat([batch.observation, batch.action], 1)
        errors = [target - critic(inputs).squeeze(1) for critic in self.critics]
        self.step(1, sum((batch.importance_weight * error.square()).mean() for error in errors))
        action, log_prob = self.act(batch.observation)
        inputs = torch.cat([batch.observation, action], 1)
        value = torch.min(self.critics[0](inputs), self.critics[1](inputs)).squeeze(1)
        self.step(0, (alpha * log_prob - value).mean())
        self.step(2, -(self.log_alpha * (log_prob.detach() - ACTION)).mean())
        with torch.no_grad():
            for slow, fast in zip(
                self.targets.parameters(), self.critics.parameters(), strict=True
            ):
                slow.lerp_(fast, TAU)
        return (errors[0].detach().abs() + errors[1].detach().abs()) / 2


def as_tensors(batch: Batch) -> Any:
    """Return a batch as tensors that share its memory, as a loop without a prefetcher does."""
    return Batch(
        {
            name: value if name in ("index", "handle") else torch.from_numpy(value)
            for name, value in batch.__dict__.items()
        }
    )


@pytest.fixture(scope="module")
def ours() -> Iterator[OurBuffer]:
    yield OurBuffer(SLOTS)
    gc.collect()


def measured(iteration: Callable[[], object], seconds: float) -> Callable[[], float]:
    """A window: iterations per second."""

    def window() -> float:
        for _ in range(20):
            iteration()
        n, start = 0, perf_counter()
        while (now := perf_counter()) - start < seconds:
            iteration()
            n += 1
        return n / (now - start)

    return window


def test_sac_updates(compare, request, ours):
    torch.set_num_threads(1)
    seconds = 4 * request.config.getoption("--window")
    buffer = ours.buffer

    def plain(sac: Sac) -> Callable[[], object]:
        def iteration() -> None:
            batch = as_tensors(buffer.sample(BATCH))
            buffer.update_priorities(batch.handle, sac.update(batch).numpy())

        return iteration

    def prefetched(sac: Sac, batches: Prefetcher) -> Callable[[], object]:
        def iteration() -> None:
            batch = next(batches)
            batches.update_priorities(batch, sac.update(batch))

        return iteration

    def alone(sac: Sac) -> Callable[[], object]:
        batch = as_tensors(buffer.sample(BATCH))
        return lambda: sac.update(batch)

    with Prefetcher(buffer, BATCH) as one, Prefetcher(buffer, BATCH, depth=2) as two:
        iterations = {
            "Prefetcher": prefetched(Sac(), one),
            "Prefetcher, depth=2": prefetched(Sac(), two),
            PLAIN: plain(Sac()),
            NO_REPLAY: alone(Sac()),
        }
        windows = {name: measured(iteration, seconds) for name, iteration in iterations.items()}
        parameters = {
            "rows": "HalfCheetah",
            "slots": SLOTS,
            "batch": BATCH,
            "networks": f"{WIDTH}×{WIDTH}",
        }
        compare.rates("learner: SAC updates", parameters, "Prefetcher", windows, unit="updates/s")
