"""save and load: everything comes back, and it is of one moment."""

import os
import signal
import time
import tracemalloc

import numpy as np
import pytest
from checkpoints import FIELDS, rows, same_batch, state, used_buffer

import kary_replay as kr
from kary_replay import checkpoint
from kary_replay.errors import CheckpointError

KINDS = pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
# less than a row, a few rows, everything
SMALL_CHUNKS = pytest.mark.parametrize("chunk_nbytes", [1, 150, 16 << 20])


# ---------------------------------------------------------------------------------- what comes back


@KINDS
@SMALL_CHUNKS
@pytest.mark.parametrize("n_rows", [1, 7, 10, 13, 25])
def test_the_next_samples_are_the_same(kind, chunk_nbytes, n_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK_NBYTES", chunk_nbytes)
    buffer = used_buffer(kind, n_rows)
    before = state(buffer)
    buffer.save(tmp_path / "saved")
    assert state(buffer) == before, "saving changed the buffer"
    twin = kind.load(tmp_path / "saved")
    assert state(twin) == before
    twin.check_invariants()
    assert (twin.n_added, twin.n_sampled, len(twin)) == (
        buffer.n_added,
        buffer.n_sampled,
        len(buffer),
    )
    for first in (100, 200):
        for batch_size in (1, 5, 200):
            same_batch(buffer.sample(batch_size), twin.sample(batch_size))
        for one in (buffer, twin):
            one.add(**rows(first, 4))
    twin.check_invariants()


def test_settings_and_handles_come_back(tmp_path):
    buffer = used_buffer()
    buffer.alpha, buffer.beta, buffer.priority_epsilon = 0.1 + 0.2, 1 / 3, 5e-324
    buffer.uniform_share = 0.7
    old = buffer.sample(20).handle
    buffer.add(**rows(50, 4))
    current = buffer.sample(20).handle
    buffer.save(tmp_path)
    twin = kr.PrioritizedReplayBuffer.load(tmp_path)
    assert (twin.alpha, twin.beta, twin.priority_epsilon) == (0.1 + 0.2, 1 / 3, 5e-324)
    assert twin.uniform_share == 0.7
    assert (twin.total_mass, twin.max_priority, twin.capacity) == (
        buffer.total_mass,
        buffer.max_priority,
        10,
    )
    assert twin.fields == FIELDS and list(twin.fields) == list(FIELDS)
    assert twin.update_priorities(current, np.ones(20)) == 20
    gone = np.isin(old["index"], [3, 4, 5, 6])
    assert twin.update_priorities(old, np.full(20, 9.0)) == np.count_nonzero(~gone)


@KINDS
def test_a_buffer_without_rows(kind, tmp_path):
    buffer = kind(10**6, FIELDS, seed=1)
    buffer.save(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.bin")) == 0
    twin = kind.load(tmp_path)
    assert len(twin) == 0 and state(twin) == state(buffer)
    for one in (buffer, twin):
        one.add(**rows(0, 3))
    same_batch(buffer.sample(9), twin.sample(9))


def test_only_rows_that_were_written_are_saved(tmp_path):
    buffer = kr.PrioritizedReplayBuffer(100_000, {"image": kr.Field((84, 84), "uint8")})
    buffer.add(image=np.zeros((5, 84, 84), np.uint8))
    buffer.save(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 60_000
    twin = kr.PrioritizedReplayBuffer.load(tmp_path)
    assert (
        len(twin) == 5
        and twin.capacity == 100_000
        and twin.add(image=np.ones((1, 84, 84), np.uint8)).tolist() == [5]
    )


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "uint64",
        "float16",
        "float64",
        "longdouble",
        "complex64",
        "clongdouble",
    ],
)
def test_every_dtype(dtype, tmp_path):
    field = kr.Field((3,), dtype)
    buffer = kr.ReplayBuffer(4, {"value": field})
    buffer.add(value=np.arange(6).reshape(2, 3).astype(dtype))
    buffer.save(tmp_path)
    twin = kr.ReplayBuffer.load(tmp_path)
    assert twin.fields == {"value": field}
    np.testing.assert_array_equal(
        twin.field_view("value")[:2], np.arange(6).reshape(2, 3).astype(dtype)
    )


@KINDS
@pytest.mark.parametrize("saved", ["private", "shared", "on disk"])
@pytest.mark.parametrize("loaded", ["private", "shared", "on disk"])
def test_where_the_memory_is_does_not_matter(kind, saved, loaded, tmp_path):
    options = {
        "private": {},
        "shared": {"shared": True},
        "on disk": {"storage_directory": tmp_path},
    }
    buffer = used_buffer(kind, **options[saved])
    buffer.save(tmp_path / "saved")
    with kind.load(tmp_path / "saved", **options[loaded]) as twin:
        assert state(twin) == state(buffer)
        if loaded == "shared":
            other = kind.attach(twin.descriptor)
            same_batch(buffer.sample(7), other.sample(7))
            same_batch(buffer.sample(7), twin.sample(7))


def test_kinds_are_not_confused_and_derived_classes_are_no_kinds(tmp_path):
    class Mine(kr.PrioritizedReplayBuffer):
        pass

    buffer = Mine(10, FIELDS, seed=0)
    buffer.save(tmp_path)
    assert type(Mine.load(tmp_path)) is Mine
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)
    with pytest.raises(
        CheckpointError,
        match=r"holds a PrioritizedReplayBuffer: load it with PrioritizedReplayBuffer\.load",
    ):
        kr.ReplayBuffer.load(tmp_path)
    used_buffer(kr.ReplayBuffer).save(tmp_path)
    with pytest.raises(CheckpointError, match="holds a ReplayBuffer"):
        Mine.load(tmp_path)


def test_a_buffer_of_frames_goes_on_as_before(tmp_path):
    buffer = kr.FrameReplayBuffer(
        50, kr.Field((2, 3), "uint8"), {"action": kr.Field((), "int64")}, stack=3, n_step=2, seed=0
    )
    writer = kr.FrameStackWriter(buffer, n_envs=1, gamma=0.5)
    writer.reset(np.zeros((1, 2, 3), np.uint8))
    no = np.zeros(1, bool)
    for number in range(70):
        frame = np.full((1, 2, 3), number, np.uint8)
        writer.add(action=[number], reward=[1.0], next_frame=frame, terminated=no, truncated=no)
    buffer.save(tmp_path)
    twin = kr.FrameReplayBuffer.load(tmp_path)
    assert (twin.stack, twin.n_step, twin.padding) == (3, 2, "repeat") and state(twin) == state(
        buffer
    )
    for batch_size in (1, 40):
        one, two = buffer.sample(batch_size), twin.sample(batch_size)
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    with pytest.raises(
        CheckpointError, match=r"holds a FrameReplayBuffer: load it with FrameReplayBuffer\.load"
    ):
        kr.PrioritizedReplayBuffer.load(tmp_path)


def test_memory_is_not_needed_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK_NBYTES", 1 << 20)
    buffer = kr.PrioritizedReplayBuffer(2_000, {"body": kr.Field((16_384,), "uint8")})
    for _ in range(20):
        buffer.add(body=np.full((100, 16_384), 7, np.uint8))
    tracemalloc.start()
    try:
        buffer.save(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
        tracemalloc.reset_peak()
        twin = kr.PrioritizedReplayBuffer.load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (twin.field_view("body") == 7).all()


# --------------------------------------------------------------------------------------- one moment


@KINDS
@pytest.mark.parametrize("chunk_nbytes", [1, 400, 16 << 20])
@pytest.mark.parametrize("n_rows", [0, 4, 13])
@pytest.mark.parametrize("meanwhile", ["one", "some", "a lap", "reset", "reset and some"])
def test_what_is_saved_is_the_moment_of_the_cut(
    kind, chunk_nbytes, n_rows, meanwhile, tmp_path, monkeypatch
):
    """Others write between the copy and the cut."""
    monkeypatch.setattr(checkpoint, "CHUNK_NBYTES", chunk_nbytes)
    buffer = kind(10, FIELDS, seed=3)
    if n_rows:
        buffer.add(**rows(0, n_rows))
    copy_all = checkpoint._RowsFile.copy_all

    def disturb(*_):
        if "reset" in meanwhile:
            buffer.reset()
        n = {"one": 1, "some": 5, "a lap": 27, "reset": 0, "reset and some": 5}[meanwhile]
        if n:
            buffer.add(**rows(100, n))

    def copy_and_disturb(file):
        copy_all(file)
        disturb()

    monkeypatch.setattr(checkpoint._RowsFile, "copy_all", copy_and_disturb)
    buffer.save(tmp_path)
    twin = kind.load(tmp_path)
    twin.check_invariants()
    assert state(twin) == state(buffer)


def test_a_save_beside_a_writer_is_a_consistent_cut(tmp_path, monkeypatch, run_threaded):
    monkeypatch.setattr(checkpoint, "CHUNK_NBYTES", 1000)  # several chunks, and rounds
    buffer = kr.PrioritizedReplayBuffer(500, FIELDS, alpha=1.0)
    stop, n_saved = [], 0

    def write():
        first = 0
        while not stop:
            buffer.add(priority=np.arange(first, first + 7) + 1.0, **rows(first, 7))
            first += 7
            # A thread that lets go of the GIL for microseconds only may keep it for seconds.
            time.sleep(1e-5)

    def save():
        nonlocal n_saved
        try:
            while buffer.n_added < 500:
                time.sleep(0.001)
            while n_saved < 50:
                n_added = buffer.n_added
                buffer.save(tmp_path)
                n_saved += buffer.n_added > n_added
                check(kr.PrioritizedReplayBuffer.load(tmp_path))
        finally:
            stop.append(True)

    def check(twin):
        twin.check_invariants()
        number = twin.field_view("number").copy()
        assert (
            sorted(number.tolist()) == list(range(twin.n_added - 500, twin.n_added))
            and twin.n_added % 7 == 0
        )
        assert (twin.tree.get(np.arange(500)) == number + 1.0).all()
        assert (twin.field_view("nested")["shape"] == number[:, None]).all()

    run_threaded([write, save])


def test_priorities_set_together_are_saved_together(tmp_path, run_threaded):
    """Masses are copied beside, group by group, and the last that change at the cut."""
    n_pairs, n_together, n_saves = 20_000, 64, 30
    field = {"number": kr.Field((), "int64")}
    buffer = kr.PrioritizedReplayBuffer(2 * n_pairs, field, alpha=1.0, priority_epsilon=1e-300)
    number = np.arange(2 * n_pairs)
    index = buffer.add(number=number, priority=np.ones(2 * n_pairs))
    handle = buffer.take(index).handle
    stop, n_updates, seen = [], 0, []

    def update():
        nonlocal n_updates
        rng = np.random.default_rng(0)
        while not stop:
            one = rng.integers(0, n_pairs, n_together)
            error = np.repeat(rng.integers(1, 1 << 40, n_together), 2).astype(np.float64)
            pairs = np.stack([one, one + n_pairs], axis=1).reshape(-1)
            assert buffer.update_priorities(handle[pairs], error) == 2 * n_together
            n_updates += 1

    def save():
        try:
            for _ in range(n_saves):
                before = n_updates
                while n_updates == before and not stop:
                    time.sleep(0.001)
                buffer.save(tmp_path)
                twin = kr.PrioritizedReplayBuffer.load(tmp_path)
                twin.check_invariants()
                masses = twin.tree.get(number)
                assert (masses[:n_pairs] == masses[n_pairs:]).all()
                seen.append(masses)
        finally:
            stop.append(True)

    run_threaded([update, save])
    assert all((one != other).any() for one, other in zip(seen[1:], seen[:-1], strict=True))
    buffer.save(tmp_path)  # what no save counts is not missed by the next one
    assert state(kr.PrioritizedReplayBuffer.load(tmp_path)) == state(buffer)


def test_slots_that_a_dead_process_gave_up_stay_free(tmp_path):
    fields = {"number": kr.Field((), "int64"), "body": kr.Field((200_000,), "uint8")}
    buffer = kr.PrioritizedReplayBuffer(8, fields, shared=True, seed=0)
    row = {"number": np.arange(4), "body": np.zeros((4, 200_000), np.uint8)}
    buffer.add(**row)
    buffer.add(**row)
    for _ in range(200):
        n_added = buffer.n_added
        pid = os.fork()
        if pid == 0:
            while True:
                buffer.add(**row)
        while buffer.n_added == n_added:  # until it is in the midst of adding
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        buffer.check_invariants()  # buries the dead
        if len(buffer) < 8:
            break
    n_rows = len(buffer)
    assert n_rows < 8
    buffer.save(tmp_path)
    twin = kr.PrioritizedReplayBuffer.load(tmp_path)
    twin.check_invariants()
    assert state(twin) == state(buffer) and len(twin) == n_rows
    twin.sample(100)
    twin.add(**row)
    twin.add(**row)
    assert len(twin) == 8


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_masses_that_were_set_count_as_priorities(alpha, tmp_path):
    """A new row gets the largest one, and the same in a buffer that was saved."""
    buffer = kr.PrioritizedReplayBuffer(8, {"x": kr.Field((), "float32")}, alpha=alpha, seed=0)
    buffer.add(x=np.zeros(4))
    buffer.tree.set(np.arange(4), [1.0, 2.0, 3.0, 10.0])
    assert buffer.max_priority == pytest.approx(10 ** (1 / alpha))
    buffer.save(tmp_path / "saved")
    loaded = kr.PrioritizedReplayBuffer.load(tmp_path / "saved")
    for one in (buffer, loaded):
        one.add(x=1.0)
        assert one.tree.get(np.arange(5)).tolist() == pytest.approx([1, 2, 3, 10, 10])
    assert buffer.max_priority == loaded.max_priority
