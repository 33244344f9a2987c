"""Processes are killed while they save: a whole checkpoint is there, the last or the one before.

    python tests/concurrency/stress_saves.py --kills 150

Two scenarios. Alone: the victim changes a buffer of its own and saves it, again and again; what is
found must equal, bit for bit, what it saved. Beside others: the victim saves a shared buffer to
which another process adds, and whose priorities a third one updates; what is found must be one
moment of it. Ends with status 1 on the first violation.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

import kary_replay as kr
from kary_replay import checkpoint

# run as a program
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from checkpoints import state  # noqa: E402
from rows import EPSILON, Rows, check_masses, priority, require, td_error  # noqa: E402

CAPACITY, N_WORDS, BATCH = 3_000, 60, 50
CHUNK_NBYTES = 1 << 16  # many of them
MAX_SAVES = 1 << 16
HANG_SECONDS = 300.0


def new_buffer(seed, shared):
    options = {
        "alpha": 1.0,
        "beta": 1.0,
        "priority_epsilon": EPSILON,
        "seed": seed,
        "shared": shared,
    }
    return kr.PrioritizedReplayBuffer(CAPACITY, Rows(N_WORDS, BATCH).fields(), **options)


def add(buffer, rows, first, exponent):
    number = np.arange(first, first + BATCH)
    buffer.add(priority=priority(number, exponent), **rows.make(number))


def digest(buffer):
    """A number for everything in a buffer."""
    return int.from_bytes(hashlib.blake2b(state(buffer), digest_size=8).digest(), "little")


def in_process(function):
    """What a process does until it is killed; if it fails instead, with status 1."""

    def run(*arguments):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        checkpoint.CHUNK_NBYTES = CHUNK_NBYTES
        try:
            function(*arguments)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    return run


def save_alone(directory, seed, begun, finished, digests):
    """Change the buffer, note its digest and that a save begins, save, note its end; go on."""
    rows, rng = Rows(N_WORDS, BATCH), random.Random(seed)
    buffer = (
        kr.PrioritizedReplayBuffer.load(directory) if finished.value else new_buffer(seed, False)
    )
    while True:
        for _ in range(rng.choice([1, 3, 90])):
            add(buffer, rows, buffer.n_added, rng.randrange(4))
        batch = buffer.sample(BATCH)
        buffer.update_priorities(batch.handle, td_error(batch.number, rng.randrange(4)))
        number = begun.value + 1
        digests[number] = digest(buffer)
        begun.value = number
        buffer.save(directory)
        finished.value = number


def save_shared(directory, descriptor, begun, finished):
    buffer = kr.PrioritizedReplayBuffer.attach(descriptor)
    while True:
        begun.value += 1
        buffer.save(directory)
        finished.value = begun.value


def write(descriptor, n_calls):
    buffer, rows = kr.PrioritizedReplayBuffer.attach(descriptor), Rows(N_WORDS, BATCH)
    while True:
        add(buffer, rows, buffer.n_added, n_calls.value % 4)
        n_calls.value += 1


def update(descriptor, n_calls):
    buffer = kr.PrioritizedReplayBuffer.attach(descriptor)
    while True:
        batch = buffer.sample(BATCH)
        buffer.update_priorities(batch.handle, td_error(batch.number, n_calls.value % 4))
        n_calls.value += 1


class Stress:
    """One scenario: the directory, the victims, and what is checked between them."""

    def __init__(self, directory, seed, beside):
        self.directory, self.beside, self.random = (
            Path(directory) / f"saved-{beside}",
            beside,
            random.Random(seed),
        )
        self.seeds = iter(range(seed + 1, seed + 1 + (1 << 30)))
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["stress_saves"])
        self.begun, self.finished = self.context.RawValue("q", 0), self.context.RawValue("q", 0)
        self.digests = self.context.RawArray("Q", MAX_SAVES)
        self.helpers, self.counts = [], []
        self.n_added = 0  # of the checkpoint found last
        self.n_finished, self.found = 0, 0  # and its digest
        if beside:
            self.buffer = new_buffer(seed, True)
            rows = Rows(N_WORDS, BATCH)
            for first in range(0, CAPACITY, BATCH):
                add(self.buffer, rows, first, 0)

    def start(self, function, *arguments):
        process = self.context.Process(target=run_named, args=(function, *arguments), daemon=True)
        process.start()
        return process

    def start_victim(self):
        if self.beside:
            return self.start(
                "save_shared", self.directory, self.buffer.descriptor, self.begun, self.finished
            )
        return self.start(
            "save_alone", self.directory, next(self.seeds), self.begun, self.finished, self.digests
        )

    def wait(self, condition, process, what):
        deadline = time.monotonic() + HANG_SECONDS
        while not condition():
            require([process.exitcode is None], f"{what}: ended with {process.exitcode}")
            require([time.monotonic() < deadline], f"{what}: hangs")
            time.sleep(0.0005)

    def run(self, n_kills, seconds_limit=1e9):
        """Kill so many in the middle of a save.

        Return how many were killed, how many saves came to their end, and the seconds.
        """
        started, killed, n_mid = time.monotonic(), 0, 0
        try:
            if self.beside:
                for function in ("write", "update"):
                    self.counts.append(self.context.RawValue("q", 0))
                    self.helpers.append(
                        self.start(function, self.buffer.descriptor, self.counts[-1])
                    )
            seconds = self.measure()
            while n_mid < n_kills and time.monotonic() - started < seconds_limit:
                n_mid += self.kill_one(seconds)
                killed += 1
                self.check()
                require(
                    [all(one.exitcode is None for one in self.helpers)],
                    "a writer or an updater ended",
                )
            before = [count.value for count in self.counts]
            for count, one, n in zip(self.counts, self.helpers, before, strict=True):
                self.wait(
                    lambda count=count, n=n: count.value > n + 3, one, "a writer or an updater"
                )
        finally:
            for process in self.helpers:
                process.kill()
                process.join(HANG_SECONDS)
        self.check_the_end()
        return killed, n_mid, self.finished.value, time.monotonic() - started

    def measure(self):
        """How long a save takes here, roughly; the first ones are left to end."""
        victim = self.start_victim()
        self.wait(lambda: self.finished.value >= 1, victim, "the first save")
        started, before = time.monotonic(), self.finished.value
        self.wait(lambda: self.finished.value >= before + 3, victim, "a save")
        seconds = (time.monotonic() - started) / (self.finished.value - before)
        self.kill(victim)
        self.check()
        return seconds

    def kill(self, victim):
        victim.kill()
        victim.join(HANG_SECONDS)
        require([victim.exitcode == -signal.SIGKILL], f"exit code {victim.exitcode}")
        victim.close()

    def kill_one(self, seconds):
        """Kill a new victim a random while after its save began; return whether it was saving."""
        before = self.begun.value
        victim = self.start_victim()
        self.wait(lambda: self.begun.value > before, victim, "a save")
        until = time.monotonic() + self.random.uniform(0, 1.3 * seconds)
        while time.monotonic() < until:  # sleeping is too coarse
            pass
        self.kill(victim)
        return self.begun.value != self.finished.value

    def check(self):
        """Check that the checkpoint is what was saved last, or was being saved at the death."""
        entries = sorted(one.name for one in self.directory.iterdir())
        require(
            [len([name for name in entries if name.startswith("data-")]) <= 2],
            f"leftovers gather: {entries}",
        )
        buffer = kr.PrioritizedReplayBuffer.load(self.directory)
        buffer.check_invariants()
        number = buffer.field_view("number").copy()
        body, tag, tail = (buffer.field_view(name) for name in ("body", "tag", "tail"))
        n_rows = len(buffer)
        parts = {name: part[:n_rows] for name, part in tag.items()}
        Rows(N_WORDS, BATCH).check_whole(
            {"number": number[:n_rows], "body": body[:n_rows], "tag": parts, "tail": tail[:n_rows]}
        )
        check_masses(number[:n_rows], buffer.tree.get(np.arange(n_rows)))
        last = buffer.n_added
        require([last % BATCH == 0], "half a batch was saved", [last])
        require(
            np.sort(number[:n_rows]) == np.arange(last - n_rows, last),
            "rows of several moments",
            number[:n_rows],
        )
        if self.beside:
            require([last >= self.n_added], "an older checkpoint came back", [last, self.n_added])
            self.n_added = last
        else:
            if self.finished.value > self.n_finished:
                self.n_finished, self.found = self.finished.value, self.digests[self.finished.value]
            known = self.found, self.digests[self.begun.value]
            self.found = digest(buffer)
            require(
                [self.found in known], "what was saved is not what came back", [self.finished.value]
            )
        return buffer

    def check_the_end(self):
        """The next save removes what the dead left, and can be loaded."""
        buffer = self.buffer if self.beside else self.check()
        buffer.save(self.directory)
        found = kr.PrioritizedReplayBuffer.load(self.directory)
        require([digest(found) == digest(buffer)], "the last save differs")
        names = sorted(path.name for path in self.directory.rglob("*"))
        data = [name for name in names if name.startswith("data-")]
        require([len(data) == 1 and len(names) == 6], f"leftovers: {names}")


def run_named(name, *arguments):
    """Run one of the functions above in this process."""
    in_process(globals()[name])(*arguments)


def run_stress(n_kills, seconds_limit=1e9, seed=0, log=print):
    """Run both scenarios; return how many were killed in the middle of a save."""
    total = 0
    directory = tempfile.mkdtemp(prefix="kary-replay-saves-")
    try:
        for beside in (False, True):
            killed, n_mid, finished, seconds = Stress(directory, seed, beside).run(
                -(-n_kills // 2), seconds_limit / 2
            )
            name = "beside others" if beside else "alone"
            log(
                f"{name:>14}: {killed} killed, {n_mid} of them during a save, "
                f"{finished} saves, {seconds:.1f} s"
            )
            total += n_mid
    finally:
        shutil.rmtree(directory)
    return total


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=150, help="processes killed during a save (default 150)"
    )
    parser.add_argument(
        "--seconds-limit", type=float, default=3600.0, help="stop earlier after about this long"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        total = run_stress(options.kills, options.seconds_limit, options.seed)
    except AssertionError as violation:
        print(f"VIOLATION: {violation}", file=sys.stderr)
        return 1
    print(f"{total} processes killed during a save, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
