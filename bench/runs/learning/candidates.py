"""What was tried: many variants of replay on some tasks, as one table and one picture.

bench/results/learning/candidates.json is an object with two entries. ``runs`` is a list of
``{"task": "lunarlander", "variant": "rank", "seed": 0, "returns": [...], "values": [...]}`` with
the return of every evaluation and what the learner believed its first observations were worth;
``values`` may be left out. ``variants`` says in a few words what each variant is:
``{"rank": "priorities by rank"}``. The variant named "uniform" is what the others are compared to.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from bench.harness.plots import GREY, STYLE
from bench.harness.report import markdown_table
from bench.runs.learning.curves import UNIFORM
from bench.runs.learning.scores import LAST
from bench.runs.learning.tasks import TASKS

Document = dict[str, Any]


class Cell(NamedTuple):
    """What a variant reached on a task."""

    score: float  # mean return of the last evaluations, over seeds
    n_seeds: int
    n_diverged: int
    is_odd: bool  # some run has another number of evaluations than most of the task

    @property
    def text(self) -> str:
        """Return the score, the diverged seeds if there are any, and a mark if it is odd."""
        digits = 2 if abs(self.score) < 10 else 0
        diverged = f" ✕{self.n_diverged}" if self.n_diverged else ""
        return f"{self.score:,.{digits}f}{'*' * self.is_odd}{diverged}"


def read(path: Path) -> Document | None:
    """Return the runs of a file, all of them on tasks that there are."""
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    for run in document["runs"]:
        if run["task"] not in TASKS:
            raise ValueError(
                f"{path.name} has a run on {run['task']!r}; the tasks are {', '.join(TASKS)}"
            )
        if not run["returns"]:
            raise ValueError(
                f"{path.name} has no returns of {run['variant']!r} on {run['task']}, "
                f"seed {run['seed']}: leave that run out"
            )
    return document


def cells(document: Document) -> dict[str, dict[str, Cell]]:
    """Return the cells of every variant by task; the best variant comes first, after uniform."""
    runs = document["runs"]
    tasks = [name for name in TASKS if any(run["task"] == name for run in runs)]
    lengths = {
        name: Counter(len(run["returns"]) for run in runs if run["task"] == name).most_common(1)
        for name in tasks
    }
    found: dict[str, dict[str, Cell]] = {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        for name in tasks:
            own = [run for run in runs if (run["task"], run["variant"]) == (name, variant)]
            if own:
                found.setdefault(variant, {})[name] = Cell(
                    float(np.mean([np.mean(run["returns"][-LAST:]) for run in own])),
                    len(own),
                    sum(TASKS[name].is_diverged(run.get("values") or ()) for run in own),
                    any(len(run["returns"]) != lengths[name][0][0] for run in own),
                )
    return dict(
        sorted(found.items(), key=lambda item: (item[0] != UNIFORM, -advantage(found, item[0])))
    )


def gain(found: dict[str, dict[str, Cell]], variant: str, name: str) -> float:
    """Return how far a variant is above uniform replay, on the task's scale, from -1 to 1."""
    base = found.get(UNIFORM, {}).get(name)
    low, high = TASKS[name].scale
    zero = base.score if base else low
    return float(np.clip((found[variant][name].score - zero) / (high - low), -1, 1))


def advantage(found: dict[str, dict[str, Cell]], variant: str) -> float:
    """Return the mean gain over the tasks that a variant was run on."""
    return float(np.mean([gain(found, variant, name) for name in found[variant]]))


def table(document: Document) -> list[str]:
    """One line for each variant, one column for each task."""
    found = cells(document)
    tasks = [name for name in TASKS if any(name in row for row in found.values())]
    rows = []
    for variant, row in found.items():
        texts = [
            f"{row[name].text} ({row[name].n_seeds})" if name in row else "–" for name in tasks
        ]
        what = document.get("variants", {}).get(variant, "")
        rows.append([variant, what, f"{advantage(found, variant):+.2f}", *texts])
    return markdown_table(["variant", "what it is", "mean gain", *tasks], rows)


def draw(document: Document, path: Path) -> None:
    """A field for each variant and task, coloured by how far it is from uniform replay."""
    found = cells(document)
    tasks = [name for name in TASKS if any(name in row for row in found.values())]
    gains = np.full((len(found), len(tasks)), np.nan)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            figsize=(2.6 + 0.95 * len(tasks) + 1.0, 1.3 + 0.3 * len(found)), layout="constrained"
        )
        for y, (variant, row) in enumerate(found.items()):
            for x, name in enumerate(tasks):
                if name not in row:
                    axes.text(x, y, "not run", ha="center", va="center", color="#BBBBBB", size=7)
                    continue
                gains[y, x] = gain(found, variant, name)
                colour = "white" if abs(gains[y, x]) > 0.6 else "black"
                axes.text(x, y, row[name].text, ha="center", va="center", color=colour, size=8)
        field = axes.imshow(gains, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axes.set_xticks(range(len(tasks)), tasks, rotation=30, ha="left")
        labels = [f"{variant}   {advantage(found, variant):+.2f}" for variant in found]
        axes.set_yticks(range(len(found)), labels)
        axes.xaxis.tick_top()
        axes.set_xlabel(
            "beside the names: mean gain over uniform; ✕2: two seeds diverged", color=GREY
        )
        axes.xaxis.set_label_position("bottom")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks(np.arange(len(tasks)) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(found)) - 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=2)
        axes.tick_params(which="minor", length=0)
        bar = figure.colorbar(field, ax=axes, ticks=[-1, 0, 1], aspect=30)
        bar.ax.set_yticklabels(["far worse", "like uniform", "far better"])
        bar.outline.set_visible(False)
        figure.savefig(path)
        plt.close(figure)
