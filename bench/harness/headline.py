"""Makes the one table of the README from committed results: `python -m bench.harness.headline`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.campaign import chosen, number, quartiles, ratio_interval, read, times
from bench.harness.paths import RESULTS, ROOT
from bench.harness.report import load as load_records
from bench.harness.report import markdown_table, processor_name, results_links, write
from bench.harness.table import factor, quantity
from bench.harness.timing import Record, find
from bench.runs.convergence.report import seconds

SOURCES = (
    "buffers.json",
    "learner.json",
    "adapters.json",
    "rllib_training.json",
    "convergence.json",
)
RIVALS = {
    "Tianshou": "Tianshou",
    "cpprb": "cpprb",
    "RLlib": "RLlib",
    "SB3": "Stable-Baselines3",
    "SBX": "SBX",
}
CONVERGING = {
    "tianshou": "Tianshou",
    "rllib": "RLlib",
    "sb3": "SB3",
    "sbx": "SBX",
    "runner": "ours",
}
OPERATIONS = {  # of buffers.json, at 1e6 slots and batches of 256
    "tree sample": "draw 256 of 1e6 leaves from the sum tree",
    "tree update": "update 256 of them",
    "buffer sample": "draw a batch of 256 from a buffer of 1e6 rows",
    "buffer sample + update_priorities": "draw it, then update its priorities",
}
ADD = "add one row"
TWO_THREADS = "the same draw, two threads at once (others: behind one lock)"
UPDATES = {  # of learner.json: algorithm, units
    ("dqn", 64): "one DQN update, two layers of 64, batch 64",
    ("sac", 256): "one SAC update, two layers of 256, batch 256",
}
PLUGGED_IN = {  # of adapters.json: environment steps per second of stock algorithms
    "Stable-Baselines3's DQN on CartPole-v1, our buffer plugged in, drawing by priority": (
        "SB3: training",
        {"draws": "by priority"},
    ),
    "the same, drawing uniformly": ("SB3: training", {"draws": "uniform"}),
    "Tianshou's DQN on CartPole-v1, our buffer plugged in": ("Tianshou: training", {}),
}
RLLIB_TRAINING = {  # of rllib_training.json: case, units
    "RLlib's DQN on CartPole-v1, our buffer plugged in": ("DQN, batch 32", 64),
    "RLlib's SAC on Pendulum-v1, the same": ("SAC, batch 256", 64),
}
SOLVED = {  # of convergence.json: task, units, start-up included
    ("cartpole_dqn", 64, False): "CartPole-v1 solved by DQN, two layers of 64",
    ("cartpole_dqn", 64, True): "the same, start-up included",
    ("pendulum_sac", 64, False): "Pendulum-v1 solved by SAC, two layers of 64",
    ("pendulum_sac", 256, False): "the same, two layers of 256",
    ("lunarlander_dqn", 64, False): "LunarLander-v3 solved by DQN, two layers of 64",
    ("lunarlander_dqn", 256, False): "the same, two layers of 256",
}
Row = list[str]


def row(title: str, mine: str, cells: dict[str, str]) -> Row:
    """One line: our figure, and how many times better it is than each rival's."""
    return [title, mine, *(cells.get(rival, "–") for rival in RIVALS)]


def of_record(title: str, found: Sequence[Record]) -> Row:
    """One line of a comparison, which must have been made; a rival's best form counts."""
    if not found:
        raise SystemExit(f"no results for the line {title!r} of the README's table")
    (record,) = found
    ratios = record.ratios()
    found_of = {
        rival: [ratio for name, ratio in ratios.items() if name.startswith(rival)]
        for rival in RIVALS
    }
    cells = {rival: factor(min(some)) for rival, some in found_of.items() if some}
    return row(title, quantity(record.medians()[record.ours], record.unit), cells)


def operation_rows(records: Sequence[Record]) -> list[Row]:
    """What the tree and the buffer do, in one thread and in two."""
    point = {"slots": 1_000_000, "batch": 256}
    rows = [
        of_record(title, find(records, scenario, **point)) for scenario, title in OPERATIONS.items()
    ]
    rows.append(of_record(ADD, find(records, "buffer add", slots=1_000_000, rows=1)))
    return [
        *rows,
        of_record(TWO_THREADS, find(records, "threads: calls by role", role="sample", threads=2)),
    ]


def update_rows(records: Sequence[Record]) -> list[Row]:
    """What a learner does."""
    return [
        of_record(title, find(records, "learner: update", algorithm=algorithm, units=units))
        for (algorithm, units), title in UPDATES.items()
    ]


def plugged_in_rows(records: Sequence[Record]) -> list[Row]:
    """What a change of the buffer alone is worth."""
    return [
        of_record(title, find(records, scenario, run="DQN, CartPole-v1", **parameters))
        for title, (scenario, parameters) in PLUGGED_IN.items()
    ]


def rllib_rows(records: Sequence[dict[str, Any]]) -> list[Row]:
    """What `use(config)` is worth to RLlib, seed by seed."""
    rows = []
    for title, (case, units) in RLLIB_TRAINING.items():
        runs = chosen(records, kind="speed", case=case, units=units)
        theirs, mine = (
            {run["seed"]: run["steps_per_second"] for run in chosen(runs, buffer=buffer)}
            for buffer in ("RLlib", "kary-replay")
        )
        ratios = [mine[seed] / theirs[seed] for seed in mine]
        rows.append(
            row(
                title,
                quantity(quartiles(list(mine.values()))[1], "steps/s"),
                {"RLlib": factor(quartiles(ratios)[1])},
            )
        )
    return rows


def solved_rows(records: Sequence[dict[str, Any]]) -> list[Row]:
    """Return the row of a task: seconds from the first environment step, or from the start."""
    rows = []
    for (task, units, startup), title in SOLVED.items():
        found = {}
        for rival, name in CONVERGING.items():
            runs = chosen(records, task=task, units=units, rival=rival)
            found[name] = times(runs, startup)
        mine = found.pop("ours")
        median = quartiles(mine)[1]
        if not math.isfinite(median):
            rows.append(row(title, "not solved", {}))
            continue
        cells = {name: slower_by(theirs, mine) for name, theirs in found.items() if theirs}
        rows.append(row(title, f"{seconds(median)} s", cells))
    return rows


def slower_by(theirs: Sequence[float], mine: Sequence[float]) -> str:
    """Write the ratio of the medians, its interval, and of how few runs it is, if so.

    It is ∞ where none of theirs got there.
    """
    low, high = ratio_interval(theirs, mine)
    few = "" if len(theirs) >= len(mine) else f", {len(theirs)} run{'s' * (len(theirs) > 1)}"
    return (
        f"{factor(quartiles(theirs)[1] / quartiles(mine)[1])} [{number(low)}–{number(high)}{few}]"
    )


def without_empty_columns(header: Row, rows: Sequence[Row]) -> tuple[Row, list[Row]]:
    """Leave out rivals that no committed result has."""
    kept = [column for column in range(len(header)) if any(row[column] != "–" for row in rows)]
    return [header[column] for column in kept], [[row[column] for column in kept] for row in rows]


def measured_on(machines: Sequence[dict[str, Any]]) -> str:
    """Say which processor each source is of; a line of the table is always of one."""
    sources: dict[str, list[str]] = {}
    for name, machine in zip(SOURCES, machines, strict=True):
        processor = machine["processor"]
        one = f"{processor['cores']} cores of an {processor_name(processor)}"
        sources.setdefault(one, []).append(name.removesuffix(".json"))
    if len(sources) == 1:
        return f"Medians on {next(iter(sources))}."
    each = "; ".join(f"{', '.join(names)} on {one}" for one, names in sources.items())
    return f"Medians: {each}. Only figures of one line were measured in one run."


def headline() -> list[str]:
    """Return the lines of the README's table."""
    (machine, operations), (second, updates), (third, adapters) = map(
        load_records, ("buffers", "learner", "adapters")
    )
    fourth, rllib = read(RESULTS / "rllib_training.json")
    fifth, convergence = read(RESULTS / "convergence.json")
    rows = [
        *operation_rows(operations),
        *update_rows(updates),
        *plugged_in_rows(adapters),
        *rllib_rows(rllib),
        *solved_rows(convergence),
    ]
    header = ["", "kary-replay", *(f"faster than {name}" for name in RIVALS.values())]
    return [
        *markdown_table(*without_empty_columns(header, rows)),
        f"{measured_on([machine, second, third, fourth, fifth])} Rivals were "
        "measured in turn with ours, but for runs that [the page](docs/runner_benchmarks.md) "
        "names. The brackets of runs until solved say where nine in ten ratios lie when the runs "
        "are drawn anew. Stable-Baselines3 draws uniformly: it has no priorities. Every "
        f"repetition, with dates and commits: {results_links(SOURCES, up='')}; with quartiles: "
        "[docs/](docs/benchmarks.md).",
    ]


def main() -> None:
    """Write the table between the README's markers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    write(parser.parse_args().readme, "kary-replay", headline())


if __name__ == "__main__":
    main()
