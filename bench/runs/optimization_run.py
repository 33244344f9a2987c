"""One run with measured learners: `python -m bench.runs.optimization_run JOB`.

bench.harness.campaign writes the JOB, which has what one of bench.runs.runner_run has, and in
`measured` the class of bench.runs.probes whose learners are measured. The policy of the end is
evaluated when the run is over.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.runs import runner_run


def configured(job: dict[str, Any]) -> Any:
    """Return the RunnerConfig of a job."""
    config = runner_run.configured(job)
    return replace(
        config,
        algorithm=f"bench.runs.probes:{job['measured']}",
        evaluate="after",
        evaluation_interval=config.total_env_steps,
    )


def of_learners(n_learners: int) -> dict[str, float]:
    """Return what the learners have counted in the run that is over."""
    from bench.runs import probes

    def rows(name: str) -> list[probes.LearnerNumbers]:
        numbers = probes.hosted[name].numbers
        return [probes.LearnerNumbers(numbers, index) for index in range(n_learners)]

    learners = rows("learning")
    n_updates = sum(learner.updates for learner in learners)
    found = {
        "together_seconds": sum(learner.together_seconds for learner in learners) / n_learners,
        "between": sum(learner.between for learner in learners) / n_updates,
        "most_between": max(learner.most_between for learner in learners),
    }
    if "experience" in probes.hosted:
        readers = rows("experience")
        found["staleness"] = sum(reader.staleness for reader in readers) / n_updates
        found["most_staleness"] = max(reader.most_staleness for reader in readers)
        found["dropped_steps"] = probes.hosted["experience"].figures()["dropped_steps"]
    return found


def main() -> None:
    """Train, and write the outcome where the job says."""
    from kary_replay.runner import Runner

    job = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        config = replace(configured(job), directory=str(Path(folder) / "run"))
        result = Runner(config).run()
    record = runner_run.outcome(result, None)
    if config.learns_from == "rollouts":
        del record["samples_per_insert"]
    found = {name: round(value, 4) for name, value in of_learners(config.learners).items()}
    record |= {**found, "final_return": round(result.last_return, 2)}
    Path(job["output"]).write_text(json.dumps(record))


if __name__ == "__main__":
    main()
