"""Runs whole training runs one after another, and writes each down as soon as it is over.

The order of the jobs is the caller's, who interleaves what is compared: whatever the machine does
in the meantime, it does it to all of them. Records are gathered in NAME.partial.json, which takes
the place of NAME.json when all are there; a campaign that was cut off goes on with `--resume`.
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

from bench.harness import machine, orphans
from bench.harness.paths import DOCS, RESULTS, ROOT
from bench.harness.report import machine_text, processor_name
from bench.harness.report import write as write_section

TIMEOUT = 3_600.0  # seconds; a run that takes longer is recorded as failed
Job = dict[str, Any]
Record = dict[str, Any]


def run(
    job: Job, worker: str, interpreter: Path | str = sys.executable, timeout: float = TIMEOUT
) -> Record:
    """Run `python -m worker JOB` and return the job with what the worker wrote.

    A run that failed has `error` and is not solved.
    """
    neighbours = machine.Neighbours()
    record: Record = {**job, **stamp(), "versions": machine.versions()}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "outcome.json"
        sent = json.dumps({**job, "output": str(output), "spawned": time.time()})
        command = [str(interpreter), "-W", "ignore", "-m", worker, sent]
        try:
            orphans.run(command, ROOT, timeout)
            record |= json.loads(output.read_text())
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            record |= {"solved": False, "wall_seconds": None, "curve": [], "error": reason(error)}
    record["cores_used_by_others"] = round(neighbours.cores_used(), 2)
    return record


def reason(error: Exception) -> str:
    """Say in one line, without folders, why a run failed."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it was not over after {error.timeout:,.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return machine.without_folders(lines[-1]) if lines else f"exit status {error.returncode}"
    return f"it wrote no results ({type(error).__name__})"


def stamp() -> Record:
    """Say when a run began, and of which commit."""
    return {
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": machine.commit(),
    }


def write(path: Path, described: dict[str, Any], records: Sequence[Record]) -> None:
    """Write what there is so far; a crash leaves the old file or the new one."""
    lines = ",\n".join(json.dumps(record) for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(
        f'{{"machine": {json.dumps(described, indent=1)},\n"records": [\n{lines}\n]}}\n'
    )
    os.replace(fresh, path)


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Return the machine and the records of a results file.

    The machine also has the file's name, all the dates, commits and versions of its records, and
    the names of other processors that some of them are of.
    """
    document = json.loads(path.read_text())
    described, records = document["machine"], document["records"]
    for key, found in (
        ("date", [record["began"][:10] for record in records if "began" in record]),
        ("commit", [record["commit"] for record in records if "commit" in record]),
    ):
        if found:
            # of records from before each had its own
            first = [] if len(found) == len(records) else [described[key]]
            described[key] = ", ".join(dict.fromkeys([*first, *found]))
    first = described.get("versions", {})
    if first and records:
        each = [record.get("versions", first) for record in records]
        described["versions"] = {
            name: " and ".join(dict.fromkeys(versions.get(name, "none") for versions in each))
            for name in first
            if any(name in versions for versions in each)
        }
    processors = [
        processor_name(record["processor"]) for record in records if "processor" in record
    ]
    if processors:
        own = processor_name(described["processor"])
        described["other_processors"] = [one for one in dict.fromkeys(processors) if one != own]
    return {**described, "results": path.name}, records


def partial_of(output: Path) -> Path:
    """Return where a results file is gathered."""
    return output.with_suffix(".partial.json")


def complete(output: Path) -> None:
    """Let what was gathered, if anything, take the place of what there was before."""
    if partial_of(output).exists():
        os.replace(partial_of(output), output)


def earlier(
    output: Path, before: str, described: dict[str, Any], any_machine: bool = False
) -> list[Record]:
    """Return the records to go on from: of the campaign that was cut off, or of a finished one.

    Those of another machine are refused, or with ``any_machine`` say of which `processor` they are.
    What was gathered is refused if the finished campaign went on without it.
    """
    there = [path for path in (partial_of(output), output) if path.exists()]
    if not there or before == "anew":
        return []
    found = there[0]
    if before != "resume":
        raise SystemExit(
            f"{found.name} exists: add --resume to go on with it, or --anew to replace it"
        )
    if len(there) == 2 and _newest(output) > _newest(found):
        raise SystemExit(
            f"{output.name} has later runs than {found.name}, which would take its place: "
            f"merge them, or remove {found.name}"
        )
    old, records = _with_origin(found, described)
    if not any_machine and old["processor"] != described["processor"]:
        raise SystemExit(
            f"{found.name} was measured on another machine; "
            "its runs cannot be compared with new ones"
        )
    return records


def _newest(path: Path) -> str:
    """Return when the last run of a file began."""
    return max((record.get("began", "") for record in read(path)[1]), default="")


def _with_origin(path: Path, here: dict[str, Any]) -> tuple[dict[str, Any], list[Record]]:
    """Return the machine and the records of a file, which say what is not so of those made here."""
    described, records = read(path)
    # older ones lack their own
    own = {"began": described["date"], "commit": described["commit"]}
    if described["processor"] != here["processor"]:
        own["processor"] = described["processor"]
    return described, [{**own, **record} for record in records]


def merge(
    output: Path,
    files: Sequence[Path],
    jobs: Iterable[Job],
    identity: Sequence[str],
    describe: Callable[[Record], str],
) -> None:
    """Put the runs of several files into one: of each run the first that did not fail.

    It is for campaigns whose results do not depend on the machine, parts of which were made beside
    each other or elsewhere. Refused are files that are not there, runs with other settings than the
    jobs have or of no job, and an output with runs that would be lost.
    """
    for file in files:
        if not file.exists():
            raise SystemExit(f"{file} is not there; runs so far are in {partial_of(file).name}")
    named = [file.resolve() for file in files]
    for there in (output, partial_of(output)):
        if there.exists() and there.resolve() not in named:
            raise SystemExit(f"{there} has runs: name it among the files, or move it away")
    described = json.loads(files[0].read_text())["machine"]
    merged: dict[tuple[Any, ...], Record] = {}
    planned = list(jobs)
    asked = {_identified(job, identity) for job in planned}
    for file in files:
        records = _with_origin(file, described)[1]
        _match(file, planned, records, identity, describe)
        for record in records:
            key = _identified(record, identity)
            if key not in asked:
                raise SystemExit(
                    f"{file.name} has runs that are not asked for, such as {describe(record)}: "
                    "give --tasks and --seeds that have them"
                )
            old = merged.get(key)
            if old is None or "error" in old:
                merged[key] = record if old is None else {**record, **_errors_so_far(old, record)}
    described["cores_used_by_others"] = _most_used_by_others(merged.values())
    write(output, described, list(merged.values()))
    if partial_of(output).resolve() in named:
        partial_of(output).unlink()


def _identified(run: Job, identity: Sequence[str]) -> tuple[Any, ...]:
    """Return what tells a run apart from others."""
    return tuple(run[key] for key in identity)


def _errors_so_far(old: Record, record: Record) -> Record:
    errors = [*old.get("earlier_errors", []), old["error"]]
    others = [error for error in record.get("earlier_errors", []) if error not in errors]
    return {"earlier_errors": errors + others}


def _match(
    file: Path,
    jobs: Iterable[Job],
    records: Sequence[Record],
    identity: Sequence[str],
    describe: Callable[[Record], str],
) -> list[tuple[Job, Record | None]]:
    """Return each job with its run, if it was made; refuse runs that were made otherwise."""
    there = {_identified(record, identity): record for record in records}
    found = [
        (job, there.get(_identified(job, identity))) for job in json.loads(json.dumps(list(jobs)))
    ]
    for job, old in found:
        if old and "error" not in old and not agrees(old, job):
            raise SystemExit(
                f"{file.name} has runs with other settings, such as {describe(old)}: "
                "replace it with --anew"
            )
    return found


def _most_used_by_others(records: Iterable[Record]) -> float:
    known = (record.get("cores_used_by_others") for record in records)
    return max(filter(None, known), default=0.0)


def agrees(made: Record, wanted: Job) -> bool:
    """Tell whether a run has all that its job says; what its record does not say, it has not."""
    return all(key in made and made[key] == value for key, value in wanted.items())


def conduct(
    output: Path,
    jobs: Iterable[Job],
    identity: Sequence[str],
    execute: Callable[[Job], Record],
    describe: Callable[[Record], str],
    before: str = "refuse",
    any_machine: bool = False,
) -> None:
    """Do the jobs that were not done yet, and write the records after each of them.

    `identity` names the keys that tell jobs apart.

    What was measured before is refused, gone on with ("resume") or replaced ("anew"). Jobs that
    failed are done again; their records keep the errors. An earlier record with other settings is
    refused.
    """
    described = machine.describe()
    records = earlier(output, before, described, any_machine)
    for job, old in _match(output, jobs, records, identity, describe):
        if old and "error" not in old:
            continue
        record = execute(job)
        if old:
            record |= _errors_so_far(old, record)
            records.remove(old)
        records.append(record)
        described["cores_used_by_others"] = _most_used_by_others(records)
        write(partial_of(output), described, records)
        print(describe(record), flush=True)
    complete(output)


def add_going_on(parser: argparse.ArgumentParser) -> None:
    """Let the user say what is to become of earlier results: `before` of `conduct`."""
    one = parser.add_mutually_exclusive_group()
    one.set_defaults(before="refuse")
    keep, replace = "keep the runs that there are, failed ones excepted", "replace what there is"
    one.add_argument("--resume", dest="before", action="store_const", const="resume", help=keep)
    one.add_argument("--anew", dest="before", action="store_const", const="anew", help=replace)


def command(
    name: str,
    document: str,
    tasks: Sequence[str],
    jobs: Callable[[Sequence[str], int, bool], Iterable[Job]],
    identity: Sequence[str],
    describe: Callable[[Record], str],
    report: Callable[[Path, Path], None] | None = None,
    worker: str = "bench.runs.runner_run",
    seeds: int = 5,
    any_machine: bool = False,
) -> None:
    """Be the command line of a campaign: make the runs that are missing, then write the page.

    Without ``report`` another module writes it. ``any_machine``: the results do not depend on it,
    so that parts of the campaign may be made beside each other, or elsewhere, and merged.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.runs.{name}", description=document.splitlines()[0]
    )
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=list(tasks))
    parser.add_argument(
        "--seeds", type=int, default=seeds, help="repetitions (default: %(default)s)"
    )
    parser.add_argument(
        "--short", action="store_true", help="fewer and shorter runs, for `make bench`"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.json")
    add_going_on(parser)
    if report is not None:
        parser.add_argument("--report", action="store_true", help="only write the page")
        parser.add_argument(
            "--docs", type=Path, default=DOCS, help="where the page and its images are"
        )
    parser.set_defaults(merge=None)
    if any_machine:
        parser.add_argument(
            "--merge",
            nargs="+",
            type=Path,
            metavar="FILE",
            help="only put the runs of these files into the output, and write the page",
        )
    arguments = parser.parse_args()
    planned = jobs(arguments.tasks, arguments.seeds, arguments.short)
    if arguments.merge:
        merge(arguments.output, arguments.merge, planned, identity, describe)
    elif report is None or not arguments.report:
        execute = partial(run, worker=worker)
        conduct(
            arguments.output, planned, identity, execute, describe, arguments.before, any_machine
        )
    if report is None:
        return
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
    """Write docs/NAME.md: the picture, and a table for each task (algorithm, environment, …)."""
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
            lines += [
                f"## {algorithm.upper()}, {env}, to a mean return of {threshold:g}",
                "",
                *table(some),
            ]
    write_section(docs / f"{name}.md", title, [*lines, *failures(records, identity)])


def interleaved(names: Sequence[str]) -> bool:
    """Return whether nobody had a second turn before everybody had the first, in this order."""
    n = len(set(names)) or 1
    return all(len(set(names[i : i + n])) == len(names[i : i + n]) for i in range(0, len(names), n))


def chosen(records: Sequence[Record], **wanted: Any) -> list[Record]:
    """Return those that have these values."""
    return [
        record for record in records if all(record[key] == value for key, value in wanted.items())
    ]


def times(records: Sequence[Record], with_startup: bool = False) -> list[float]:
    """Seconds until solved, perhaps from the call on; infinity where a run was not."""
    return [
        record["wall_seconds"] + with_startup * record.get("startup_seconds", 0.0)
        if record["solved"]
        else np.inf
        for record in records
    ]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the quartiles between order statistics; infinite where the upper of two is."""
    ordered = sorted(values)

    def at(share: float) -> float:
        below, rest = divmod(share * (len(ordered) - 1), 1)
        low, high = ordered[int(below)], ordered[int(below) + (rest > 0)]
        return low if rest == 0 or low == high else low + rest * (high - low)

    return at(0.25), at(0.5), at(0.75)


def ratio_interval(
    over: Sequence[float], under: Sequence[float], resamplings: int = 10_000
) -> tuple[float, float]:
    """Return where nine in ten ratios of medians lie when both sides' runs are drawn anew."""
    rng = np.random.default_rng(0)
    medians = (
        np.median(rng.choice(np.asarray(runs), (resamplings, len(runs))), axis=1)
        for runs in (over, under)
    )
    with np.errstate(invalid="ignore"):
        ratios = np.divide(*medians)
    low, high = np.quantile(ratios[~np.isnan(ratios)], [0.05, 0.95], method="nearest")
    return float(low), float(high)


def number(value: float) -> str:
    """Three digits, thousands apart; infinity where something never happened."""
    if not np.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """Write the median, and the quartiles in brackets."""
    low, middle, high = quartiles(values)
    return f"{number(middle)} [{number(low)}–{number(high)}]"


def failures(
    records: Sequence[Record], identity: Sequence[str], counted: str = "counted as not solved"
) -> list[str]:
    """Lines that name the failed runs, and those that were made again after they had failed."""

    def named(run: Record) -> str:
        return " ".join(str(run[key]) for key in identity if run[key] is not None)

    failed = [f"- {named(run)}: {run['error']}" for run in records if "error" in run]
    again = [
        f"- {named(run)}: {'; '.join(run['earlier_errors'])}"
        for run in records
        if "earlier_errors" in run
    ]
    return [
        *([f"Failed runs, {counted}:", "", *failed, ""] if failed else []),
        *(["Runs that failed at first, and were made again:", "", *again, ""] if again else []),
    ]
