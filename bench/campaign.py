"""Whole training runs, one after another: each in a process of its own, and written down as soon as it is over.

The order of the jobs is the caller's, who interleaves what is compared: whatever the machine does in the meantime, it does it
to all of them. A campaign that was cut off goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine
from bench.report import machine_text
from bench.report import write as write_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
TIMEOUT = 3_600.0  # seconds; a run that takes longer is recorded as failed
Job = dict[str, Any]
Record = dict[str, Any]


def run(job: Job, worker: str, interpreter: Path | str = sys.executable, timeout: float = TIMEOUT) -> Record:
    """Run `python -m worker JOB` and return the job with what the worker wrote; a failed run has `error` and is not solved."""
    neighbours = machine.Neighbours()
    record: Record = {**job, **stamp(), "versions": machine.versions()}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "outcome.json"
        sent = json.dumps({**job, "output": str(output), "spawned": time.time()})
        command = [str(interpreter), "-W", "ignore", "-m", worker, sent]
        try:
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=timeout)
            record |= json.loads(output.read_text())
        except subprocess.SubprocessError as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            record |= {"solved": False, "wall_seconds": None, "curve": [], "error": lines[-1]}
    record["cores_used_by_others"] = round(neighbours.cores_used(), 2)
    return record


def stamp() -> Record:
    """Say when a run began, and of which commit."""
    return {"began": datetime.now(timezone.utc).isoformat(timespec="seconds"), "commit": machine.commit()}


def write(path: Path, described: dict[str, Any], records: Sequence[Record]) -> None:
    """Write what there is so far; a crash leaves the old file or the new one."""
    lines = ",\n".join(json.dumps(record) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(f'{{"machine": {json.dumps(described, indent=1)},\n"records": [\n{lines}\n]}}\n')
    os.replace(fresh, path)


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Return the machine and the records of a results file; the machine also has its name, and all dates and commits."""
    document = json.loads(path.read_text())
    described, records = document["machine"], document["records"]
    for key, found in (("date", [record["began"][:10] for record in records if "began" in record]),
                       ("commit", [record["commit"] for record in records if "commit" in record])):  # fmt: skip
        if found:
            first = [] if len(found) == len(records) else [described[key]]  # of records from before each had its own
            described[key] = ", ".join(dict.fromkeys([*first, *found]))
    return {**described, "results": path.name}, records


def conduct(
    output: Path,
    resume: bool,
    jobs: Iterable[Job],
    identity: Sequence[str],
    execute: Callable[[Job], Record],
    describe: Callable[[Record], str],
    described: dict[str, Any] | None = None,
) -> None:
    """Do the jobs that are not there yet, and write the records after each; `identity` are the keys that tell jobs apart."""
    described = described or machine.describe()
    records: list[Record] = []
    if output.exists():
        if not resume:
            raise SystemExit(f"{output.name} exists: add --resume to go on with it, or remove it to start anew")
        old, records = read(output)
        if old["processor"] != described["processor"]:
            raise SystemExit(f"{output.name} was measured on another machine; its runs cannot be compared with new ones")
        before = {"began": old["date"], "commit": old["commit"]}  # where records did not have their own yet
        records = [{**before, **record} for record in records if "error" not in record]
    there = {tuple(record[key] for key in identity) for record in records}
    for job in jobs:
        if tuple(job[key] for key in identity) in there:
            continue
        records.append(execute(job))
        described["cores_used_by_others"] = max(record["cores_used_by_others"] for record in records)
        write(output, described, records)
        print(describe(records[-1]), flush=True)


def command(
    name: str,
    document: str,
    tasks: Sequence[str],
    jobs: Callable[[Sequence[str], int, bool], Iterable[Job]],
    identity: Sequence[str],
    describe: Callable[[Record], str],
    report: Callable[[Path, Path], None],
) -> None:
    """Be the command line of a campaign of the runner: run what is asked for and not there yet, then write the page."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=document.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=list(tasks))
    parser.add_argument("--seeds", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="fewer and shorter runs, for `make bench`")
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the output has, failed ones excepted")
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page and its images are")
    arguments = parser.parse_args()
    if not arguments.report:
        planned = jobs(arguments.tasks, arguments.seeds, arguments.short)
        execute = partial(run, worker="bench.runner_run")
        conduct(arguments.output, arguments.resume, planned, identity, execute, describe)
    (arguments.docs / "images").mkdir(parents=True, exist_ok=True)
    report(arguments.output, arguments.docs)


def threshold_page(
    name: str,
    title: str,
    tasks: Mapping[str, Sequence[Any]],
    identity: Sequence[str],
    draw: Callable[[Sequence[Record], Path], None],
    table: Callable[[Sequence[Record]], list[str]],
    results: Path,
    docs: Path,
) -> None:
    """Write docs/NAME.md: the picture, and a table for each task (algorithm, environment, threshold, …)."""
    described, records = read(results)
    draw(records, docs / "images" / f"{name}.png")
    lines = [
        *machine_text(described),
        "Medians over seeds, in brackets the quartiles; a run that never got there counts as ∞.",
        "",
        f"![{title}](images/{name}.png)",
        "",
    ]
    for task, (algorithm, env, threshold, *_) in tasks.items():
        if some := chosen(records, task=task):
            lines += [f"### {algorithm.upper()}, {env}, to a mean return of {threshold:g}", "", *table(some)]
    write_section(docs / f"{name}.md", title, [*lines, *failures(records, identity)])


def interleaved(names: Sequence[str]) -> bool:
    """Return whether each had its turn before anyone had the next, where the names stand in the order of the runs."""
    n = len(set(names)) or 1
    return all(len(set(names[i : i + n])) == len(names[i : i + n]) for i in range(0, len(names), n))


def chosen(records: Sequence[Record], **wanted: Any) -> list[Record]:
    """Return those that have these values."""
    return [record for record in records if all(record[key] == value for key, value in wanted.items())]


def times(records: Sequence[Record]) -> list[float]:
    """Seconds until solved; infinity where a run was not."""
    return [record["wall_seconds"] if record["solved"] else np.inf for record in records]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Order statistics, so that infinite values stay what they are."""
    ordered = sorted(values)
    low, middle, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.5, 0.75))
    return low, middle, high


def number(value: float) -> str:
    """Three digits, thousands apart; infinity where something never happened."""
    if not np.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """Write the median, and the quartiles in brackets."""
    low, middle, high = quartiles(values)
    return f"{number(middle)} [{number(low)}–{number(high)}]"


def failures(records: Sequence[Record], identity: Sequence[str]) -> list[str]:
    """Lines that name the failed runs."""
    failed = [
        f"- {' '.join(str(run[key]) for key in identity if run[key] is not None)}: {run['error']}"
        for run in records
        if "error" in run
    ]
    return ["Failed runs, counted as not solved:", "", *failed, ""] if failed else []
