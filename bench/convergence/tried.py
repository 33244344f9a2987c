"""Would other settings make Stable-Baselines3 faster than its zoo's? `python -m bench.convergence.tried [--resume]`.

Each task that it takes part in, with 64 units, is also run with what the others here have: smaller batches, fewer random steps,
more environments, two threads of torch. Interleaved, as the benchmark itself. `bench.convergence.report` writes the table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench import campaign
from bench.convergence.tasks import TASKS
from bench.report import markdown_table, results_links
from bench.timing import rotated

OUTPUT = campaign.RESULTS / "convergence_tried.json"
WORKER = "bench.convergence.worker"
IDENTITY = ("task", "variant", "seed")
ZOO = "as tuned"
OFF_POLICY: dict[str, dict[str, Any]] = {
    ZOO: {},
    "1,000 random steps": {"learning_starts": 1_000},
    "1,000 random steps, batches of 64": {"learning_starts": 1_000, "batch_size": 64},
    "two threads": {"threads": 2},
}
TRIED: dict[str, dict[str, dict[str, Any]]] = {
    "cartpole_dqn": {
        ZOO: {"batch_size": 64},
        "4 environments": {"batch_size": 64, "n_envs": 4, "train_freq": 64},
        "batches of 128": {"batch_size": 128},
        "two threads": {"batch_size": 64, "threads": 2},
    },
    "pendulum_ddpg": OFF_POLICY,
    "pendulum_td3": OFF_POLICY,
    "pendulum_sac": {
        ZOO: {},
        "batches of 64": {"batch_size": 64},
        "batches of 64, rate 0.002": {"batch_size": 64, "learning_rate": 2e-3},
        "two threads": {"threads": 2},
    },
}
Record = dict[str, Any]


def jobs(tasks: Sequence[str], seeds: int) -> Iterator[dict[str, Any]]:
    """Every run, seed by seed, in rotating order."""
    for task in tasks:
        variants = TRIED[task]
        names = list(variants)
        for seed in range(seeds):
            for name in rotated(names, seed):
                yield {"task": task, "units": 64, "rival": "sb3", "seed": seed, "variant": name, "settings": variants[name]}


def describe(record: Record) -> str:
    """One line about a run."""
    found = f"{record['wall_seconds']:.1f} s" if record["solved"] else record.get("error", "not solved")
    return f"{record['task']:<16} {record['variant']:<36} seed {record['seed']}  {found}"


def section() -> list[str]:
    """Return the lines of the page, if it has been measured."""
    if not OUTPUT.exists():
        return []
    described, records = campaign.read(OUTPUT)
    rows = []
    for task, variants in TRIED.items():
        found = {name: campaign.chosen(records, task=task, variant=name) for name in variants}
        if not all(found.values()):
            continue
        medians = {name: campaign.quartiles(campaign.times(runs))[1] for name, runs in found.items()}
        for name, runs in found.items():
            solved = f"{sum(run['solved'] for run in runs)}/{len(runs)}"
            factor = f"{medians[ZOO] / medians[name]:.2f}×" if math.isfinite(medians[ZOO] + medians[name]) else "–"
            rows.append([TASKS[task].label, name, campaign.spread(campaign.times(runs)), solved, factor])
    return [
        "### Other settings of Stable-Baselines3",
        "",
        f"Two layers of 64; measured {described['date']}, commit {described['commit']}; "
        f"every run: {results_links([OUTPUT.name])}.",
        "",
        *markdown_table(["task", "settings", "seconds to threshold", "solved", "faster than as tuned"], rows),
    ]


def main() -> None:
    """Run what is not there yet."""
    parser = argparse.ArgumentParser(prog="python -m bench.convergence.tried", description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TRIED, default=list(TRIED))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--resume", action="store_true", help="keep the runs that there are, failed ones excepted")
    arguments = parser.parse_args()
    if not arguments.resume:
        OUTPUT.unlink(missing_ok=True)
    execute = partial(campaign.run, worker=WORKER)
    campaign.conduct(OUTPUT, arguments.resume, jobs(arguments.tasks, arguments.seeds), IDENTITY, execute, describe)


if __name__ == "__main__":
    main()
