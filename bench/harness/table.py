"""The table at the end of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bench.harness.timing import Record


def quantity(value: float, unit: str) -> str:
    """Write a number with three significant digits and a readable unit."""
    if unit == "s":
        for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= scale:
                return f"{value / scale:.3g} {name}"
        return f"{value * 1e9:.3g} ns"
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix} {unit}"
    return f"{value:.3g} {unit}"


def factor(ratio: float) -> str:
    """Write how many times better something is, with two or three digits."""
    return (
        f"{ratio:.{0 if ratio >= 100 else 1 if ratio >= 2 else 2}f}×"
        if math.isfinite(ratio)
        else "∞"
    )


def point(parameters: dict[str, Any]) -> str:
    """Write the parameters of a comparison in a few words."""
    words = []
    for name, value in parameters.items():
        text = f"{value:.0e}".replace("e+0", "e") if name == "slots" else str(value)
        words.append(f"{name} {text}")
    return ", ".join(words)


def disturbance(record: Record) -> str:
    """Say how many repetitions other processes disturbed, and what became of these."""
    n, disturbed = len(record.repetitions[record.ours]), record.disturbed_rounds()
    if not disturbed:
        return ""
    kept = "counted all the same, for too few were not" if record.doubtful() else "left out"
    return f"{len(disturbed)} of {n} repetitions disturbed by other processes: {kept}"


def render(records: Sequence[Record]) -> str:
    """One block per scenario, one line per contender: median, our advantage, quartiles, verdict."""
    lines: list[str] = []
    scenario = None
    for record in records:
        if record.scenario != scenario:
            scenario = record.scenario
            lines += ["", scenario]
        medians, ratios, scatter = record.medians(), record.ratios(), record.ratio_quartiles()
        lines.append(f"  {point(record.parameters)}")
        lines.append(f"    {record.ours:<42} {quantity(medians[record.ours], record.unit):>12}")
        for name, ratio in ratios.items():
            quartiles = scatter.get(name)
            spread = f"  [{quartiles[0]:.2f} … {quartiles[2]:.2f}]" if quartiles else ""
            lines.append(
                f"    {name:<42} {quantity(medians[name], record.unit):>12}  {ratio:7.2f}×{spread}"
            )
        if text := disturbance(record):
            lines.append(f"    {text}")
        for bar in record.bars:
            verdict = "met" if bar["met"] else "MISSED"
            lines.append(f"    bar {bar['text']}: {verdict} at {bar['reached']:.2f}")
        lines += [f"    {name}: {note}" for name, note in record.notes.items()]
    return "\n".join(lines)
