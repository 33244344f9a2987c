"""How the runner scales: `python -m bench.runs.scaling [OPTIONS]`.

Environment steps and updates per second against the number of actors and of learners, with a cheap
environment and an expensive one. Samples per insert are the preset's in every run: no side can get
ahead by doing less work per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from bench.harness import campaign, grid
from bench.harness.campaign import Job, Record, chosen, quartiles, spread
from bench.harness.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, STYLE
from bench.harness.report import machine_text, machine_title, markdown_table, write
from bench.harness.timing import rotated

# what an environment step costs -> algorithm, environment, environment steps of a run, of a short
# run
TASKS = {
    "cheap": ("dqn", "CartPole-v1", 120_000, 20_000),
    "expensive": ("sac", "HalfCheetah-v5", 8_000, 1_500),
}
LEARNING_STARTS = 500  # environment steps: a small part of any run
IDENTITY = ("task", "actors", "learners", "seed")
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every combination once, then all of them again."""
    counts = grid.counts()
    most = max(1, max(counts) // 4) if short else max(counts)
    pairs = [(actors, learners) for learners in counts if learners <= most for actors in counts]
    for seed in range(seeds):
        for task in tasks:
            algorithm, env, long_steps, short_steps = TASKS[task]
            settings = {
                "total_env_steps": short_steps if short else long_steps,
                "learning_starts": LEARNING_STARTS,
            }
            for actors, learners in rotated(pairs, seed):
                if 64 % learners == 0:  # divides every preset's batch size, as it must
                    yield {
                        "task": task,
                        "algorithm": algorithm,
                        "env": env,
                        "actors": actors,
                        "learners": learners,
                        "seed": seed,
                        "settings": {**settings, "actors": actors, "learners": learners},
                    }


def describe(record: Record) -> str:
    """One line about a run."""
    workers = f"{record['actors']} actors, {record['learners']} learners"
    who = f"{record['env']:<14} {workers}, repetition {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    steps, updates = record["env_steps_per_second"], record["updates_per_second"]
    return f"{who}  {steps:,.0f} env steps/s, {updates:,.0f} updates/s"


def _combinations(records: Sequence[Record]) -> list[tuple[int, int]]:
    return sorted({(record["learners"], record["actors"]) for record in records})


def table(records: Sequence[Record]) -> list[str]:
    """One line per combination."""
    rows = []
    for learners, actors in _combinations(records):
        runs = [
            run for run in chosen(records, learners=learners, actors=actors) if "error" not in run
        ]
        if runs:
            waited = [
                [run["waited"].get(who, 0.0) for run in runs] for who in ("actors", "learners")
            ]
            rates = (
                spread([run[key] for run in runs])
                for key in ("env_steps_per_second", "updates_per_second")
            )
            shares = (f"{quartiles(values)[1]:.0%}" for values in waited)
            inserts = quartiles([run["samples_per_insert"] for run in runs])[1]
            rows.append(
                [str(actors), str(learners), *rates, *shares, f"{inserts:.1f}", str(len(runs))]
            )
    header = [
        "actors",
        "learners",
        "env steps/s",
        "updates/s",
        "actors waited",
        "learners waited",
        "samples per insert",
        "runs",
    ]
    return markdown_table(header, rows)


def draw(records: Sequence[Record], path: Path) -> None:
    """One row per environment: both rates against actors, one line per number of learners."""
    tasks = [task for task in TASKS if chosen(records, task=task)]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(tasks), 2, figsize=(9, 3.2 * len(tasks)), layout="constrained", squeeze=False
        )
        for row, task in zip(panels, tasks, strict=True):
            some = [run for run in chosen(records, task=task) if "error" not in run]
            for axes, key, label in zip(
                row, ("env_steps", "updates"), ("env steps/s", "updates/s"), strict=True
            ):
                for colour, learners in zip(
                    COLOURS, sorted({run["learners"] for run in some}), strict=False
                ):
                    _line(
                        axes, chosen(some, learners=learners), f"{key}_per_second", learners, colour
                    )
                axes.set_title(f"{TASKS[task][0].upper()}, {TASKS[task][1]}")
                axes.set_xlabel("actors")
                axes.set_ylabel(label)
                axes.set_ylim(bottom=0)
                axes.grid()
            if some:
                row[0].legend()
        figure.savefig(path)
        plt.close(figure)


def _line(axes: Any, runs: Sequence[Record], key: str, learners: int, colour: str) -> None:
    xs = sorted({run["actors"] for run in runs})
    low, middle, high = zip(
        *(quartiles([run[key] for run in chosen(runs, actors=x)]) for x in xs), strict=True
    )
    axes.fill_between(xs, low, high, color=colour, alpha=0.2, lw=0)
    axes.plot(
        xs, middle, "o-", color=colour, lw=1.8, label=f"{learners} learner{'s' * (learners > 1)}"
    )
    axes.set_xticks(xs)


def report(results: Path, docs: Path) -> None:
    """Write docs/scaling.md and its pictures, with what more cores gave beside the results."""
    lines = part(results, docs, "scaling.png")
    for beside in sorted(results.parent.glob(f"{results.stem}_*_cores.json")):
        lines += part(beside, docs, f"{beside.stem}.png")
    write(docs / "scaling.md", "How the runner scales", lines)


def part(results: Path, docs: Path, image: str) -> list[str]:
    """Return what was measured on one machine, and draw it."""
    described, records = campaign.read(results)
    draw(records, docs / "images" / image)
    lines = [f"## {machine_title(described)}", "", *machine_text(described)]
    lines += ["Medians over repetitions, in brackets the quartiles.", ""]
    lines += [f"![Scaling](images/{image})", ""]
    for task, (algorithm, env, *_) in TASKS.items():
        if some := chosen(records, task=task):
            lines += [f"### {algorithm.upper()}, {env}", "", *table(some)]
    return [*lines, *campaign.failures(records, IDENTITY)]


def main() -> None:
    """Be the command line."""
    campaign.command("scaling", __doc__, list(TASKS), jobs, IDENTITY, describe, report)


if __name__ == "__main__":
    main()
