"""Kill a process at a chosen instruction of one call: a debugger lets it go there, and no further.

    python tests/concurrency/kill_points.py --each 1

kills at every instruction of every call, which takes some minutes. Random kills seldom hit the few
microseconds in which the lock is held. Here each instruction of ours in the call is a place to die,
and so is each one of libc's and the interpreter's that follows within a hundred. It needs Linux on
x86-64, and leave to trace processes.
"""

import argparse
import collections
import contextlib
import ctypes
import os
import platform
import signal
import sys
import time
from pathlib import Path

import numpy as np
import numpy.ma  # which a snapshot imports at its first call, through numpy.unique

import kary_replay as kr
from kary_replay.core import snapshots
from kary_replay.fields import leaves_of

# run as a program
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import test_frames_stress as frames  # noqa: E402
from rows import (  # noqa: E402
    EPSILON,
    Rows,
    SeenSlots,
    check_batch,
    check_masses,
    priority,
    require,
    strength,
    td_error,
)

CAPACITY, N_ROWS = 9, 3
TRACEME, PEEKTEXT, PEEKUSER, POKETEXT, POKEUSER, CONTINUE, SINGLESTEP = 0, 1, 3, 4, 6, 7, 9
WORD = (1 << 64) - 1
RIP = 16 * 8  # where the instruction pointer is in struct user
BREAKPOINT = 0xCC
MAX_STEPS = 400_000
# calls of a second, mostly the interpreter's: so many times fewer places
SPARSE = {"snapshot": 30, "sample_nothing": 30, "bury": 3}
# instructions after one of ours that may still be of what we called: a lock, a system call
OUTSIDE = 100
FAR_OUTSIDE = {"take_over": 10_000, "lower_alpha": 10_000}  # or a long copy

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def is_possible():
    """Whether this system lets a process trace its child."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(libc.ptrace(TRACEME, 0, None, None) != 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def our_code():
    """Address ranges of the package's machine code."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_, path = line.split(maxsplit=5)
        if "x" in permissions and "/kary_replay/" in path:
            yield tuple(int(end, 16) for end in addresses.split("-"))


class Victim:
    """A child that stops just in front of a call, to be stepped through it."""

    def __init__(self, call):
        self.ranges = list(our_code())
        self.pid = os.fork()
        if self.pid == 0:
            getattr(call, "prepare", lambda: None)()
            libc.ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            call()
            os._exit(0)
        os.waitpid(self.pid, 0)

    def step(self):
        """Go on by one instruction; False if the child has ended."""
        libc.ptrace(SINGLESTEP, self.pid, None, None)
        _, status = os.waitpid(self.pid, 0)
        return os.WIFSTOPPED(status)

    def at(self):
        """The address of the next instruction."""
        return libc.ptrace(PEEKUSER, self.pid, RIP, None) & WORD

    def is_ours(self, address):
        return any(first <= address < end for first, end in self.ranges)

    def places(self, outside=OUTSIDE):
        """Where the call is in our code, or has left it by so much, in order; the child ends.

        A place is an instruction's address, and which visit to it is meant.
        """
        places, visits, n, left = [], collections.Counter(), 0, outside
        while self.step():
            at, n = self.at(), n + 1
            visits[at] += 1
            require([n < MAX_STEPS], "the call does not end", [n])
            left = 0 if self.is_ours(at) else left + 1
            if left < outside:
                places.append((at, visits[at]))
        return places

    def kill_at(self, place):
        """Die in front of an instruction, at one of the visits to it.

        A breakpoint stops the child there, which takes less time than to step through all that is
        before it.
        """
        address, visit = place
        word, shift = address & ~7, 8 * (address & 7)
        code = libc.ptrace(PEEKTEXT, self.pid, word, None) & WORD
        with_breakpoint = code & ~(0xFF << shift) | BREAKPOINT << shift
        for n in range(visit):
            if n > 0 and not self.step():
                return
            libc.ptrace(POKETEXT, self.pid, word, with_breakpoint)
            libc.ptrace(CONTINUE, self.pid, None, None)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                return
            require([self.at() == address + 1], "stopped elsewhere", [self.at(), address])
            libc.ptrace(POKETEXT, self.pid, word, code)
            libc.ptrace(POKEUSER, self.pid, RIP, address)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Close:
    """Let go of a buffer that this process has used."""

    def __init__(self, buffer):
        self.buffer = type(buffer).attach(buffer.descriptor)

    def prepare(self):
        self.buffer.sample(1)  # enters

    def __call__(self):
        self.buffer.close()


def sample_nothing(buffer):
    """Look for rows where there are none: under the lock, to be sure."""
    with contextlib.suppress(kr.errors.EmptyBufferError):
        buffer.sample(1)


def wait_for_row(buffer, slots):
    """Wait for rows that a dead process was writing: until it is clear that nobody does."""
    with contextlib.suppress(kr.errors.IndexRangeError):
        buffer.take(slots)


class Trial:
    """A buffer that outlives one victim after another."""

    def __init__(self, prioritized=True, ranked=False):
        self.rows = Rows(4, 16)
        self.prioritized, self.ranked = prioritized, ranked
        self.buffer, self.empty = self.make(), self.make()
        self.number = 0
        self.fill()

    def make(self):
        options = {"prioritization": "rank"} if self.ranked else {}
        if self.prioritized:
            options |= {"alpha": 1.0, "beta": 1.0, "priority_epsilon": EPSILON}
        kind = kr.PrioritizedReplayBuffer if self.prioritized else kr.ReplayBuffer
        buffer = kind(CAPACITY, self.rows.fields(), seed=1, shared=True, **options)
        buffer._slots.swept = 2  # new masses for all rows come in many pieces
        return buffer

    @property
    def n_repaired(self):
        """How many died while they held the lock."""
        return self.buffer._slots.n_repaired

    def fill(self):
        self.add(CAPACITY)
        if self.ranked:
            self.buffer.rank()

    def add(self, n):
        number = np.arange(self.number, self.number + n)
        self.number += n
        row = self.rows.make(number)
        if self.prioritized:
            row["priority"] = priority(number, number % 3)
        self.buffer.add(**row)

    def calls(self):
        """What a victim may be doing: everything that changes the buffer."""
        fields = self.rows.make(np.arange(10**6, 10**6 + N_ROWS))
        fields = {  # as they are stored, so that nothing of it is done in a victim
            name: np.array(value, field.dtype)
            for (name, value), (_, field) in zip(
                self.buffer._by_leaf(fields).items(), leaves_of(self.buffer.fields), strict=True
            )
        }
        given = priority(np.arange(10**6, 10**6 + N_ROWS), 1) if self.prioritized else None
        slots, writer = self.buffer._slots, self.buffer._writer
        calls = {"add": lambda: writer.add(fields, checked=given)}
        calls["reset"] = slots.reset
        calls["snapshot"] = lambda: snapshots.snapshot(slots)
        calls["check_invariants"] = lambda: snapshots.check_invariants(slots)
        # a forked child's first use, and hardly more where there are no ranks
        calls["enter"] = slots.rank
        calls["close"] = Close(self.buffer)
        calls["sample_nothing"] = lambda: sample_nothing(self.empty)
        if self.prioritized:
            batch = self.buffer.sample(N_ROWS)
            errors = td_error(batch.number, 1)
            calls["update"] = lambda: writer.update(batch.handle, errors)
            calls["set_alpha"] = lambda: slots.set_alpha(0.5)
        if self.ranked:
            calls["rank"] = slots.rank
        return calls

    def check(self, call):
        """Nothing hangs after the death, rows are whole, masses their own, and all slots usable."""
        buffer = self.buffer
        buffer.check_invariants()
        while not buffer._slots.is_settled:  # who lives looks every 5 ms
            sample_nothing(buffer)
        if call == "sample_nothing":
            self.empty.check_invariants()
            require([len(self.empty) == 0], "rows from nowhere", [len(self.empty)])
        if call in ("enter", "close"):  # all places can be had but those of the living
            type(buffer).attach(buffer.descriptor).close()
            me = buffer._slots.block.me
            require([me == 0], "somebody else has our number", [me])
        if call == "snapshot":  # the next one to copy buries the dead, who are looked at in 5 ms
            for _ in range(10_000):
                if buffer._slots.n_copying == 0:
                    break
                snapshots.snapshot(buffer._slots)
            require([buffer._slots.n_copying == 0], "a dead process copies for ever", [call])
        if self.prioritized:
            require([buffer.alpha in (0.5, 1.0)], "alpha", [buffer.alpha])
        n_rows = len(buffer)
        require([0 <= n_rows <= CAPACITY], "length", [n_rows])
        if call == "add":
            require([n_rows >= CAPACITY - N_ROWS], "rows were lost", [n_rows])
        elif call != "reset":
            require([n_rows == CAPACITY], "rows were lost", [n_rows])
        else:
            require([n_rows in (0, CAPACITY)], "half a reset", [n_rows])
        if n_rows:
            seen = SeenSlots(CAPACITY)
            batch = buffer.sample(n_rows, unique=True)
            if self.ranked:
                self.check_ranks(call, batch)
            elif not self.prioritized or buffer.alpha == 1.0:
                check_batch(self.rows, seen, batch)
                if self.prioritized:
                    check_masses(batch.number, buffer.tree.get(batch.index))
            elif self.prioritized:
                # Every mass is the root of one of its own: none was left out, none had it twice.
                self.rows.check_whole(batch)
                mass = buffer.tree.get(batch.index)
                off = np.log2(mass**2 / strength(batch.number))
                require(
                    np.abs(off - np.rint(off)) < 1e-9,
                    "alpha was applied twice, or not at all",
                    batch.number,
                    mass,
                )
        if self.prioritized and (self.ranked or buffer.alpha != 1.0):
            buffer.alpha = 1.0
            buffer.reset()
        self.fill()
        require([len(buffer) == CAPACITY], "slots were lost", [len(buffer)])
        buffer.check_invariants()

    def check_ranks(self, call, batch):
        """Rows are whole, and calls that rank all rows leave the masses of ranks under alpha."""
        self.rows.check_whole(batch)
        if call in ("set_alpha", "rank"):
            mass = np.sort(self.buffer.tree.get(batch.index))[::-1]
            due = np.arange(1, len(mass) + 1) ** -self.buffer.alpha
            require(
                np.isclose(mass, due, rtol=1e-12),
                "masses of other ranks, or another alpha",
                mass,
                due,
            )


class TableTrial(Trial):
    """Victims change the table of ranks: it grows, or its sums do, and many rows are equal.

    What a dead process has left of it, new priorities use before the next sweep.
    """

    def __init__(self):
        self.n_repaired_before = 0
        super().__init__(ranked=True)

    @property
    def n_repaired(self):
        return self.n_repaired_before + self.buffer._slots.n_repaired

    def fill(self):
        """Rank half of the rows of a new buffer, which are equal but for one."""
        self.n_repaired_before = self.n_repaired
        self.buffer.close()
        self.buffer = self.make()
        self.add(CAPACITY // 2)
        batch = self.buffer.sample(len(self.buffer), unique=True)
        self.buffer.update_priorities(batch.handle[1:], np.full(len(batch) - 1, 5.0))
        self.buffer.rank()
        self.add(CAPACITY - CAPACITY // 2 - 1)  # as many as there are would rank by themselves
        self.handle = self.buffer.take(np.arange(CAPACITY - 1)).handle

    def calls(self):
        slots = self.buffer._slots
        return {"take_over": slots.rank, "lower_alpha": lambda: slots.set_alpha(0.5)}

    def check(self, call):
        buffer, handle = self.buffer, self.handle
        # first, before anybody sweeps: as large as many are, and the lowest of all
        errors = np.where(np.arange(len(handle)) % 2 == 0, 5.0, 0.0)
        n = buffer.update_priorities(handle, errors)
        require([n == len(handle)], "rows without a priority", [n])
        mass = buffer.tree.get(handle["index"])
        require((mass > 0) & (mass <= 1), "a mass that no rank has", handle["index"], mass)
        buffer.check_invariants()
        while not buffer._slots.is_settled:
            sample_nothing(buffer)
        buffer.rank()
        self.check_ranks("rank", buffer.sample(len(buffer), unique=True))
        self.fill()


class BuriedTrial(Trial):
    """A writer has died in front of each victim, which waits for one of its rows."""

    def __init__(self):
        super().__init__()
        places = Victim(super().calls()["add"]).places()
        self.check("bury")
        for part in range(40, 100):
            self.place = places[len(places) * part // 100]
            before, lost = self.buffer._slots.n_repaired, self.leave_dead()
            self.check("bury")
            if len(lost) == N_ROWS and self.buffer._slots.n_repaired == before:
                return  # it had reserved all its slots, published none, and not the lock
        raise AssertionError("no writer died while it had slots, and not the lock")

    def leave_dead(self):
        """Kill a writer; return the slots that it was writing."""
        Victim(super().calls()["add"]).kill_at(self.place)
        return np.flatnonzero(self.buffer.tree.get(np.arange(CAPACITY)) == 0)

    def calls(self):
        self.buffer.check_invariants()  # buries one that no victim has waited for
        self.fill()
        lost = self.leave_dead()
        return {"bury": lambda: wait_for_row(self.buffer, lost)}

    def check(self, call):
        super().check("add")


class Recorder:
    """A writer of slots that notes how it was asked to add rows."""

    def __init__(self, writer):
        self.writer = writer

    def add(self, *args, **options):
        self.args, self.options = args, options
        return self.writer.add(*args, **options)


class AddFrames:
    """The rows of an actor's step into the slots; the rest of the step is the interpreter's."""

    def __init__(self, actor):
        self.actor = actor

    def prepare(self):
        buffer = self.actor.writer._buffer
        writer = buffer._writer
        buffer._writer = recorder = Recorder(writer)
        self.actor.step()
        self.add = lambda: writer.add(*recorder.args, **recorder.options)

    def __call__(self):
        self.add()


class FrameTrial:
    """A buffer of frames that outlives its victims; its rows refer to each other."""

    def __init__(self):
        self.buffer = frames.make(1, shared=True)
        self.actor = frames.Actor(self.buffer, 0)
        self.fill()

    @property
    def n_repaired(self):
        return self.buffer._slots.n_repaired

    def fill(self):
        for _ in range(self.buffer.capacity):
            self.actor.step()

    def lost(self):
        """Give nearly all mass to a row that has lost frames of its history; return its slot."""
        buffer = self.buffer
        for _ in range(buffer.capacity):
            state = snapshots.snapshot(buffer._slots)
            table = state["rows"].reshape(buffer.capacity, -1)
            generation = table[:, :8].copy().view(np.uint64).ravel()
            history = buffer.field_view("history")
            for slot in np.flatnonzero(state["mass"] > 0):
                links = history[slot][history[slot][:, 1] > 0]
                if (generation[links[:, 0]] != links[:, 1].astype(np.uint64)).any():
                    buffer.tree.set(slot, 1e9)
                    return slot
            # the oldest rows are the first frames of episodes just now: overwrite some
            self.actor.step()
        raise AssertionError("no row has lost its frames")

    def calls(self):
        self.slot = self.lost()
        return {"add_frames": AddFrames(self.actor), "retire": lambda: self.buffer.sample(1)}

    def check(self, call):
        """Nothing hangs after the death, stacks are whole, and lost rows get no mass again."""
        buffer = self.buffer
        buffer.check_invariants()
        frames.check_batch(buffer.sample(64), 1)
        require(
            buffer.tree.get(self.slot) == 0 or call == "add_frames",
            "a row without its frames has mass",
            [self.slot],
        )
        before = buffer.n_added
        self.fill()
        require([buffer.n_added > before], "nothing can be added", [before])
        require([len(buffer) == buffer.capacity], "slots were lost", [len(buffer)])
        buffer.check_invariants()


TRIALS = {
    "prioritized": Trial,
    "uniform": lambda: Trial(prioritized=False),
    "ranked": lambda: Trial(ranked=True),
    "table": TableTrial,
    "buried": BuriedTrial,
    "frames": FrameTrial,
}


def run(each, kind="prioritized", log=print, seconds_limit=1e9):
    """Kill at every ``each``-th instruction of each call.

    Return how many died, and how many of them held the lock.
    """
    trial = TRIALS[kind]()
    n_killed = 0
    for name in trial.calls():
        started = time.monotonic()
        places = Victim(trial.calls()[name]).places(FAR_OUTSIDE.get(name, OUTSIDE))
        trial.check(name)
        before, killed = trial.n_repaired, 0
        for number in range(0, len(places), each * SPARSE.get(name, 1)):
            Victim(trial.calls()[name]).kill_at(places[number])
            try:
                trial.check(name)
            except AssertionError as violation:
                raise AssertionError(
                    f"{name} killed at place {number} of {len(places)}: {violation}"
                ) from None
            killed += 1
            if time.monotonic() - started > seconds_limit:
                break
        n_killed += killed
        locked = trial.n_repaired - before
        log(
            f"{name:>17}: {killed} killed, {locked} of them holding the lock, "
            f"{time.monotonic() - started:.1f} s"
        )
    return n_killed, trial.n_repaired


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--each", type=int, default=1, help="kill at every so many instructions (default 1)"
    )
    options = parser.parse_args(arguments)
    if not is_possible():
        print("this system does not let a process trace its child")
        return 1
    for kind in TRIALS:
        n_killed, locked = run(options.each, kind)
        print(
            f"{kind}: {n_killed} processes killed, {locked} of them holding the lock, no violation"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
