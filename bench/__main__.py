"""Runs every benchmark: `python -m bench` in minutes, `python -m bench --full` in hours.

The long form writes bench/results/NAME.json and the pages in docs/, which are committed. The short
one, with fewer sizes and repetitions, writes the same files and pages in bench/results/short/, and
says at the end whether a page has other sections than its counterpart in docs/. `--parts` picks
some; `--resume` goes on with whole training runs that were cut off. Results take the place of
earlier ones when a part has come to its end.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from bench.harness.paths import DOCS, RESULTS, ROOT

SHORT = "short"
BENCH = ROOT / "bench"
STORING = (
    "calls/test_processes.py",
    "calls/test_frames.py",
    "calls/test_checkpoint.py",
    "calls/test_prefetch.py",
)
ADAPTERS = ("calls/test_sb3.py", "calls/test_tianshou.py")
LEARNER = ("calls/test_learner.py",)
ACTING = ("calls/test_acting.py",)


@dataclass(frozen=True)
class Part:
    """One results file: its test files of single calls, or its module of whole training runs.

    `short` holds the options that make whole training runs short.
    """

    what: str
    files: tuple[str, ...] = ()
    module: str = ""
    short: tuple[str, ...] = ()
    report: str = ""  # where another module writes the page


def others() -> tuple[str, ...]:
    """Name every test file that no other part has, and the folder of the ablations."""
    calls = sorted(f"calls/{path.name}" for path in BENCH.glob("calls/test_*.py"))
    taken = {*STORING, *ADAPTERS, *LEARNER, *ACTING}
    return (*(name for name in calls if name not in taken), "ablation")


PARTS = {
    "buffers": Part(
        "buffer operations, threads, memory, and the ablations of the core", files=others()
    ),
    "storing": Part("processes, frames, checkpoints, prefetch", files=STORING),
    "adapters": Part("SB3 and Tianshou, stock against ours", files=ADAPTERS),
    "learner": Part("a learner's update", files=LEARNER),
    "acting": Part("choosing actions", files=ACTING),
    "rllib_training": Part(
        "RLlib's training, stock against ours",
        module="bench.runs.rllib_training",
        short=("--seeds", "1", "--short"),
    ),
    "convergence": Part(
        "seconds until a task is solved, with rivals",
        module="bench.runs.convergence",
        short=("--tasks", "pendulum_ddpg", "--seeds", "1"),
        report="bench.runs.convergence.report",
    ),
    "scaling": Part(
        "the runner on more and more cores",
        module="bench.runs.scaling",
        short=("--seeds", "1", "--short"),
    ),
    "large_batch": Part(
        "larger and larger batches",
        module="bench.runs.large_batch",
        short=("--seeds", "1", "--short"),
    ),
    "runner_ablation": Part(
        "the runner's parts", module="bench.runs.runner_ablation", short=("--seeds", "1", "--short")
    ),
    "memory": Part(
        "policies that remember", module="bench.runs.memory", short=("--seeds", "1", "--short")
    ),
    "pixels": Part(
        "collecting and learning from a game of Atari",
        module="bench.runs.pixels",
        short=("--tasks", "learning", "--seeds", "1", "--short"),
    ),
    "minatar": Part(
        "the parts of Rainbow on MinAtar",
        module="bench.runs.minatar",
        short=("--tasks", "breakout", "--seeds", "1", "--short"),
    ),
    "inference": Part(
        "policy workers, against actors that infer themselves",
        module="bench.runs.inference",
        short=("--tasks", "perceptron_64", "images", "images_waiting", "--seeds", "1", "--short"),
        report="bench.runs.inference_report",
    ),
    "optimization": Part(
        "several learners, synchronous and asynchronous",
        module="bench.runs.optimization",
        short=("--seeds", "1", "--short"),
        report="bench.runs.inference_report",
    ),
}


def commands(name: str, full: bool, resume: bool) -> list[list[str]]:
    """What a part runs, to be given to Python."""
    part = PARTS[name]
    results = name if full else f"{SHORT}/{name}"
    docs = [] if full else ["--docs", str(RESULTS / SHORT / "docs")]
    if part.files:
        files = [str(BENCH / file) for file in part.files]
        size = "--full" if full else "--short"
        options = ["--benchmark-only", "--benchmark-columns=median", size, "--results", results]
        measure = ["-m", "pytest", "-q", *files, *options]
        return [measure, ["-m", "bench.harness.report", results, *docs]]
    output = RESULTS / f"{results}.json"
    run = ["-m", part.module, *(() if full else part.short), "--resume" if resume else "--anew"]
    if part.report:
        return [[*run, "--output", str(output)], ["-m", part.report, str(output), *docs]]
    return [[*run, "--output", str(output), *docs]]


def structure(page: Path) -> list[str]:
    """Return the headings of a page, and under each the heads of its tables."""
    lines, heading = page.read_text().splitlines(), ""
    found = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("#"):
            heading = line
            found.append(heading)
        elif following.startswith("| --- |"):
            found.append(f"{heading}: {line}")
    return found


def generated(docs: Path) -> set[str]:
    """Name the pages that the suite makes."""
    return {
        page.name
        for page in docs.glob("*.md")
        if any(f"/{name}.json" in page.read_text() for name in PARTS)
    }


def differences(docs: Path, made: Path, parts: Collection[str] = ()) -> list[str]:
    """Name the sections and tables that only one of two folders of pages has.

    If all parts were run, pages that are missing are named, too.
    """
    lines = []
    if set(parts) == set(PARTS):
        lines += [
            f"{name}: only in docs/"
            for name in sorted(generated(docs) - {page.name for page in made.glob("*.md")})
        ]
    for page in sorted(made.glob("*.md")):
        theirs, ours = (
            structure(docs / page.name) if (docs / page.name).exists() else [],
            structure(page),
        )
        lines += [f"{page.name}: only in docs/: {title}" for title in theirs if title not in ours]
        lines += [f"{page.name}: not in docs/: {title}" for title in ours if title not in theirs]
    return lines


def run_part(name: str, full: bool, resume: bool) -> bool:
    """Run one part, and say whether it went well."""
    return all(
        subprocess.run([sys.executable, *command], cwd=ROOT).returncode == 0
        for command in commands(name, full, resume)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, one after another; a part that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--full", action="store_true", help="the long form, whose results are committed"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--resume", action="store_true", help="go on with whole training runs that were cut off"
    )
    chosen = parser.parse_args(arguments)
    if find_spec("cpprb") is None:
        raise SystemExit(
            "the rival cpprb is not installed, which has no wheels for Python 3.13: "
            "run this with 3.11 or 3.12"
        )
    seconds, failed = {}, []
    if not chosen.full:
        shutil.rmtree(RESULTS / SHORT / "docs", ignore_errors=True)
    for name in chosen.parts:
        print(f"\n===== {name}: {PARTS[name].what}", flush=True)
        start = perf_counter()
        if not run_part(name, chosen.full, chosen.resume):
            failed.append(name)
        seconds[name] = perf_counter() - start
    print(
        "\n===== minutes: "
        + ", ".join(f"{name} {value / 60:.1f}" for name, value in seconds.items()),
        end="",
    )
    print(f"; together {sum(seconds.values()) / 60:.1f}")
    if chosen.full and not failed:
        # it says so if it cannot be made
        subprocess.run([sys.executable, "-m", "bench.harness.headline"], cwd=ROOT, check=False)
    elif not chosen.full:
        print(f"Pages and pictures: {(RESULTS / SHORT / 'docs').relative_to(ROOT)}")
        found = differences(DOCS, RESULTS / SHORT / "docs", chosen.parts)
        print(*(found or ["Their sections and tables are those of docs/."]), sep="\n")
    if failed:
        print("failed: " + ", ".join(failed))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
