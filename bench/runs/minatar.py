"""The parts of Rainbow on MinAtar: `python -m bench.runs.minatar [OPTIONS]`.

DQN with each of them alone, and with all; everything else is the preset of DQN for MinAtar, in
every run. The question is that of Hessel et al. (2018), asked of small games as in Obando-Ceron &
Castro (2021), and scores are put together as Agarwal et al. (2021) advise. Every run is in one
process, so that the same commit makes it again to the bit on the same kind of processor; its record
has all its settings. Returns by frames do not depend on the speed of the machine, so parts of the
campaign may run beside each other, and elsewhere, each from a copy of what there is, and in a
checkout that stays as it is:

    cp bench/results/minatar.json a.json
    python -m bench.runs.minatar --tasks asterix breakout --output a.json --resume
    python -m bench.runs.minatar --merge bench/results/minatar.json a.partial.json b.partial.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, failures, number
from bench.harness.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, STYLE, YELLOW
from bench.harness.report import machine_text, markdown_table, write
from bench.harness.timing import rotated
from bench.runs.learning.scores import (
    Estimate,
    estimates,
    interquartile_mean,
    middle,
    probability_of_improvement,
)
from bench.runs.runner_run import EPISODES, configured
from kary_replay.runner.config import as_json

FRAMES, SHORT_FRAMES = 1_000_000, 20_000
WINDOWS = 50  # parts of a run, of each of which the mean return of training episodes is kept
LAST = 5  # of them make a run's score: its last 100,000 frames
ENOUGH = 10  # seeds
# name -> environment, title
TASKS: dict[str, tuple[str, str]] = {
    "asterix": ("MinAtar/Asterix-v1", "Asterix"),
    "breakout": ("MinAtar/Breakout-v1", "Breakout"),
    "freeway": ("MinAtar/Freeway-v1", "Freeway"),
    "seaquest": ("MinAtar/Seaquest-v1", "Seaquest"),
    "space_invaders": ("MinAtar/SpaceInvaders-v1", "Space Invaders"),
}
PLAIN, RAINBOW = "DQN", "Rainbow"
Change = tuple[dict[str, Any], dict[str, Any]]  # settings of the run, options of the algorithm
# Lengths of gradients depend on the loss, so that a bound would be another one for each.
WITHOUT: Change = (
    {"alpha": 0.0, "uniform_share": 0.0},
    {"n_step": 1, "double": False, "dueling": False, "max_gradient_norm": 1e6},
)
# With a gamma of 0.99 who gets a point in every fifth frame, as fast as one can shoot in Space
# Invaders, has a return of 20.
ADDED: dict[str, Change] = {
    "+ priorities": ({"alpha": 0.5}, {}),
    "+ n-step": ({}, {"n_step": 3}),
    "+ double": ({}, {"double": True}),
    "+ dueling": ({}, {"dueling": True}),
    "+ C51": ({}, {"n_atoms": 51, "v_min": -20.0, "v_max": 20.0}),
    "+ QR": ({}, {"n_quantiles": 32}),
    "+ noisy": ({}, {"noisy": True}),
}
IN_RAINBOW = tuple(name for name in ADDED if name != "+ QR")  # for it has C51
VARIANTS = (PLAIN, *ADDED, RAINBOW)
COLOURS = dict(
    zip(VARIANTS, (GREY, BLUE, GREEN, SKY, YELLOW, ORANGE, "#8C6D31", PURPLE, RED), strict=True)
)
IDENTITY = ("task", "variant", "seed")


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every variant of every game once, then all of them again with the next seed."""
    for seed in range(seeds):
        for task in tasks:
            for variant in rotated((PLAIN, RAINBOW) if short else VARIANTS, seed):
                settings, options = settings_of(variant)
                frames = SHORT_FRAMES if short else FRAMES
                settings |= {"backend": "serial", "groups": 1, "total_env_steps": frames}
                # of the last parameters
                settings |= {"evaluate": "after", "evaluation_interval": frames}
                job = {
                    "task": task,
                    "variant": variant,
                    "algorithm": "dqn",
                    "env": TASKS[task][0],
                    "seed": seed,
                    "windows": WINDOWS,
                    "options": options,
                    "settings": settings,
                }
                yield {**job, "config": as_json(configured(job))}


def settings_of(variant: str) -> Change:
    """Return what a variant changes of the preset."""
    settings, options = dict(WITHOUT[0]), dict(WITHOUT[1])
    names = {PLAIN: (), RAINBOW: IN_RAINBOW}.get(variant, (variant,))
    for name in names:
        settings |= ADDED[name][0]
        options |= ADDED[name][1]
    return settings, options


def is_scored(record: Record) -> bool:
    """Return whether an episode ended in the last parts of a run."""
    return any(mean is not None for mean in record.get("training", [])[-LAST:])


def score(record: Record) -> float:
    """Return the mean over the last parts of a run, of the mean returns of each."""
    return float(np.mean([mean for mean in record["training"][-LAST:] if mean is not None]))


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['task']:<13} {record['variant']:<12} seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    if not is_scored(record):
        return f"{who}  no episodes"
    return f"{who}  {score(record):5.1f} in the end, {record['env_steps_per_second']:,.0f} frames/s"


def evaluation(record: Record) -> float:
    """Return the mean return of the last parameters, without exploration."""
    return float(record["curve"][-1][-1])


def of_game(
    records: Sequence[Record], task: str, variant: str, of_run: Callable[[Record], float] = score
) -> np.ndarray:
    """Return what each run of a game has, which is its score or another figure: float64 [seeds]."""
    runs = [run for run in chosen(records, task=task, variant=variant) if is_scored(run)]
    return np.array([of_run(run) for run in runs], np.float64)


def complete(records: Sequence[Record]) -> tuple[list[str], list[str], list[Record]]:
    """Return the variants that were run, the games that all of them were run on, and these runs.

    Of the runs those of the seeds that all of these games have with every variant.
    """
    scored = [run for run in records if is_scored(run)]
    variants = [each for each in VARIANTS if chosen(scored, variant=each)]

    def seeds(task: str, variant: str) -> set[int]:
        return {run["seed"] for run in chosen(scored, task=task, variant=variant)}

    games = [task for task in TASKS if all(seeds(task, each) for each in variants)]
    every = [seeds(task, each) for task in games for each in variants]
    common = set.intersection(*every) if every else set()
    return variants, games, [r for r in scored if r["task"] in games and r["seed"] in common]


def compared(records: Sequence[Record]) -> dict[str, tuple[Estimate, Estimate]]:
    """Return two figures of each variant, over the runs that are complete.

    They are the interquartile mean of scores over DQN's mean on the game, and the probability that
    a run has a higher score than one of DQN, the mean over games. The bootstrap draws the runs of
    DQN anew, too.
    """
    variants, games, runs = complete(records)
    if PLAIN not in variants or not runs:
        return {}
    plain = [of_game(runs, task, PLAIN) for task in games]

    def figures(*drawn: np.ndarray) -> np.ndarray:
        ours, theirs = drawn[: len(games)], drawn[-len(games) :]
        pairs = list(zip(ours, theirs, strict=True))
        return np.array(
            [
                interquartile_mean(np.concatenate([own / other.mean() for own, other in pairs])),
                np.mean([probability_of_improvement(*pair) for pair in pairs]),
            ]
        )

    found = {}
    for variant in variants:
        own = [of_game(runs, task, variant) for task in games]
        scaled, better = estimates(plain if variant == PLAIN else own + plain, figures)
        found[variant] = scaled, better
    return found


def together(records: Sequence[Record]) -> list[str]:
    """One line per variant: what `compared` finds."""
    rows = [
        [
            variant,
            f"{scaled.value:.2f} [{scaled.low:.2f}, {scaled.high:.2f}]",
            "–"
            if variant == PLAIN
            else f"{better.value:.0%} [{better.low:.0%}, {better.high:.0%}]",
        ]
        for variant, (scaled, better) in compared(records).items()
    ]
    return markdown_table(["", "score over DQN's", "better than DQN"], rows)


def by_game(records: Sequence[Record], of_run: Callable[[Record], float]) -> list[str]:
    """One line per variant: each game's interquartile mean over seeds, and its interval."""

    def cell(sample: np.ndarray) -> str:
        if not len(sample):
            return "–"
        found = middle(dict(enumerate(sample)))
        return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"

    rows = [
        [variant, *(cell(of_game(records, task, variant, of_run)) for task in TASKS)]
        for variant in VARIANTS
    ]
    rows = [row for row in rows if any(cell != "–" for cell in row[1:])]
    return markdown_table(["", *(title for _, title in TASKS.values())], rows)


def draw(records: Sequence[Record], path: Path) -> None:
    """A panel for each game: interquartile means over seeds of the returns of training episodes."""
    tasks = [task for task in TASKS if chosen(records, task=task)] or list(TASKS)[:1]
    there = [variant for variant in VARIANTS if chosen(records, variant=variant)]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            2, 3, figsize=(10.5, 6.0), layout="constrained", squeeze=False
        )
        for axes, task in zip(panels.flat, tasks, strict=False):
            _panel(axes, task, chosen(records, task=task))
        for axes in panels.flat[len(tasks) :]:
            axes.axis("off")
        panels.flat[-1].legend(
            handles=[Line2D([], [], label=variant, **_style(variant)) for variant in there],
            loc="center",
            fontsize=10,
        )
        figure.savefig(path)
        plt.close(figure)


def _style(variant: str) -> dict[str, Any]:
    return {"color": COLOURS[variant], "lw": 2.2 if variant in (PLAIN, RAINBOW) else 1.3}


def _panel(axes: Any, task: str, records: Sequence[Record]) -> None:
    for variant in VARIANTS:
        runs = [run for run in chosen(records, variant=variant) if is_scored(run)]
        if not runs:
            continue
        returns = np.array([run["training"] for run in runs], np.float64)  # None: NaN
        frames = runs[0]["env_steps"] * (np.arange(WINDOWS) + 0.5) / WINDOWS
        known = ~np.isnan(returns).any(axis=0)
        frames, returns = frames[known], returns[:, known]
        means = [interquartile_mean(column) for column in returns.T]
        axes.plot(frames, means, **_style(variant))
        if variant in (PLAIN, RAINBOW) and len(runs) > 1:
            low, high = np.quantile(returns, [0.25, 0.75], axis=0)
            axes.fill_between(frames, low, high, color=COLOURS[variant], alpha=0.2, lw=0)
    axes.set_title(TASKS[task][1])
    axes.set_xlabel("frames")
    axes.set_ylabel("return of training episodes")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M" if value else "0")
    axes.grid()


def seeds_text(records: Sequence[Record]) -> str:
    """Say how many runs each variant has of each game."""
    counts = {len(of_game(records, task, each)) for task in TASKS for each in VARIANTS}
    low, high = min(counts), max(counts)
    several = f"{low}" if low == high else f"{low} to {high}"
    few = "; fewer than ten prove little, and their intervals are too narrow"
    return f"Seeds of each variant of each game: {several}{few if low < ENOUGH else ''}."


def report(results: Path, docs: Path) -> None:
    """Write docs/minatar.md and its picture."""
    described, records = campaign.read(results)
    draw(records, docs / "images" / "minatar.png")
    games, runs = complete(records)[1:]
    n_seeds = len({run["seed"] for run in runs})
    titles = ", ".join(TASKS[task][1] for task in games)
    silent = [run for run in records if "error" not in run and not is_scored(run)]
    lines = [
        *machine_text(described),
        f"A run's score is the mean return of the training episodes that ended in its last "
        f"{LAST / WINDOWS:.0%} of {FRAMES:,} frames, with what is left of exploration; of each "
        f"{1 / WINDOWS:.0%} of the run the mean counts alike. {seeds_text(records)}",
        "",
        "![Returns by frames, by game and variant](images/minatar.png)",
        "",
        "Lines are interquartile means over seeds, and bands have the middle half of the seeds of "
        "DQN and of Rainbow.",
        "",
    ]
    if figures := together(records):
        lines += [
            "## All games",
            "",
            f"Over {n_seeds} seeds of {titles}: the interquartile mean of scores over DQN's mean "
            "on the game, and how likely a run has a higher score than one of DQN (the mean over "
            "games; at 50 % they are alike). In brackets the 95 % of the stratified bootstrap of "
            "[rliable](https://github.com/google-research/rliable), which draws DQN's runs anew, "
            "too.",
            "",
            *figures,
        ]
    lines += [
        "## Scores by game",
        "",
        "Interquartile means over seeds, and their 95 % intervals.",
        "",
        *by_game(records, score),
        "## Without exploration",
        "",
        f"The same of what the last parameters have in {EPISODES} episodes without exploration.",
        "",
        *by_game(records, evaluation),
    ]
    if silent:
        lines += [
            f"Runs none of whose last episodes ended, which have no score: {len(silent)}.",
            "",
        ]
    lines += failures(records, IDENTITY, "left out")
    write(docs / "minatar.md", "The parts of Rainbow", lines)


def main() -> None:
    """Be the command line."""
    campaign.command(
        "minatar",
        __doc__,
        list(TASKS),
        jobs,
        IDENTITY,
        describe,
        report,
        seeds=ENOUGH,
        any_machine=True,
    )


if __name__ == "__main__":
    main()
