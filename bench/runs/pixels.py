"""DQN on a game of Atari, by what collects and learns: `python -m bench.runs.pixels [OPTIONS]`.

Environment steps and updates per second of stock Stable-Baselines3, stock Tianshou and the runner:
the same game, network, batch, environments and updates per step (pixels_run.py), interleaved. The
rivals have their environments in one process, and each in a process of its own. A step is four
frames of the game. The tasks on a GPU are run where there is one; their results have a file of
their own (`--output`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, failures, number, quartiles, spread
from bench.harness.report import machine_text, machine_title, markdown_table, write
from bench.harness.timing import rotated
from bench.runs import pixels_run

WORKER = "bench.runs.pixels_run"


@dataclass(frozen=True)
class Task:
    """What is done, for how many environment steps, and where the networks are."""

    kind: str
    title: str
    steps: int
    short_steps: int
    on_gpu: bool = False


TASKS = {
    "collecting": Task("collecting", "Collecting", 6_000, 1_000),
    "learning": Task("learning", "Collecting and learning", 4_000, 800),
    "collecting_gpu": Task("collecting", "Collecting, with a GPU", 8_000, 1_000, on_gpu=True),
    "learning_gpu": Task(
        "learning", "Collecting and learning, with a GPU", 8_000, 800, on_gpu=True
    ),
}
OURS, ASKING = "kary-replay", pixels_run.ASKING
CONTENDERS = {
    "Stable-Baselines3, one process": ("Stable-Baselines3", False),
    "Stable-Baselines3, SubprocVecEnv": ("Stable-Baselines3", True),
    "Tianshou, one process": ("Tianshou", False),
    "Tianshou, ShmemVectorEnv": ("Tianshou", True),
    OURS: (OURS, True),
}
ON_GPU = {**CONTENDERS, ASKING: (ASKING, True)}  # the worker's networks are there
IDENTITY = ("task", "contender", "seed")


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every contender once, then all of them again."""
    for seed in range(seeds):
        for name in tasks:
            task = TASKS[name]
            if task.on_gpu and not torch.cuda.is_available():
                continue
            contenders = ON_GPU if task.on_gpu else CONTENDERS
            for contender in rotated(tuple(contenders), seed):
                rival, apart = contenders[contender]
                yield {
                    "task": name,
                    "kind": task.kind,
                    "contender": contender,
                    "rival": rival,
                    "apart": apart,
                    "device": "cuda" if task.on_gpu else "cpu",
                    "seed": seed,
                    "steps": task.short_steps if short else task.steps,
                }


def rate(record: Record, what: str = "env_steps") -> float:
    """Return environment steps, or updates, per second."""
    return float(record[what] / record["seconds"])


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['task']:<14} {record['contender']:<33} repetition {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    return f"{who}  {rate(record):,.0f} steps/s, {rate(record, 'updates'):,.0f} updates/s"


def table(records: Sequence[Record]) -> list[str]:
    """One line per contender; how many times faster ours is, in pairs of the same repetition."""
    rows = []
    good = [record for record in records if "error" not in record]
    ours = {record["seed"]: rate(record) for record in chosen(good, contender=OURS)}
    for contender in ON_GPU:
        runs = chosen(good, contender=contender)
        if not runs:
            continue
        pairs = [ours[run["seed"]] / rate(run) for run in runs if run["seed"] in ours]
        low, middle, high = quartiles(pairs) if pairs else (0.0, 0.0, 0.0)
        steps = [rate(run) for run in runs]
        rows.append(
            [
                contender,
                spread(steps),
                number(4 * quartiles(steps)[1]),
                spread([rate(run, "updates") for run in runs]),
                f"{middle:.2f}× [{low:.2f}–{high:.2f}]" if pairs and contender != OURS else "–",
            ]
        )
    head = ["", "env steps/s", "frames/s", "updates/s", "ours: times as many steps"]
    return markdown_table(head, rows)


def report(results: Path, docs: Path) -> None:
    """Write docs/pixels.md, with what was measured on a GPU beside the results."""
    lines = [*part(results)]
    if (beside := results.with_name(f"{results.stem}_gpu.json")).exists():
        lines += part(beside)
    write(docs / "pixels.md", "Pixels", lines)


def part(results: Path) -> list[str]:
    """Return what was measured on one machine."""
    described, records = campaign.read(results)
    lines = [
        f"## {machine_title(described)}",
        "",
        *machine_text(described),
        f"{pixels_run.GAME}, {pixels_run.N_ENVS} environments, the network of Mnih et al. (2015). "
        f"With learning, one update of {pixels_run.BATCH} rows for {pixels_run.STEPS_PER_UPDATE} "
        f"steps, after {pixels_run.LEARNING_STARTS}. The rivals' torch and our learner have a "
        "thread for each core. "
        f"Medians of {len({run['seed'] for run in records})} interleaved repetitions, in brackets "
        "the quartiles.",
        "",
    ]
    for name, task in TASKS.items():
        if some := chosen(records, task=name):
            lines += [f"### {task.title}", "", *table(some)]
    return [*lines, *failures(records, IDENTITY)]


def main() -> None:
    """Be the command line."""
    campaign.command(
        "pixels", __doc__, list(TASKS), jobs, IDENTITY, describe, report, worker=WORKER
    )


if __name__ == "__main__":
    main()
