"""Writes docs/inference_benchmarks.md and its pictures: `python -m bench.runs.inference_report`.

The page is made of the results of `bench.runs.inference`, without a GPU and with one
(inference_gpu.json), and of `bench.runs.optimization`: of those that there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import pyplot as plt

from bench.harness import campaign
from bench.harness.campaign import Record, chosen, number, quartiles, spread
from bench.harness.paths import DOCS, RESULTS
from bench.harness.plots import BLUE, GREEN, ORANGE, STYLE
from bench.harness.report import machine_text, machine_title, markdown_table, write
from bench.runs import inference, optimization
from bench.runs.inference import CASES, GRID, LOCAL, NAMES, ONE, TWO, VARIANTS

PARTS = "inference", "inference_gpu", "optimization"
COLOURS = dict(zip(VARIANTS, (ORANGE, BLUE, GREEN), strict=True))
SHARED_CORES = 0.1  # used by others: with more the figures are provisional


# --------------------------------------------------------------------------------------- inference


def values(runs: Sequence[Record], variant: str, key: str, place: int | None = None) -> list[float]:
    """Return a figure of a variant in all repetitions; in some, one of several percentiles."""
    found = [run["found"][variant][key] for run in runs if variant in run["found"]]
    return found if place is None else [each[place] for each in found]


def ratio(runs: Sequence[Record], over: str, under: str) -> tuple[float, float, float]:
    """Return the lower quartile of a ratio of rates by repetition, that of medians, the upper."""
    rates = [values(runs, variant, "env_steps_per_second") for variant in (over, under)]
    low, _, high = quartiles([a / b for a, b in zip(*rates, strict=True)])
    return low, median(rates[0]) / median(rates[1]), high


def ratio_text(runs: Sequence[Record], over: str, under: str) -> str:
    """Write a ratio, and its quartiles in brackets; nothing where one side has not run."""
    if not (values(runs, over, "answers") and values(runs, under, "answers")):
        return ""
    low, middle, high = ratio(runs, over, under)
    return f"{middle:.2f}× [{low:.2f}–{high:.2f}]"


def places(records: Sequence[Record], tasks: Any) -> list[tuple[str, list[Record]]]:
    """Return the runs of each task with each number of environments."""
    found = []
    for name in tasks:
        for n_envs in sorted({record["n_envs"] for record in chosen(records, task=name)}):
            found.append((name, chosen(records, task=name, n_envs=n_envs)))
    return found


def rates_table(records: Sequence[Record], tasks: Any) -> list[str]:
    """Environment steps per second, and how many times those of the actor itself they are."""
    rows = []
    for name, runs in places(records, tasks):
        rates = [values(runs, variant, "env_steps_per_second") for variant in VARIANTS]
        rows.append(
            [
                tasks[name].label,
                str(runs[0]["n_envs"]),
                *(number(median(each)) if each else "" for each in rates),
                ratio_text(runs, ONE, LOCAL),
                ratio_text(runs, TWO, LOCAL),
                ratio_text(runs, TWO, ONE),
            ]
        )
    head = ["", "environments", *NAMES.values()]
    ratios = ["one group / itself", "two groups / itself", "two groups / one"]
    return markdown_table([*head, *ratios], rows)


def answers_table(records: Sequence[Record], tasks: Any) -> list[str]:
    """How long answers took, how long actors waited for them, and what was answered together."""
    rows = []
    for name, runs in places(records, tasks):
        for variant in VARIANTS:
            if values(runs, variant, "answers"):
                rows.append(
                    [
                        tasks[name].label,
                        str(runs[0]["n_envs"]),
                        NAMES[variant],
                        percentiles(runs, variant, "answer_microseconds"),
                        percentiles(runs, variant, "waited_microseconds"),
                        together(runs, variant),
                    ]
                )
    head = ["", "environments", "who", "request to collection, µs", "of these waited, µs"]
    return markdown_table([*head, "rows together"], rows)


def percentiles(runs: Sequence[Record], variant: str, key: str) -> str:
    """Write the medians, over repetitions, of the 50th, 95th and 99th percentile."""
    return " / ".join(number(median(values(runs, variant, key, place))) for place in range(3))


def together(runs: Sequence[Record], variant: str) -> str:
    """Write which shares of the passes through the networks had so many rows."""
    passes: dict[int, int] = {}
    for found in values(runs, variant, "rows_together"):
        for n, count in found.items():
            passes[int(n)] = passes.get(int(n), 0) + count
    whole = sum(passes.values())
    shares = {n: count / whole for n, count in sorted(passes.items()) if count / whole >= 0.005}
    return ", ".join(f"{n}: {share:.0%}" for n, share in shares.items())


def verdict(records: Sequence[Record]) -> list[str]:
    """Say in how many cases the policy worker was faster, and where most and least."""
    lines = []
    sides = ((ONE, LOCAL, "one group"), (TWO, LOCAL, "two groups"), (TWO, ONE, ""))
    for over, under, how in sides:
        found = [
            (ratio(runs, over, under)[1], f"{inference.TASKS[name].label}, {runs[0]['n_envs']}")
            for name, runs in places(records, inference.TASKS)
            if values(runs, over, "answers") and values(runs, under, "answers")
        ]
        if not found:
            continue
        who = f"A policy worker with {how}" if how else "With two groups instead of one, it"
        than = "than the actor itself" if how else ""
        n_faster = sum(factor > 1 for factor, _ in found)
        (least, worst), (most, best) = min(found), max(found)
        lines.append(
            f"- {who} was faster {than}".rstrip()
            + f" in {n_faster} of {len(found)} cases: from {least:.2f}× ({worst} environments) to "
            f"{most:.2f}× ({best} environments)."
        )
    return [*lines, ""]


def draw_grid(records: Sequence[Record], path: Path) -> None:
    """Rates, and what actors waited for an answer, against the number of environments."""
    tasks = [name for name in GRID if chosen(records, task=name)]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            2, len(tasks), figsize=(3.4 * len(tasks), 6), layout="constrained", squeeze=False
        )
        for (above, below), name in zip(panels.T, tasks, strict=True):
            runs = chosen(records, task=name)
            for variant in VARIANTS:
                _rates(above, runs, variant)
                _waits(below, runs, variant)
            sizes = sorted({run["n_envs"] for run in runs})
            for axes in (above, below):
                axes.set_xscale("log", base=2)
                axes.set_yscale("log")
                axes.set_xticks(sizes, [str(size) for size in sizes])
                axes.set_xlabel("environments")
                for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                    ticks(lambda value, _: f"{value:,.0f}")
                axes.grid()
            above.set_title(GRID[name].label)
        panels[0, 0].set_ylabel("environment steps/s")
        panels[1, 0].set_ylabel("µs that an actor waited for an answer:\nmedian, 95 % dashed")
        handles = panels[0, 0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3)
        figure.savefig(path)
        plt.close(figure)


def _by_size(runs: Sequence[Record], variant: str) -> list[tuple[int, list[Record]]]:
    sizes = sorted({run["n_envs"] for run in runs if variant in run["found"]})
    return [(size, chosen(runs, n_envs=size)) for size in sizes]


def _rates(axes: Any, runs: Sequence[Record], variant: str) -> None:
    some, colour = _by_size(runs, variant), COLOURS[variant]
    found = [quartiles(values(each, variant, "env_steps_per_second")) for _, each in some]
    if not found:
        return
    low, middle, high = zip(*found, strict=True)
    sizes = [size for size, _ in some]
    axes.fill_between(sizes, low, high, color=colour, alpha=0.2, lw=0)
    axes.plot(sizes, middle, "o-", color=colour, lw=1.8, label=NAMES[variant])


def _waits(axes: Any, runs: Sequence[Record], variant: str) -> None:
    some, colour = _by_size(runs, variant), COLOURS[variant]
    for place, style in ((0, "o-"), (1, "--")):
        waits = [median(values(each, variant, "waited_microseconds", place)) for _, each in some]
        axes.plot([size for size, _ in some], waits, style, color=colour, lw=1.8)


def draw_cases(records: Sequence[Record], path: Path) -> bool:
    """Horizontal bars: rates of the other tasks, those of the actor itself being 1."""
    some = places(records, CASES)
    if not some:
        return False
    labels = [f"{CASES[name].label}; {runs[0]['n_envs']} envs" for name, runs in some]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.5, 0.42 * len(some) + 1.1), layout="constrained")
        for offset, variant in ((-0.2, ONE), (0.2, TWO)):
            found = [ratio(runs, variant, LOCAL) for _, runs in some]
            rows = [y + offset for y in range(len(some))]
            middles = [middle for _, middle, _ in found]
            ends = [
                [max(middle - low, 0.0) for low, middle, _ in found],
                [max(high - middle, 0.0) for _, middle, high in found],
            ]
            label = NAMES[variant]
            axes.barh(rows, middles, 0.38, color=COLOURS[variant], label=label)
            axes.errorbar(middles, rows, xerr=ends, fmt="none", color="#333333", lw=0.9)
        axes.axvline(1, color="#333333", lw=0.8)
        axes.set_yticks(range(len(some)), labels)
        axes.invert_yaxis()
        axes.set_xlabel("environment steps/s, the actor itself = 1; the thin line spans quartiles")
        axes.grid(axis="x")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.savefig(path)
        plt.close(figure)
    return True


def inference_lines(
    described: dict[str, Any], records: Sequence[Record], docs: Path, name: str
) -> list[str]:
    """Write the part about inference on one machine, and draw its pictures."""
    good = [record for record in records if "error" not in record]
    lines = [
        f"## Who says what the networks say: {machine_title(described)}",
        "",
        *machine_text(described),
        *provisional(described),
        f"Environment steps per second over {inference.SECONDS:g} s "
        f"({inference.LONG_SECONDS:g} s where convolutions learn), medians of "
        f"{len({record['seed'] for record in records})} interleaved repetitions. Convolutions are "
        "on images of 4 × 84 × 84 bytes. Of ratios the "
        "brackets have the quartiles over repetitions. Of times there are the 50th, 95th and 99th "
        "percentile, each the median over repetitions. Rows together: which share of the passes "
        "through the networks had so many.",
        "",
        *(verdict(good) if good else []),
    ]
    if chosen_of(good, GRID):
        draw_grid(good, docs / "images" / f"{name}.png")
        lines += ["### Numbers of environments", ""]
        lines += [f"![Numbers of environments](images/{name}.png)", ""]
        lines += [*rates_table(good, GRID), *answers_table(good, GRID)]
    if draw_cases(good, docs / "images" / f"{name}_cases.png"):
        lines += ["### Costly steps, more actors, learning", ""]
        lines += [f"![Costly steps, more actors, learning](images/{name}_cases.png)", ""]
        lines += [*rates_table(good, CASES), *answers_table(good, CASES)]
    return [*lines, *campaign.failures(records, inference.IDENTITY)]


def chosen_of(records: Sequence[Record], tasks: Any) -> list[Record]:
    """Return the runs of some tasks."""
    return [record for record in records if record["task"] in tasks]


# ------------------------------------------------------------------------------------ optimization


def optimization_lines(described: dict[str, Any], records: Sequence[Record]) -> list[str]:
    """Write the part about several learners."""
    lines = [
        "## Learners that wait for each other, and that do not",
        "",
        *machine_text(described),
        *provisional(described),
        f"Medians over {len({record['seed'] for record in records})} seeds, in brackets the "
        "quartiles; what is largest is so over all seeds. Waited: the share of the run that a "
        "learner waited for rows, or for the first learner to begin an update. With each other: "
        "the share that it spent in averages of gradients, the wait at their barrier included, or "
        "in exchanges with the shared weights. Updates between: those of others between two "
        "exchanges of a learner. Staleness: updates between the choice of an action and that which "
        "learns from it. The final return is that of 20 greedy episodes with the last parameters.",
        "",
    ]
    for task, (algorithm, _, env, *_) in optimization.TASKS.items():
        if some := [run for run in chosen(records, task=task) if "error" not in run]:
            lines += [f"### {algorithm.upper()}, {env}", "", *against_others(some)]
            lines += optimization_table(some)
    return [*lines, *campaign.failures(records, optimization.IDENTITY)]


def against_others(records: Sequence[Record]) -> list[str]:
    """Say how many updates asynchronous learners do for each of the others."""
    rates = {
        variant: median(run["updates_per_second"] for run in runs)
        for variant in optimization.VARIANTS
        if (runs := chosen(records, variant=variant))
    }
    if len(rates) < len(optimization.VARIANTS):
        return []
    apart = rates[optimization.APART]
    together, alone = (apart / rates[name] for name in (optimization.TOGETHER, optimization.ALONE))
    return [
        f"Asynchronous learners did {together:.2f}× as many updates per second as synchronous "
        f"ones, and {alone:.2f}× as many as one learner.",
        "",
    ]


def optimization_table(records: Sequence[Record]) -> list[str]:
    """One line per variant."""
    rows = []
    for variant in optimization.VARIANTS:
        runs = chosen(records, variant=variant)
        if not runs:
            continue
        shares = [run["together_seconds"] / run["wall_seconds"] for run in runs]
        rows.append(
            [
                variant,
                f"{median(run['env_steps'] for run in runs):,.0f}",
                f"{median(run['updates'] for run in runs):,.0f}",
                spread([run["updates_per_second"] for run in runs]),
                f"{median(run['waited']['learners'] for run in runs):.0%}",
                f"{median(shares):.0%}",
                mean_and_most(runs, "between"),
                mean_and_most(runs, "staleness"),
                number(median(run.get("dropped_steps", 0.0) for run in runs)),
                spread([run["final_return"] for run in runs]),
            ]
        )
    head = ["", "env steps", "updates", "updates/s", "waited", "with each other"]
    means = ["updates between: mean, largest", "staleness: mean, largest", "steps dropped"]
    return markdown_table([*head, *means, "final return"], rows)


def mean_and_most(runs: Sequence[Record], key: str) -> str:
    """Write a mean and a largest number, or that there is no such thing."""
    if key not in runs[0]:
        return "none: replay"
    mean = median(run[key] for run in runs)
    return f"{mean:.2f}, {max(run[f'most_{key}'] for run in runs):.0f}"


# -------------------------------------------------------------------------------------------- page


def provisional(described: dict[str, Any]) -> list[str]:
    """Say so if other processes had a part of the cores."""
    if described.get("cores_used_by_others", 0.0) <= SHARED_CORES:
        return []
    return ["**Provisional:** other processes were at work on the same cores.", ""]


def main() -> None:
    """Read the arguments, write the page and the pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.inference_report", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "results",
        nargs="?",
        type=Path,
        default=RESULTS / "inference.json",
        help="one of the files of results; the others are looked for beside it",
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its images are")
    arguments = parser.parse_args()
    (arguments.docs / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for part in PARTS:
        path = arguments.results.with_name(f"{part}.json")
        if path.exists():
            described, records = campaign.read(path)
            lines += (
                optimization_lines(described, records)
                if part == "optimization"
                else inference_lines(described, records, arguments.docs, part)
            )
    title = "Policy workers and asynchronous learners"
    write(arguments.docs / "inference_benchmarks.md", title, lines)


if __name__ == "__main__":
    main()
