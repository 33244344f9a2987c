"""The workers of a run, one role a file; `worker` says what a worker is and what it is made of.

A worker does one piece of work when it is told to, and waits no longer than it is told. Backends
decide where.
"""

from __future__ import annotations

from .actor import Actor
from .evaluator import Evaluator
from .learner import Learner
from .policy_worker import PolicyWorker
from .worker import Seat, Worker

__all__ = ["Actor", "Evaluator", "Learner", "PolicyWorker", "Seat", "Worker"]
