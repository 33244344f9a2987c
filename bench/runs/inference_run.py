"""Short runs that differ in who chooses the actions: `python -m bench.runs.inference_run JOB`.

bench.harness.campaign writes the JOB. It names in `variants` who is compared, and each acts for
`seconds`, one after another, in an order that rotates with the seed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

WARM_SECONDS = 0.5  # after the first answer of every group, before it counts
PERCENTILES = (50, 95, 99)


def configured(job: dict[str, Any], variant: str, directory: str | None = None) -> Any:
    """Return the RunnerConfig of a variant: "local" or "worker", and its number of groups."""
    from kary_replay.algorithms import IMPALAOptions
    from kary_replay.runner import RunnerConfig

    inference, groups = variant.split()
    options = IMPALAOptions(hidden=tuple(job["hidden"]), n_envs=job["n_envs"])
    return RunnerConfig(
        f"bench.runs.probes:{job['algorithm']}",
        job["env"],
        env_options=job["env_options"],
        options=options,
        actors=job["actors"],
        groups=int(groups),
        inference=inference,
        **({"inference_device": "cuda"} if job["on_gpu"] and inference == "worker" else {}),
        device="cuda" if job["on_gpu"] and job["algorithm"] == "Learning" else "cpu",
        max_staleness=4,
        seed=job["seed"],
        total_env_steps=10**12,  # it is stopped
        evaluate="never",
        checkpoint_interval_seconds=0.0,
        directory=directory,
    )


def stop_in_time(runner: Any, seconds: float, has_ended: threading.Event) -> None:
    """Let the run go on for so long after every group has had its first answer."""
    from bench.runs import probes

    def all_began() -> bool:
        probe = probes.hosted.get("inference")
        return probe is not None and bool(probes.answers_in(probe.numbers)[0].all())

    while not all_began():
        if has_ended.wait(0.02):
            return
    has_ended.wait(WARM_SECONDS + seconds)
    runner.stop()


def measured(job: dict[str, Any], variant: str) -> dict[str, Any]:
    """Return what one variant came to."""
    from rich.console import Console

    from bench.runs import probes
    from kary_replay.runner import Runner

    probes.hosted.clear()
    with tempfile.TemporaryDirectory() as folder:
        config = configured(job, variant, str(Path(folder) / "run"))
        runner, has_ended = Runner(config, console=Console(quiet=True)), threading.Event()
        arguments = runner, job["seconds"], has_ended
        watch = threading.Thread(target=stop_in_time, args=arguments)
        watch.start()
        try:
            runner.run()
        finally:
            has_ended.set()
            watch.join()
    counts, answers, sizes = probes.answers_in(probes.hosted["inference"].numbers)
    assert counts.max() <= probes.N_KEPT, "there is no room for so many answers"
    groups = [group[: int(count)] for count, group in zip(counts, answers, strict=True)]
    return summary(groups, sizes, job["n_envs"] // len(groups), job["seconds"])


def summary(groups: list[Any], sizes: Any, n_envs: int, seconds: float) -> dict[str, Any]:
    """Return what the answers of all groups came to, from when all were warm."""
    begin = max(group[0, 2] for group in groups) + WARM_SECONDS
    end = begin + seconds
    counted = np.concatenate([g[(g[:, 2] >= begin) & (g[:, 2] < end)] for g in groups])
    took, waited = (np.percentile(counted[:, i], PERCENTILES) * 1e6 for i in (0, 1))
    return {
        "env_steps_per_second": round(len(counted) * n_envs / seconds, 1),
        "answers": len(counted),
        "answer_microseconds": [round(float(value), 1) for value in took],
        "waited_microseconds": [round(float(value), 1) for value in waited],
        "rows_together": {str(n): int(sizes[n]) for n in np.flatnonzero(sizes)},
    }


def main() -> None:
    """Make the runs, and write the outcome where the job says."""
    from bench.harness.timing import rotated

    job = json.loads(sys.argv[1])
    began = time.perf_counter()
    found = {variant: measured(job, variant) for variant in rotated(job["variants"], job["seed"])}
    seconds = round(time.perf_counter() - began, 2)
    Path(job["output"]).write_text(json.dumps({"wall_seconds": seconds, "found": found}))


if __name__ == "__main__":
    main()
