"""One run of the runner in a process of its own: `python -m bench.runs.runner_run JOB`.

bench.harness.campaign writes the JOB.

A job names `algorithm` and `env`, and in `settings` and `options` what differs from their preset.
With a `threshold` the run keeps snapshots, which are evaluated after it, so that evaluation costs
no time; the first that reaches the threshold counts. With `windows` the record has the mean return
of the training episodes that ended in each of so many equal parts of the run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

EPISODES = 20  # of an evaluation


def configured(job: dict[str, Any]) -> Any:
    """Return the RunnerConfig of a job; what the preset derives from the batch size stays."""
    from kary_replay.runner import RunnerConfig

    config = RunnerConfig(algorithm=job["algorithm"], env=job["env"])
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in job.get("options", {}).items()
    }
    settings = {
        "evaluate": "never" if job.get("threshold") is None else "after",
        "evaluation_episodes": EPISODES,
        "checkpoint_interval_seconds": 0.0,
        **job.get("settings", {}),
    }
    return replace(config, options=replace(config.options, **options), seed=job["seed"], **settings)


def outcome(result: Any, threshold: float | None) -> dict[str, Any]:
    """Return what the record keeps of a run."""
    record: dict[str, Any] = {
        "env_steps": result.env_steps,
        "updates": result.updates,
        "wall_seconds": round(result.wall_seconds, 4),
        "startup_seconds": round(result.startup_seconds, 3),
        "env_steps_per_second": round(result.env_steps / result.wall_seconds, 2),
        "updates_per_second": round(result.updates / result.wall_seconds, 2),
        "samples_per_insert": round(result.samples_per_insert, 4),
        "waited": {name: round(share, 4) for name, share in result.waited.items()},
        "curve": [
            [e.env_steps, e.updates, round(e.wall_seconds, 4), round(e.mean_return, 2)]
            for e in result.evaluations
        ],
    }
    if threshold is not None:
        first = next((found for found in record["curve"] if found[3] >= threshold), None)
        steps, updates, seconds, _ = first or (None, None, None, None)
        record |= {"solved": first is not None, "steps_to_threshold": steps}
        record |= {"updates_to_threshold": updates, "seconds_to_threshold": seconds}
    return record


def training_returns(directory: Path, env_steps: int, windows: int) -> list[float | None]:
    """Return the mean return of the episodes that ended in each part of a run; None: none did."""
    sums, counts = [0.0] * windows, [0] * windows
    for line in (directory / "episodes.jsonl").read_text().splitlines():
        episode = json.loads(line)
        part = min(windows - 1, (episode["env_steps"] - 1) * windows // env_steps)
        sums[part] += episode["episode_return"]
        counts[part] += 1
    return [round(a / n, 3) if n else None for a, n in zip(sums, counts, strict=True)]


def main() -> None:
    """Train, and write the outcome where the job says."""
    from kary_replay.runner import Runner

    job = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        config = replace(configured(job), directory=str(Path(folder) / "run"))
        result = Runner(config).run()
        record = outcome(result, job.get("threshold"))
        if windows := job.get("windows"):
            record["training"] = training_returns(result.directory, result.env_steps, windows)
    Path(job["output"]).write_text(json.dumps(record))


if __name__ == "__main__":
    main()
