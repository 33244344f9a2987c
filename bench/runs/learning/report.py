"""Draws bench/results/learning/ as docs/learning.md: `python -m bench.runs.learning.report`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from bench.harness.paths import DOCS
from bench.harness.plots import BLUE, GREEN, GREY, ORANGE, STYLE
from bench.harness.report import markdown_table, results_links, write
from bench.runs.learning.curves import BUFFERS, FIRST, PLAIN, UNIFORM
from bench.runs.learning.results import RESULTS

TASKS = ("cartpole", "pendulum", "lunarlander", "lunarlander_gentle")
COLOURS = {"uniform": GREY, "prioritized": BLUE, "oracle": GREEN}  # of Cliffwalk
CURVES = {UNIFORM: GREY, FIRST: BLUE, "beta = 1": GREEN, PLAIN: ORANGE}
LAST = 5  # evaluations that make the final return
SAMPLES = 10_000  # of the bootstrap


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def curves(document: dict[str, Any], buffer: str) -> np.ndarray:
    """Mean return of every evaluation, [seeds, evaluations]."""
    return np.array([run["returns"] for run in document["runs"] if run["buffer"] == buffer])


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over seeds."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (SAMPLES, len(values)))].mean(axis=1)
    return tuple(np.quantile(means, [0.025, 0.975]))


def draw_cliffwalk(document: dict[str, Any], path: Path) -> None:
    """Median updates against transitions, log-log, with the range over seeds."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.2, 4.2), layout="constrained")
        for method, colour in COLOURS.items():
            runs = [run for run in document["runs"] if run["method"] == method]
            xs = [run["transitions"] for run in runs]
            axes.fill_between(
                xs,
                [min(r["updates"]) for r in runs],
                [max(r["updates"]) for r in runs],
                color=colour,
                alpha=0.2,
                lw=0,
            )
            axes.plot(
                xs,
                [median(r["updates"]) for r in runs],
                "o-",
                color=colour,
                ms=4,
                lw=1.8,
                label=method,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("transitions in the replay memory (2 to 16 states)")
        axes.set_ylabel("updates until solved")
        axes.set_title("Blind Cliffwalk: median of 10 seeds, smallest to largest shaded")
        axes.grid()
        axes.legend()
        figure.savefig(path)
        plt.close(figure)


def draw_curves(documents: dict[str, dict[str, Any]], path: Path) -> None:
    """Two panels in a row: mean over seeds, band of one standard error, single seeds faint."""
    n_rows = -(-len(documents) // 2)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            n_rows, 2, figsize=(9.0, 3.2 * n_rows), layout="constrained", squeeze=False
        )
        for axes in grid.flat[len(documents) :]:
            axes.axis("off")
        for axes, document in zip(grid.flat, documents.values(), strict=False):
            for buffer in BUFFERS:
                returns, colour = curves(document, buffer), CURVES[buffer]
                if not len(returns):
                    continue
                steps = document["runs"][0]["steps"]
                middle, error = (
                    returns.mean(axis=0),
                    returns.std(axis=0, ddof=1) / np.sqrt(len(returns)),
                )
                axes.plot(steps, returns.T, color=colour, lw=0.6, alpha=0.25)
                axes.fill_between(
                    steps, middle - error, middle + error, color=colour, alpha=0.25, lw=0
                )
                axes.plot(
                    steps, middle, color=colour, lw=2, label=f"{buffer}, {len(returns)} seeds"
                )
            axes.set_title(f"{document['algorithm']}, {document['env']}" + _variant(document))
            axes.set_xlabel("environment steps")
            axes.grid()
            axes.legend(fontsize=8)
        for axes in grid[:, 0]:
            axes.set_ylabel("mean return of the greedy policy")
        figure.savefig(path)
        plt.close(figure)


def _variant(document: dict[str, Any]) -> str:
    return f"\n{document['variant']}" if document.get("variant") else ""


def cliffwalk_table(document: dict[str, Any]) -> list[str]:
    """One line per size: each method's median updates, and how many times fewer ours needs."""
    rows = []
    for n in sorted({run["n_states"] for run in document["runs"]}):
        runs = {run["method"]: run for run in document["runs"] if run["n_states"] == n}
        medians = {method: median(run["updates"]) for method, run in runs.items()}
        factor = medians["uniform"] / medians["prioritized"]
        numbers = [f"{medians[method]:,.0f}" for method in COLOURS]
        rows.append([str(n), f"{runs['uniform']['transitions']:,}", *numbers, f"{factor:.1f}×"])
    return markdown_table(["states", "transitions", *COLOURS, "uniform / prioritized"], rows)


def curve_table(documents: dict[str, dict[str, Any]]) -> list[str]:
    """Final return and mean return of each buffer: mean over seeds and its 95 % interval."""
    rows = []
    buffers = [
        name for name in BUFFERS if any(len(curves(one, name)) for one in documents.values())
    ]
    for document in documents.values():
        task = f"{document['algorithm']}, {document['env']}{_variant(document)}".replace("\n", ", ")
        seeds = len(curves(document, UNIFORM))
        for title, reduce in (
            (f"last {LAST} evaluations", lambda r: r[:, -LAST:]),
            ("all evaluations", lambda r: r),
        ):
            cells = []
            for buffer in buffers:
                returns = curves(document, buffer)
                if not len(returns):
                    cells.append("–")
                    continue
                values = reduce(returns).mean(axis=1)
                low, high = interval(values)
                of = "" if len(values) == seeds else f", {len(values)} seeds"
                cells.append(f"{mean(values):.1f} [{low:.1f} … {high:.1f}]{of}")
            rows.append([task, f"{document['steps']:,}", str(seeds), title, *cells])
    return markdown_table(["", "steps", "seeds", "mean return over", *buffers], rows)


def gradient_table(document: dict[str, Any]) -> list[str]:
    """One line for each way of drawing: what it does to the gradient of a batch."""
    rows = [
        [
            one["kind"],
            f"{one['cosine']:.3f}",
            f"{one['length']:.2f}",
            f"{one['noise_over_length']:.2f}",
        ]
        for one in document["kinds"]
    ]
    heads = ["draws and weights", "cosine to the gradient of all rows", "length", "noise / length"]
    return markdown_table(heads, rows)


def main() -> None:
    """Write docs/learning.md and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its images are")
    docs = parser.parse_args().docs
    lines: list[str] = []
    cliffwalk = load("cliffwalk")
    if cliffwalk:
        draw_cliffwalk(cliffwalk, docs / "images" / "cliffwalk.png")
        lines += [
            "## Blind Cliffwalk",
            "",
            "![Blind Cliffwalk](images/cliffwalk.png)",
            "",
            *cliffwalk_table(cliffwalk),
        ]
    documents = {name: document for name in TASKS if (document := load(name)) is not None}
    if documents:
        draw_curves(documents, docs / "images" / "learning_curves.png")
        lines += [
            "## Learning curves",
            "",
            "![learning curves](images/learning_curves.png)",
            "",
            *curve_table(documents),
        ]
        first = next(iter(documents.values()))
        versions = first.get("versions") or first["runs"][0]["versions"]
        lines += [
            "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            "",
        ]
    gradients = load("gradients_lunarlander")
    if gradients:
        lines += [
            "## Gradients in the middle of a run",
            "",
            f"DQN on LunarLander-v3 after {gradients['steps']:,} steps, seed {gradients['seed']}. "
            f"Its priorities leave {gradients['share']:.0%} of all rows as effective sample size.",
            "",
            *gradient_table(gradients),
        ]
    names = [
        f"learning/{name}.json"
        for name in ["cliffwalk"] * (cliffwalk is not None)
        + list(documents)
        + ["gradients_lunarlander"] * (gradients is not None)
    ]
    lines += [f"Every run: {results_links(names)}.", ""]
    write(docs / "learning.md", "Does it learn?", lines)


if __name__ == "__main__":
    main()
