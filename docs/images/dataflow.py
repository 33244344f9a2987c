"""Draws docs/images/dataflow.png: ``python docs/images/dataflow.py``."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BLUE, ORANGE, GREEN, GREY = "#2166ac", "#b35806", "#1b7837", "#555555"


def box(ax, x, y, width, height, title, lines, color):
    """Draw one worker or stream."""
    ax.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0.05", ec=color, fc=color + "14", lw=1.8
        )
    )
    ax.text(
        x + width / 2,
        y + height - 0.16,
        title,
        ha="center",
        va="top",
        color=color,
        weight="bold",
        fontsize=11,
    )
    ax.text(
        x + width / 2,
        y + height - 0.52,
        "\n".join(lines),
        ha="center",
        va="top",
        color="#222222",
        fontsize=8.5,
    )


def arrow(ax, start, end, text, where, color=GREY, style="-|>", bend=0.0):
    """Draw what flows from one to another."""
    shape = f"arc3,rad={bend}"
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle=style,
            mutation_scale=14,
            color=color,
            lw=1.6,
            connectionstyle=shape,
        )
    )
    ax.text(*where, text, ha="center", va="center", fontsize=8.5, color=color)


def main():
    """Draw it."""
    fig, ax = plt.subplots(figsize=(10.5, 4.5), layout="constrained")
    for shift in (0.16, 0.08):
        ax.add_patch(
            FancyBboxPatch(
                (0.1 + shift, 2.2 + shift), 2.6, 1.5, boxstyle="round,pad=0.05", ec=BLUE, fc="white"
            )
        )
        ax.add_patch(
            FancyBboxPatch(
                (7.6 + shift, 2.2 + shift),
                2.6,
                1.5,
                boxstyle="round,pad=0.05",
                ec=ORANGE,
                fc="white",
            )
        )
    for x in (0.1, 7.6):
        ax.add_patch(
            FancyBboxPatch((x, 2.2), 2.6, 1.5, boxstyle="round,pad=0.05", ec="white", fc="white")
        )
    actor = [
        "groups of environments take turns",
        "own copy of the policy, one thread",
        "n-step returns, first priorities",
        "one process each",
    ]
    box(ax, 0.1, 2.2, 2.6, 1.5, "actors 1 … N", actor, BLUE)
    replay = [
        "prioritized sum tree, shared memory",
        "rows written in place, no queue",
        "rate limiter: samples per insert",
        "held from both sides",
    ]
    box(ax, 3.85, 2.2, 2.6, 1.5, "replay stream", replay, GREEN)
    learner = [
        "each draws its part of the batch",
        "recorded gradient step",
        "gradients averaged over learners",
        "one process each",
    ]
    box(ax, 7.6, 2.2, 2.6, 1.5, "learners 1 … M", learner, ORANGE)
    box(
        ax,
        3.85,
        0.1,
        2.6,
        1.15,
        "parameter stream",
        ["the newest parameters, one row", "copied whole, when it has changed"],
        GREEN,
    )
    box(ax, 0.1, 0.1, 2.6, 1.15, "evaluator", ["plays fixed seeds, never explores"], BLUE)
    arrow(ax, (2.95, 2.95), (3.78, 2.95), "transitions", (3.36, 3.15))
    arrow(ax, (6.52, 3.15), (7.53, 3.15), "batches", (7.03, 3.35))
    arrow(ax, (7.53, 2.7), (6.52, 2.7), "priorities", (7.03, 2.5))
    arrow(ax, (8.9, 2.12), (6.52, 0.7), "publish", (8.75, 1.15), bend=-0.25)
    arrow(ax, (4.3, 1.32), (2.2, 2.12), "fetch if newer", (3.6, 1.95))
    arrow(ax, (3.78, 0.5), (2.77, 0.5), "", (0, 0))
    duties = "starts, watches, restarts and ends the workers; saves checkpoints; shows how it goes"
    text = f"supervisor: {duties}"
    ax.text(5.15, 4.2, text, ha="center", fontsize=9, color=GREY, style="italic")
    ax.set(xlim=(0, 10.5), ylim=(0, 4.4))
    ax.axis("off")
    path = Path(__file__).with_name("dataflow.png")
    fig.savefig(path, dpi=140)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
