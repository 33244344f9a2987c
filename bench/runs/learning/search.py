"""A quick look at variants of replay, before any is built: DQN of the runner, in a plain loop.

    python -m bench.runs.learning.search lunarlander --variants uniform "half, beta = 1" --seeds 3

With ``double=False`` and returns of one step the runner's DQN is SB3's, and an update costs a
quarter. So many variants can be tried on a few seeds; `curves` then shows in stock SB3 what is left
of the best. The variants are made here, around a prioritized buffer that knows nothing of them.
Runs are added to bench/results/learning/candidates.json. Those that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F

import kary_replay as kr
from bench.runs.learning.results import RESULTS
from bench.runs.learning.tasks import TASKS, Task, environments
from kary_replay.algorithms import ALGORITHMS

LOOK_INTERVAL = 250  # batches between two looks at all masses
EPISODES = 10  # of an evaluation


@dataclass(frozen=True)
class Variant:
    """One way to replay, and to weigh what is replayed."""

    words: str
    alpha: float = 0.6
    beta: float = 0.4
    uniform_share: float = 0.0
    weights: str = "over the largest"  # or "over the mean", of the batch, or "as they are"
    least_effective: float = 0.0  # share of the rows: alpha falls until so many count
    most_over_mean: float | None = None  # a mass, over the mean mass
    loss: str = "huber"  # or "squared", or "adjusted": PAL, Fujimoto et al. 2020
    prioritization: Literal["proportional", "rank"] = "proportional"
    alpha_at_first: float | None = None  # from which alpha rises over the run; None: it stays
    beta_at_last: float | None = None  # to which beta rises over the run; None: it stays
    newcomers: str = "the largest seen"  # or "the largest measured", of rows that are still there
    guard: float | None = None  # alpha is 0 while errors are so many times their least mean
    priority: str = "TD error"  # or "reducible loss": ReLo, Sujit et al. 2022


VARIANTS = {
    "uniform": Variant("uniform replay", alpha=0.0),
    "squared": Variant("uniform, squared loss", alpha=0.0, loss="squared"),
    "PAL": Variant("uniform, loss adjusted to priorities", alpha=0.0, loss="adjusted"),
    "prioritized": Variant("alpha 0.6, beta 0.4"),
    "beta = 1": Variant("alpha 0.6, weights over the batch's largest", beta=1.0),
    "beta = 1, as it is": Variant("alpha 0.6, weights unscaled", beta=1.0, weights="as they are"),
    "effective 60 %": Variant("alpha falls until 60 % of rows count", least_effective=0.6),
    "half, beta = 0.4": Variant(
        "half of a batch uniform", uniform_share=0.5, weights="as they are"
    ),
    "half, beta = 0.4, capped": Variant(
        "no mass over 4 times the mean",
        uniform_share=0.5,
        weights="as they are",
        most_over_mean=4.0,
    ),
    "half, beta = 0.7": Variant(
        "half of a batch uniform", beta=0.7, uniform_share=0.5, weights="as they are"
    ),
    "half, beta = 0.9": Variant(
        "half of a batch uniform", beta=0.9, uniform_share=0.5, weights="as they are"
    ),
    "half, beta = 1": Variant(
        "half of a batch uniform", beta=1.0, uniform_share=0.5, weights="as they are"
    ),
    "half, beta = 1, over the mean": Variant(
        "the same, weights over their mean", beta=1.0, uniform_share=0.5, weights="over the mean"
    ),
    "half, alpha = beta = 1": Variant(
        "half of a batch uniform", 1.0, 1.0, uniform_share=0.5, weights="as they are"
    ),
    "fifth, beta = 1": Variant(
        "a fifth of a batch uniform", beta=1.0, uniform_share=0.2, weights="as they are"
    ),
    "third, beta = 1": Variant(
        "30 % of a batch uniform", beta=1.0, uniform_share=0.3, weights="as they are"
    ),
    "by rank": Variant("alpha 0.7, masses by rank", alpha=0.7, prioritization="rank"),
    "alpha from 0": Variant("alpha rises from 0 to 0.6", alpha_at_first=0.0),
    "beta to 1": Variant("beta rises from 0.4 to 1", beta_at_last=1.0),
    "largest now": Variant(
        "new rows get the largest priority measured of the rows there",
        newcomers="the largest measured",
    ),
    "guard": Variant("uniform while errors are twice their least mean", guard=2.0),
    "ReLo": Variant("priorities are reducible losses", priority="reducible loss"),
}


def effective(mass: Any) -> float:
    """Return the effective sample size of draws by these masses, over the number of rows."""
    mass = mass[mass > 0]
    return float(mass.sum() ** 2 / (len(mass) * (mass * mass).sum())) if len(mass) else 1.0


class MeanAndLeast:
    """The mean of about the last LOOK_INTERVAL numbers, and the least that it has been."""

    def __init__(self) -> None:
        self.mean, self.least, self.n = 0.0, np.inf, 0

    def add(self, number: float) -> None:
        self.n += 1
        self.mean += (number - self.mean) / min(self.n, LOOK_INTERVAL)
        if self.n >= LOOK_INTERVAL:
            self.least = min(self.least, self.mean)

    @property
    def over_least(self) -> float:
        """Return the mean over its least; 1 before that is known."""
        return self.mean / self.least if self.n >= LOOK_INTERVAL else 1.0


class Replay:
    """A buffer whose batches are drawn and weighed as a variant says."""

    def __init__(self, capacity: int, fields: dict[str, kr.Field], seed: int, how: Variant) -> None:
        self.how, self.fields = how, fields
        self.buffer = kr.PrioritizedReplayBuffer(
            capacity,
            fields,
            alpha=how.alpha,
            beta=0.0,
            seed=seed,
            prioritization=how.prioritization,
        )
        self.rng = np.random.default_rng(seed)
        self.n_batches = 0
        self.mean_error = MeanAndLeast()
        self.largest = 1.0
        self.of_newcomers: float | None = None  # None: the buffer knows
        self.is_measured = np.zeros(capacity, bool)  # rows whose error came back
        self.n_added = 0

    def add(self, **row: Any) -> None:
        self.buffer.add(priority=self.of_newcomers, **row)
        self.is_measured[self.n_added % len(self.is_measured)] = False
        self.n_added += 1

    def sample(self, batch_size: int, progress: float) -> tuple[Any, Any]:
        """Return a batch and its importance weights; ``progress`` of the run is from 0 to 1."""
        how, buffer, beta = self.how, self.buffer, self.how.beta
        self.n_batches += 1
        if self.n_batches % LOOK_INTERVAL == 0:
            self._look(progress)
        if how.beta_at_last is not None:
            beta += progress * (how.beta_at_last - beta)
        n_rows, n_uniform = len(buffer), round(batch_size * how.uniform_share)
        batch: Any = buffer.sample(batch_size - n_uniform)
        self.handle, self.index = batch.handle, batch.index
        total = buffer.total_mass
        if n_uniform:
            self.index = np.concatenate([self.index, self.rng.integers(0, n_rows, n_uniform)])
            batch = {
                name: np.ascontiguousarray(buffer.field_view(name)[self.index])
                for name in self.fields
            }
        chance = (1 - how.uniform_share) * buffer.tree.get(self.index) / total
        weight = (n_rows * (chance + how.uniform_share / n_rows)) ** -beta
        if how.weights == "over the largest":
            weight = weight / weight.max()
        elif how.weights == "over the mean":
            weight = weight / weight.mean()
        return batch, weight.astype(np.float32)

    def _look(self, progress: float) -> None:
        """Look at all masses, and at the errors of late, and set what depends on them."""
        how, buffer = self.how, self.buffer
        if how.least_effective:
            self._weaken()
        if how.alpha_at_first is not None:
            buffer.alpha = how.alpha_at_first + progress * (how.alpha - how.alpha_at_first)
        if how.guard is not None:
            buffer.alpha = how.alpha if self.mean_error.over_least < how.guard else 0.0
        if how.newcomers == "the largest measured" and self.is_measured.any():
            mass = buffer.tree.get(np.flatnonzero(self.is_measured))
            self.of_newcomers = mass.max() ** (1 / buffer.alpha)

    def _weaken(self) -> None:
        """Lower alpha until enough rows count."""
        buffer = self.buffer
        priority = buffer.tree.get(np.arange(len(buffer))) ** (1 / max(buffer.alpha, 1e-3))
        priority = priority / np.exp(np.mean(np.log(priority)))
        low, high = 1e-3, self.how.alpha
        if effective(priority**high) >= self.how.least_effective:
            low = high
        for _ in range(20 if low < high else 0):
            middle = (low + high) / 2
            if effective(priority**middle) < self.how.least_effective:
                high = middle
            else:
                low = middle
        buffer.alpha = low

    def update(self, td_error: Any) -> None:
        """Set the priorities of the rows drawn last."""
        self.mean_error.add(float(np.abs(td_error).mean()))
        self.is_measured[self.index] = True
        if not self.how.uniform_share:
            self.buffer.update_priorities(self.handle, td_error)
            return
        priority = np.abs(td_error).astype(np.float64) + self.buffer.priority_epsilon
        self.largest = max(self.largest, float(priority.max()))
        mass = priority**self.buffer.alpha
        if self.how.most_over_mean:
            most = self.how.most_over_mean * self.buffer.total_mass / len(self.buffer)
            mass, self.largest = np.minimum(mass, most), most ** (1 / self.buffer.alpha)
        self.buffer.tree.set(self.index, mass)
        self.of_newcomers = self.largest


def train(name: str, variant: str, seed: int) -> dict[str, Any]:
    """One run: the mean return of each evaluation, and the values that the learner believed in."""
    task, how = TASKS[name], VARIANTS[variant]
    if task.algorithm != "DQN" or task.hindsight:
        raise SystemExit(f"{name} is not a task for DQN alone")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    settings = {"gamma": 0.99, "gradient_steps": 1, **task.settings}
    gamma, every = settings["gamma"], settings["train_freq"]
    n_updates = every if settings["gradient_steps"] < 0 else settings["gradient_steps"]
    env, evaluation = plain_environment(task), plain_environment(task)
    kind = ALGORITHMS["dqn"]
    options = kind.options_class(
        hidden=tuple(settings["policy_kwargs"]["net_arch"]),
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        double=False,
        prioritize_by="td_error",
        tau=1.0,
        target_interval=10**9,  # moved below, by environment steps
        gamma=gamma,
        **({"huber_delta": 1e9} if how.loss == "squared" else {}),
    )
    learner: Any = kind(env.observation_space, env.action_space, options, seed=seed)
    observed = kr.Field(env.observation_space.shape, "float32")
    number = kr.Field((), "float32")
    fields = {
        "observation": observed,
        "action": kr.Field((), "int64"),
        "reward": number,
        "next_observation": observed,
        "discount": number,
    }
    replay = Replay(settings["buffer_size"], fields, seed, how)
    rng = np.random.default_rng(1000 + seed)
    returns, values = [], []
    observation, _ = env.reset(seed=seed)
    for step in range(1, task.steps + 1):
        progress = min(1.0, step / task.steps / settings["exploration_fraction"])
        explore = 1.0 + progress * (settings["exploration_final_eps"] - 1.0)
        if step <= settings["learning_starts"] or rng.random() < explore:
            action = int(rng.integers(env.action_space.n))
        else:
            action = best(learner, observation)
        following, reward, terminated, truncated, _ = env.step(action)
        replay.add(
            observation=observation,
            action=action,
            reward=reward,
            next_observation=following,
            discount=gamma * (1 - terminated),
        )
        observation = env.reset()[0] if terminated or truncated else following
        if step % settings["target_update_interval"] == 0:
            for network, target in learner.targets.items():
                target.copy_(learner.minimizers[network].flat)
        if step > settings["learning_starts"] and step % every == 0:
            for _ in range(n_updates):
                update(learner, replay, options.batch_size, step / task.steps)
        if step % task.evaluate_every == 0:
            seeds = [10_000 + 100 * seed + episode for episode in range(EPISODES)]
            returns.append(round(float(np.mean([play(learner, evaluation, s) for s in seeds])), 2))
            first = replay.buffer.field_view("observation")[: min(1000, len(replay.buffer))]
            with torch.no_grad():
                values.append(
                    round(float(learner.q(torch.from_numpy(first.copy())).max(1).values.mean()), 2)
                )
            if not abs(values[-1]) <= 1e7:
                break
    return {"task": name, "variant": variant, "seed": seed, "returns": returns, "values": values}


def plain_environment(task: Task) -> gymnasium.Env[Any, Any]:
    """Return an environment as SB3 has it, without its vector, with float32 observations."""
    env: gymnasium.Env[Any, Any] = environments(task, 1, 0).envs[0].env
    if not isinstance(env.observation_space, gymnasium.spaces.Box):
        env = gymnasium.wrappers.FlattenObservation(env)
    shape = env.observation_space.shape
    space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen.astype(np.float32), space)


def best(learner: Any, observation: Any) -> int:
    """Return the greedy action."""
    return int(learner.best(np.asarray(observation, np.float32)[None])[0])


def play(learner: Any, env: gymnasium.Env[Any, Any], seed: int) -> float:
    """Return the return of one greedy episode."""
    observation, _ = env.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        observation, reward, terminated, truncated, _ = env.step(best(learner, observation))
        total += float(reward)
        is_over = terminated or truncated
    return total


def update(learner: Any, replay: Replay, batch_size: int, progress: float) -> None:
    """Make one gradient step, and set the priorities of its rows."""
    how = replay.how
    batch, weight = replay.sample(batch_size, progress)
    tensors = {name: torch.from_numpy(batch[name]) for name in replay.fields}
    if how.loss == "adjusted" or how.priority == "reducible loss":
        with torch.no_grad():
            value, target = learner.values(
                learner.q_target, *(tensors[name] for name in replay.fields)
            )
    if how.loss == "adjusted":
        adjusted = torch.clamp((value - target).abs(), min=1.0).pow(0.36).numpy()
        weight = adjusted / adjusted.max()
    weight = np.ascontiguousarray(weight, np.float32)
    error = learner.update({**tensors, "importance_weight": torch.from_numpy(weight)}).numpy()
    if how.priority == "reducible loss":
        with torch.no_grad():
            action = tensors["action"].unsqueeze(1)
            former = learner.q_target(tensors["observation"]).gather(1, action).squeeze(1)
        losses = [F.huber_loss(one, target, reduction="none") for one in (value, former)]
        error = torch.relu(losses[0] - losses[1]).numpy()
    replay.update(error)


def write(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write all runs; a crash leaves the old file or the new one."""
    order = list(VARIANTS)
    runs = sorted(runs, key=lambda r: (r["task"], order.index(r["variant"]), r["seed"]))
    used = [name for name in order if any(run["variant"] == name for run in runs)]
    words = json.dumps({name: VARIANTS[name].words for name in used}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(run) for run in runs)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(f'{{"variants": {words}, "runs": [\n{lines}\n]}}\n')
    os.replace(fresh, path)


def main() -> None:
    """Make the runs that are missing, one after the other, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS / "candidates.json")
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        for name in arguments.tasks:
            for variant in arguments.variants:
                path = arguments.output
                runs = json.loads(path.read_text())["runs"] if path.exists() else []
                wanted = (name, variant, seed)
                if wanted in {(run["task"], run["variant"], run["seed"]) for run in runs}:
                    continue
                run = train(*wanted)
                write(path, [*runs, run])
                last = np.mean(run["returns"][-5:])
                print(f"{name}, {variant}, seed {seed}: {last:.1f} at the end", flush=True)


if __name__ == "__main__":
    main()
