"""Runs the benchmark: `python -m bench.convergence [--tasks …] [--rivals …] [--units …] [--seeds N] [--resume]`.

For every task and width, seed by seed, each rival trains once in a process of its own, in an order that rotates with the
seed: whatever the machine does in the meantime, it does it to all of them. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.convergence.tasks import RIVALS, TASKS, UNITS
from bench.table import quantity

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "bench" / "results" / "convergence.json"
TIMEOUT = 3_600.0  # seconds; a run that takes longer is recorded as failed
IDENTITY = ("task", "units", "rival", "seed")


def jobs(tasks: Sequence[str], rivals: Sequence[str], units: Sequence[int], seeds: int) -> Iterator[dict[str, Any]]:
    """Every run, interleaved."""
    for task in tasks:
        for width in units:
            for seed in range(seeds):
                turn = seed % len(rivals)
                for rival in (*rivals[turn:], *rivals[:turn]):
                    yield {"task": task, "units": width, "rival": rival, "seed": seed}


def run(job: dict[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
    """Train in a new process and return its record; a failed run has `error` and is not solved."""
    neighbours = machine.Neighbours()
    record: dict[str, Any] = {**job, "versions": machine.versions()}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "outcome.json"
        sent = json.dumps({**job, "output": str(output), "spawned": time.time()})
        command = [sys.executable, "-W", "ignore", "-m", "bench.convergence.worker", sent]
        try:
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=timeout)
            record |= json.loads(output.read_text())
        except subprocess.SubprocessError as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            record |= {"solved": False, "wall_seconds": None, "curve": [], "error": lines[-1]}
    record["cores_used_by_others"] = round(neighbours.cores_used(), 2)
    return record


def write(path: Path, described: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """Write what there is so far; a crash leaves the old file or the new one."""
    lines = ",\n".join(json.dumps(record) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(f'{{"machine": {json.dumps(described, indent=1)},\n"records": [\n{lines}\n]}}\n')
    os.replace(fresh, path)


def describe(record: dict[str, Any]) -> str:
    """One line about a run."""
    who = f"{record['task']:<16} {record['units']:>3} units  {record['rival']:<9} seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    if not record["solved"]:
        best = max((evaluation["mean_return"] for evaluation in record["curve"]), default=float("nan"))
        return f"{who}  not solved in {quantity(record['trained_seconds'], 's')}, best mean return {best:.1f}"
    return (
        f"{who}  {quantity(record['wall_seconds'], 's'):>8}, {record['env_steps']:>7,} steps, {record['updates']:>6,} updates"
    )


def main() -> None:
    """Run what is asked for and not there yet; write after every run."""
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--units", nargs="+", type=int, default=list(UNITS), help="width of both hidden layers")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, help="environment steps after which a run gives up (default: the task's)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--resume", action="store_true", help="keep the runs that the output has, failed ones excepted")
    arguments = parser.parse_args()
    records: list[dict[str, Any]] = []
    described = machine.describe()
    if arguments.output.exists():
        if not arguments.resume:
            parser.error(f"{arguments.output.name} exists: add --resume to go on with it, or remove it to start anew")
        document = json.loads(arguments.output.read_text())
        records = [record for record in document["records"] if "error" not in record]
        if document["machine"]["processor"] != described["processor"]:
            parser.error(f"{arguments.output.name} was measured on another machine; its runs cannot be compared with new ones")
        if any(record["budget"] != arguments.budget for record in records):
            parser.error(f"{arguments.output.name} has runs with another --budget")
    there = {tuple(record[key] for key in IDENTITY) for record in records}
    for job in jobs(arguments.tasks, arguments.rivals, arguments.units, arguments.seeds):
        if tuple(job[key] for key in IDENTITY) in there:
            continue
        records.append(run({**job, "budget": arguments.budget}))
        described["cores_used_by_others"] = max(record["cores_used_by_others"] for record in records)
        write(arguments.output, described, records)
        print(describe(records[-1]), flush=True)


if __name__ == "__main__":
    main()
