"""The picture of the adapters' benchmarks: how many times faster, one panel per framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.plots import BLUE, GREY, ORANGE, PURPLE, RED, STYLE
from bench.timing import Record

COLOURS = {"plain-Python": BLUE, "SB3 ReplayBuffer": PURPLE, "Tianshou": ORANGE}


def draw(records: Sequence[Record], folder: Path) -> list[str]:
    """Draw what the records allow; return the names of the pictures."""
    frameworks = [name for name in ("SB3", "Tianshou") if any(record.scenario.startswith(name) for record in records)]
    heights = [sum(len(r.ratios()) + 0.7 for r in records if r.scenario.startswith(name)) + 1.5 for name in frameworks]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(frameworks), 1, figsize=(8, 0.34 * sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
        )
        for axes, name in zip(panels[:, 0], frameworks, strict=True):
            _panel(axes, name, [record for record in records if record.scenario.startswith(name)])
        figure.savefig(folder / "adapters.png")
        plt.close(figure)
    return ["adapters"]


def _label(record: Record) -> str:
    """Say in two short lines what was compared."""
    what = record.scenario.split(": ")[1].replace("update_priorities", "update").replace("update_weight", "update")
    parameters = record.parameters
    if "run" in parameters:
        return f"{what}\n{parameters['run']}"
    return f"{what}, batch {parameters['batch']}\n{parameters['rows']}, {parameters['slots']:.0e} slots".replace("e+0", "e")


def _panel(axes: Axes, framework: str, records: Sequence[Record]) -> None:
    y, ticks, labels, seen, highest = 0.0, [], [], set(), 1.0
    for record in records:
        ratios, scatter = record.ratios(), record.ratio_quartiles()
        ticks.append(y + (len(ratios) - 1) / 2)
        labels.append(_label(record))
        for name, ratio in ratios.items():
            rival = next((key for key in COLOURS if name.startswith(key)), name)
            low, _, high = scatter.get(name, (ratio,) * 3)
            error = [[max(ratio - low, 0)], [max(high - ratio, 0)]]
            axes.barh(
                y, ratio - 1, 0.82, left=1, color=COLOURS.get(rival, GREY), label=None if rival in seen else f"than {name}"
            )
            axes.errorbar(ratio, y, xerr=error, color="#333333", lw=0.9, capsize=0)
            digits = 1 if ratio >= 10 else 2
            position = (max(ratio, high, 1.0), y)
            axes.annotate(f"{ratio:.{digits}f}×", position, (5, 0), textcoords="offset points", va="center_baseline")
            for bar in record.bars:
                if name in bar["text"]:
                    axes.plot([bar["minimum"]] * 2, [y - 0.46, y + 0.46], color=RED, lw=2)
            seen.add(rival)
            highest = max(highest, ratio, high)
            y += 1
        y += 0.7
    axes.axvline(1, color="#333333", lw=0.8)
    axes.plot([], [], color=RED, lw=2, label="bar to clear")
    axes.set_xscale("log", base=2)
    lowest = min((ratio for record in records for ratio in record.ratios().values()), default=1.0)
    axes.set_xlim(min(0.7, 0.9 * lowest), highest * 1.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{framework}: how many times faster")
    axes.legend(loc="lower right")
