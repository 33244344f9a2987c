"""What deaths, resets and writers in flight leave to those who go on."""

import os
import signal
import threading

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.core import shared_memory, snapshots
from kary_replay.errors import EmptyBufferError, IndexRangeError

WIDE = {"x": kr.Field((256,), "int64")}
PIECE = 65536 // (256 * 8 + 8)  # rows that are reserved together

sharing = pytest.mark.skipif(not shared_memory.is_supported(), reason="sharing needs Linux")


def killed_while_adding(buffer, n):
    """Kill a child in the middle of one add of n rows; False if it was not the middle."""
    started, starts = os.pipe()
    before = buffer.n_added
    pid = os.fork()
    if pid == 0:
        x = np.ones((n, 256), np.int64)
        buffer._slots.block  # noqa: B018  # loaded
        os.write(starts, b"!")
        buffer.add(x=x)
        os._exit(0)
    os.close(starts)
    os.read(started, 1)
    os.close(started)
    while buffer.n_added == before:
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return buffer.n_added < before + n


@sharing
@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_a_death_in_a_large_add_costs_what_was_half_written(kind):
    n = 20_000
    buffer = kind(n, WIDE, seed=0, shared=True)
    buffer.add(x=np.zeros((n, 256), np.int64))
    n_middle = 0
    for _ in range(20):
        n_middle += killed_while_adding(buffer, n - 50)
        buffer.check_invariants()
        assert len(buffer) >= n - PIECE
        assert set(np.unique(buffer.sample(256).x)) <= {0, 1}
        if n_middle == 3:
            break
        # in all places, those that were given up included
        buffer.add(x=np.zeros((n, 256), np.int64))
        assert len(buffer) == n
    assert n_middle


@sharing
def test_slots_of_several_threads_that_died_are_found_wherever_they_are():
    """They are never all between two adds: so the dead writer's slots may be anywhere."""
    n = 20_000
    buffer = kr.PrioritizedReplayBuffer(n, WIDE, seed=0, shared=True)
    row = np.zeros((1, 256), np.int64)
    buffer.add(x=np.zeros((n, 256), np.int64))
    n_lost = 0
    while n_lost < 5:
        before = buffer.n_added
        pid = os.fork()
        if pid == 0:
            x = np.ones((1000, 256), np.int64)
            for _ in range(3):
                threading.Thread(target=lambda x=x: [buffer.add(x=x) for _ in range(10**6)]).start()
            signal.pause()
        while buffer.n_added < before + 2 * n:
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        buffer.add(x=row)  # others go on at once, and repair it if it died with the lock
        lost = np.flatnonzero(buffer.tree.get(np.arange(n)) == 0)
        n_lost += len(lost) > 0
        for slot in lost[::-1]:
            with pytest.raises(IndexRangeError):
                buffer.take([slot])
        buffer.check_invariants()
        buffer.add(x=np.zeros((n, 256), np.int64))
        assert len(buffer) == n, "slots were lost"


@sharing
def test_slots_of_several_threads_are_found_beside_those_of_others():
    """Between the slots of its threads there are those that another process has reserved."""
    n_nbytes = 1 << 18
    row = np.zeros((1, n_nbytes), np.uint8)
    buffer = kr.ReplayBuffer(1000, {"x": kr.Field((n_nbytes,), "uint8")}, seed=0, shared=True)
    for _ in range(5):
        before = buffer.n_added
        pid = os.fork()
        if pid == 0:
            for _ in range(3):
                threading.Thread(target=lambda: [buffer.add(x=row) for _ in range(10**9)]).start()
            signal.pause()
        while buffer.n_added < before + 300:
            buffer.add(x=row)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        buffer.add(x=row)
        checking = threading.Thread(target=buffer.check_invariants, daemon=True)
        checking.start()
        checking.join(120)
        assert not checking.is_alive(), "somebody waits for slots of the dead process"


def vacant(buffer, rows):
    """Give up all slots but those of ``rows``, as if their writers had died."""
    n = buffer.capacity
    state = snapshots.snapshot(buffer._slots)
    generations = state["rows"].reshape(n, -1)[:, :8].view(np.uint64).ravel()
    dead = np.setdiff1d(np.arange(n), rows)
    table = state["rows"].reshape(n, -1)
    table[dead, :8] = (
        (generations[dead] - np.uint64(1) | np.uint64(0xFFFF << 48)).view(np.uint8).reshape(-1, 8)
    )
    other = type(buffer)(n, buffer.fields, seed=0)
    snapshots.restore(other._slots, state)
    return other


def test_uniform_draws_do_not_try_one_vacant_slot_after_the_other():
    n, rows = 50_000, np.array([17, 4_000, 49_999])
    full = kr.ReplayBuffer(n, {"x": kr.Field((), "int64")}, seed=0)
    full.add(x=np.arange(n))
    buffer = vacant(full, rows)
    assert len(buffer) == 3
    before = buffer._slots.block.random_state()[2]
    index = np.concatenate([buffer.sample(256).index for _ in range(100)])
    n_random = buffer._slots.block.random_state()[2] - before
    assert n_random <= 100 * 256 * 18  # of each draw, and not the 17,000 it would take in the mean
    counts = np.array([(index == row).sum() for row in rows])
    assert counts.sum() == 25_600
    # chi-square with 2 degrees of freedom; 28 is exceeded once in a million times
    expected = 25_600 / 3
    assert ((counts - expected) ** 2 / expected).sum() < 28
    assert set(buffer.sample(3, unique=True).index.tolist()) == set(rows.tolist())
    with pytest.raises(ValueError, match="number of rows"):
        buffer.sample(4, unique=True)
    buffer.check_invariants()


def test_no_row_at_all_is_said_at_once():
    full = kr.ReplayBuffer(1000, {"x": kr.Field((), "int64")}, seed=0)
    full.add(x=np.arange(1000))
    with pytest.raises(EmptyBufferError):
        vacant(full, np.array([], np.int64)).sample(1)


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_draws_without_replacement_wait_for_writers(kind, run_threaded):
    """A full buffer is overwritten all the time: rows suffice, though never all at one moment."""
    n = 64
    buffer = kind(n, {"x": kr.Field((2048,), "float32")}, seed=0)
    buffer.add(x=np.zeros((n, 2048)))
    stopped = []

    def write():
        rows = np.zeros((32, 2048), np.float32)
        while not stopped:
            buffer.add(x=rows)

    def draw():
        try:
            for batch_size in [n, n - 1, n // 2] * 200:
                batch = buffer.sample(batch_size, unique=True)
                assert len(set(batch.index.tolist())) == batch_size
            with pytest.raises(ValueError, match="number of rows"):
                buffer.sample(n + 1, unique=True)
        finally:
            stopped.append(True)

    run_threaded([write, draw])
    buffer.check_invariants()


def generations(buffer):
    """Return the generation of every slot, uint64 [capacity]."""
    slots = buffer._slots
    rows = np.empty(slots.capacity * slots.row_nbytes, np.uint8)
    snapshots.copy_rows(slots, 0, rows)
    return rows.view(np.uint64).reshape(slots.capacity, -1)[:, 0]


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_no_handle_outlives_a_reset(kind, run_threaded):
    """Draws that overlap a reset may return rows from before it, with stale handles."""
    n, n_resets = 500, 150
    buffer = kind(n, {"x": kr.Field((64,), "int64")}, seed=0)
    drawn, stopped = [], []

    def draw():
        while not stopped:
            try:
                batch = buffer.sample(256)
            except EmptyBufferError:
                continue
            assert (batch.x == batch.x[:, :1]).all()
            drawn.append(batch)

    def disturb():
        try:
            for turn in range(n_resets):
                buffer.add(x=np.full((n, 64), turn))
                while not drawn:
                    pass
                buffer.reset()
                for batch in [drawn.pop() for _ in range(len(drawn))]:
                    there = generations(buffer)[batch.index] == batch.handle["generation"]
                    assert not there.any(), "a handle from before a reset is current after it"
        finally:
            stopped.append(True)

    run_threaded([draw, disturb])
    buffer.check_invariants()


def test_rows_that_come_while_a_batch_is_drawn_come_from_everywhere(run_threaded):
    """A buffer that is emptied in the middle of a batch has no favourite slot."""
    n = 200
    buffer = kr.ReplayBuffer(n, {"x": kr.Field((), "int64")}, seed=0)
    counts, stopped = np.zeros(n, np.int64), []

    def draw():
        while not stopped:
            try:
                np.add.at(counts, buffer.sample(1024).index, 1)
            except EmptyBufferError:
                continue

    def disturb():
        for turn in range(1500):
            buffer.add(x=np.full(n, turn))
            buffer.reset()
        stopped.append(True)

    run_threaded([draw, disturb])
    assert counts[0] <= 3 * max(np.median(counts), 100)
