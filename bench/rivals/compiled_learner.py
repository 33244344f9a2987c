"""Updates written out in plain torch, as CleanRL's files have them, compiled by torch.compile.

They are written anew here, in the manner of CleanRL: no classes for policies, every loss in the
update itself, and Stable-Baselines3's replay buffer, which CleanRL uses as well. torch.compile cuts
an update at every `backward` and around each optimizer's step, and makes a program of each piece.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import stable_baselines3
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.rivals.sb3_learner import filled_model

GAMMA, TAU = 0.99, 0.005
DQN_RATE, RATE, CRITIC_RATE = 2.5e-4, 3e-4, 1e-3
NOISE, NOISE_CLIP = 0.2, 0.5  # of TD3's target actions
LOG_STD = -5.0, 2.0
Update = Callable[[Any], object]


def network(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU in between."""
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def adam(rate: float, *modules: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=rate)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def follow(target: nn.Module, trained: nn.Module) -> None:
    """Move a target network a little."""
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), trained.parameters(), strict=True):
            slow.lerp_(fast, TAU)


def dqn(n_inputs: int, n_actions: int, units: int) -> list[Update]:
    """Return the update of DQN, whose target network stands still in between."""
    q = network(n_inputs, units, units, n_actions)
    target, optimizer = copy.deepcopy(q), adam(DQN_RATE, q)

    def update(batch: Any) -> None:
        with torch.no_grad():
            best = target(batch.next_observations).amax(1)
            value = batch.rewards.flatten() + GAMMA * (1 - batch.dones.flatten()) * best
        chosen = q(batch.observations).gather(1, batch.actions).squeeze(1)
        descend(optimizer, F.mse_loss(chosen, value))

    return [update]


def td3(n_inputs: int, n_actions: int, units: int) -> list[Update]:
    """Return two updates that take turns: the second one has the actor and the targets, too."""
    actor = network(n_inputs, units, units, n_actions)
    critics = nn.ModuleList([network(n_inputs + n_actions, units, units, 1) for _ in range(2)])
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer, critic_optimizer = adam(RATE, actor), adam(RATE, critics)

    def update_critics(batch: Any) -> None:
        with torch.no_grad():
            noise = (NOISE * torch.randn_like(batch.actions)).clamp(-NOISE_CLIP, NOISE_CLIP)
            action = (torch.tanh(slow_actor(batch.next_observations)) + noise).clamp(-1, 1)
            inputs = torch.cat([batch.next_observations, action], 1)
            best = torch.minimum(*[critic(inputs) for critic in slow_critics])
            value = batch.rewards + GAMMA * (1 - batch.dones) * best
        inputs = torch.cat([batch.observations, batch.actions], 1)
        losses = [F.mse_loss(critic(inputs), value) for critic in critics]
        descend(critic_optimizer, losses[0] + losses[1])

    def update_both(batch: Any) -> None:
        update_critics(batch)
        action = torch.tanh(actor(batch.observations))
        inputs = torch.cat([batch.observations, action], 1)
        descend(actor_optimizer, -critics[0](inputs).mean())
        follow(slow_actor, actor)
        follow(slow_critics, critics)

    return [update_critics, update_both]


def sac(n_inputs: int, n_actions: int, units: int) -> list[Update]:
    """Return the update of SAC, its entropy's weight learned."""
    actor = network(n_inputs, units, units, 2 * n_actions)
    critics = nn.ModuleList([network(n_inputs + n_actions, units, units, 1) for _ in range(2)])
    slow_critics = copy.deepcopy(critics)
    log_alpha = torch.zeros(1, requires_grad=True)
    actor_optimizer, critic_optimizer = adam(RATE, actor), adam(CRITIC_RATE, critics)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=CRITIC_RATE)

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(observation).chunk(2, 1)
        log_std = log_std.clamp(*LOG_STD)
        noise = torch.randn_like(mean)
        action = torch.tanh(mean + log_std.exp() * noise)
        # The density of the noise, but for its constant, and of tanh.
        log_prob = -0.5 * noise.square() - log_std - torch.log(1 - action.square() + 1e-6)
        return action, log_prob.sum(1, keepdim=True)

    def update(batch: Any) -> None:
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = act(batch.next_observations)
            inputs = torch.cat([batch.next_observations, action], 1)
            best = torch.minimum(*[critic(inputs) for critic in slow_critics])
            value = batch.rewards + GAMMA * (1 - batch.dones) * (best - alpha * log_prob)
        inputs = torch.cat([batch.observations, batch.actions], 1)
        losses = [F.mse_loss(critic(inputs), value) for critic in critics]
        descend(critic_optimizer, losses[0] + losses[1])
        action, log_prob = act(batch.observations)
        inputs = torch.cat([batch.observations, action], 1)
        best = torch.minimum(*[critic(inputs) for critic in critics])
        descend(actor_optimizer, (alpha * log_prob - best).mean())
        surprise = (log_prob - n_actions).detach()
        descend(alpha_optimizer, -(log_alpha.exp() * surprise).mean())
        follow(slow_critics, critics)

    return [update]


MAKERS = {"dqn": dqn, "td3": td3, "sac": sac}


def learner(
    algorithm: str, units: int, batch_size: int, compile_update: Callable[[Update], Update]
) -> Callable[[], object]:
    """Return a call that draws a batch and makes one update, with each kind of update compiled."""
    torch.manual_seed(0)
    # Only for its buffer and its spaces.
    model = filled_model(stable_baselines3, algorithm, units)
    buffer, space = model.replay_buffer, model.action_space
    n_actions = int(getattr(space, "n", 0)) or space.shape[0]
    updates = MAKERS[algorithm](model.observation_space.shape[0], n_actions, units)
    programs, n_updates = [compile_update(update) for update in updates], 0

    def update() -> None:
        nonlocal n_updates
        programs[n_updates % len(programs)](buffer.sample(batch_size))
        n_updates += 1

    return update


def compiled(algorithm: str, units: int, batch_size: int) -> Callable[[], object]:
    """Return the same, compiled by torch.compile in the first calls."""
    # Forget earlier programs: torch keeps few for one function, and compiles no others.
    torch.compiler.reset()
    # So that the first call compiles, whatever an earlier run has compiled.
    torch.compiler.config.force_disable_caches = True
    return learner(algorithm, units, batch_size, torch.compile)
