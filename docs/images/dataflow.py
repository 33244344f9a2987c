"""Draws docs/images/dataflow*.png: ``python docs/images/dataflow.py``."""

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


def stack(ax, x, y, title, lines, color):
    """Draw one of several workers in front of the others."""
    size = {"boxstyle": "round,pad=0.05", "ec": color, "fc": "white"}
    for shift in (0.16, 0.08):
        ax.add_patch(FancyBboxPatch((x + shift, y + shift), 2.6, 1.5, **size))
    ax.add_patch(FancyBboxPatch((x, y), 2.6, 1.5, **{**size, "ec": "white"}))
    box(ax, x, y, 2.6, 1.5, title, lines, color)


def canvas():
    """Return a figure with what all of these have."""
    fig, ax = plt.subplots(figsize=(10.5, 4.5), layout="constrained")
    duties = "starts, watches, restarts and ends the workers; saves checkpoints; shows how it goes"
    text = f"supervisor: {duties}"
    ax.text(5.15, 4.2, text, ha="center", fontsize=9, color=GREY, style="italic")
    lines = ["the newest parameters, one row", "copied whole, when it has changed"]
    box(ax, 3.85, 0.1, 2.6, 1.15, "parameter stream", lines, GREEN)
    arrow(ax, (8.9, 2.12), (6.52, 0.7), "publish", (8.75, 1.15), bend=-0.25)
    ax.set(xlim=(0, 10.5), ylim=(0, 4.4))
    ax.axis("off")
    return fig, ax


def replay():
    """From actors through replay to learners that average gradients."""
    fig, ax = canvas()
    lines = [
        "groups of environments take turns",
        "own copy of the policy, one thread",
        "n-step returns, first priorities",
        "one process each",
    ]
    stack(ax, 0.1, 2.2, "actors 1 … N", lines, BLUE)
    lines = [
        "prioritized sum tree, shared memory",
        "rows written in place, no queue",
        "rate limiter: samples per insert",
        "held from both sides",
    ]
    box(ax, 3.85, 2.2, 2.6, 1.5, "replay stream", lines, GREEN)
    lines = [
        "each draws its part of the batch",
        "recorded gradient step",
        "gradients averaged over learners",
        "one process each",
    ]
    stack(ax, 7.6, 2.2, "learners 1 … M", lines, ORANGE)
    box(ax, 0.1, 0.1, 2.6, 1.15, "evaluator", ["plays fixed seeds, never explores"], BLUE)
    arrow(ax, (2.95, 2.95), (3.78, 2.95), "transitions", (3.36, 3.15))
    arrow(ax, (6.52, 3.15), (7.53, 3.15), "batches", (7.03, 3.35))
    arrow(ax, (7.53, 2.7), (6.52, 2.7), "priorities", (7.03, 2.5))
    arrow(ax, (4.3, 1.32), (2.2, 2.12), "fetch if newer", (3.6, 1.95))
    arrow(ax, (3.78, 0.5), (2.77, 0.5), "", (0, 0))
    return fig


def rollouts():
    """From actors through rollouts to a learner, which they wait for, or not."""
    fig, ax = canvas()
    lines = [
        "step their environments",
        "own copy of the policy",
        "tell how probable each action was",
        "one process each",
    ]
    stack(ax, 0.1, 2.2, "actors 1 … N", lines, BLUE)
    lines = [
        "one or two per group, shared memory",
        "each learned from once, oldest first",
        "staleness of every row measured",
        "too old: dropped and counted",
    ]
    box(ax, 3.85, 2.2, 2.6, 1.5, "rollout stream", lines, GREEN)
    lines = [
        "advantages, or V-trace",
        "several epochs of the same rows (PPO)",
        "or one step on all of them (A2C)",
        "gradients averaged over learners",
    ]
    stack(ax, 7.6, 2.2, "learners 1 … M", lines, ORANGE)
    box(ax, 0.1, 0.1, 2.6, 1.15, "evaluator", ["plays fixed seeds, never explores"], BLUE)
    arrow(ax, (2.95, 3.15), (3.78, 3.15), "steps", (3.36, 3.35))
    arrow(ax, (3.78, 2.7), (2.95, 2.7), "room", (3.36, 2.5))
    arrow(ax, (6.52, 3.15), (7.53, 3.15), "rollouts", (7.03, 3.35))
    arrow(ax, (7.53, 2.7), (6.52, 2.7), "used", (7.03, 2.5))
    arrow(ax, (4.3, 1.32), (2.2, 2.12), "fetch if newer", (3.6, 1.95))
    arrow(ax, (3.78, 0.5), (2.77, 0.5), "", (0, 0))
    return fig


def policy_worker():
    """Inference by policy workers, and learners on shared weights."""
    fig, ax = canvas()
    lines = [
        "step a group of environments",
        "while another one's answer comes",
        "decide by random numbers of their own",
        "no pass through the networks",
    ]
    stack(ax, 0.1, 2.2, "actors 1 … N", lines, BLUE)
    lines = ["replay, or rollouts", "shared memory"]
    box(ax, 3.85, 2.55, 2.6, 1.15, "experience stream", lines, GREEN)
    lines = [
        "updates of their own, no waiting",
        "add what has changed to shared",
        "weights, chunk by chunk",
        "take up what others have added",
    ]
    stack(ax, 7.6, 2.2, "learners 1 … M", lines, ORANGE)
    lines = ["gathers who has asked", "one pass for all of them, on a GPU too"]
    box(ax, 0.1, 0.1, 2.6, 1.15, "policy worker", lines, BLUE)
    arrow(ax, (2.95, 3.15), (3.78, 3.15), "steps", (3.36, 3.35))
    arrow(ax, (6.52, 3.15), (7.53, 3.15), "batches", (7.03, 3.35))
    arrow(ax, (0.9, 2.12), (0.9, 1.32), "observations", (0.35, 1.72))
    arrow(ax, (1.9, 1.32), (1.9, 2.12), "what networks say", (2.65, 1.72))
    arrow(ax, (3.78, 0.5), (2.77, 0.5), "fetch if newer", (3.3, 0.72))
    return fig


def main():
    """Draw them."""
    for name, draw in (
        ("dataflow", replay),
        ("dataflow_rollouts", rollouts),
        ("dataflow_policy_worker", policy_worker),
    ):
        path = Path(__file__).with_name(f"{name}.png")
        draw().savefig(path, dpi=140)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
