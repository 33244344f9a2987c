"""The picture of the adapters' benchmarks: how many times faster, one panel per framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from bench.harness.plots import STYLE, advantages
from bench.harness.timing import Record


def draw(records: Sequence[Record], folder: Path) -> list[str]:
    """Draw what the records allow, whole calls and runs only; return the names of the pictures."""
    records = [record for record in records if "part" not in record.parameters]
    frameworks = [
        name
        for name in ("SB3", "Tianshou")
        if any(record.scenario.startswith(name) for record in records)
    ]
    heights = [
        sum(len(r.ratios()) + 0.7 for r in records if r.scenario.startswith(name)) + 1.5
        for name in frameworks
    ]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(frameworks),
            1,
            figsize=(8, 0.34 * sum(heights)),
            height_ratios=heights,
            layout="constrained",
            squeeze=False,
        )
        for axes, name in zip(panels[:, 0], frameworks, strict=True):
            advantages(
                axes,
                [
                    (_label(record), record)
                    for record in records
                    if record.scenario.startswith(name)
                ],
            )
            axes.set_title(f"{name}: how many times faster")
            axes.legend(loc="lower right")
        figure.savefig(folder / "adapters.png")
        plt.close(figure)
    return ["adapters"]


def _label(record: Record) -> str:
    """Say in two short lines what was compared."""
    what = (
        record.scenario.split(": ")[1]
        .replace("update_priorities", "update")
        .replace("update_weight", "update")
    )
    parameters = record.parameters
    if "draws" in parameters:
        what += f", draws {parameters['draws']}"
    if "run" in parameters:
        return f"{what}\n{parameters['run']}"
    slots = f"{parameters['slots']:.0e}".replace("e+0", "e")
    return f"{what}, batch {parameters['batch']}\n{parameters['rows']}, {slots} slots"
