"""Which way do prioritized batches pull? Gradients at fixed parameters, against the whole buffer's.

    python -m bench.runs.learning.gradients lunarlander --steps 30000

A run of stock SB3 DQN with prioritized replay is stopped in the middle. Its parameters are kept as
they are, and the gradient of the loss is averaged over many batches drawn in several ways. With
beta = 1 and weights that no batch is normalized by, that must be the gradient over the whole
buffer, but for chance: if it is not, draws or weights are wrong. How far chance takes a mean over
so many batches is told by the bootstrap over batches. The other ways show what they change: the
direction (the cosine to the whole buffer's gradient) or the noise (the variance of one batch's
gradient, over that of uniform draws).
"""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.campaign import stamp
from bench.runs.learning.curves import FIRST, LIBRARIES, built
from bench.runs.learning.results import RESULTS
from bench.runs.learning.scores import DRAWS
from bench.runs.learning.tasks import TASKS


def row_losses(model: Any, rows: dict[str, np.ndarray]) -> Any:
    """Return the losses of rows as `DQN.train` computes them, [B], not weighted yet."""
    import torch
    from torch.nn import functional as F

    tensors = {name: torch.from_numpy(value) for name, value in rows.items()}
    with torch.no_grad():
        following = model.q_net_target(tensors["next_observation"]).max(dim=1).values
        goes_on = 1 - tensors["episode_end"] * (1 - tensors["truncated"])
        target = tensors["reward"] + goes_on * model.gamma * following
    value = model.q_net(tensors["observation"]).gather(1, tensors["action"].long()).flatten()
    return F.smooth_l1_loss(value, target, reduction="none")


def gradient(model: Any, rows: dict[str, np.ndarray], weight: np.ndarray | None) -> np.ndarray:
    """Return the gradient of the mean of weighted losses, as one vector."""
    import torch

    losses = row_losses(model, rows)
    if weight is not None:
        losses = losses * torch.from_numpy(weight.astype(np.float32))
    parts = torch.autograd.grad(losses.mean(), list(model.q_net.parameters()))
    return torch.cat([part.flatten() for part in parts]).numpy().astype(np.float64)


def measured(model: Any, batch_size: int, n_batches: int) -> list[dict[str, Any]]:
    """Return what each way of drawing does to the gradient."""
    buffer = model.replay_buffer.native
    n, rng = len(buffer), np.random.default_rng(0)
    columns = {name: buffer.field_view(name)[:n] for name in buffer.fields}
    mass = buffer.tree.get(np.arange(n))
    whole = gradient(model, columns, None)

    def drawn(kind: str) -> np.ndarray:
        if kind == "uniform":
            index, weight = rng.integers(0, n, batch_size), None
        else:
            index = buffer.sample(batch_size, stratified=False).index
            weight = n * mass[index] / mass.sum()
            weight = weight ** -float(kind.split()[2])
            if kind.endswith("largest in the batch"):
                weight /= weight.max()
            elif kind.endswith("mean of the batch"):
                weight /= weight.mean()
        return gradient(model, {name: column[index] for name, column in columns.items()}, weight)

    results, noise = [], 0.0
    for kind in (
        "uniform",
        "beta = 1",
        "beta = 1 over the largest in the batch",
        "beta = 1 over the mean of the batch",
        "beta = 0.4 over the largest in the batch",
        "beta = 0",
    ):
        gradients = np.array([drawn(kind) for _ in range(n_batches)])
        mean, variance = gradients.mean(0), gradients.var(0, ddof=1)
        noise = noise or variance.sum()
        results.append(
            {
                "kind": kind,
                "cosine": float(mean @ whole / np.linalg.norm(mean) / np.linalg.norm(whole)),
                "length": float(np.linalg.norm(mean) / np.linalg.norm(whole)),
                "distance": float(np.linalg.norm(mean - whole) / np.linalg.norm(whole)),
                "distance_by_chance": distance_by_chance(gradients) / np.linalg.norm(whole),
                "noise": float(variance.sum() / noise),
                "noise_over_length": float(np.sqrt(variance.sum()) / np.linalg.norm(mean)),
            }
        )
        print(
            f"{kind:<42} cosine {results[-1]['cosine']:6.3f}  length {results[-1]['length']:7.3f}  "
            f"distance {results[-1]['distance']:6.3f}  "
            f"by chance up to {results[-1]['distance_by_chance']:6.3f}  "
            f"noise {results[-1]['noise']:7.3f}  "
            f"noise / length {results[-1]['noise_over_length']:7.2f}",
            flush=True,
        )
    return results


def distance_by_chance(gradients: np.ndarray) -> float:
    """Return how far the mean of gradients [batches, parameters] is from the truth, at most.

    It is so in 95 % of the draws of the bootstrap over batches.
    """
    n = len(gradients)
    centred = gradients - gradients.mean(0)
    times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS).astype(np.float64)
    squares = ((times @ (centred @ centred.T)) * times).sum(1)
    return float(np.sqrt(np.quantile(squares, 0.95)) / n)


def main() -> None:
    """Train, stop, measure, and write."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "task",
        choices=[
            name
            for name, task in TASKS.items()
            if (task.algorithm, task.policy) == ("DQN", "MlpPolicy")
        ],
    )
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = built(TASKS[arguments.task], FIRST, arguments.seed).learn(arguments.steps)
    buffer = model.replay_buffer.native
    mass = buffer.tree.get(np.arange(len(buffer)))
    share = mass.sum() ** 2 / (len(mass) * (mass**2).sum())
    print(f"{len(mass):,} rows, effective sample size {share:.3f} of them")
    results = measured(model, model.batch_size, arguments.batches)
    path = arguments.output / f"gradients_{arguments.task}.json"
    document = {
        "task": arguments.task,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "batches": arguments.batches,
        "share": share,
        "versions": {library: metadata.version(library) for library in LIBRARIES},
        **stamp(),
        "kinds": results,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
