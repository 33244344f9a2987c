"""A process that has imported what workers need, and from which they are forked.

Importing torch takes a second. A worker that is forked has it at once. The server is started as
early as possible, so that it imports while the program that started it still does. It is a server
of the standard library that belongs to this package alone: another fork server of the program keeps
its settings.

This module imports neither torch nor NumPy.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    process,
    reduction,
    spawn,
    util,
)
from typing import Any

__all__ = ["ENDING", "SERVER_ENDED", "WorkerProcess", "forget_program", "let_go", "start"]

SERVER_ENDED = 256
"""The exit code of a process whose server has ended before it; no process ends with this one."""

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
"""Signals that may be sent to all processes of a run; how it ends then, its supervisor decides."""

PRELOADED = "kary_replay.runner.backends.preloaded"
N_THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"


class _Popen(popen_forkserver.Popen):
    """A process forked from the server of this package."""

    _fds: list[int]
    returncode: int | None

    def _launch(self, process_obj: Any) -> None:
        data, content = spawn.get_preparation_data(process_obj._name), io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(data, content)
            reduction.dump(process_obj, content)
        finally:
            context.set_spawning_popen(None)
        with _inherited():
            self.sentinel, writable = _SERVER.connect_to_new_process(self._fds)
        # The child notices by this duplicate when its parent has ended.
        closing = os.dup(writable), self.sentinel
        self.finalizer = util.Finalize(self, _close, closing)
        with open(writable, "wb", closefd=True) as file:
            file.write(content.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, which the server tells; None while the process lives."""
        if self.returncode is None:
            seconds = 0 if flag == os.WNOHANG else None
            if connection.wait([self.sentinel], seconds):
                try:
                    self.returncode = forkserver.read_signed(self.sentinel)
                except (OSError, EOFError):
                    self.returncode = SERVER_ENDED
        return self.returncode


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class WorkerProcess(process.BaseProcess):
    """A process forked from the server; it has the environment variables of the moment.

    Parameters
    ----------
    n_threads : int
        How many threads libraries may start that are loaded by the process itself.
    target, args, name
        As `multiprocessing.Process` has them.
    """

    _start_method = "forkserver"

    def __init__(self, n_threads: int, **options: Any) -> None:
        super().__init__(daemon=False, **options)
        self._environment = {**os.environ, **dict.fromkeys(N_THREADS, str(n_threads))}

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        return _Popen(process_obj)

    def run(self) -> None:
        """Take over the variables, then do what a process does."""
        let_go()
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


_SERVER = forkserver.ForkServer()
_LOCK = threading.RLock()  # held by the thread whose variables the server is to inherit
_SERVER.set_forkserver_preload([PRELOADED])


def start() -> None:
    """Start the server unless it runs; it imports in the background. OSError if it cannot be."""
    try:
        with _inherited():
            _SERVER.ensure_running()
    except OSError as error:
        raise OSError(
            f"no workers can be started: {error}. They need a folder for a socket, with a "
            "path of at most 75 characters: let TMPDIR name another"
        ) from error


def forget_program() -> None:
    """Keep workers from importing the program of this process, from which they need nothing.

    For a process that a cluster has started, by a program of its own.
    """
    program = sys.modules["__main__"]
    program.__spec__ = None
    with contextlib.suppress(AttributeError):
        del program.__file__


def let_go() -> None:
    """In a worker: close the end of the pipe by which the server knows that it is needed.

    The server ends when nobody holds that end any more. Were workers to hold it, one that hangs
    would keep the server alive, and the server the worker, after the supervisor was killed.
    """
    inherited: Any = vars(forkserver)["_forkserver"]
    if inherited._forkserver_alive_fd is not None:
        os.close(inherited._forkserver_alive_fd)
        inherited._forkserver_alive_fd = inherited._forkserver_address = None


@contextlib.contextmanager
def _inherited() -> Iterator[None]:
    """Let the server inherit where modules are found, one thread for libraries, and no Ctrl-C.

    Libraries read how many threads they may have when they are loaded. The server must have none:
    a fork copies only the thread that calls it.
    """
    wanted = dict.fromkeys(N_THREADS, "1")
    paths = [path for path in sys.path if isinstance(path, str)]  # as Python itself looks there
    wanted["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in paths)
    wanted["PYTHONSAFEPATH"] = "1"
    with _LOCK:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        old = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
