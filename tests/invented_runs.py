"""Records of whole training runs that were never made."""

from bench.harness import campaign, machine


def invented(job, seconds, solved=True):
    """The record of a run that was never made."""
    return {
        "solved": solved,
        "wall_seconds": seconds if solved else None,
        "trained_seconds": seconds,
        "startup_seconds": 3.0,
        "env_steps": 1_000 if solved else None,
        "updates": 100 if solved else None,
        "curve": [],
        "cores_used_by_others": 0.0,
        **job,
    }


def written(path, planned, execute):
    """Write the records that `execute` makes of the jobs, and return where they are."""
    described = {**machine.describe(), "cores_used_by_others": 0.0}
    campaign.write(path, described, [execute(job) for job in planned])
    return path
