"""The parts of Rainbow on MinAtar: `python -m bench.runs.minatar [OPTIONS]`.

DQN with each of them alone, and with all; everything else is the preset of DQN for MinAtar, in
every run. The question is that of Hessel et al. (2018), asked of small games as in Obando-Ceron &
Castro (2021), and scores are put together as Agarwal et al. (2021) advise. Every run is in one
process, so that it can be made again to the bit. Returns by frames do not depend on the speed of
the machine, so parts of the campaign may run beside each other, and elsewhere, each from a copy of
what there is:

    cp bench/results/minatar.json a.json
    python -m bench.runs.minatar --tasks asterix breakout --output a.json --resume
    python -m bench.runs.minatar --merge bench/results/minatar.json a.partial.json b.partial.json
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, failures, number
from bench.harness.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, STYLE, YELLOW
from bench.harness.report import machine_text, markdown_table, write
from bench.harness.timing import rotated
from bench.runs.learning.scores import estimates, interquartile_mean

FRAMES, SHORT_FRAMES = 1_000_000, 20_000
WINDOWS = 50  # parts of a run, of each of which the mean return of training episodes is kept
LAST = 5  # of them make a run's score: its last 100,000 frames
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
WITHOUT: Change = (
    {"alpha": 0.0, "uniform_share": 0.0},
    {"n_step": 1, "double": False, "dueling": False},
)
ADDED: dict[str, Change] = {
    "+ priorities": ({"alpha": 0.5}, {}),
    "+ n-step": ({}, {"n_step": 3}),
    "+ double": ({}, {"double": True}),
    "+ dueling": ({}, {"dueling": True}),
    "+ C51": ({}, {"n_atoms": 51}),
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
                settings |= {"backend": "serial", "groups": 1}
                settings["total_env_steps"] = SHORT_FRAMES if short else FRAMES
                yield {
                    "task": task,
                    "variant": variant,
                    "algorithm": "dqn",
                    "env": TASKS[task][0],
                    "seed": seed,
                    "windows": WINDOWS,
                    "options": options,
                    "settings": settings,
                }


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


def of_game(records: Sequence[Record], task: str, variant: str) -> np.ndarray:
    """Return the scores of a game's runs, float64 [seeds]."""
    runs = [run for run in chosen(records, task=task, variant=variant) if is_scored(run)]
    return np.array([score(run) for run in runs], np.float64)


def compared(records: Sequence[Record]) -> dict[str, list[np.ndarray]]:
    """Return the scores of all games by variant, over DQN's mean on the game.

    Games without a run of every variant that has any are left out.
    """
    there = [v for v in VARIANTS if any(len(of_game(records, task, v)) for task in TASKS)]
    games = [t for t in TASKS if all(len(of_game(records, t, v)) for v in there)]
    if PLAIN not in there or not games:
        return {}
    units = {task: of_game(records, task, PLAIN).mean() for task in games}
    return {v: [of_game(records, t, v) / units[t] for t in games] for v in there}


def table(records: Sequence[Record]) -> list[str]:
    """One line per variant: each game's interquartile mean, and that of all scaled scores."""
    together = compared(records)
    rows = []
    for variant in VARIANTS:
        cells = []
        for task in TASKS:
            found = of_game(records, task, variant)
            cells.append(
                f"{number(interquartile_mean(found))} ({len(found)})" if len(found) else "–"
            )
        if all(cell == "–" for cell in cells):
            continue
        if variant in together:
            (estimate,) = estimates(
                together[variant],
                lambda *drawn: np.array([interquartile_mean(np.concatenate(drawn))]),
            )
            cells.append(f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]")
        else:
            cells.append("–")
        rows.append([variant, *cells])
    titles = [title for _, title in TASKS.values()]
    return markdown_table(["", *titles, "all, over DQN's mean"], rows)


def draw(records: Sequence[Record], path: Path) -> None:
    """A panel for each game: the mean return of training episodes, the mean over seeds."""
    tasks = [task for task in TASKS if chosen(records, task=task)] or list(TASKS)[:1]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            2, 3, figsize=(10.5, 6.0), layout="constrained", squeeze=False
        )
        for axes, task in zip(panels.flat, tasks, strict=False):
            _panel(axes, task, chosen(records, task=task))
        for axes in panels.flat[len(tasks) :]:
            axes.axis("off")
        handles, labels = panels.flat[0].get_legend_handles_labels()
        panels.flat[-1].legend(handles, labels, loc="center", fontsize=10)
        figure.savefig(path)
        plt.close(figure)


def _panel(axes: Any, task: str, records: Sequence[Record]) -> None:
    for variant in VARIANTS:
        runs = [run for run in chosen(records, variant=variant) if is_scored(run)]
        if not runs:
            continue
        returns = np.array([run["training"] for run in runs], np.float64)  # None: NaN
        frames = runs[0]["env_steps"] * (np.arange(WINDOWS) + 0.5) / WINDOWS
        known = ~np.isnan(returns).any(axis=0)
        style = {"color": COLOURS[variant], "lw": 2.2 if variant in (PLAIN, RAINBOW) else 1.3}
        axes.plot(frames[known], returns[:, known].mean(axis=0), label=variant, **style)
    axes.set_title(TASKS[task][1])
    axes.set_xlabel("frames")
    axes.set_ylabel("return of training episodes")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M" if value else "0")
    axes.grid()


def report(results: Path, docs: Path) -> None:
    """Write docs/minatar.md and its picture."""
    described, records = campaign.read(results)
    draw(records, docs / "images" / "minatar.png")
    counts = {len(of_game(records, task, variant)) for task in TASKS for variant in VARIANTS} - {0}
    few = "Fewer than ten seeds prove little, and their intervals are too narrow."
    lines = [
        *machine_text(described),
        f"Mean return of the training episodes that ended in the last {LAST / WINDOWS:.0%} of a run"
        f" of {FRAMES:,} frames, exploration included: interquartile means over seeds, whose "
        "number is in brackets. The last column divides every score by DQN's mean on that game, "
        "and has the interquartile mean of all. Its interval holds 95 % of what the stratified "
        "bootstrap of [rliable](https://github.com/google-research/rliable) gives. "
        + (few if counts and min(counts) < 10 else ""),
        "",
        "![Returns by frames, by game and variant](images/minatar.png)",
        "",
        *table(records),
    ]
    write(docs / "minatar.md", "The parts of Rainbow", [*lines, *failures(records, IDENTITY)])


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
        seeds=10,
        any_machine=True,
    )


if __name__ == "__main__":
    main()
