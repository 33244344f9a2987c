"""Every worker in a process of its own, on this machine."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import connection as connections
from multiprocessing import parent_process
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import torch

from ..config import RunnerConfig
from ..flow import HostedFlow, Role
from ..messages import Problem
from ..workers import Seat
from .backend import Order
from .guard import Guard
from .memory import SharedMemory
from .report_pipe import Inbox
from .worker_process import main

__all__ = ["ProcessBackend", "ProcessHandle"]

LAST_WORD_SECONDS = 10.0  # between the end of a worker's pipe and that of its process
# what a process brings upon itself, as a rule; the other signals come from elsewhere
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class ProcessBackend:
    """Workers as processes of this machine, forked from a server that has imported all they need.

    Parameters
    ----------
    config : RunnerConfig
        The settings of the run.
    interrupted : function
        Whether the run is to end.
    medium : SharedMemory, optional
        The memory of the workers, where it has only a part of the run.
    is_child : bool
        Whether a cluster has started this process, and kills its children when it ends.
    """

    starts_anew = True
    n_actors = None

    def __init__(
        self,
        config: RunnerConfig,
        interrupted: Callable[[], bool],
        medium: SharedMemory | None = None,
        *,
        is_child: bool = False,
    ) -> None:
        self.medium = medium or SharedMemory()
        self._env_name = config.env_name
        self._handles: list[ProcessHandle] = []
        self._guard = Guard(*self._folders(), is_adopted=True) if is_child else None
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def open(self, flow: HostedFlow) -> None:
        """Have the folder of the flow removed, whatever happens to this process."""
        if self._guard is None:
            self._guard = Guard(*self._folders())

    def _folders(self) -> list[Path]:
        """Return the folders that end with this process: also that of the fork server's socket."""
        # a process that multiprocessing has started shares that of its parent
        own = get_temp_dir() if parent_process() is None else None
        return [Path(folder) for folder in (self.medium.path, own) if folder is not None]

    def start(self, role: Role, index: int, seat: Seat, state: Path | None) -> ProcessHandle:
        """Start a process."""
        from ...fork_server import WorkerProcess  # which other systems than Linux do not have

        if self._guard is None:
            self._guard = Guard(*self._folders())
        pipe, theirs = connections.Pipe()
        process = WorkerProcess(
            role.threads,
            target=main,
            args=(role, seat, theirs, state),
            name=f"kary-replay {seat.name}",
        )
        try:
            process.start()
        except EOFError as error:
            raise OSError("the fork server has ended") from error
        finally:
            theirs.close()
        self._handles = [handle for handle in self._handles if handle.pipe is not None]
        self._handles.append(ProcessHandle(role, process, pipe, self._env_name))
        self._guard.watch(handle.process.pid for handle in self._handles)
        return self._handles[-1]

    def run(self, seconds: float) -> None:
        """Wait so long for a report, or for the end of a process."""
        pipes = [handle.pipe for handle in self._handles if handle.pipe is not None]
        connections.wait(pipes, seconds)

    def close(self) -> None:
        """Dismiss the guard."""
        torch.set_num_threads(self._threads)
        if self._guard is not None:
            self._guard.close()


class ProcessHandle:
    """A worker in a process of its own."""

    answers_at_once = False

    def __init__(self, role: Role, process: Any, pipe: Any, env_name: str) -> None:
        self._role, self._env_name = role, env_name
        self.process = process
        self.pipe: Any = pipe  # None after the worker has closed its end
        self._inbox = Inbox(pipe)
        self._problem: Problem | None = None
        self._closed = math.inf  # when the worker closed its end

    @property
    def heard_at(self) -> float:
        """Now, for it is the same machine."""
        return time.monotonic()

    def order(self, order: Order, argument: Any = None) -> None:
        """Send an order; one for which a worker that is stopped leaves no room is lost."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):
                self.pipe.send((order, argument))

    def reports(self) -> list[Any]:
        """Return what has come through the pipe."""
        if self.pipe is None:
            return []
        reports: list[Any] = []
        for report in self._inbox.take():
            if isinstance(report, Problem):
                self._problem = report
            else:
                reports.append(report)
        if self._inbox.has_ended:
            self.pipe.close()
            self.pipe, self._closed = None, time.monotonic()
        return reports

    def cause_of_death(self) -> Problem | None:
        """Return what the worker has said last, or what the exit code of its process says.

        The code may come a moment after the end of its pipe, and only it says who was killed.
        """
        from ...fork_server import SERVER_ENDED

        code = self.process.exitcode
        if self._problem is not None:
            return self._problem
        if code is None:
            is_late = time.monotonic() > self._closed + LAST_WORD_SECONDS
            return Problem("it has closed its pipe") if is_late else None
        if code == SERVER_ENDED:
            # Workers end with the server, which no environment can reach.
            return Problem("the process from which workers are forked was killed", was_killed=True)
        if code < 0 and -code not in CRASHES:
            suspicion = " (out of memory?)" if -code == signal.SIGKILL else ""
            message = f"killed by {_name_of(-code)}{suspicion}"
            return Problem(message, was_killed=True)
        how = f"with exit code {code}" if code >= 0 else f"by a crash ({_name_of(-code)})"
        if self._role.steps_environments:
            # Only environments have code of others there.
            what = f"environment {self._env_name} ended the process that it ran in"
            return Problem(f"{what}, {how}", is_environment=True)
        return Problem(f"its process ended {how}; what it printed, above, may say why")

    def end(self, why: Problem) -> None:
        """Kill the process, and give this as the cause of its death."""
        self.kill()
        self._problem = why

    def kill(self) -> None:
        """Kill the process and its group, and close the pipe."""
        # What the environments have started may live on in the group after its first process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.reports()
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None

    @property
    def has_ended(self) -> bool:
        """Whether the process has."""
        return self.process.exitcode is not None


def _name_of(number: int) -> str:
    """Return the name of a signal; not all have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
