"""Buffers that several processes use: made, attached to, closed, and what is refused."""

import copy
import errno
import functools
import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import kary_replay as kr
from kary_replay import shared_memory
from kary_replay.errors import AttachError, ClosedError

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="sharing needs Linux")

FIELDS = {"observation": {"a": kr.Field((3,), "float32")}, "reward": kr.Field((), "float32")}
KINDS = [kr.ReplayBuffer, kr.PrioritizedReplayBuffer]


def row(n, value=1.0):
    return {"observation": {"a": np.full((n, 3), value)}, "reward": np.full(n, value)}


def make(kind=kr.PrioritizedReplayBuffer, capacity=20, **options):
    return kind(capacity, FIELDS, seed=3, shared=True, **options)


def add_some(buffer, n):
    """What a child does: add, draw, update."""
    if not isinstance(buffer, kr.ReplayBuffer):
        buffer = kr.PrioritizedReplayBuffer.attach(buffer)
    buffer.add(**row(n, os.getpid()))
    batch = buffer.sample(4)
    buffer.update_priorities(batch.handle, np.full(4, 5.0))
    buffer.beta = 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_two_views_of_one_buffer(kind):
    one = make(kind)
    other = kind.attach(pickle.loads(pickle.dumps(one.descriptor)))
    one.add(**row(5, 2.0))
    assert len(other) == 5 and other.n_added == 5 and (other.sample(3).observation["a"] == 2).all()
    assert one.n_sampled == 3 and other.fields == one.fields and other.capacity == 20
    third = kind.attach(other.descriptor)
    one.close()
    third.add(**row(20, 4.0))
    assert (other.sample(3).reward == 4).all()
    other.check_invariants()


def test_settings_and_the_stream_are_common():
    one = make(beta=0.3, alpha=0.5, priority_epsilon=0.01)
    other = kr.PrioritizedReplayBuffer.attach(one.descriptor)
    assert (other.alpha, other.beta, other.priority_epsilon) == (0.5, 0.3, 0.01)
    other.beta, other.alpha = 0.8, 0.7
    assert (one.beta, one.alpha) == (0.8, 0.7)
    one.add(**row(20))
    alone = kr.PrioritizedReplayBuffer(20, FIELDS, seed=3)
    alone.add(**row(20))
    for drawer in (one, other, one):
        assert (drawer.sample(8).index == alone.sample(8).index).all()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("passed", ["descriptor", "buffer"])
def test_children(method, passed):
    buffer = make()
    buffer.add(**row(2))
    context = multiprocessing.get_context(method)
    argument = buffer if passed == "buffer" else buffer.descriptor
    child = context.Process(target=add_some, args=(argument, 4))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert len(buffer) == 6 and buffer.beta == 0.9 and buffer.max_priority > 4
    assert set(np.unique(buffer.field_view("reward")[:6])) == {1.0, float(child.pid)}
    buffer.check_invariants()


def test_an_unrelated_process(tmp_path):
    """Started from a shell, with nothing but the descriptor in a file."""
    buffer = make()
    path = tmp_path / "descriptor"
    path.write_bytes(pickle.dumps(buffer.descriptor))
    program = (
        "import pickle, sys, numpy as np, kary_replay as kr\n"
        "buffer = kr.PrioritizedReplayBuffer.attach(pickle.load(open(sys.argv[1], 'rb')))\n"
        "buffer.add(observation={'a': np.zeros((7, 3))}, reward=np.arange(7))\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60)
    assert len(buffer) == 7 and buffer.sample(3).reward.max() <= 6


def test_a_copy_is_a_buffer_of_its_own():
    buffer = make()
    buffer.add(**row(3))
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        other.add(**row(2))
        assert len(buffer) == 3 and len(other) == 5
        with pytest.raises(ValueError, match="not shared"):
            _ = other.descriptor


def test_closing():
    with make() as buffer:
        buffer.add(**row(3))
        batch = buffer.sample(2)
        descriptor = buffer.descriptor
        view = buffer.field_view("reward")
    assert (batch.reward == 1).all() and (view[:3] == 1).all()
    assert "closed" in repr(buffer)
    buffer.close()
    del view
    gc.collect()
    with pytest.raises(AttachError, match="closed"):
        kr.PrioritizedReplayBuffer.attach(descriptor)


def frame_buffer(**options):
    fields = {"action": kr.Field((), "int64")}
    return kr.FrameReplayBuffer(20, kr.Field((2,), "uint8"), fields, stack=2, **options)


FLAT = {"observation": kr.Field((2,), "f4")}
KINDS_OF_BUFFER = {
    "uniform": lambda: kr.ReplayBuffer(20, FIELDS),
    "prioritized": lambda: kr.PrioritizedReplayBuffer(20, FIELDS),
    "shared": lambda: kr.PrioritizedReplayBuffer(20, FIELDS, shared=True),
    "by rank": lambda: kr.PrioritizedReplayBuffer(20, FIELDS, prioritization="rank"),
    "flat": lambda: kr.ReplayBuffer(20, FLAT),
    "frames": frame_buffer,
}
SETTINGS = {"alpha": 0.5, "beta": 0.9, "priority_epsilon": 0.1}
ARGUMENTS = {
    "sample": (2,),
    "take": ([0],),
    "field_view": ("observation",),
    "save": ("nowhere",),
    "update_priorities": (np.zeros(1, kr.HANDLE_DTYPE), [1.0]),
}
OF_THE_CLASS = {"attach", "load", "from_spaces", "close"}


@pytest.mark.parametrize("kind", KINDS_OF_BUFFER)
def test_a_closed_buffer_refuses_every_use(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    buffer = KINDS_OF_BUFFER[kind]()
    public = {name for name in dir(buffer) if not name.startswith("_")} - OF_THE_CLASS
    buffer.close()
    assert "closed" in repr(buffer)

    def use(name):
        attribute = getattr(buffer, name)
        if callable(attribute):
            attribute(*ARGUMENTS.get(name, ()))

    uses = {name: functools.partial(use, name) for name in public}
    for name in SETTINGS.keys() & public:
        uses[f"{name} = …"] = functools.partial(setattr, buffer, name, SETTINGS[name])
    uses |= {"len": lambda: len(buffer), "with": buffer.__enter__}
    uses |= {"pickle": lambda: pickle.dumps(buffer), "copy": lambda: copy.copy(buffer)}
    if kind == "frames":
        uses["writer"] = lambda: kr.FrameStackWriter(buffer, n_envs=1, gamma=0.9)
        del uses["add"]  # a TypeError at all times: its rows come from writers
    else:
        for name, fields in (("nothing", {}), ("what", {"unknown": 1}), ("rows", row(1))):
            uses[f"add {name}"] = functools.partial(buffer.add, **fields)
    for use_it in uses.values():
        with pytest.raises(ClosedError, match="the buffer is closed"):
            use_it()
    assert not list(tmp_path.iterdir())


def test_a_writer_of_a_closed_frame_buffer():
    buffer = frame_buffer(seed=0)
    writer = kr.FrameStackWriter(buffer, n_envs=1, gamma=0.9)
    writer.reset([1, 2])
    buffer.close()
    step = {
        "action": 0,
        "reward": 1.0,
        "next_frame": [3, 4],
        "terminated": False,
        "truncated": False,
    }
    for use in (lambda: writer.add(**step), lambda: writer.reset([1, 2])):
        with pytest.raises(ClosedError, match="the buffer is closed"):
            use()


def n_open():
    """How much this process has open; a neighbour's thread may come and go meanwhile."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_nothing_stays_open():
    before = n_open()
    for _ in range(40):
        buffer = make()
        others = [kr.PrioritizedReplayBuffer.attach(buffer.descriptor) for _ in range(3)]
        others[0].close()
        with pytest.raises(TypeError):
            kr.ReplayBuffer.attach(buffer.descriptor)
        with pytest.raises(AttachError):
            kr.PrioritizedReplayBuffer.attach(replace(buffer.descriptor, token=(1, 2)))
        with pytest.raises((ValueError, TypeError)):
            kr.PrioritizedReplayBuffer(10, FIELDS, seed="x", shared=True)
    del buffer, others
    assert n_open() < before + 20


def test_what_cannot_be_attached_to():
    buffer = make()
    descriptor = buffer.descriptor
    with pytest.raises(TypeError, match="descriptor must be"):
        kr.PrioritizedReplayBuffer.attach("kary-replay")
    with pytest.raises(TypeError, match="of a ReplayBuffer, got one of a PrioritizedReplayBuffer"):
        kr.ReplayBuffer.attach(descriptor)
    refusals = {
        "another machine": {"machine": "somewhere else"},
        "something else since": {"identity": (0, 0)},
        "another layout": {"capacity": 21, "nbytes": descriptor.nbytes},
        "opened something else": {"nbytes": descriptor.nbytes + 64},
        "opened another one since": {"token": (0, 0)},
        "has closed the buffer": {"file": 9999},
    }
    for reason, changes in refusals.items():
        with pytest.raises(AttachError, match=reason):
            kr.PrioritizedReplayBuffer.attach(replace(descriptor, **changes))
    with pytest.raises(AttachError, match="has ended"):
        kr.PrioritizedReplayBuffer.attach(replace(descriptor, pid=2**22 + 5))
    buffer.add(**row(1))
    assert len(buffer) == 1


@pytest.mark.parametrize(
    "changes",
    [
        *[{"capacity": value} for value in (0, 21, "x", 10**15, True)],
        *[{"fields": value} for value in ({}, {"x": 3}, None, {"index": kr.Field((), "f4")})],
        {"fields": {"a": {"b": kr.Field((), "f4")}, "a['b']": kr.Field((), "f4")}},
        *[{"options": value} for value in (None, {"prioritization": "rank"}, {"stack": 4})],
        *[{"file": value} for value in (-1, 0, "x", None, 2**70)],
        *[{name: value} for name in ("pid", "start_time", "nbytes") for value in (-1, "x", 1.0)],
        *[{"token": value} for value in ((1, 2), None)],
        *[{"kind": value} for value in ("ReplayBuffer", None)],
    ],
    ids=str,
)
def test_a_malformed_descriptor_opens_nothing(changes):
    buffer = make()
    before = n_open()
    for _ in range(40):
        with pytest.raises((AttachError, ValueError, TypeError)):
            kr.PrioritizedReplayBuffer.attach(replace(buffer.descriptor, **changes))
    assert n_open() < before + 20


def test_a_foreign_segment():
    buffer = make()
    file = os.memfd_create("something")
    os.posix_fallocate(file, 0, buffer.descriptor.nbytes)
    about = os.fstat(file)
    descriptor = replace(buffer.descriptor, file=file, identity=(about.st_dev, about.st_ino))
    with pytest.raises(AttachError, match="not a buffer of this version"):
        kr.PrioritizedReplayBuffer.attach(descriptor)
    os.close(file)


@pytest.mark.parametrize(
    ("word", "value"), [(0, 2**40), (0, -1), (3, 2**40), (3, -5), (4, -1), (4, 21)]
)
def test_a_segment_whose_numbers_name_slots_that_there_are_not(word, value):
    """position, n_published, n_writing, n_started, n_touched, as others may have left them."""
    buffer = make()
    buffer.add(**row(3))
    descriptor = buffer.descriptor
    with open(f"/proc/self/fd/{descriptor.file}", "r+b", buffering=0) as file:
        memory = mmap.mmap(file.fileno(), 4096)
        words = np.frombuffer(memory, np.int64)
        first = next(i for i in range(8, 512, 8) if words[i : i + 5].tolist() == [3, 3, 0, 3, 3])
        before = words[first + word]
        words[first + word] = value
        with pytest.raises(AttachError, match="contradicts itself"):
            kr.PrioritizedReplayBuffer.attach(descriptor)
        words[first + word] = before
        del words
        memory.close()
    kr.PrioritizedReplayBuffer.attach(descriptor).add(**row(1))
    buffer.check_invariants()


def test_too_little_memory(monkeypatch, tmp_path):
    with pytest.raises(
        MemoryError, match="GiB of memory are free; choose a smaller capacity, or storage_directory"
    ):
        kr.ReplayBuffer(2**33, {"x": kr.Field((84, 84), "uint8")}, shared=True)
    with pytest.raises(MemoryError, match="space in"):
        kr.ReplayBuffer(2**33, {"x": kr.Field((84, 84), "uint8")}, storage_directory=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shared", [False, True])
def test_rows_in_a_file(tmp_path, shared):
    buffer = kr.PrioritizedReplayBuffer(
        50, FIELDS, storage_directory=tmp_path, shared=shared, seed=0
    )
    buffer.add(**row(70, 3.0))
    assert (buffer.sample(10).reward == 3).all() and not list(tmp_path.iterdir())
    if shared:
        other = kr.PrioritizedReplayBuffer.attach(buffer.descriptor)
        assert len(other) == 50
    buffer.check_invariants()
    with pytest.raises(FileNotFoundError):
        kr.ReplayBuffer(5, FIELDS, storage_directory=tmp_path / "nowhere")


def test_a_file_system_without_nameless_files_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(shared_memory.os, "open", refuse)
    with pytest.raises(OSError, match="choose a storage_directory on a local disk"):
        kr.ReplayBuffer(5, FIELDS, storage_directory=tmp_path)


def test_the_place_of_a_dead_process_is_free_again():
    """More deaths than there may be participants at once."""
    buffer = make()
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def wait():
        ready.set()
        signal.pause()

    for _ in range(3):
        child = context.Process(target=wait)
        child.start()
        assert ready.wait(30)
        ready.clear()
        child.kill()
        child.join(30)
    others = [kr.PrioritizedReplayBuffer.attach(buffer.descriptor) for _ in range(511)]
    with pytest.raises(AttachError, match="512 attachments"):
        kr.PrioritizedReplayBuffer.attach(buffer.descriptor)
    others.pop().close()
    kr.PrioritizedReplayBuffer.attach(buffer.descriptor).add(**row(1))


def test_only_shared_buffers_have_a_descriptor():
    with pytest.raises(ValueError, match="shared=True"):
        _ = kr.ReplayBuffer(5, FIELDS).descriptor
