"""What runs in a worker's process: the worker, orders from the supervisor, and an eye on whether it still lives."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch

from ...algorithms import Share
from ..environments.environments import EnvironmentFaultError
from ..failures import DivergedError
from ..plan import Plan, Problem, Ready
from ..records.run_directory import load_state, save_state
from ..workers import WORKERS, Evaluator, Learner

__all__ = ["join", "main"]

PATIENCE_SECONDS = 0.02  # of one piece of work; orders and the watchdog are looked after that often
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def main(
    plan: Plan,
    kind: str,
    index: int,
    incarnation: int,
    pipe: Any,
    states: Path | None,
    rendezvous: str | None,
) -> None:
    """Run one worker until the supervisor ends it or is gone."""
    name = f"{kind}-{index}"
    _leave_no_orphan(name)
    torch.set_num_threads(plan.config.learner_threads if kind == "learner" else 1)
    try:
        options: dict[str, Any] = {}
        if kind == "actor":
            options["incarnation"] = incarnation
        if kind == "learner" and plan.config.learners > 1:
            options["share"] = join(plan, index, rendezvous)
        worker = WORKERS[kind](plan, index, pipe.send, **options)
        path = (
            None if states is None else states / f"{name if kind != 'learner' else 'learner-0'}.pt"
        )
        if path is not None and (kind == "learner" or path.exists()):
            worker.load_state_dict(load_state(path))
        pipe.send(Ready(name, ""))
        # when all are ready: nobody's start-up is to slow down the others' work
        if pipe.recv()[0] == "go":
            _serve(worker, name, pipe)
        worker.close()
    except (BrokenPipeError, EOFError, ConnectionResetError):
        os._exit(1)  # the supervisor is gone
    except BaseException as error:
        is_environment, has_diverged = (
            isinstance(error, EnvironmentFaultError),
            isinstance(error, DivergedError),
        )
        text = str(error) if is_environment or has_diverged else traceback.format_exc()
        with contextlib.suppress(OSError):
            pipe.send(Problem(name, text, is_environment, has_diverged))
        sys.stderr.flush()
        os._exit(1)
    # libraries' own clean-up may hang, as that of a process group whose other members are gone
    os._exit(0)


def _serve(worker: Any, name: str, pipe: Any) -> None:
    """Work, and obey."""
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
                pipe.send(Ready(name, argument, _saved(worker, Path(argument) / f"{name}.pt")))
            elif order == "finish":
                if isinstance(worker, Learner):
                    worker.finish_after_this()
                    while worker.work(PATIENCE_SECONDS):
                        pass
                elif isinstance(worker, Evaluator):
                    worker.finish()
                pipe.send(Ready(name, "finish"))
            elif order == "stop":
                return
            worked = True


def _saved(worker: Any, path: Path) -> str:
    """Write a worker's state; return why that failed, or nothing."""
    try:
        save_state(path, worker.state_dict())
    except OSError as error:
        return str(error)
    return ""


def _leave_no_orphan(name: str) -> None:
    """End with the supervisor, however it ends; leave Ctrl-C to it; be called by name in lists of processes."""
    # may be sent to all processes; how a run ends, the supervisor decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    supervisor = parent_process()
    assert supervisor is not None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_NAME, name.encode())
    if os.getppid() != supervisor.pid:
        os._exit(1)
    os.setpgid(0, 0)  # what environments start belongs to this group, and is killed with it


def join(plan: Plan, index: int, rendezvous: str | None) -> Share:
    """Return this learner's share, once all learners have met."""
    import torch.distributed as dist

    count = plan.config.learners
    on_gpu = plan.config.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(plan.config.learner_device(index))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{rendezvous}",
        rank=index,
        world_size=count,
    )

    def average(vector: torch.Tensor) -> None:
        dist.all_reduce(vector)
        vector.div_(count)

    return Share(index, count, average)
