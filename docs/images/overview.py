"""Draws docs/images/overview.png: ``python docs/images/overview.py``."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from dataflow import BLUE, GREEN, GREY, ORANGE, arrow, box
from matplotlib.patches import FancyBboxPatch, Rectangle

PURPLE = "#762a83"
MASSES = (3, 1, 0, 2, 5, 1, 1, 1, 0, 2, 4, 0, 1, 1, 2, 1)  # of the tree that is drawn
WAYS = [
    (
        "Stable-Baselines3",
        ["stock algorithms", "one word changed:", "replay_buffer_class=…"],
        PURPLE,
    ),
    (
        "Tianshou, RLlib",
        ["stock algorithms", "one class or one line changed:", "…ReplayBuffer, use(config)"],
        ORANGE,
    ),
    (
        "runner",
        ["actors and learners on all cores", "DQN, DDPG, TD3, SAC", "kary-replay train …"],
        BLUE,
    ),
    (
        "your own loop",
        ["any fields, frames, sequences", "threads and processes", "PrioritizedReplayBuffer"],
        GREY,
    ),
]


def draw_tree(ax, left, bottom, width, height):
    """Draw a sum tree of arity 4: every node has the sum of its children."""
    levels = [list(MASSES)]
    while len(levels[0]) > 1:
        levels.insert(0, [sum(levels[0][i : i + 4]) for i in range(0, len(levels[0]), 4)])
    spots = {}
    for depth, level in enumerate(levels):
        y = bottom + height * (1 - depth / (len(levels) - 1))
        for i, mass in enumerate(level):
            x = left + width * (i + 0.5) / len(level)
            spots[depth, i] = x, y
            if depth:
                up = spots[depth - 1, i // 4]
                ax.plot(
                    [up[0], x], [up[1] - 0.1, y + 0.1], color=GREEN, lw=0.8, alpha=0.6, zorder=1
                )
            label = {"boxstyle": "round,pad=0.18", "ec": GREEN, "fc": "white", "lw": 0.9}
            ax.text(
                x,
                y,
                str(mass),
                ha="center",
                va="center",
                fontsize=7.5,
                color="#222222",
                bbox=label,
                zorder=2,
            )


def draw_rows(ax, left, bottom, width, height):
    """Draw the rows under the leaves of the tree; one is being written."""
    cell = width / len(MASSES)
    for i, mass in enumerate(MASSES):
        color = GREEN + "30" if mass else "#ffffff"
        ax.add_patch(
            Rectangle(
                (left + i * cell + 0.03, bottom), cell - 0.06, height, ec=GREEN, fc=color, lw=0.9
            )
        )


def main():
    """Draw it."""
    fig, ax = plt.subplots(figsize=(10.5, 5.2), layout="constrained")
    for i, (title, lines, color) in enumerate(WAYS):
        box(ax, 0.1 + 2.63 * i, 3.8, 2.35, 1.1, title, lines, color)
    ax.add_patch(
        FancyBboxPatch(
            (0.1, 0.1), 10.24, 2.45, boxstyle="round,pad=0.05", ec=GREEN, fc=GREEN + "14", lw=1.8
        )
    )
    for x, up, text in (
        (1.28, False, "add: transitions"),
        (4.1, True, "sample: batch, weights, handles"),
        (7.9, False, "update_priorities: |TD error|"),
    ):
        arrow(ax, (x, 2.68 if up else 3.67), (x, 3.67 if up else 2.68), "", (x, 3.15))
        ax.text(x + 0.12, 3.17, text, ha="left", va="center", fontsize=9, color=GREY)
    ax.text(
        0.3, 2.38, "prioritized replay buffer", va="top", color=GREEN, weight="bold", fontsize=11
    )
    for i, line in enumerate((
        "K-ary sum tree, one mass per row:",
        "a row is drawn with P = mass / total",
        "",
        "a writer marks its rows, copies them",
        "holding no lock, then publishes them;",
        "nobody ever sees half a row (white:",
        "being written, or empty; mass 0)",
        "",
        "any number of threads, up to 512",
        "processes with shared=True",
    )):  # fmt: skip
        ax.text(0.3, 2.05 - 0.19 * i, line, va="top", fontsize=8.5, color="#222222")
    draw_tree(ax, 3.5, 1.0, 6.7, 1.25)
    draw_rows(ax, 3.5, 0.25, 6.7, 0.5)
    ax.set(xlim=(0, 10.45), ylim=(0, 5))
    ax.axis("off")
    path = Path(__file__).with_name("overview.png")
    fig.savefig(path, dpi=140)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
