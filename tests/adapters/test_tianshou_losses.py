"""One update of every algorithm against NumPy: its weighted loss, and the priorities it sets.

The networks' answers are overheard; rewards, weights, targets, losses and priorities are worked out
from the papers.
"""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from tianshou.data import Batch
from tianshou_runs import CONTINUOUS, DISCRETE, build, update

from kary_replay.adapters import tianshou as ours

N_ROWS, BATCH, ALPHA, BETA, GAMMA = 40, 16, 0.6, 0.4, 0.99
ATOMS = np.linspace(-20.0, 20.0, 11)  # as in tianshou_runs
EPSILON = np.finfo(np.float32).eps


def filled(env, rng):
    """Made-up rows and priorities, all different, of episodes that terminate or are truncated."""
    buffer = ours.PrioritizedReplayBuffer(N_ROWS, ALPHA, BETA)
    for t in range(N_ROWS):
        obs, obs_next = rng.normal(size=(2, *env.observation_space.shape)).astype(np.float32)
        act = env.action_space.sample()
        buffer.add(
            Batch(
                obs=obs,
                act=act,
                rew=rng.normal(),
                terminated=t % 5 == 4,
                truncated=t % 7 == 6,
                obs_next=obs_next,
                info={},
            )
        )
    buffer.update_weight(np.arange(N_ROWS), 10.0 ** rng.uniform(-2, 1, N_ROWS))
    return buffer


def overheard(name, rng):
    """Update once; return what the networks said, the rows drawn and what came of it."""
    torch.manual_seed(0)
    env = gym.make("CartPole-v1" if name in DISCRETE else "Pendulum-v1")
    env.action_space.seed(0)
    algorithm, buffer = build(name, env), filled(env, rng)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            if parameter.requires_grad:
                # the lagged networks are others now
                parameter.add_(0.1 * torch.randn(parameter.shape))
    said = {}
    seen = SimpleNamespace(buffer=buffer, said=said)
    nets = {key: getattr(algorithm, key, None) for key in ("critic", "critic2", "model_old")}
    for key, net in (nets | {"model": getattr(algorithm.policy, "model", None)}).items():
        if net is not None:
            net.register_forward_hook(
                lambda _, __, out, key=key: said.setdefault(key, []).append(numbers(out))
            )
    target_q, learn, draw = algorithm._target_q, algorithm._update_with_batch, buffer.sample_indices

    def targets(*args):
        seen.target = numbers(target_q(*args))
        return torch.tensor(seen.target, dtype=torch.float32)

    def learning(batch):
        said.clear()  # from here on, the first to be asked are the networks that are learning
        return learn(batch)

    def drawing(n):
        seen.index = draw(n)
        return seen.index

    algorithm._target_q, algorithm._update_with_batch, buffer.sample_indices = (
        targets,
        learning,
        drawing,
    )
    seen.mass = buffer.weight[np.arange(N_ROWS)]
    seen.stats = update(algorithm, buffer, BATCH)
    return seen


def numbers(out):
    """An answer as arrays: of a pair of a batch and a state only the former."""
    if isinstance(out, torch.Tensor):
        return out.detach().numpy().astype(float).copy()
    if isinstance(out, (Batch, dict)):
        return {key: numbers(value) for key, value in out.items()}
    return [numbers(part) for part in out if part is not None]


def squared_errors(seen, act, returns):
    """DQN, and critics: the mean of the critics' TD errors is the priority."""
    if "model" in seen.said:
        values = [seen.said["model"][0][0]]
    else:
        values = [seen.said[key][0] for key in ("critic", "critic2") if key in seen.said]
    if values[0].ndim == 2 and values[0].shape[1] > 1:
        values = [value[np.arange(BATCH), act] for value in values]
    errors = np.concatenate([value.reshape(-1, BATCH) for value in values]) - returns.reshape(BATCH)
    return errors**2, errors.mean(0)


def cross_entropy(seen, act, returns):
    """C51 (Bellemare et al. 2017, algorithm 1): each atom goes to the two beside where it lands."""
    first, online = (answer[0] for answer in seen.said["model"])
    best = (first * ATOMS).sum(2).argmax(1)
    share = seen.said["model_old"][0][0][np.arange(BATCH), best]
    projected = np.zeros((BATCH, len(ATOMS)))
    for i in range(BATCH):
        for atom in range(len(ATOMS)):
            place = (np.clip(returns[i, atom], ATOMS[0], ATOMS[-1]) - ATOMS[0]) / (
                ATOMS[1] - ATOMS[0]
            )
            low, high = int(np.floor(place)), int(np.ceil(place))
            projected[i, low] += share[i, atom] * (high - place if high > low else 1.0)
            projected[i, high] += share[i, atom] * (place - low)
    loss = -(projected * np.log(online[np.arange(BATCH), act] + 1e-8)).sum(1)
    return loss, loss


def quantile_huber(seen, act, returns):
    """QR-DQN (Dabney et al. 2018, equation 10), its fractions midpoints, IQN's draws or FQF's."""
    answer = seen.said["model"][0][0]
    if isinstance(answer, np.ndarray):
        fractions = (np.arange(8) + 0.5) / 8
    else:
        answer, fractions = answer[:2]
        fractions = fractions["tau_hats"] if isinstance(fractions, dict) else fractions
    fractions = np.broadcast_to(fractions, (BATCH, 8))
    quantiles = answer[np.arange(BATCH), act]
    loss, priority = np.zeros(BATCH), np.zeros(BATCH)
    for i in range(8):
        for j in range(8):
            error = returns[:, j] - quantiles[:, i]
            huber = np.where(abs(error) <= 1, 0.5 * error**2, abs(error) - 0.5)
            loss += abs(fractions[:, i] - (error <= 0)) * huber / 8
            priority += huber / 8
    return loss, priority


LOSSES = {"C51": cross_entropy, "RainbowDQN": cross_entropy} | dict.fromkeys(
    ["QRDQN", "IQN", "FQF"], quantile_huber
)


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_losses_are_weighted_and_priorities_come_back(name, rng):
    seen = overheard(name, rng)
    buffer, index = seen.buffer, seen.index
    goes_on = 1.0 - buffer.terminated[index]
    returns = buffer.rew[index][:, None] + GAMMA * goes_on[:, None] * seen.target.reshape(BATCH, -1)
    losses, error = LOSSES.get(name, squared_errors)(
        seen, buffer.act[index].reshape(BATCH, -1)[:, 0], returns
    )
    share = seen.mass[index] / seen.mass.sum()
    weight = (N_ROWS * share) ** -BETA
    weight /= weight.max()
    assert weight.min() < 0.7  # or leaving them out would hardly show
    stats = [
        getattr(seen.stats, key)
        for key in ("critic1_loss", "critic2_loss", "critic_loss", "quantile_loss", "loss")
        if hasattr(seen.stats, key)
    ]
    expected = (weight * losses).reshape(-1, BATCH).mean(1)
    if name == "REDQ":
        expected = expected.mean(keepdims=True)  # one loss for the ensemble
    np.testing.assert_allclose(stats[: len(expected)], expected, rtol=1e-4)
    # of equal rows the last counts
    last = {i: abs(e) + EPSILON for i, e in zip(index.tolist(), error, strict=True)}
    expected = seen.mass ** (1 / ALPHA)
    expected[list(last)] = list(last.values())
    np.testing.assert_allclose(
        buffer.weight[np.arange(N_ROWS)], expected**ALPHA, rtol=1e-3, atol=1e-5
    )
