"""RLlib with its own replay buffer and with ours: `python -m bench.runs.rllib_training [OPTIONS]`.

The same seeds and settings, those of RLlib's tuned examples; only `use(config)` differs. Whole
runs, in the environment that `make rivals` makes for RLlib: steps per second of one call of
`train`, with RLlib's own timers; the memory of a step; seconds until the tasks are solved.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, number, quartiles, spread
from bench.harness.paths import DOCS, RESULTS
from bench.harness.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, STYLE, YELLOW
from bench.harness.report import machine_text, markdown_table, write
from bench.harness.timing import rotated
from bench.rivals import remote
from bench.runs.convergence import __main__ as convergence

OUTPUT = RESULTS / "rllib_training.json"
WORKER = "bench.runs.rllib_worker"
IDENTITY = ("kind", "case", "units", "buffer", "seed")
STOCK, OURS = BUFFERS = ("RLlib", "kary-replay")
NOTHING = "nothing"  # a buffer that takes no time: returns the same rows, and forgets all else
SPEED, MEMORY, SOLVE = "speed", "memory", "solve"
# name -> what is trained, rows of a batch, widths of the networks, steps in the buffer before it
# begins, steps measured
CASES: dict[str, tuple[str, int, tuple[int, ...], int, int]] = {
    "DQN, batch 32": ("cartpole_dqn", 32, (64, 256), 0, 2_000),
    "DQN, batch 32, buffer full": ("cartpole_dqn", 32, (64,), 50_000, 1_000),
    "DQN, batch 256": ("cartpole_dqn", 256, (64,), 0, 1_000),
    "SAC, batch 256": ("pendulum_sac", 256, (64, 256), 0, 600),
}
NARROW = 64  # units, of what is no matter of their width
WITH_NOTHING = ("DQN, batch 32", NARROW)  # where a buffer that does nothing is measured, too
LAYOUTS = ("CartPole-v1", "HalfCheetah-v5")  # whose steps are weighed
SOLVED = ("cartpole_dqn", "pendulum_sac")
# RLlib's timers of a training step -> what the page calls them
PARTS = {
    "env_runner_sampling_timer": "acting",
    "replay_buffer_add_data_timer": "add",
    "replay_buffer_sampling_timer": "sample",
    "connectors": "connectors",
    "learner_update_timer": "update, connectors left out",
    "replay_buffer_update_prios_timer": "priorities",
    "synch_weights": "weights to the actor",
}
COLOURS = dict(zip(PARTS.values(), (GREY, GREEN, BLUE, SKY, ORANGE, PURPLE, YELLOW), strict=True))
REPLAY = ("add", "sample", "connectors", "priorities")  # what the buffer and connectors take


def jobs(kinds: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every run, seed by seed, in rotating order; or the first case of each kind alone."""
    for seed in range(seeds):
        for kind in kinds:
            for case, units in cells(kind)[: 1 if short else None]:
                for buffer in rotated(contenders(kind, case, units), seed):
                    job = {"kind": kind, "case": case, "units": units, "buffer": buffer}
                    yield {**job, "seed": seed, **details(kind, case, buffer)}


def cells(kind: str) -> list[tuple[str, int]]:
    """Return the cases of a kind, each with the width of its networks."""
    if kind == SPEED:
        return [(case, units) for case, (_, _, widths, *_) in CASES.items() for units in widths]
    return [(case, NARROW) for case in (LAYOUTS if kind == MEMORY else SOLVED)]


def contenders(kind: str, case: str, units: int) -> tuple[str, ...]:
    """Return the buffers that a case is run with."""
    return (*BUFFERS, NOTHING) if kind == SPEED and (case, units) == WITH_NOTHING else BUFFERS


def details(kind: str, case: str, buffer: str) -> dict[str, Any]:
    """Return what the worker is told beside."""
    if kind == SOLVE:
        plugged_in = {"plugged_in": True} if buffer == OURS else {}
        return {"task": case, "rival": "rllib", "budget": None, "settings": plugged_in}
    if kind == MEMORY:
        return {}
    task, batch, _, filled, steps = CASES[case]
    return {"task": task, "batch": batch, "filled": filled, "steps": steps}


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['kind']:<6} {record['case']:<27} {record['units']:>3} {record['buffer']:<11}"
    who = f"{who} seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    if record["kind"] == SOLVE:
        return f"{who}  {record['wall_seconds'] if record['solved'] else float('inf'):.1f} s"
    key = "steps_per_second" if record["kind"] == SPEED else "bytes_per_step"
    return f"{who}  {record[key]:,.1f} {key.replace('_', ' ')}"


def execute(job: Job) -> Record:
    """Run in RLlib's environment."""
    if job["kind"] == SOLVE:
        return convergence.execute(job)
    return campaign.run(job, WORKER, remote.python("rllib"))


def ratios(runs: Sequence[Record], value: Any, buffer: str = OURS) -> str:
    """Return how many times less a buffer takes than RLlib's, pair by pair of the same seed."""
    by = {(run["buffer"], run["seed"]): value(run) for run in runs if "error" not in run}
    seeds = {seed for _, seed in by}
    pairs = [((STOCK, seed), (buffer, seed)) for seed in seeds]
    found = [by[stock] / by[other] for stock, other in pairs if {stock, other} <= set(by)]
    if not found:
        return "–"
    low, middle, high = quartiles(found)
    return f"**{middle:.2f}×** [{low:.2f}–{high:.2f}]"


def replay_microseconds(run: Record) -> float:
    """Return what the buffer and the connectors take of a training step."""
    return sum(run["parts"][name] for name in REPLAY)


def speed_table(records: Sequence[Record]) -> list[str]:
    """One line per case and width."""
    rows = []
    for case, units in cells(SPEED):
        runs = chosen(records, kind=SPEED, case=case, units=units)
        good = [run for run in runs if "error" not in run]
        if not good:
            continue
        by = {buffer: chosen(good, buffer=buffer) for buffer in BUFFERS}
        rows.append(
            [
                case,
                str(units),
                *(spread([run["steps_per_second"] for run in by[one]]) for one in BUFFERS),
                ratios(runs, lambda run: 1 / run["steps_per_second"]),
                *(spread([replay_microseconds(run) for run in by[one]]) for one in BUFFERS),
                ratios(runs, replay_microseconds),
            ]
        )
    return markdown_table(
        [
            "",
            "units",
            *(f"{one}: env steps/s" for one in BUFFERS),
            "faster",
            *(f"{one}: buffer and connectors, µs" for one in BUFFERS),
            "less",
        ],
        rows,
    )


def parts_table(records: Sequence[Record]) -> list[str]:
    """Where a training step's time goes, in medians of microseconds."""
    rows = []
    for case, units in cells(SPEED):
        for buffer in contenders(SPEED, case, units):
            runs = chosen(records, kind=SPEED, case=case, units=units, buffer=buffer)
            good = [run["parts"] for run in runs if "error" not in run]
            if good:
                medians = (np.median([parts[name] for parts in good]) for name in PARTS.values())
                rows.append([case, str(units), buffer, *map(number, medians)])
    return markdown_table(["", "units", "buffer", *PARTS.values()], rows)


def nothing_text(records: Sequence[Record]) -> list[str]:
    """Say how much less than RLlib's own a buffer takes that takes no time."""
    case, units = WITH_NOTHING
    runs = [run for run in chosen(records, case=case, units=units) if run["buffer"] != OURS]
    if not chosen(runs, buffer=NOTHING):
        return []
    least = ratios(runs, replay_microseconds, NOTHING)
    return [
        f"A buffer that takes no time, and returns the same rows again and again, leaves RLlib's "
        f"timers and connectors. With it, {case}, {units} units, they take {least} less than with "
        "RLlib's buffer: no buffer can do better.",
        "",
    ]


def draw(records: Sequence[Record], path: Path) -> None:
    """A bar for each case and buffer: the median microseconds of the parts of a training step."""
    bars = [
        (case, units, buffer)
        for case, units in cells(SPEED)
        for buffer in contenders(SPEED, case, units)
    ]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9.5, 0.36 * len(bars) + 1.4), layout="constrained")
        labels = []
        for y, (case, units, buffer) in enumerate(bars):
            runs = chosen(records, kind=SPEED, case=case, units=units, buffer=buffer)
            good = [run["parts"] for run in runs if "error" not in run]
            left = 0.0
            for name, colour in COLOURS.items() if good else ():
                width = float(np.median([parts[name] for parts in good])) / 1_000
                axes.barh(y, width, 0.8, left, color=colour, label=None if y else name)
                left += width
            labels.append(f"{case}, {units} units: {buffer}")
        axes.set_yticks(range(len(bars)), labels)
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.set_xlabel("milliseconds of a training step: five environment steps and one update")
        axes.set_title("RLlib with its own buffer, and with ours", loc="left")
        axes.grid(axis="x")
        figure.legend(loc="outside lower center", ncols=4)
        figure.savefig(path)
        plt.close(figure)


def memory_table(records: Sequence[Record]) -> list[str]:
    """Bytes of a step."""
    rows = []
    for case, _ in cells(MEMORY):
        runs = chosen(records, kind=MEMORY, case=case)
        good = [run for run in runs if "error" not in run]
        if good:
            by = (
                spread([run["bytes_per_step"] for run in chosen(good, buffer=one)])
                for one in BUFFERS
            )
            rows.append([case, *by, ratios(runs, lambda run: run["bytes_per_step"])])
    return markdown_table(["", *(f"{one}: bytes a step" for one in BUFFERS), "less"], rows)


def solve_table(records: Sequence[Record]) -> list[str]:
    """Seconds and steps until solved, and how fast those steps were."""
    rows = []
    for case, units in cells(SOLVE):
        for buffer in BUFFERS:
            runs = chosen(records, kind=SOLVE, case=case, units=units, buffer=buffer)
            if runs:
                solved = sum(run["solved"] for run in runs)
                steps = [run["env_steps"] if run["solved"] else np.inf for run in runs]
                rates = [run["env_steps"] / run["wall_seconds"] for run in runs if run["solved"]]
                rate = spread(rates) if rates else "–"
                figures = spread(campaign.times(runs)), spread(steps), rate
                rows.append([case, buffer, f"{solved}/{len(runs)}", *figures])
    head = "buffer", "solved", "seconds", "environment steps", "env steps/s"
    return markdown_table(["", *head], rows)


def solves_beside(results: Path) -> Path:
    """Return the file of the runs until solved, which take long, beside that of all others."""
    return results.with_name(f"{results.stem}_solve.json")


def report(results: Path, docs: Path) -> None:
    """Write docs/rllib_benchmarks.md."""
    described, records = campaign.read(results)
    (docs / "images").mkdir(parents=True, exist_ok=True)
    draw(records, docs / "images" / "rllib_training.png")
    lines = [
        *machine_text(described),
        "Medians, in brackets the quartiles; ratios are of runs with the same seed. RLlib's "
        "settings are those of its tuned examples, networks apart: a run is one process, with one "
        "environment, torch with one thread. One training step is five environment steps and one "
        "update.",
        "",
        "## Whole runs",
        "",
        *speed_table(records),
        "## Where the time of a training step goes, µs",
        "",
        "![milliseconds of the parts of a training step](images/rllib_training.png)",
        "",
        *parts_table(records),
        *nothing_text(records),
        "## Memory",
        "",
        "What the process grew by while 50,000 steps were added, over the steps.",
        "",
        *memory_table(records),
    ]
    if solves_beside(results).exists():
        described, solves = campaign.read(solves_beside(results))
        lines += ["## Until solved, 64 units", "", *machine_text(described), *solve_table(solves)]
        records = [*records, *solves]
    write(docs / "rllib_benchmarks.md", "RLlib", [*lines, *campaign.failures(records, IDENTITY)])


def main() -> None:
    """Run what is asked for and not there yet, then write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.rllib_training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=5, help="repetitions (default: %(default)s)")
    every = (SPEED, MEMORY, SOLVE)
    parser.add_argument("--kinds", nargs="+", choices=every, default=(SPEED, MEMORY))
    parser.add_argument("--short", action="store_true", help="one case of each kind")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    campaign.add_going_on(parser)
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page is")
    arguments = parser.parse_args()
    if not arguments.report:
        if not convergence.is_there("rllib"):
            return
        for output, there in (
            (arguments.output, (SPEED, MEMORY)),
            (solves_beside(arguments.output), (SOLVE,)),
        ):
            if kinds := [kind for kind in arguments.kinds if kind in there]:
                planned = jobs(kinds, arguments.seeds, arguments.short)
                campaign.conduct(output, planned, IDENTITY, execute, describe, arguments.before)
    if arguments.report or arguments.output.exists():  # after runs until solved it need not
        report(arguments.output, arguments.docs)


if __name__ == "__main__":
    main()
