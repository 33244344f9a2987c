"""What runs in a worker's process: the worker, the orders of the supervisor, and its watch."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import os
import signal
import sys
import time
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch

from ...fork_server import ENDING
from ..failures import problem_of
from ..flow import Role
from ..messages import Finished, Started
from ..records.run_directory import load_state
from ..workers import Seat, Worker
from .backend import save_worker
from .report_pipe import send_report

__all__ = ["leave_no_orphan", "main"]

PATIENCE_SECONDS = 0.02  # of one piece of work; orders are looked after that often
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
SERVER = os.getpid()  # where this module is imported by the fork server, before workers are forked


def main(role: Role, seat: Seat, pipe: Any, state: Path | None) -> None:
    """Run one worker until the supervisor ends it or is gone."""
    report = partial(send_report, pipe)
    try:
        leave_no_orphan(seat.name)
        torch.set_num_threads(role.threads)
        worker = role.worker(dataclasses.replace(seat, report=report))
        if state is not None:
            worker.load_state_dict(load_state(state))
        report(Started())
        # All workers go when all are ready: nobody's start is to slow down the others' work.
        order, seconds = pipe.recv()
        if order == "go":
            seat.clock.start(seconds)
            _serve(worker, seat.name, pipe)
        worker.close()
    except BaseException as error:
        with contextlib.suppress(OSError):  # the supervisor may be gone
            report(problem_of(error))
        sys.stderr.flush()
        os._exit(1)
    # Libraries' own clean-up may hang, as that of a process group whose other members are gone.
    os._exit(0)


def _serve(worker: Worker, name: str, pipe: Any) -> None:
    """Work, and obey, until the order to stop."""
    looked = time.monotonic()
    while True:
        worked = worker.work(PATIENCE_SECONDS)
        now = time.monotonic()
        if worked and now - looked < PATIENCE_SECONDS:
            continue
        looked = now
        while pipe.poll(0 if worked else PATIENCE_SECONDS / 4):
            order, argument = pipe.recv()
            if order == "save":
                send_report(pipe, save_worker(worker, name, argument))
            elif order == "finish":
                worker.finish(lambda: pipe.poll(0))
                send_report(pipe, Finished())
            elif order == "stop":
                return
            worked = True


def leave_no_orphan(name: str) -> None:
    """End with the supervisor, however it ends; leave Ctrl-C to it; be called by name.

    The parent of this process is the fork server, which ends when the supervisor has. That the
    server has not ended before `prctl` is seen by its process being the parent still: the parent of
    an orphan is another.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_NAME, name.encode())
    supervisor = parent_process()
    assert supervisor is not None
    if os.getppid() != SERVER or not supervisor.is_alive():
        gone = "the process from which it is forked" if supervisor.is_alive() else "its supervisor"
        print(f"kary-replay: {name} ends, for {gone} has ended", file=sys.stderr, flush=True)
        raise OSError(f"{gone} has ended")
    os.setpgid(0, 0)  # what environments start belongs to this group, and is killed with it
