"""Runs on a cluster, in a thread, which a test looks into."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from kary_replay.runner import Runner
from kary_replay.runner.records.run_directory import RunDirectory

N_REPETITIONS = int(os.environ.get("RAY_REPETITIONS", "1"))  # 20 in `make test-ray`

ANSWERS = "answers experience"  # the process of a node that does
MARK = "KARY_REPLAY_TEST_CLUSTER"  # a variable that all processes of a cluster have
COMM = 15  # bytes that the kernel keeps of a name
RUNNING: list[Running] = []  # of the test that runs

SMALL = {
    "backend": "ray",
    "actors": 6,
    "envs_per_actor": 2,
    "groups": 1,
    "learning_starts": 200,
    "buffer_capacity": 30_000,
    "evaluate": "never",
    "total_env_steps": 10_000_000,
    "checkpoint_interval_seconds": 0.0,
}


def config(directory, algorithm="dqn", env="CartPole-v1", options=None, **settings):
    from runs import config as small  # of tests/runner, which conftest.py has put on the path

    return small(algorithm, env, directory, options, **{**SMALL, **settings})


class Running:
    """A run in a thread of its own; the flow and the backend can be looked into."""

    def __init__(self, made, monkeypatch, path: Path) -> None:
        self.runner, self.path = made, path
        self.text = io.StringIO()  # what it says
        made._console = Console(file=self.text, width=200)
        self.flow = self.backend = self.result = self.error = None
        train = Runner._train

        def watched(runner, supervisor, flow, monitor):
            self.flow, self.backend = flow, supervisor._backend
            train(runner, supervisor, flow, monitor)

        monkeypatch.setattr(Runner, "_train", watched)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        RUNNING.append(self)

    def _run(self) -> None:
        try:
            self.result = self.runner.run()
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def updates(self) -> int:
        self.check()
        return self.flow.board.updates if self.flow is not None else 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def state(self) -> str:
        """Say how it goes."""
        how = f"over, {self.error!r}" if self.is_over else f"{self.updates} updates"
        return f"{how}\n{self.text.getvalue()}"

    def await_updates(self, n: int, seconds: float = 180.0) -> None:
        """Wait until so many more updates are done."""
        goal, deadline = self.updates + n, time.monotonic() + seconds
        while self.updates < goal:
            assert time.monotonic() < deadline, f"{goal} updates are not done: {self.state()}"
            assert not self.is_over, self.state()
            time.sleep(0.02)

    def longest_pause(self, seconds: float) -> float:
        """Watch so long; return the longest time without an update."""
        end, moved, longest, last = time.monotonic() + seconds, time.monotonic(), 0.0, self.updates
        while time.monotonic() < end:
            if self.updates != last:
                last, moved = self.updates, time.monotonic()
            longest = max(longest, time.monotonic() - moved)
            time.sleep(0.01)
        return longest

    def end(self) -> None:
        """End the run, if it goes on."""
        self.runner.stop()
        self._thread.join(120.0)
        assert self.is_over

    def stop(self):
        """End the run; return its result."""
        self.end()
        self.check()
        return self.result


def started(monkeypatch, directory, **settings):
    """Start a run, and wait until it learns."""
    running = Running(Runner(config(directory, **settings)), monkeypatch, Path(directory))
    await_start(running)
    return running


def counters_of_killed_driver(algorithm: str, address: str, run: Path) -> dict[str, Any]:
    """Begin a run on a cluster, kill its driver once there is a checkpoint; return its counters."""
    program = "from kary_replay.cli import main; main()"
    command = ["train", algorithm, "CartPole-v1", "--backend", "ray", "--ray-address", address]
    command += ["--actors", "4", "--checkpoint-interval-seconds", "1", "--evaluate", "never"]
    command += ["--total-env-steps", "100000000", "--directory", str(run)]
    driver = subprocess.Popen(
        [sys.executable, "-c", program, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert driver.stdout is not None
    try:
        wait_until(lambda: driver.poll() is not None or (run / "checkpoint.json").exists(), 240)
        assert driver.poll() is None, driver.stdout.read().decode()
        assert named(ANSWERS)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
    wait_until(lambda: not named(ANSWERS) and not named("actor-"), 60)
    counters: dict[str, Any] = RunDirectory(run).checkpoint(RunDirectory.existing(run)[1])[1]
    return counters


def await_start(running) -> None:
    deadline = time.monotonic() + 240.0
    while running.updates < 50:
        running.check()
        assert not running.is_over
        assert time.monotonic() < deadline, running.state()
        time.sleep(0.05)


def named(part: str) -> set[int]:
    """Return the processes of this cluster whose name begins so."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "comm").read_text().strip()
                is_ours = mark in (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours and name.startswith(part[:COMM]):
                found.add(int(path.name))
    return found


def site_processes() -> list[int]:
    """Return a site's process, and all that it has started."""
    from runs import descendants  # as `config` finds it

    site = min(named("ray::Site"))
    return [site, *descendants(site)]


@contextlib.contextmanager
def stopped(pids: list[int]):
    """Have processes stand still, as those of a machine that swaps."""
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def kill_one(part: str) -> int:
    """Kill a process whose name begins so; return its number."""
    pid = min(named(part))
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "\n".join(running.state() for running in RUNNING)
        time.sleep(0.02)
