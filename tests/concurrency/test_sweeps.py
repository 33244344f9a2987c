"""New masses for all rows, in pieces: who gets in between sees a whole buffer, and all goes on.

A child is stopped between two pieces, by a debugger, and lives on, or is killed there. No test asks
a clock.
"""

import mmap
import os
import threading

import kill_points
import numpy as np
import pytest

import kary_replay as kr
from kary_replay.core import snapshots

N = 41
PIECE = 4
KINDS = ["proportional", "rank"]
NEW = 0.5  # alpha
FIELDS = {"number": kr.Field((), "int64")}
LOCK_AT = 128 // 4  # in a block, of the mutex's word, which is 0 while nobody has it

traced = pytest.mark.skipif(
    not kill_points.is_possible(), reason="this system lets nobody trace a child"
)


def make(kind, n=N, shared=True):
    buffer = kr.PrioritizedReplayBuffer(
        n, FIELDS, alpha=0.7, prioritization=kind, uniform_share=0.0, seed=0, shared=shared
    )
    priority = np.random.default_rng(1).permutation(np.arange(1, n + 1)) / 8
    buffer.add(number=np.arange(n), priority=priority)
    if kind == "rank":
        buffer.rank()
        # places among those ranks, not exact, of as many as do not yet have all ranked
        handle = np.concatenate([handle_of(buffer, slot) for slot in range(1, min(n, N))])
        assert buffer.update_priorities(handle, np.linspace(0.2, 6, len(handle))) == len(handle)
    buffer._slots.swept = PIECE
    return buffer


def masses(buffer):
    return buffer.tree.get(np.arange(buffer.capacity))


def check_exact(buffer, alpha):
    """All masses are those that their priorities have under alpha."""
    assert buffer._slots.is_settled and buffer.alpha == alpha
    buffer.check_invariants()
    is_proportional = buffer.prioritization == "proportional"
    tolerance = 0 if is_proportional else 1e-12
    np.testing.assert_allclose(masses(buffer), due(buffer, alpha), rtol=tolerance)


def priorities(buffer):
    return snapshots.snapshot(buffer._slots)["priority"]


def due(buffer, alpha):
    """What the masses are under alpha, once all are exact: bit for bit, if not of ranks."""
    priority = priorities(buffer)
    if buffer.prioritization == "proportional":
        other = kr.PrioritizedReplayBuffer(len(priority), FIELDS, alpha=alpha)
        other.add(number=np.arange(len(priority)), priority=priority)
        return masses(other)
    rank = np.empty(len(priority))
    rank[np.lexsort((np.arange(len(priority)), -priority))] = np.arange(1, len(priority) + 1)
    return rank**-alpha


def handle_of(buffer, slot):
    handle = np.zeros(1, kr.HANDLE_DTYPE)
    handle["index"], handle["generation"] = slot, 2
    return handle


def change(buffer, call):
    """Set alpha, or rank all rows anew."""
    if call == "alpha":
        buffer._slots.set_alpha(NEW)
    else:
        buffer._slots.rank()


CALLS = [("proportional", "alpha"), ("rank", "alpha"), ("rank", "rank")]


class Stopped:
    """A child that is stopped in the middle of a call, without the lock."""

    def __init__(self, buffer, call, n_done):
        """Go on until ``n_done`` rows, at least, have their new masses."""
        self.victim = kill_points.Victim(lambda: change(buffer, call))
        before = masses(buffer)
        with mmap.mmap(buffer.descriptor.file, 4096) as memory:
            words = np.frombuffer(memory, np.int32)
            while self.victim.step():
                is_between = words[LOCK_AT] == 0 and not buffer._slots.is_settled
                if is_between and (masses(buffer) != before).sum() >= n_done:
                    break
            del words

    def go_on(self):
        kill_points.libc.ptrace(kill_points.CONTINUE, self.victim.pid, None, None)
        assert os.waitstatus_to_exitcode(os.waitpid(self.victim.pid, 0)[1]) == 0

    def kill(self):
        os.kill(self.victim.pid, 9)
        os.waitpid(self.victim.pid, 0)


@traced
@pytest.mark.parametrize("n_done", [0, 1, N // 2, N - 8])
@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_others_go_on_in_the_middle(kind, call, n_done, tmp_path):
    """Masses are old or new ones, sums are right, and what is added or updated counts."""
    buffer = make(kind)
    old, new = masses(buffer), due(buffer, NEW if call == "alpha" else 0.7)
    child = Stopped(buffer, call, n_done)
    now = masses(buffer)
    if kind == "proportional":
        assert ((now == old) | (now == new)).all()
    else:
        assert (np.isclose(now, old, rtol=1e-12) | np.isclose(now, new, rtol=1e-12)).all()
    buffer.check_invariants()
    assert set(buffer.sample(200).number) <= set(range(N))
    assert buffer.update_priorities(handle_of(buffer, N - 1), [77.0]) == 1  # not yet swept
    assert buffer.update_priorities(handle_of(buffer, 1), [0.3]) == 1
    assert buffer.add(number=N, priority=2.5) == 0
    buffer.check_invariants()
    assert not buffer._slots.is_settled, "somebody finished what a living process is at"

    # A copy is what the buffer will be, at once.
    buffer.save(tmp_path / "saved")
    loaded = kr.PrioritizedReplayBuffer.load(tmp_path / "saved")
    np.testing.assert_array_equal(priorities(loaded), priorities(buffer))
    np.testing.assert_allclose(masses(loaded), due(buffer, buffer.alpha), rtol=1e-12)
    loaded.check_invariants()

    child.go_on()
    if kind == "proportional":
        check_exact(buffer, NEW)
    elif n_done > 0:  # else it copied the priorities after that
        untouched = np.setdiff1d(np.arange(N), [0, 1, N - 1])
        np.testing.assert_allclose(masses(buffer)[untouched], new[untouched], rtol=1e-12)
        # those that changed have places among the ranks that there were
        rank = masses(buffer)[[0, 1, N - 1]] ** (-1 / buffer.alpha)
        assert rank[2] == 1 and rank[1] > N - 1 and 1 < rank[0] < N
    buffer.rank()
    check_exact(buffer, buffer.alpha)


@traced
@pytest.mark.parametrize("n_done", [0, 1, N // 2, N - 8])
@pytest.mark.parametrize("finisher", ["sample", "take", "add", "update", "alpha"])
@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_whoever_comes_next_finishes(kind, call, finisher, n_done):
    """Of a process that dies between two pieces, the rest is done; without a hold, none repairs."""
    buffer = make(kind)
    alpha = NEW if call == "alpha" else 0.7
    child = Stopped(buffer, call, n_done)
    child.kill()
    assert not buffer._slots.is_settled
    calls = {
        "sample": lambda: buffer.sample(1),
        "take": lambda: buffer.take([3]),
        "add": lambda: buffer.add(number=N, priority=9.0),
        "update": lambda: buffer.update_priorities(handle_of(buffer, 5), [3.0]),
        "alpha": lambda: setattr(buffer, "alpha", alpha),
    }
    while not buffer._slots.is_settled:  # others are looked at every 5 ms
        calls[finisher]()
    check_exact(buffer, alpha)
    assert buffer._slots.n_repaired == 0
    buffer.alpha = 0.7
    check_exact(buffer, 0.7)


@traced
@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_another_change_in_the_middle_is_the_last_word(kind, call):
    buffer = make(kind)
    child = Stopped(buffer, call, N // 2)
    buffer.alpha = 0.9  # does not wait for the one that is stopped
    check_exact(buffer, 0.9)
    child.go_on()
    check_exact(buffer, 0.9)


@traced
@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_a_reset_in_the_middle(kind, call):
    buffer = make(kind)
    child = Stopped(buffer, call, N // 2)
    buffer.reset()
    buffer.add(number=np.arange(5), priority=np.arange(1.0, 6.0))
    child.go_on()
    buffer.check_invariants()
    buffer.rank()
    np.testing.assert_allclose(masses(buffer)[:5], due(buffer, buffer.alpha), rtol=1e-12)
    assert (masses(buffer)[5:] == 0).all()


@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_adds_get_through(kind, call, run_threaded):
    """The lock is let go between pieces: many rows are added while one call is under way."""
    buffer = make(kind, 20_000, shared=False)
    buffer._slots.swept = 1
    counts, stop = [0], []

    def sweep():
        try:
            for turn in range(10_000):
                if call == "alpha":
                    buffer.alpha = (0.7, NEW)[turn % 2]
                else:
                    buffer.rank()
                if counts[0] > 100:
                    break
        finally:
            stop.append(True)

    def add():
        while not stop:
            before = buffer._slots.is_settled
            buffer.add(number=1, priority=1.0)
            if not before and not buffer._slots.is_settled:
                counts[0] += 1

    run_threaded([sweep, add])
    assert counts[0] > 100, "no add came between two pieces"
    buffer.check_invariants()


@pytest.mark.parametrize("kind", KINDS)
def test_several_change_all_masses_at_once(kind, run_threaded):
    """At rest all masses are those of the alpha that was set last, whoever set it."""
    buffer = make(kind, 500, shared=False)
    buffer._slots.swept = 7
    alphas = [[0.1, 0.2, 0.3], [0.6, 0.5, 0.4], [0.8, 1.0, 0.0]]
    stop = threading.Event()

    def change_all(which):
        for turn in range(60):
            buffer.alpha = alphas[which][turn % 3]
            buffer.rank()

    def use():
        rng = np.random.default_rng(0)
        while not stop.is_set():
            batch = buffer.sample(32)
            buffer.update_priorities(batch.handle, rng.lognormal(size=32))
            buffer.add(number=np.arange(3))

    def run():
        try:
            run_threaded([lambda which=which: change_all(which) for which in range(3)])
        finally:
            stop.set()

    run_threaded([run, use])
    buffer.rank()  # nothing, but where masses go by ranks: some changed since the last time
    check_exact(buffer, buffer.alpha)


def test_ranking_by_itself_is_done_beside(run_threaded):
    """As many changes as rows, by several threads, and all rows are ranked; no call is lost."""
    buffer = make("rank", 300, shared=False)
    buffer._slots.swept = 5

    def use(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            batch = buffer.sample(32)
            buffer.update_priorities(batch.handle, rng.lognormal(size=32))

    run_threaded([lambda seed=seed: use(seed) for seed in range(3)])
    assert buffer._slots.is_settled
    buffer.check_invariants()
    mass = np.sort(masses(buffer))[::-1]
    assert mass.sum() < 2 * (np.arange(1, 301) ** -0.7).sum()
    buffer.rank()
    check_exact(buffer, 0.7)
