"""Small runs for the tests of the runner."""

import contextlib
import dataclasses
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from kary_replay.algorithms import ALGORITHMS
from kary_replay.runner import Runner, RunnerConfig
from kary_replay.runner.backends.memory import OwnMemory, SharedMemory
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.flow import HostedFlow
from kary_replay.runner.records.run_directory import RunDirectory, load_state
from kary_replay.runner.streams import Checkpoint

HANG_SECONDS = 300.0

SMALL = {
    "actors": 1,
    "backend": "serial",
    "envs_per_actor": 4,
    "groups": 2,
    "learning_starts": 100,
    "evaluate": "never",
    "buffer_capacity": 5_000,
}


SMALL_ROLLOUTS = {"actors": 1, "backend": "serial", "groups": 2, "evaluate": "never"}


def config(algorithm, env, directory, options=None, **settings):
    """A small, fast run."""
    cls = ALGORITHMS[algorithm]
    small, learned_from = {"hidden": (16, 16)}, SMALL
    if cls.learns_from == "rollouts":
        small |= {"n_envs": 4, "rollout_length": 10}
        learned_from = SMALL_ROLLOUTS
    if algorithm == "r2d2":  # whose rows are sequences
        small |= {"sequence_length": 8, "burn_in": 2, "n_step": 2, "lstm_hidden_size": 6}
        learned_from = {**SMALL, "learning_starts": 30}
    if "batch_size" in {field.name for field in dataclasses.fields(cls.options_class)}:
        small |= {"batch_size": 20 if cls.learns_from == "rollouts" else 32}
    return RunnerConfig(
        algorithm,
        env,
        options=cls.options_class(**{**small, **(options or {})}),
        directory=str(directory),
        **{**learned_from, **settings},
    )


def run(*args, **kwargs):
    return Runner(config(*args, **kwargs)).run()


def hosted(settings, n_actors=1):
    """The flow of a run, in the memory of this process; close it after use."""
    factory = env_factory(settings)
    medium = OwnMemory() if settings.backend == "serial" else SharedMemory()
    return HostedFlow(settings, factory, n_actors, medium, Checkpoint())


def worker(flow, kind, index=0, report=lambda message: None):
    """A worker of a flow, in this process."""
    role = next(role for role in flow.roles if role.kind == kind)
    return role.worker(dataclasses.replace(flow.seat(role, index), report=report))


def wait_until(condition):
    """Look until it holds; the limit is against hanging."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def size_of(path):
    """The bytes of a file, 0 if it is not there."""
    return path.stat().st_size if path.exists() else 0


def descendants(pid):
    """The processes that descend from one, as /proc has them."""
    children = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def stopped(runner, enough):
    """Run, and stop the run as soon as ``enough()``; return its result."""

    def stop():
        try:
            wait_until(enough)
        finally:
            runner.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    result = runner.run()
    thread.join()
    return result


@contextlib.contextmanager
def copied_checkpoints(folder, before):
    """The directory of a run as each checkpoint of less than so many steps left it: copies."""
    commit, copies = RunDirectory.commit, []

    def commit_and_copy(self, checkpoint, counters):
        commit(self, checkpoint, counters)
        if counters["env_steps"] < before:
            copies.append(shutil.copytree(self.path, folder / f"copy{len(copies)}"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "commit", commit_and_copy)
        yield copies


def parameters(directory):
    """All flat parameters in a run's last checkpoint, by name."""
    import json

    folder = directory / json.loads((directory / "checkpoint.json").read_text())["folder"]
    state = load_state(folder / "learner-0.pt")["algorithm"]
    found = {name: minimizer["parameters"] for name, minimizer in state["minimizers"].items()}
    found.update({f"target {name}": target for name, target in state.get("targets", {}).items()})
    return {**found, **{name: state[name] for name in ("normalization",) if name in state}}


def same(first, second):
    """Whether two runs ended with the same parameters, bit for bit."""
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)
