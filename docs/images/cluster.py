"""Draws docs/images/cluster.png: ``python docs/images/cluster.py``."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from dataflow import BLUE, GREEN, GREY, ORANGE, arrow, box
from matplotlib.patches import FancyBboxPatch


def machine(ax, x, y, width, height, title):
    """Draw the frame of a machine."""
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.05", ec=GREY, fc="#f7f7f7")
    ax.add_patch(shape)
    ax.text(x + 0.1, y + height - 0.1, title, va="top", fontsize=10, color=GREY, weight="bold")


def main():
    """Draw it."""
    fig, ax = plt.subplots(figsize=(10.5, 6), layout="constrained")
    machine(ax, 0.1, 0.1, 4.6, 5.7, "the machine of the learners")
    root = ["a root over the shards: their totals", "choose the shard of each point"]
    box(ax, 0.5, 4.2, 3.8, 1.1, "learner", [*root, "batches are asked for ahead"], ORANGE)
    box(ax, 1.1, 2.3, 2.6, 0.95, "shard 0", ["a sum tree and its rows,", "attached to"], GREEN)
    box(ax, 1.1, 0.3, 2.6, 0.95, "actors", ["processes that add to it", "directly"], BLUE)
    arrow(ax, (2.4, 1.32), (2.4, 2.22), "transitions", (2.95, 1.75))
    arrow(ax, (2.1, 3.32), (2.1, 4.13), "rows", (1.75, 3.72))
    arrow(ax, (2.7, 4.13), (2.7, 3.32), "priorities", (3.2, 3.72))
    for number, y in ((1, 3.05), (2, 0.1)):
        machine(ax, 6.9, y, 3.5, 2.75, f"node {number}")
        box(ax, 7.5, y + 1.35, 2.6, 0.95, f"shard {number}", ["a process answers for it"], GREEN)
        box(ax, 7.5, y + 0.15, 2.6, 0.7, "actors", ["add to it directly"], BLUE)
        arrow(ax, (8.8, y + 0.92), (8.8, y + 1.28), "", (0, 0))
    arrow(ax, (7.43, 5.0), (4.38, 5.0), "rows, and the shard's total", (5.85, 5.17))
    arrow(ax, (4.38, 4.65), (7.43, 4.65), "points; priorities", (5.85, 4.48))
    arrow(ax, (7.43, 2.1), (4.38, 4.25), "", (0, 0), style="<|-|>")
    ax.text(5.85, 3.62, "by sockets", ha="center", fontsize=8.5, color=GREY, style="italic")
    arrow(ax, (4.78, 1.1), (6.82, 1.1), "", (0, 0), style="<|-|>")
    letters = "Ray: who has done what,\nhow many rows there are;\nparameters, once per node"
    ax.text(5.82, 0.68, letters, ha="center", va="center", fontsize=8.5, color=GREY)
    ax.set(xlim=(0, 10.6), ylim=(0, 5.95))
    ax.axis("off")
    path = Path(__file__).with_name("cluster.png")
    fig.savefig(path, dpi=130)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
