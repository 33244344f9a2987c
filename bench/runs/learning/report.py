"""Draws bench/results/learning/ as docs/learning.md: `python -m bench.runs.learning.report`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.harness.paths import DOCS
from bench.harness.report import markdown_table, results_links, write
from bench.runs.learning import candidates, plots, scores
from bench.runs.learning.curves import BUFFERS, FIRST, NOW, UNIFORM
from bench.runs.learning.results import (
    RESULTS,
    Document,
    deviations,
    path_of,
    read,
    usual_versions,
)
from bench.runs.learning.scores import MEASURES, Aggregate, Comparison, Estimate
from bench.runs.learning.tasks import TASKS

FINAL = next(iter(MEASURES))
Comparisons = dict[str, dict[str, dict[str, Comparison]]]  # by buffer, measure and task


def text_of(estimate: Estimate, digits: int) -> str:
    """Write a figure with its interval."""
    value, low, high = (f"{number:.{digits}f}" for number in estimate)
    return f"{value} [{low} … {high}]"


def digits_of(name: str) -> int:
    """Return how many digits the returns of a task are written with."""
    low, high = TASKS[name].scale
    return 2 if high - low < 20 else 1


def cliffwalk_table(document: Document) -> list[str]:
    """One line per size: each method's median updates, and how many times fewer ours needs."""
    rows = []
    for n in sorted({run["n_states"] for run in document["runs"]}):
        runs = {run["method"]: run for run in document["runs"] if run["n_states"] == n}
        medians = {method: median(run["updates"]) for method, run in runs.items()}
        factors = [f"{medians[UNIFORM] / medians[method]:.1f}×" for method in (FIRST, NOW)]
        numbers = [f"{medians[method]:,.0f}" for method in plots.CLIFFWALK]
        rows.append([str(n), f"{runs[UNIFORM]['transitions']:,}", *numbers, *factors])
    heads = ["states", "transitions", *plots.CLIFFWALK]
    heads += [f"uniform / {method}" for method in (FIRST, NOW)]
    return markdown_table(heads, rows)


def verdict_table(compared: Comparisons) -> list[str]:
    """One line for each buffer and measure: the tasks on which it is above uniform, like it, …."""
    rows = []
    for buffer, by_measure in compared.items():
        for measure, found in by_measure.items():
            verdicts = {name: one.verdict for name, one in found.items()}
            groups = [
                ", ".join(name for name in verdicts if verdicts[name] == verdict) or "–"
                for verdict in (scores.ABOVE, scores.LIKE, scores.BELOW, scores.TOO_FEW)
            ]
            rows.append([buffer, measure, *groups])
    heads = ["above uniform", "like uniform", "below uniform", "too few seeds to say"]
    return markdown_table(["", "mean return over", *heads], rows)


def comparison_table(documents: Mapping[str, Document], compared: Comparisons) -> list[str]:
    """One line for each task and buffer: how it compares with uniform replay."""
    rows = []
    for name, document in documents.items():
        for buffer, by_measure in compared.items():
            if name not in by_measure[FINAL]:
                continue
            paired = scores.paired_difference(
                *(scores.scores_of(document, kind, FINAL) for kind in (buffer, UNIFORM))
            )
            difference = "no seed of both"
            if paired is not None:
                difference = f"{text_of(paired[0], digits_of(name))}, {paired[1]} pairs"
            rows.append(
                [
                    name,
                    buffer,
                    *(text_of(by_measure[measure][name].improvement, 2) for measure in MEASURES),
                    difference,
                ]
            )
    heads = [f"P(better than uniform), {measure}" for measure in MEASURES]
    return markdown_table(["", "", *heads, f"difference of means, {FINAL}"], rows)


def score_table(documents: Mapping[str, Document], buffers: Sequence[str]) -> list[str]:
    """Two lines for each task: the interquartile mean of every buffer and its interval."""
    odd, rows = deviations(documents), []
    for name, document in documents.items():
        for measure in MEASURES:
            cells = []
            for buffer in buffers:
                found = scores.scores_of(document, buffer, measure)
                if not found:
                    cells.append("–")
                    continue
                mark = "†" * any((name, buffer, seed) in odd for seed in found)
                text = text_of(scores.middle(found), digits_of(name))
                cells.append(f"{text}, {len(found)} seeds{mark}")
            rows.append([name, measure, *cells])
    return markdown_table(["", "mean return over", *buffers], rows)


def task_table(documents: Mapping[str, Document], buffers: Sequence[str]) -> list[str]:
    """One line for each task: what it is, how long a run takes, and how many runs diverged."""
    rows = []
    for name, document in documents.items():
        task, seconds = TASKS[name], [run["seconds"] for run in document["runs"]]
        diverged = []
        for buffer in buffers:
            n, of = scores.n_diverged(document, name, buffer)
            diverged.append(f"{n} of {of}" if of else "–")
        low, high = task.scale
        rows.append(
            [
                name,
                f"{task.algorithm}, {task.env}",
                task.variant or "the zoo's",
                f"{document['steps']:,}",
                f"{median(seconds) / 60:.0f}",
                f"{low:g}, {high:g}",
                *diverged,
            ]
        )
    heads = ["", "task", "settings", "steps", "minutes", "scale"]
    heads += [f"diverged: {buffer}" for buffer in buffers]
    return markdown_table(heads, rows)


def aggregate_table(over_all: Mapping[str, Mapping[str, Aggregate]]) -> list[str]:
    """One line for each buffer and measure: the scaled scores of all tasks together."""
    rows = [
        [
            buffer,
            measure,
            str(len(one.tasks)),
            str(one.n_runs),
            *(text_of(each, 2) for each in (one.middle, one.uniform, one.improvement)),
        ]
        for buffer, by_measure in over_all.items()
        for measure, one in by_measure.items()
    ]
    heads = ["tasks", "runs", "scaled score", "uniform on these tasks", "P(better than uniform)"]
    return markdown_table(["", "mean return over", *heads], rows)


def gradient_table(document: Document) -> list[str]:
    """One line for each way of drawing: what it does to the gradient of a batch."""
    rows = [
        [
            one["kind"],
            f"{one['cosine']:.3f}",
            f"{one['length']:.2f}",
            f"{one['distance']:.3f}",
            f"{one['distance_by_chance']:.3f}",
            f"{one['noise_over_length']:.2f}",
        ]
        for one in document["kinds"]
    ]
    heads = ["draws and weights", "cosine to the gradient of all rows", "length"]
    heads += ["distance from it", "by chance up to", "noise / length"]
    return markdown_table(heads, rows)


def picture(name: str, what: str) -> list[str]:
    """Return the lines that show a picture."""
    return [f"![{what}](images/{name}.png)", ""]


def campaign_lines(documents: Mapping[str, Document], images: Path) -> list[str]:
    """Return the sections on learning curves, and draw their pictures."""
    present = scores.buffers_of(documents)
    buffers = [buffer for buffer in BUFFERS if buffer in present]
    buffers += [buffer for buffer in present if buffer not in BUFFERS]
    one_step = [buffer for buffer in buffers if ", n =" not in buffer]
    others = [buffer for buffer in one_step if buffer != UNIFORM]
    compared = {
        buffer: {
            measure: scores.compare(documents, buffer, UNIFORM, measure) for measure in MEASURES
        }
        for buffer in others
    }
    over_all = {
        buffer: {
            measure: one
            for measure in MEASURES
            if (one := scores.aggregate(documents, buffer, UNIFORM, measure)) is not None
        }
        for buffer in others
    }
    n_tasks = max((len(one[FINAL].tasks) for one in over_all.values() if one), default=0)
    improvement = {
        buffer: {measure: one.improvement for measure, one in by_measure.items()}
        for buffer, by_measure in over_all.items()
        if by_measure and len(by_measure[FINAL].tasks) == n_tasks
    }
    plots.draw_improvement(compared, improvement, images / "improvement.png")
    plots.draw_curves(documents, one_step, images / "learning_curves.png")

    missing = [name for name in TASKS if name not in documents]
    lines = [
        "## Against uniform replay",
        "",
        *picture("improvement", "probability of improvement over uniform replay"),
        "Dots are the probability that a run is better than one of uniform replay, lines their "
        "95 % intervals; hollow dots have too few seeds for a verdict.",
        "",
        *verdict_table(compared),
        *([f"Not run yet: {', '.join(missing)}.", ""] if missing else []),
        *comparison_table(documents, compared),
        "## Over all tasks",
        "",
        *profile_lines(documents, one_step, images),
        *aggregate_table(over_all),
        *noise_lines(documents, images),
        "## Learning curves",
        "",
        *picture("learning_curves", "learning curves"),
        "Lines are means over seeds, bands their 95 % bootstrap intervals, dotted lines a good "
        "return. A panel ends as far below a random policy as the good return is above it.",
        "",
        *score_table(documents, one_step),
        *odd_lines(documents),
        "## The tasks",
        "",
        *task_table(documents, buffers),
    ]
    return lines + n_step_lines(documents, buffers, images)


def profile_lines(
    documents: Mapping[str, Document], buffers: Sequence[str], images: Path
) -> list[str]:
    """Return the lines on performance profiles, and draw them for the buffers with all tasks."""
    aggregated = {
        name: document
        for name, document in documents.items()
        if TASKS[name].is_aggregated and scores.scores_of(document, UNIFORM, FINAL)
    }
    whole = [
        buffer
        for buffer in buffers
        if all(scores.scores_of(document, buffer, FINAL) for document in aggregated.values())
    ]
    if not aggregated:
        return []
    plots.draw_profiles(aggregated, whole, images / "performance_profiles.png")
    partial = [buffer for buffer in buffers if buffer not in whole]
    without = f" Without runs of some task, and so not in it: {'; '.join(partial)}."
    return [
        *picture("performance_profiles", "performance profiles"),
        f"The picture is over {len(aggregated)} tasks: {', '.join(aggregated)}."
        + without * bool(partial),
        "",
    ]


def noise_lines(documents: Mapping[str, Document], images: Path) -> list[str]:
    """Return the section on where the buffer that decides it prioritized, and draw its picture."""
    some = {
        name: document
        for name, document in documents.items()
        if len(scores.at_evaluations(document, NOW, "least_noise"))
    }
    if not some:
        return []
    plots.draw_least_noise(some, images / "least_noise.png")
    rows = []
    for name, document in some.items():
        noise = scores.at_evaluations(document, NOW, "least_noise")
        prioritized = np.mean(scores.at_evaluations(document, NOW, "uniform_shares") < 1)
        quartiles = (f"{part:.2f}" for part in np.nanquantile(noise, [0.25, 0.5, 0.75]))
        alike, both = scores.n_alike(document, NOW, UNIFORM)
        same = f"{alike} of {both}"
        rows.append([name, str(len(noise)), f"{prioritized:.0%}", *quartiles, same])
    heads = ["seeds", "prioritized", "least noise: lower quartile", "median", "upper quartile"]
    heads += ["all evaluations as of uniform"]
    return [
        "## Where it prioritized",
        "",
        *picture("least_noise", "least noise of batches, by task"),
        f'Of "{NOW}": at how many of the evaluations it drew by priority, and the least noise that '
        "it knew of. Bands are from the smallest to the largest of the seeds. A run that never "
        "draws by priority is that of uniform replay with the same seed, evaluation by evaluation.",
        "",
        *markdown_table(["", *heads], rows),
    ]


def n_step_lines(
    documents: Mapping[str, Document], buffers: Sequence[str], images: Path
) -> list[str]:
    """Return the section on n-step returns, if there are runs with them, and draw its picture."""
    kinds = {buffer: buffer.split(", n =")[0] for buffer in buffers if ", n =" in buffer}
    if not kinds:
        return []
    some = {
        name: document
        for name, document in documents.items()
        if any(scores.scores_of(document, buffer, FINAL) for buffer in kinds)
    }
    factors = [buffer for buffer in buffers if buffer in {*kinds, *kinds.values()}]
    plots.draw_curves(some, factors, images / "n_step.png")
    # what n does with the same priorities, and what priorities do with the same n
    pairs = [
        *kinds.items(),
        *((buffer, buffer.replace(kinds[buffer], UNIFORM)) for buffer in kinds),
    ]
    rows = [
        [ours, theirs, measure, str(len(one.tasks)), str(one.n_runs), text_of(one.improvement, 2)]
        for ours, theirs in pairs
        for measure in MEASURES
        if ours != theirs and (one := scores.aggregate(some, ours, theirs, measure)) is not None
    ]
    heads = ["", "against", "mean return over", "tasks", "runs", "P(better)"]
    seeds = [
        len(found)
        for document in some.values()
        for buffer in kinds
        if (found := scores.scores_of(document, buffer, FINAL))
    ]
    few = (
        [f"With {min(seeds)} seeds a task this shows a direction, and gives no verdict.", ""]
        if min(seeds) < scores.ENOUGH
        else []
    )
    return [
        "## Priorities and n-step returns",
        "",
        *few,
        *picture("n_step", "learning curves with n-step returns"),
        *markdown_table(heads, rows),
        *score_table(some, factors),
    ]


def odd_lines(documents: Mapping[str, Document]) -> list[str]:
    """Return which runs have other versions or settings than most."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for (name, buffer, seed), how in deviations(documents).items():
        groups.setdefault((name, buffer, how), []).append(seed)
    lines = [
        f"- † {name}, {buffer}, seed {', '.join(map(str, sorted(seeds)))}: {how}."
        for (name, buffer, how), seeds in groups.items()
    ]
    return [*lines, ""] if lines else []


def load(name: str) -> dict[str, Any] | None:
    """Return a results file that is not of a campaign."""
    path = path_of(RESULTS, name)
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    """Write docs/learning.md and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its images are")
    docs = parser.parse_args().docs
    images = docs / "images"
    lines: list[str] = []
    used: list[str] = []
    if cliffwalk := load("cliffwalk"):
        used.append("cliffwalk")
        plots.draw_cliffwalk(cliffwalk, images / "cliffwalk.png")
        table = cliffwalk_table(cliffwalk)
        lines += ["## Blind Cliffwalk", "", *picture("cliffwalk", "Blind Cliffwalk"), *table]
    documents = {
        name: document for name in TASKS if (document := read(path_of(RESULTS, name))) is not None
    }
    if documents:
        used += documents
        versions = usual_versions(documents)
        lines += [
            *campaign_lines(documents, images),
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            "",
        ]
    if tried := candidates.read(path_of(RESULTS, "candidates")):
        used.append("candidates")
        candidates.draw(tried, images / "candidates.png")
        lines += [
            "## What was tried",
            "",
            *picture("candidates", "what was tried"),
            f"Mean return over {FINAL}, and in brackets the number of seeds. ✕2 means that two of "
            "them diverged; * marks runs of another length than most of that task. The mean gain "
            "is the distance from uniform replay on the scale of each task, cut at ±1.",
            "",
            *candidates.table(tried),
        ]
    if gradients := load("gradients_lunarlander"):
        used.append("gradients_lunarlander")
        lines += [
            "## Gradients in the middle of a run",
            "",
            f"DQN on LunarLander-v3 after {gradients['steps']:,} steps, seed {gradients['seed']}. "
            f"Its priorities leave {gradients['share']:.0%} of all rows as effective sample size. "
            f"Means are over {gradients['batches']:,} batches; lengths and distances are shares of "
            "the length of the gradient of all rows. Chance takes 95 % of such means no farther "
            "than the bootstrap over batches says.",
            "",
            *gradient_table(gradients),
        ]
    links = results_links(f"learning/{name}.json" for name in used)
    write(docs / "learning.md", "Does it learn?", [*lines, f"Every run: {links}.", ""])


if __name__ == "__main__":
    main()
