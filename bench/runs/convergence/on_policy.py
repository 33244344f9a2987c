"""PPO and A2C, beside others: `python -m bench.runs.convergence.on_policy [OPTIONS]`.

PPO's settings are those of RL Baselines3 Zoo for all. Everybody has as many environments, and
learns from as many steps, in as many batches; nobody's are tuned for its own way. A2C's are those
of our preset for both: Adam, with a learning rate that falls.
"""

from __future__ import annotations

import argparse

from bench.harness import campaign
from bench.harness.paths import RESULTS
from bench.runs.convergence import __main__ as convergence
from bench.runs.convergence.tasks import ON_POLICY_RIVALS, ON_POLICY_TASKS

OUTPUT = RESULTS / "convergence_ppo.json"


def main() -> None:
    """Run what is asked for and not there yet; write after every run."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.convergence.on_policy", description=__doc__.splitlines()[0]
    )
    tasks, rivals = list(ON_POLICY_TASKS), list(ON_POLICY_RIVALS["ppo"])
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--rivals", nargs="+", choices=rivals, default=rivals)
    convergence.add_options(parser, OUTPUT)
    campaign.add_going_on(parser)
    arguments = parser.parse_args()
    rivals = [rival for rival in arguments.rivals if convergence.is_there(rival)]
    planned = convergence.jobs(
        arguments.tasks, rivals, arguments.units, arguments.seeds, arguments.budget
    )
    execute, describe = convergence.execute, convergence.describe
    campaign.conduct(
        arguments.output, planned, convergence.IDENTITY, execute, describe, arguments.before
    )


if __name__ == "__main__":
    main()
