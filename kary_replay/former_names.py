"""The former names of modules that have moved, so that old programs and pickles still find them.

Also the classes that are found when they are first asked for.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FOLDERS = {
    "core": (
        "block",
        "reader",
        "shared_memory",
        "slots",
        "snapshots",
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
"""The modules that lay beside a folder, and lie in it now, under the same name."""

RENAMED = {
    "adapters.sb3.prioritized": "adapters.sb3.prioritized_buffer",
    "frame_storage": "core.frame_reader",
    "storage": "core.slots",
    "runner.making": "runner.environments.env_factory",
    "runner.measuring": "runner.allocation.measurement",
    "runner.plan": "runner.messages",
    "runner.trained": "runner.policies.checkpoint_policy",
}
"""The modules that have another name now. Pickled results of runs name runner.plan."""

LATE = {"ShardedReplayBuffer": "shards.sharded_replay_buffer"}
"""Classes of the package that are imported when they are first asked for: with the network's
modules, which take as long as all the others."""

PACKAGE = __name__.rpartition(".")[0]
FORMER = {
    ".".join([PACKAGE, *folder.split(".")[:-1], name]): f"{PACKAGE}.{folder}.{name}"
    for folder, names in FOLDERS.items()
    for name in names
} | {f"{PACKAGE}.{former}": f"{PACKAGE}.{today}" for former, today in RENAMED.items()}
"""The full name that each module had, and the one that it has."""


class Finder:
    """Finds a module by its former name. What it returns is the same module, not a copy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for a former name, and None for any other name."""
        if name not in FORMER:
            return None
        # The class is no importlib.abc.Loader by type, for importing importlib.abc takes time.
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make an empty module, which `exec_module` then replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module by its present name, and register it under the former one, too."""
        sys.modules[module.__name__] = importlib.import_module(FORMER[module.__name__])


def install() -> None:
    """Let imports find former names, after all other finders have failed."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
    # Set through vars(), so that type checkers still report attributes that do not exist.
    package = vars(sys.modules[PACKAGE])
    package["__getattr__"] = attribute
    package["__dir__"] = lambda: sorted({*package, *LATE})  # for completion


def attribute(name: str) -> Any:
    """Return a class of LATE, or a module that was an attribute once; or raise AttributeError."""
    if name in LATE:
        found = getattr(importlib.import_module(f"{PACKAGE}.{LATE[name]}"), name)
        vars(sys.modules[PACKAGE])[name] = found
        return found
    former = f"{PACKAGE}.{name}"
    if former not in FORMER:
        raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")
    return importlib.import_module(former)
