"""The pictures of a results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.harness.grid import MIDDLE
from bench.harness.table import factor
from bench.harness.timing import Record, find

# Okabe and Ito's palette: distinct for colour-blind readers too.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#7F7F7F",
)
SKY, YELLOW = "#56B4E9", "#F0E442"
RIVALS = {
    "Tianshou": ORANGE,
    "cpprb": GREEN,
    "SB3": PURPLE,
    "plain-Python": GREY,
    "RLlib": SKY,
    "TorchRL": YELLOW,
}
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
}


def rival_of(name: str) -> str | None:
    """Return whose buffer it is that has this name; None: ours."""
    return next((rival for rival in RIVALS if name.startswith(rival)), None)


def _colour(name: str) -> str:
    rival = rival_of(name)
    return RIVALS[rival] if rival else BLUE


def advantages(axes: Axes, chosen: Sequence[tuple[str, Record]]) -> None:
    """Draw a horizontal bar for each comparison: our advantage, its quartiles, its bar to clear."""
    ratios = [record.ratios() for _, record in chosen]
    names = {name for each in ratios for name in each}
    y, ticks, seen, extremes = 0.0, [], set(), [1.0]
    for (_, record), each in zip(chosen, ratios, strict=True):
        scatter = record.ratio_quartiles()
        ticks.append(y + (len(each) - 1) / 2)
        for name, ratio in each.items():
            rival = rival_of(name)
            alone = sum(rival_of(other) == rival for other in names) == 1
            low, _, high = scatter.get(name, (ratio,) * 3)
            label = None if rival in seen else f"than {name if alone else rival}"
            axes.barh(y, ratio - 1, 0.82, left=1, color=_colour(name), label=label)
            axes.errorbar(
                ratio,
                y,
                xerr=[[max(ratio - low, 0)], [max(high - ratio, 0)]],
                color="#333333",
                lw=0.9,
                capsize=0,
            )
            axes.annotate(
                factor(ratio),
                (max(ratio, high, 1.0), y),
                (5, 0),
                textcoords="offset points",
                va="center_baseline",
            )
            for bar in record.bars:
                if name in bar["text"]:
                    axes.plot([bar["minimum"]] * 2, [y - 0.46, y + 0.46], color=RED, lw=2)
            seen.add(rival)
            extremes += [ratio, high]
            y += 1
        y += 0.75
    axes.axvline(1, color="#333333", lw=0.8)
    axes.plot([], [], color=RED, lw=2, label="bar to clear")
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.7, 0.8 * min(extremes)), 2.2 * max(extremes))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_yticks(ticks, [label for label, _ in chosen])
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)


def speed(records: Sequence[Record], folder: Path) -> list[str]:
    """Draw what the records allow; return the names of the pictures."""
    names = []
    with plt.rc_context(STYLE):
        if _speedups(records, folder / "speedup.png"):
            names.append("speedup")
        if _sizes(records, folder / "sizes.png"):
            names.append("sizes")
    return names


def _speedups(records: Sequence[Record], path: Path) -> bool:
    """Horizontal bars: how many times faster than each rival, at the point the bars are set at."""
    slots, batch = MIDDLE
    chosen: list[tuple[str, Record]] = []
    for scenario in ("tree sample", "tree update"):
        chosen += [
            (scenario, record) for record in find(records, scenario, slots=slots, batch=batch)
        ]
    for scenario in (
        "buffer sample",
        "buffer update_priorities",
        "buffer sample + update_priorities",
    ):
        label = scenario.replace("buffer ", "").replace(" + ", "\n+ ")
        chosen += [(label, record) for record in find(records, scenario, slots=slots, batch=batch)]
    for record in sorted(
        find(records, "buffer add", slots=slots), key=lambda record: record.parameters["rows"]
    ):
        n_rows = record.parameters["rows"]
        chosen.append((f"add {n_rows} row{'s' if n_rows > 1 else ''}", record))
    if not chosen:
        return False
    n_bars = sum(len(record.ratios()) for _, record in chosen)
    figure, axes = plt.subplots(figsize=(7.5, 0.27 * n_bars + 0.32 * len(chosen) + 0.9))
    advantages(axes, chosen)
    axes.set_title(
        f"How many times faster ({slots:.0e} slots, batch {batch}, one thread)".replace("e+0", "e")
    )
    axes.set_xlabel("ratio of medians; the thin line spans the quartiles")
    axes.legend(loc="upper right")
    figure.savefig(path)
    plt.close(figure)
    return True


def _sizes(records: Sequence[Record], path: Path) -> bool:
    """Time per row against the batch, one panel per buffer size; needs the full grid."""
    sizes = sorted({record.parameters["slots"] for record in find(records, "buffer sample")})
    complete = [n for n in sizes if len(find(records, "buffer sample", slots=n)) > 1]
    if len(complete) < 2:
        return False
    figure, panels = plt.subplots(
        1, len(complete), figsize=(2.9 * len(complete), 3.7), sharey=True, layout="constrained"
    )
    for axes, slots in zip(panels, complete, strict=True):
        chosen = sorted(
            find(records, "buffer sample", slots=slots),
            key=lambda record: record.parameters["batch"],
        )
        batches = [record.parameters["batch"] for record in chosen]
        for name in chosen[0].repetitions:
            values = [
                record.medians()[name] / b * 1e9 for record, b in zip(chosen, batches, strict=True)
            ]
            axes.plot(batches, values, "o-", color=_colour(name), lw=1.8, ms=5, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(batches, [str(b) for b in batches])
        axes.set_title(f"{slots:.0e} slots".replace("e+0", "e"))
        axes.set_xlabel("batch size")
        axes.grid()
    panels[0].set_ylabel("nanoseconds per sampled row")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path)
    plt.close(figure)
    return True


def ablations(records: Sequence[Record], folder: Path) -> list[str]:
    """Draw the four ablations in one picture, at the middle size."""
    slots = MIDDLE[0]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(9.5, 7.2), layout="constrained")
        _arity(panels[0, 0], records, slots)
        _layout(panels[0, 1], records, slots)
        _order(panels[1, 0], records, slots)
        _locks(panels[1, 1], records, slots)
        figure.suptitle(
            f"{slots:.0e} slots, batch 256".replace("e+0", "e"), x=0.01, ha="left", color=GREY
        )
        figure.savefig(folder / "ablations.png")
        plt.close(figure)
    return ["ablations"]


def _curve(
    axes: Axes, xs: Sequence[int], values: Sequence[float], label: str, **style: Any
) -> None:
    axes.plot(
        xs,
        [value * 1e6 for value in values],
        "o",
        ls=style.pop("ls", "-"),
        lw=1.8,
        ms=5,
        label=label,
        **style,
    )


def _arity_axes(axes: Axes, title: str, arities: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(arities, [str(k) for k in arities])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("arity")
    axes.set_ylabel("microseconds per batch")
    axes.set_title(title)
    axes.grid()
    if arities:
        axes.legend()


def _arity(axes: Axes, records: Sequence[Record], slots: int) -> None:
    arities: list[int] = []
    for operation, colour in (("sample", BLUE), ("update", ORANGE)):
        for record in find(records, f"ablation: arity, SumTree {operation}", slots=slots):
            by_arity = {int(name.split()[1]): value for name, value in record.medians().items()}
            arities = sorted(by_arity)
            _curve(
                axes,
                arities,
                [by_arity[k] for k in arities],
                f"SumTree.{'set' if operation == 'update' else operation}",
                color=colour,
            )
    _arity_axes(axes, "Arity (Python call included)", arities)


def _by_arity(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Return the medians by name, then by arity."""
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.medians().items():
            curves.setdefault(name, {})[record.parameters["arity"]] = value
    return curves


def _layout(axes: Axes, records: Sequence[Record], slots: int) -> None:
    arities: list[int] = []
    for operation, colour in (("search", BLUE), ("update", ORANGE)):
        for name, curve in _by_arity(
            find(records, f"ablation: layout, {operation}", slots=slots)
        ).items():
            arities = sorted(curve)
            style = "-" if name.startswith("aligned") else ":"
            _curve(
                axes,
                arities,
                [curve[k] for k in arities],
                f"{operation}, {name}",
                color=colour,
                ls=style,
            )
    _arity_axes(axes, "Layout (native)", arities)


def _order(axes: Axes, records: Sequence[Record], slots: int) -> None:
    arities: list[int] = []
    colours = {"by level, prefetch": BLUE, "by level": GREEN, "one at a time": RED}
    for name, curve in _by_arity(find(records, "ablation: order of descent", slots=slots)).items():
        arities = sorted(curve)
        _curve(axes, arities, [curve[k] for k in arities], name, color=colours[name])
    _arity_axes(axes, "Order of descent (native)", arities)


def _locks(axes: Axes, records: Sequence[Record], slots: int) -> None:
    """Rates relative to the coarse lock with one thread, per load."""
    chosen = find(records, "ablation: locks", slots=slots)
    loads = list(dict.fromkeys(record.parameters["load"] for record in chosen))
    colours = {
        "coarse lock": RED,
        "split lock": ORANGE,
        "lazy writing": GREEN,
        "lazy writing, lock-free descent": BLUE,
    }
    for number, load in enumerate(loads):
        medians = {
            r.parameters["threads"]: r.medians() for r in chosen if r.parameters["load"] == load
        }
        base = medians[1]["coarse lock"]
        for i, (name, colour) in enumerate(colours.items()):
            x = number + 0.2 * (i - 1.5)
            axes.bar(
                x, medians[2][name] / base, 0.18, color=colour, label=name if number == 0 else None
            )
            axes.plot([x - 0.09, x + 0.09], [medians[1][name] / base] * 2, color="#333333", lw=2)
    axes.plot([], [], color="#333333", lw=2, label="the same, one thread")
    axes.set_xticks(range(len(loads)), [load.replace(", ", ",\n") for load in loads])
    axes.set_ylabel("rounds per second\n(coarse lock, one thread = 1)")
    axes.set_ylim(top=1.5 * axes.get_ylim()[1])  # for the legend
    axes.set_title("Locks, two threads (native)")
    axes.grid(axis="y")
    axes.legend(loc="upper left", ncols=2, fontsize=8)
