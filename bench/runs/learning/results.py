"""The files of a campaign: what each run gave, and with which versions and settings it was made."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.harness import paths
from bench.runs.learning.tasks import TASKS

RESULTS = paths.RESULTS / "learning"
SAME = ("algorithm", "env", "settings", "policy", "hindsight", "evaluate_every", "steps")
"""What all runs of a file have in common."""

Document = dict[str, Any]
Run = dict[str, Any]


def path_of(folder: Path, name: str) -> Path:
    """Return where the runs of a task are."""
    return folder / f"{name}.json"


def head_of(name: str, steps: int) -> Document:
    """Return what a file says before its runs."""
    # as JSON has it, to be compared with what a file says
    return json.loads(json.dumps({"task": name, **asdict(TASKS[name]), "steps": steps}))


def read(path: Path) -> Document | None:
    """Return a file's document, in which every run says its versions and what replayed."""
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    for run in document["runs"]:
        # the first files say it once, for all of their runs
        run.setdefault("versions", document.get("versions", {}))
        if "replay" not in run:
            options = document.get("buffers", {}).get(run["buffer"], document.get("prioritized"))
            is_ours = options and run["buffer"] != "uniform"
            ours = {"priority_epsilon": 1e-6, **options} if is_ours else {}
            run["replay"] = {"n_steps": 1, **ours}
    return document


def check(path: Path, name: str, steps: int) -> None:
    """Refuse to mix runs of other settings with those in a file."""
    document = read(path)
    if document is None:
        return
    wanted = head_of(name, steps)
    for key in SAME:
        if key in document and document[key] != wanted[key]:
            raise SystemExit(
                f"the runs in {path.name} have {key} {document[key]!r}, not {wanted[key]!r}: "
                "name another folder with --output"
            )


def recorded(path: Path) -> set[tuple[str, int]]:
    """Return buffer and seed of the runs in a file."""
    document = read(path)
    return {(run["buffer"], run["seed"]) for run in document["runs"]} if document else set()


def add(path: Path, name: str, steps: int, run: Run) -> None:
    """Put a run into a file, in place of the run with its buffer and seed, if there is one.

    A kill leaves the old file or the new one. Several campaigns may write to one file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        document = read(path)
        runs = [run] + [
            one
            for one in (document["runs"] if document else [])
            if (one["buffer"], one["seed"]) != (run["buffer"], run["seed"])
        ]
        runs.sort(key=lambda run: (run["seed"], run["buffer"]))
        lines = ",\n".join(json.dumps(run) for run in runs)
        fresh = path.with_suffix(".tmp")
        fresh.write_text(json.dumps(head_of(name, steps))[:-1] + f', "runs": [\n{lines}\n]}}\n')
        os.replace(fresh, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other campaigns from writing to a file; the lock goes with its process."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def usual_versions(documents: Mapping[str, Document]) -> dict[str, str]:
    """Return the versions that most runs were made with."""
    runs = [run for document in documents.values() for run in document["runs"]]
    return _most_common([run["versions"] for run in runs])


def deviations(documents: Mapping[str, Document]) -> dict[tuple[str, str, int], str]:
    """Return the runs whose versions or settings of replay are not the usual ones, and how."""
    runs = [(name, run) for name, document in documents.items() for run in document["runs"]]
    versions = usual_versions(documents)
    replay = {
        buffer: _most_common([run["replay"] for _, run in runs if run["buffer"] == buffer])
        for buffer in {run["buffer"] for _, run in runs}
    }
    found = {}
    for name, run in runs:
        usual = {**versions, **replay[run["buffer"]]}
        own = {**run["versions"], **run["replay"]}
        other = [
            f"{key} {own.get(key)} instead of {usual.get(key)}"
            for key in {**usual, **own}
            if _unless_as_before(own.get(key)) != _unless_as_before(usual.get(key))
        ]
        if other:
            found[name, run["buffer"], run["seed"]] = ", ".join(other)
    return found


def _most_common(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what occurs most often; of those that do as often, the last."""
    counts = Counter(json.dumps(one, sort_keys=True) for one in settings)
    return json.loads(max(reversed(counts), key=counts.__getitem__)) if counts else {}


def _unless_as_before(value: Any) -> Any:
    """Return a setting, or None where it says what was done before there was one."""
    return None if value in (0, "td_error") else value
