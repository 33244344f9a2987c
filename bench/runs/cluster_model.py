"""How far a run on a cluster would scale: a queueing model with service times measured here.

    python -m bench.runs.cluster_model --output bench/results/cluster_model.json

No cluster of that size is there. Measured on this machine are the times of an update, of an actor's
step, of what a learner does for a batch over so many shards, and of what a shard does for a
request. The model lets them queue: a learner with requests under way to every shard, shards that
answer one request after the other, and the learner's link. What is assumed is said in the figures:
actors on each node, and the network.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import kary_replay as kr
from bench.harness.machine import describe
from bench.runs.shards import serve
from kary_replay.runner import RunnerConfig
from kary_replay.runner.allocation.measurement import measured_allocation
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.flow import flow_of
from kary_replay.shards import LocalTransport, RemoteShard, ShardService, SocketTransport

TASKS = {
    "dqn on CartPole-v1, 64 units": ("dqn", "CartPole-v1", (64, 64)),
    "sac on HalfCheetah-v5, 256 units": ("sac", "HalfCheetah-v5", (256, 256)),
}
# The same rows, with times that nobody has measured: where many machines pay.
SLOW = "assumed: updates of 1 ms, steps of 100 ms"
SLOW_UPDATE, SLOW_STEP = 1e-3, 0.1
NODES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
SHARDS, PER_REQUEST = (1, 4, 16, 64), (1, 4, 16)
UNDER_WAY = 2
ACTORS_PER_NODE = 16  # assumed, as all that follow
ONE_WAY_SECONDS = 50e-6
BYTES_PER_SECOND = 1.25e9  # of the learner's link: 10 Gbit/s
ROWS = 4096  # of a shard
SIMULATED_REQUESTS = 400


@dataclass
class Costs:
    """Seconds, measured on this machine."""

    update: float
    step: float
    """One environment step of an actor, with what it adds."""
    batch: float
    """Of the learner for a batch, whatever the shards are."""
    shard: float
    """Of the learner for a shard in a request."""
    batch_of_shard: float
    """Of the learner for each batch of a request, times shards."""
    priorities: float
    """Of the learner, to send the priorities of a batch to a shard."""
    request: float
    """Of a shard for a request, without its rows."""
    row: float
    """Of a shard for a row."""
    spread: float
    """Of a shard's times: the standard deviation of their logarithms."""


class TimedTransport(LocalTransport):
    """Adds up what the shard itself takes."""

    def __init__(self, service: ShardService) -> None:
        super().__init__(service)
        self.seconds: list[float] = []

    def send(self, message: Any) -> Any:
        begun = time.perf_counter()
        try:
            return super().send(message)
        finally:
            self.seconds.append(time.perf_counter() - begun)


def sharded(fields: Any, n: int) -> tuple[kr.ShardedReplayBuffer, list[TimedTransport]]:
    """Return a buffer over shards that are spoken to as if they were far away."""
    transports = []
    for _ in range(n):
        buffer = ShardService.new_buffer(ROWS, fields, seed=0)
        rows = {name: np.zeros((ROWS, *field.shape), field.dtype) for name, field in fields.items()}
        kr.ShardedReplayBuffer([buffer]).add(priority=np.random.rand(ROWS) + 0.01, **rows)
        transports.append(TimedTransport(ShardService(buffer)))
    shards = [RemoteShard(transport) for transport in transports]
    return kr.ShardedReplayBuffer(shards, beta=0.4, seed=0), transports


def learner_costs(fields: Any, batch_size: int, rounds: int) -> dict[str, float]:
    """Measure draws and updates over several numbers of shards, and fit what each part costs."""
    equations, drawing, seconds, n_rows = [], [], [], []
    updates: list[tuple[int, float]] = []
    for n in SHARDS:
        many, transports = sharded(fields, n)
        for per_request in PER_REQUEST:
            ahead = many.batches(batch_size, per_request=per_request, under_way=UNDER_WAY)
            taken = []
            for _ in range(rounds):
                for transport in transports:
                    transport.seconds.clear()
                begun = time.perf_counter()
                batches = [next(ahead) for _ in range(per_request)]
                whole = time.perf_counter() - begun
                served = [one for transport in transports for one in transport.seconds]
                taken.append(whole - sum(served))
                seconds += served
                n_rows += [batch_size * per_request / n] * len(served)
            equations.append([per_request, n, per_request * n])
            drawing.append(median(taken))
        taken = []
        errors = np.random.rand(batch_size)
        for _ in range(rounds):
            for transport in transports:
                transport.seconds.clear()
            begun = time.perf_counter()
            many.update_priorities(batches[0].handle, errors)
            whole = time.perf_counter() - begun
            taken.append(whole - sum(one for each in transports for one in each.seconds))
        updates.append((min(n, batch_size), median(taken)))
        many.close()
    fitted = np.linalg.lstsq(np.array(equations, float), np.array(drawing), rcond=None)[0]
    batch, shard, batch_of_shard = np.maximum(fitted, 0.0).tolist()
    x, y = np.array(updates).T
    slope, base = np.polyfit(x, y, 1)
    served, rows = np.array(seconds), np.array(n_rows)
    row, request = np.polyfit(rows, served, 1)
    expected = np.maximum(request + row * rows, 1e-7)
    return {
        "batch": batch + max(base, 0.0),
        "shard": shard,
        "batch_of_shard": batch_of_shard,
        "priorities": max(slope, 0.0),
        "request": max(request, 0.0),
        "row": max(row, 0.0),
        "spread": float(np.median(np.abs(np.log(served / expected))) / 0.6745),
    }


def socket_seconds(rounds: int) -> float:
    """Return what a message and its answer cost the processor here, beyond one in this process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    token = secrets.token_bytes(32)
    process = context.Process(target=serve, args=(1000, token, theirs), daemon=True)
    process.start()
    try:
        shard = RemoteShard(SocketTransport(ours.recv(), token))
        here, transports = sharded({"reward": kr.Field((), "float32")}, 1)
        near = here._shards[0]

        def cost(one: Any) -> float:
            begun = time.process_time()
            for _ in range(rounds):
                one.look()
            return (time.process_time() - begun) / rounds

        far, inside = cost(shard), cost(near)
        service = median(transports[0].seconds)
        here.close()
        return max(far - (inside - service), 0.0)
    finally:
        process.kill()


def measured(task: str, rounds: int, socket: float) -> tuple[Costs, dict[str, float]]:
    """Return the costs of a task, and its settings."""
    algorithm, env, hidden = TASKS[task]
    config = RunnerConfig(algorithm, env, backend="process", actors=1)
    options = type(config.options)(**{**vars(config.options), "hidden": hidden})
    config = RunnerConfig(algorithm, env, options=options, backend="process", actors=1)
    factory = env_factory(config)
    allocation = measured_allocation(config, factory, lambda: False)
    stream = flow_of(config, factory, 1).streams["experience"]
    fields = dict(stream.columns)
    costs = learner_costs(fields, config.options.batch_size, rounds)
    costs["shard"] += socket
    costs["priorities"] += socket
    rates = {"update": 1 / allocation.updates_per_second, "step": 1 / allocation.steps_per_actor}
    row = sum(np.dtype(one.dtype).itemsize * int(np.prod(one.shape)) for one in fields.values())
    settings = {
        "batch_size": config.options.batch_size,
        "samples_per_insert": config.samples_per_insert,
        "row_bytes": row + 48,  # with its handle and probabilities
    }
    return Costs(**rates, **costs), settings


def simulate(
    costs: Costs, settings: dict[str, float], n: int, per_request: int, seed: int = 0
) -> dict[str, float]:
    """Let a learner draw from so many shards; return updates per second, and where time went."""
    rng = np.random.default_rng(seed)
    batch_size, row_bytes = int(settings["batch_size"]), settings["row_bytes"]
    free_at, link, now = np.zeros(n), 0.0, 0.0
    busy = {"update": 0.0, "shards": 0.0, "waiting": 0.0}
    under_way: deque[float] = deque()
    asking = per_request * (costs.batch + n * costs.batch_of_shard) + n * costs.shard
    telling = min(n, batch_size * per_request) * costs.priorities  # of all batches together

    def ask(at: float) -> float:
        """Return when all answers to a request of this moment are there."""
        nonlocal link
        rows = rng.multinomial(batch_size * per_request, np.full(n, 1 / n))
        noise = rng.lognormal(0.0, costs.spread, n)
        start = np.maximum(free_at, at + ONE_WAY_SECONDS)
        free_at[:] = start + (costs.request + rows * costs.row) * noise
        for arrival, n_rows in sorted(zip(free_at + ONE_WAY_SECONDS, rows, strict=True)):
            link = max(link, arrival) + n_rows * row_bytes / BYTES_PER_SECOND
        return max(link, float(free_at.max()) + ONE_WAY_SECONDS)

    for _ in range(SIMULATED_REQUESTS):
        while len(under_way) < UNDER_WAY:
            now += asking
            busy["shards"] += asking
            under_way.append(ask(now))
        ready = under_way.popleft()
        busy["waiting"] += max(0.0, ready - now)
        now = max(now, ready)
        now += per_request * costs.update + telling
        busy["update"] += per_request * costs.update
        busy["shards"] += telling
        hit = rng.choice(n, min(n, batch_size * per_request), replace=False)
        free_at[hit] = np.maximum(free_at[hit], now) + costs.request
    n_updates = SIMULATED_REQUESTS * per_request
    learner = n_updates / now
    collected = n * ACTORS_PER_NODE / costs.step
    fed = collected * settings["samples_per_insert"] / batch_size
    return {
        "nodes": n,
        "per_request": per_request,
        "learner_updates_per_second": learner,
        "actors_allow_updates_per_second": fed,
        "updates_per_second": min(learner, fed),
        "env_steps_per_second": min(
            collected, learner * batch_size / settings["samples_per_insert"]
        ),
        **{f"share_{name}": seconds / now for name, seconds in busy.items()},
    }


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw updates per second over nodes."""
    from bench.harness.plots import BLUE, GREY, ORANGE, RED, STYLE, plt

    with plt.rc_context(STYLE):
        tasks = record["tasks"]
        fig, axes = plt.subplots(1, len(tasks), figsize=(12, 3.8), layout="constrained")
        for ax, (task, found) in zip(axes, tasks.items(), strict=True):
            for per_request, color in ((4, BLUE), (16, ORANGE)):
                rows = [row for row in found["model"] if row["per_request"] == per_request]
                x = [row["nodes"] for row in rows]
                y = [row["learner_updates_per_second"] for row in rows]
                ax.plot(x, y, "o-", color=color, ms=4, label=f"learner, {per_request} per request")
            fed = [row["actors_allow_updates_per_second"] for row in rows]
            ax.plot(x, fed, "--", color=GREY, label=f"fed by {ACTORS_PER_NODE} actors a node")
            ax.axhline(1 / found["costs"]["update"], color=RED, lw=0.9, label="updates alone")
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xticks(NODES, [str(n) for n in NODES])
            ax.set(title=task, xlabel="nodes (a model)", ylabel="updates per second")
            ax.grid()
        axes[-1].legend(fontsize=8)
        fig.savefig(path)
        plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--output", type=Path, help="write all there, as JSON")
    parser.add_argument("--picture", type=Path, help="draw it there")
    options = parser.parse_args()
    socket = socket_seconds(2000)
    record: dict[str, Any] = {
        "machine": describe(),
        "assumed": {
            "actors_per_node": ACTORS_PER_NODE,
            "one_way_seconds": ONE_WAY_SECONDS,
            "bytes_per_second": BYTES_PER_SECOND,
        },
        "socket_seconds": socket,
        "tasks": {},
    }
    found = {task: measured(task, options.rounds, socket) for task in TASKS}
    costs, settings = found[list(TASKS)[-1]]
    found[SLOW] = replace(costs, update=SLOW_UPDATE, step=SLOW_STEP), settings
    for task, (costs, settings) in found.items():
        rows = [simulate(costs, settings, n, m) for m in (4, 16) for n in NODES]
        record["tasks"][task] = {"costs": asdict(costs), "settings": settings, "model": rows}
        print(task)
        for name, value in asdict(costs).items():
            print(f"  {name:16} {value * (1 if name == 'spread' else 1e6):9.2f}")
        for row in rows:
            shares = ", ".join(
                f"{name} {row[f'share_{name}']:.0%}" for name in ("update", "shards", "waiting")
            )
            print(
                f"  {row['nodes']:4} nodes, {row['per_request']:2} batches a request: "
                f"{row['learner_updates_per_second']:8.0f} updates/s ({shares}), "
                f"actors allow {row['actors_allow_updates_per_second']:9.0f}"
            )
    if options.output:
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    if options.picture:
        draw(record, options.picture)


if __name__ == "__main__":
    main()
