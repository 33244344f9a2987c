"""Modules by the names they had before they were put into folders: old programs and pickles still find them."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

FOLDERS = {
    "core": (
        "block",
        "reader",
        "shared_memory",
        "slots",
        "snapshots",
        "storage",
        "sum_tree",
    ),
    "buffers": (
        "checkpoint",
        "checkpoint_files",
        "frame_replay_buffer",
        "prioritized_replay_buffer",
        "rate_limiter",
        "replay_buffer",
        "schedules",
    ),
    "writers": ("frame_stack_writer", "n_step", "sequence_writer", "sequences", "steps"),
    "prefetch": ("transfer",),
    "algorithms.updates": ("captured", "minimizer", "recorded"),
    "runner.policies": ("export", "play"),
    "runner.records": (
        "display",
        "learning_curve",
        "monitor",
        "progress",
        "run_directory",
        "scalars",
    ),
    "runner.streams": ("board", "inference"),
}
PACKAGE = __name__.rpartition(".")[0]
FORMER = {
    ".".join([PACKAGE, *folder.split(".")[:-1], name]): f"{PACKAGE}.{folder}.{name}"
    for folder, names in FOLDERS.items()
    for name in names
}


class Finder:
    """Finds a module under its former name; it is the same module, not a copy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for a former name; None for all others, which other finders know."""
        if name not in FORMER:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # importlib.abc would be slow to import

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make an empty module, for which `exec_module` puts the real one."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module by its name of today, and give it out."""
        sys.modules[module.__name__] = importlib.import_module(FORMER[module.__name__])


def install() -> None:
    """Let imports find former names, after everything else."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
    vars(sys.modules[PACKAGE])["__getattr__"] = attribute  # not in sight of type checkers


def attribute(name: str) -> ModuleType:
    """Return a module that was once an attribute of the package; AttributeError if there was none of that name."""
    former = f"{PACKAGE}.{name}"
    if former not in FORMER:
        raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")
    return importlib.import_module(former)
