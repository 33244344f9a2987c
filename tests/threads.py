"""Threads for tests: started together, timed out together, never failing in silence."""

import faulthandler
import sys
import threading
import time
import traceback


def run_threaded(work, n_threads=None, timeout_seconds=540.0):
    """Run callables in threads that a barrier starts at once; return their results in order.

    ``work`` is a list of callables, or one callable that takes its thread's number, with
    ``n_threads``. The first exception of any thread is raised here. Threads that have not ended by
    the time-out fail the test; if even this thread cannot run (somebody waits on a native lock
    holding the GIL), a watchdog that needs no GIL prints all stacks and ends the process.
    """
    if n_threads is not None:
        work = [lambda number=number, one=work: one(number) for number in range(n_threads)]
    barrier = threading.Barrier(len(work))
    results = [None] * len(work)
    failures = []

    def run_one(number):
        try:
            barrier.wait(timeout_seconds)
            results[number] = work[number]()
        except BaseException as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=run_one, args=(number,), daemon=True) for number in range(len(work))
    ]
    deadline = time.monotonic() + timeout_seconds
    faulthandler.dump_traceback_later(timeout_seconds + 30.0, exit=True, file=sys.__stderr__)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hung = [number for number, thread in enumerate(threads) if thread.is_alive()]
    finally:
        faulthandler.cancel_dump_traceback_later()
    if failures:
        # A thread that failed may have left others at a barrier: they report only that it broke.
        raise next(
            (one for one in failures if not isinstance(one, threading.BrokenBarrierError)),
            failures[0],
        )
    if hung:
        frames = sys._current_frames()
        stacks = ["".join(traceback.format_stack(frames[threads[number].ident])) for number in hung]
        raise AssertionError(
            f"threads {hung} still run after {timeout_seconds} s:\n" + "\n".join(stacks)
        )
    return results
