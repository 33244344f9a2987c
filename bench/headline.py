"""Makes the one table of the README from committed results: `python -m bench.headline`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.campaign import chosen, quartiles, times
from bench.convergence.report import seconds
from bench.report import BENCH, markdown_table, results_links, write
from bench.report import load as load_records
from bench.table import quantity
from bench.timing import Record

SOURCES = ("buffers.json", "learner.json", "convergence.json")
RIVALS = {"Tianshou": "Tianshou", "cpprb": "cpprb", "SB3": "Stable-Baselines3"}
OPERATIONS = {  # of buffers.json, at 1e6 slots and batches of 256
    "tree sample": "draw 256 of 1e6 leaves from the sum tree",
    "tree update": "update 256 of them",
    "buffer sample": "draw a batch of 256 from a buffer of 1e6 rows",
    "buffer sample + update_priorities": "draw it, then update its priorities",
}
TWO_THREADS = "the same draw, two threads at once (others: behind one lock)"
UPDATES = {  # of learner.json: algorithm, units
    ("dqn", 64): "one DQN update, two layers of 64, batch 64",
    ("sac", 256): "one SAC update, two layers of 256, batch 256",
}
SOLVED = {  # of convergence.json, two layers of 64
    "cartpole_dqn": "CartPole-v1 solved by DQN",
    "pendulum_sac": "Pendulum-v1 solved by SAC",
}
Row = list[str]


def row(title: str, mine: str, factors: dict[str, float]) -> Row:
    """One line: our figure, and how many times better it is than each rival's."""
    return [title, mine, *(f"{factors[rival]:.1f}×" if rival in factors else "–" for rival in RIVALS)]


def rival_of(name: str) -> str | None:
    """Return which rival a contender's name begins with."""
    return next((rival for rival in RIVALS if name.startswith(rival)), None)


def operation_rows(records: Sequence[Record]) -> list[Row]:
    """What the tree and the buffer do, in one thread and in two."""
    here = [record for record in records if {"slots": 1_000_000, "batch": 256}.items() <= record.parameters.items()]
    rows = []
    for scenario, title in OPERATIONS.items():
        for record in here:
            if record.scenario == scenario:
                factors = {rival: ratio for name, ratio in record.ratios().items() if (rival := rival_of(name))}
                rows.append(row(title, quantity(record.medians()[record.ours], record.unit), factors))
    for record in records:
        if {"role": "sample", "threads": 2}.items() <= record.parameters.items():
            factors = {rival: ratio for name, ratio in record.ratios().items() if (rival := rival_of(name))}
            rows.append(row(TWO_THREADS, quantity(record.medians()[record.ours], record.unit), factors))
    return rows


def update_rows(records: Sequence[Record]) -> list[Row]:
    """What a learner does."""
    rows = []
    for (algorithm, units), title in UPDATES.items():
        for record in records:
            if (record.parameters["algorithm"], record.parameters["units"]) == (algorithm, units):
                rows.append(row(title, quantity(record.medians()[record.ours], record.unit), record.ratios()))
    return rows


def solved_rows(records: Sequence[dict[str, Any]]) -> list[Row]:
    """How long it takes until a task is solved, from the first environment step and from the start of the program."""
    rows = []
    for task, title in SOLVED.items():
        for suffix, startup in (("", False), (", start-up included", True)):
            medians = {}
            for name, rival in (("Tianshou", "tianshou"), ("SB3", "sb3"), ("ours", "runner")):
                runs = chosen(records, task=task, units=64, rival=rival)
                found = [time + startup * run["startup_seconds"] for time, run in zip(times(runs), runs, strict=True)]
                medians[name] = quartiles(found)[1] if found else math.inf
            mine = medians.pop("ours")
            if math.isfinite(mine):
                factors = {name: median / mine for name, median in medians.items() if math.isfinite(median)}
                rows.append(row(title + suffix, f"{seconds(mine)} s", factors))
    return rows


def headline() -> list[str]:
    """Return the lines of the README's table."""
    machine, operations = load_records("buffers")
    _, updates = load_records("learner")
    convergence = json.loads((BENCH / "results" / "convergence.json").read_text())["records"]
    rows = [*operation_rows(operations), *update_rows(updates), *solved_rows(convergence)]
    processor = machine["processor"]
    header = ["", "kary-replay", *(f"faster than {name}" for name in RIVALS.values())]
    return [
        *markdown_table(header, rows),
        f"Medians of interleaved repetitions on {processor['cores']} cores of an {processor['model']}. Stable-Baselines3 draws "
        f"uniformly: it has no priorities. Every repetition: {results_links(SOURCES, up='')}.",
    ]


def main() -> None:
    """Write the table between the README's markers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readme", type=Path, default=BENCH.parent / "README.md")
    write(parser.parse_args().readme, "kary-replay", headline())


if __name__ == "__main__":
    main()
