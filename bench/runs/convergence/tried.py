"""Are other settings faster for SB3 than its zoo's? `python -m bench.runs.convergence.tried`.

Each task that it takes part in is also run with what the others here have: smaller batches, fewer
random steps, more environments, two threads of torch; with 256 units (`--units 256`), two threads
only. Interleaved, as the benchmark itself. `bench.runs.convergence.report` writes the table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from bench.harness import campaign
from bench.harness.paths import RESULTS
from bench.harness.report import markdown_table, results_links
from bench.harness.timing import rotated
from bench.runs.convergence.tasks import TASKS, UNITS

OUTPUT = RESULTS / "convergence_tried.json"
WORKER = "bench.runs.convergence.worker"
IDENTITY = ("task", "units", "variant", "seed")
ZOO, THREADS = "as tuned", "two threads"
OFF_POLICY: dict[str, dict[str, Any]] = {
    ZOO: {},
    "1,000 random steps": {"learning_starts": 1_000},
    "1,000 random steps, batches of 64": {"learning_starts": 1_000, "batch_size": 64},
    THREADS: {"threads": 2},
}
TRIED: dict[str, dict[str, dict[str, Any]]] = {
    "cartpole_dqn": {
        ZOO: {"batch_size": 64},
        "4 environments": {"batch_size": 64, "n_envs": 4, "train_freq": 64},
        "batches of 128": {"batch_size": 128},
        THREADS: {"batch_size": 64, "threads": 2},
    },
    "pendulum_ddpg": OFF_POLICY,
    "pendulum_td3": OFF_POLICY,
    "pendulum_sac": {
        ZOO: {},
        "batches of 64": {"batch_size": 64},
        "batches of 64, rate 0.002": {"batch_size": 64, "learning_rate": 2e-3},
        THREADS: {"threads": 2},
    },
}
Record = dict[str, Any]


def variants(task: str, units: int) -> list[str]:
    """Name what is tried with networks of such a width."""
    return list(TRIED[task]) if units == 64 else [ZOO, THREADS]


def jobs(tasks: Sequence[str], units: Sequence[int], seeds: int) -> Iterator[dict[str, Any]]:
    """Every run, seed by seed, in rotating order."""
    for task, width in product(tasks, units):
        for seed in range(seeds):
            for name in rotated(variants(task, width), seed):
                run = {"task": task, "units": width, "rival": "sb3", "seed": seed}
                yield {**run, "variant": name, "settings": TRIED[task][name]}


def describe(record: Record) -> str:
    """One line about a run."""
    found = (
        f"{record['wall_seconds']:.1f} s" if record["solved"] else record.get("error", "not solved")
    )
    what = f"{record['task']:<16} {record['units']:>3} units"
    return f"{what}  {record['variant']:<36} seed {record['seed']}  {found}"


def section() -> list[str]:
    """Return the lines of the page, if it has been measured."""
    if not OUTPUT.exists():
        return []
    described, records = campaign.read(OUTPUT)
    rows = []
    for units, task in product(UNITS, TRIED):
        found = {
            name: campaign.chosen(records, task=task, units=units, variant=name)
            for name in variants(task, units)
        }
        if not all(found.values()):
            continue
        medians = {
            name: campaign.quartiles(campaign.times(runs))[1] for name, runs in found.items()
        }
        for name, runs in found.items():
            solved = f"{sum(run['solved'] for run in runs)}/{len(runs)}"
            factor = (
                f"{medians[ZOO] / medians[name]:.2f}×"
                if math.isfinite(medians[ZOO] + medians[name])
                else "–"
            )
            rows.append(
                [
                    TASKS[task].label,
                    str(units),
                    name,
                    campaign.spread(campaign.times(runs)),
                    solved,
                    factor,
                ]
            )
    processor = described["processor"]
    return [
        "### Other settings of Stable-Baselines3",
        "",
        f"Measured {described['date']}, commit {described['commit']}, "
        f"on {processor['cores']} cores of an {processor['model']}; "
        f"every run: {results_links([OUTPUT.name])}.",
        "",
        *markdown_table(
            ["task", "units", "settings", "seconds to threshold", "solved", "faster than as tuned"],
            rows,
        ),
    ]


def main() -> None:
    """Run what is not there yet."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.convergence.tried", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tasks", nargs="+", choices=TRIED, default=list(TRIED))
    parser.add_argument(
        "--units", nargs="+", type=int, default=[64], help="width of both hidden layers"
    )
    parser.add_argument("--seeds", type=int, default=3)
    campaign.add_going_on(parser)
    arguments = parser.parse_args()
    execute, planned = (
        partial(campaign.run, worker=WORKER),
        jobs(arguments.tasks, arguments.units, arguments.seeds),
    )
    campaign.conduct(OUTPUT, planned, IDENTITY, execute, describe, arguments.before)


if __name__ == "__main__":
    main()
