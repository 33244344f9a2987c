"""One run in a process of its own: `python -m bench.runs.convergence.worker JOB`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from bench.harness import machine
from bench.runs.convergence.tasks import TASKS


def main() -> None:
    """Train, and write the outcome where the job says."""
    job = json.loads(sys.argv[1])
    task = TASKS[job["task"]]
    if job.get("budget"):
        task = replace(task, budget=job["budget"])
    rival = import_module(f"bench.runs.convergence.{job['rival']}_rival")
    chosen = {**rival.settings(job["task"], job["units"]), **job.get("settings", {})}
    outcome = rival.train(job["task"], task, job["seed"], chosen).as_json()
    outcome["startup_seconds"] = round(outcome.pop("started") - job["spawned"], 3)
    outcome["versions"] = machine.versions()  # of the rival's own environment
    Path(job["output"]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
