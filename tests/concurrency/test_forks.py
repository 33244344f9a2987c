"""Forked children: each enters a shared buffer under a number of its own at its first use."""

import contextlib
import ctypes
import functools
import gc
import os
import pickle
import signal
import subprocess
import sys
import traceback

import numpy as np
import pytest

import kary_replay as kr
from kary_replay import shared_memory
from kary_replay.errors import AttachError

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="sharing needs Linux")

N_PLACES = 512
CLONE_NEWNS, CLONE_NEWTIME, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x80, 0x10000000, 0x20000000
MS_REC_PRIVATE = 0x44000

libc = ctypes.CDLL(None, use_errno=True)


def make(capacity=64, **options):
    buffer = kr.PrioritizedReplayBuffer(
        capacity, {"x": kr.Field((), "int64")}, seed=0, shared=True, **options
    )
    buffer.add(x=np.arange(capacity))
    return buffer


def fork_of_c():
    """A fork that Python knows nothing of, as MPI or an extension may make it."""
    return ctypes.PyDLL(None).fork()


def with_each_fork(test):
    """Run ``test`` with Python's fork and with C's.

    A child of C's fork in which a thread of the parent seems to wait for the interpreter's lock
    waits for that thread for ever, whatever we do. So those tests run in a process without threads:
    a child of Python's fork.
    """

    @pytest.mark.parametrize("fork", [os.fork, fork_of_c])
    @functools.wraps(test)
    def run(fork, *arguments, **options):
        if fork is os.fork:
            test(fork, *arguments, **options)
            return
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                test(fork, *arguments, **options)
                code = 0
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        assert exit_code(pid) == 0

    return run


@contextlib.contextmanager
def child(fork, work):
    """Run ``work(ready, go)`` in a child.

    ``ready()`` says that the child got there, and ``go()`` waits for the end of the block.
    """
    sys.stdout.flush()
    ready, said = os.pipe()
    gone, go = os.pipe()
    pid = fork()
    if pid == 0:
        code = 1
        try:
            os.close(go)
            code = work(lambda: os.write(said, b"!"), lambda: os.read(gone, 1)) or 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(said)
    try:
        os.read(ready, 1)
        yield pid
    finally:
        os.close(go)
        os.close(ready), os.close(gone)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@with_each_fork
def test_children_that_never_touch_a_buffer_take_no_place(fork):
    buffer = make()
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(child(fork, lambda ready, go: ready() and go() and 0))
            for _ in range(20)
        ]
        others = [kr.PrioritizedReplayBuffer.attach(buffer.descriptor) for _ in range(N_PLACES - 1)]
        with pytest.raises(AttachError, match="512 attachments"):
            kr.PrioritizedReplayBuffer.attach(buffer.descriptor)
    assert [exit_code(pid) for pid in idle] == [0] * 20 and len(others) == N_PLACES - 1


@with_each_fork
def test_a_child_for_which_there_is_no_place_is_told(fork):
    buffer = make()
    others = [kr.PrioritizedReplayBuffer.attach(buffer.descriptor) for _ in range(N_PLACES - 1)]

    def work(ready, go):
        assert len(buffer) == 64  # looking takes no place
        for use in (
            lambda: buffer.add(x=1),
            lambda: buffer.sample(1),
            buffer.reset,
            buffer.check_invariants,
        ):
            with pytest.raises(AttachError, match="512 attachments"):
                use()
        others.pop().close()  # the parent's to close, not ours: no place is freed by it
        gc.collect()
        with pytest.raises(AttachError, match="512 attachments"):
            buffer.add(x=1)

    with child(fork, work) as pid:
        assert exit_code(pid) == 0
    assert len(others) == N_PLACES - 1
    buffer.check_invariants()
    others.pop().close()

    def work_with_a_place(ready, go):
        buffer.add(x=-1)

    with child(fork, work_with_a_place) as pid:
        assert exit_code(pid) == 0
    assert -1 in buffer.field_view("x")


@with_each_fork
def test_what_a_child_closes_stays_its_parents(fork):
    buffer = make()
    number = buffer._slots.block.me

    def work(ready, go):
        buffer.close()
        gc.collect()

    with child(fork, work) as pid:
        assert exit_code(pid) == 0
    other = kr.PrioritizedReplayBuffer.attach(buffer.descriptor)
    assert other._slots.block.me != number == buffer._slots.block.me


TAKES_THE_LOCK = {
    "add": lambda buffer: buffer.add(x=-1),
    "max_priority": lambda buffer: buffer._slots.raise_max_priority(2.0),
    "noise": lambda buffer: buffer.relative_noise,
    "reset": lambda buffer: buffer.reset(),
    "sample": lambda buffer: buffer.sample(2),
    "uniform_share": lambda buffer: setattr(buffer, "uniform_share", 0.3),
}


@with_each_fork
@pytest.mark.parametrize("name", TAKES_THE_LOCK)
def test_a_child_takes_the_lock_under_a_number_of_its_own(fork, name):
    buffer = make()

    def work(ready, go):
        assert buffer._slots.block.me == -1
        TAKES_THE_LOCK[name](buffer)
        os.write(number_to, bytes([buffer._slots.block.me]))

    number_from, number_to = os.pipe()
    with child(fork, work) as pid:
        assert exit_code(pid) == 0
    assert os.read(number_from, 1)[0] != buffer._slots.block.me
    os.close(number_from), os.close(number_to)


@with_each_fork
def test_a_child_that_asks_a_shard_for_more_rows_than_it_has_has_its_own_number(fork):
    buffer = make()
    sharded = kr.ShardedReplayBuffer([buffer])

    def work(ready, go):
        assert buffer._slots.block.me == -1
        with pytest.raises(ValueError, match="number of rows that can be drawn"):
            sharded.sample(65, unique=True)
        return buffer._slots.block.me in (-1, number)

    number = buffer._slots.block.me
    with child(fork, work) as pid:
        assert exit_code(pid) == 0


@with_each_fork
def test_a_child_does_not_keep_its_dead_parent_alive(fork):
    """A process is killed while it writes; children that it forked before go on."""
    buffer = kr.ReplayBuffer(8, {"x": kr.Field((1 << 20,), "int64")}, seed=0, shared=True)
    buffer.add(x=np.zeros((8, 1 << 20), np.int64))

    def parent(ready, go):
        grandchild = os.fork()
        if grandchild == 0:
            os.close(goes)  # or this process would wait for itself
            ready()
            os.read(stays, 1)
            os._exit(0)
        large = np.zeros((8, 1 << 20), np.int64)
        while True:
            buffer.add(x=large)

    stays, goes = os.pipe()
    with child(fork, parent) as pid:
        while len(buffer) == 8:  # until it is caught in the middle of a copy
            pass
        os.kill(pid, signal.SIGKILL)
        assert exit_code(pid) == -signal.SIGKILL
        with forbid_hanging():
            buffer.check_invariants()
            buffer.add(x=np.ones((8, 1 << 20), np.int64))
        assert len(buffer) == 8
    os.close(goes), os.close(stays)


MAKER = """
import os, sys, time, numpy as np, kary_replay as kr, pickle
buffer = kr.ReplayBuffer(8, {"x": kr.Field((1 << 20,), "int64")}, seed=0, shared=True)
buffer.add(x=np.zeros((8, 1 << 20), np.int64))
if os.fork() == 0:  # a bystander, which has the memory mapped
    time.sleep(600)
    os._exit(0)
sys.stdout.buffer.write(pickle.dumps(buffer.descriptor))
sys.stdout.buffer.flush()
large = np.zeros((8, 1 << 20), np.int64)
while True:
    buffer.add(x=large)
"""


def test_what_a_child_has_mapped_does_not_keep_the_maker_alive():
    """A buffer's maker is killed while it writes; its child, which never used it, lives on."""
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        buffer = kr.ReplayBuffer.attach(pickle.load(maker.stdout))
        while len(buffer) == 8:
            pass
        maker.kill()
        maker.wait()
        with forbid_hanging():
            buffer.check_invariants()
            buffer.reset()
    finally:
        os.killpg(maker.pid, signal.SIGKILL)
        maker.stdout.close()


def close_all(buffer):
    """What programs that become daemons do, buffers or no buffers."""
    os.close(buffer._slots.block.file)


def test_who_lost_its_file_counts_as_alive():
    """A child closes all files and is stopped in the middle of a copy: its slot stays its own."""
    buffer = kr.ReplayBuffer(4, {"x": kr.Field((1 << 21,), "int64")}, seed=0, shared=True)
    buffer.add(x=np.zeros((4, 1 << 21), np.int64))

    def work(ready, go):
        buffer.sample(1)
        close_all(buffer)
        ready()
        large = np.ones((4, 1 << 21), np.int64)
        while True:
            buffer.add(x=large)

    with child(os.fork, work) as pid:
        while True:
            while len(buffer) == 4:
                pass
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            if len(buffer) == 3:
                break
            os.kill(pid, signal.SIGCONT)
        one = np.full((1, 1 << 21), 2)
        for _ in range(8):
            buffer.add(x=one)
        assert len(buffer) == 3, "the slot of a live writer was given away"
        os.kill(pid, signal.SIGKILL)
        exit_code(pid)
    with forbid_hanging():
        buffer.check_invariants()
        buffer.add(x=np.zeros((4, 1 << 21), np.int64))
    assert len(buffer) == 4


@with_each_fork
def test_a_file_that_got_our_number_is_left_alone(fork, tmp_path):
    buffer = make()
    number = buffer._slots.block.file
    close_all(buffer)
    path = tmp_path / "log"
    path.write_text("one\n")
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    if log != number:
        os.dup2(log, number)
        os.close(log)

    def work(ready, go):
        os.write(number, b"two\n")
        with pytest.raises(AttachError, match="cannot open"):
            buffer.add(x=1)
        with pytest.raises(AttachError, match="closed"):
            _ = buffer.descriptor
        buffer.close()
        os.write(number, b"three\n")

    with child(fork, work) as pid:
        assert exit_code(pid) == 0
    buffer.add(x=1)  # the parent goes on
    buffer.check_invariants()
    with pytest.raises(AttachError, match="closed"):
        _ = buffer.descriptor
    buffer.close()
    gc.collect()
    os.write(number, b"four\n")
    os.close(number)
    assert path.read_text() == "one\ntwo\nthree\nfour\n"


@with_each_fork
def test_a_child_that_may_open_nothing_is_told(fork):
    buffer = make()
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def work(ready, go):
        for _ in range(3):
            with pytest.raises(AttachError, match="cannot open"):
                buffer.add(x=1)
        assert len(buffer) == 64

    pipes = [os.pipe() for _ in range(2)]  # child() needs four more numbers, the fork another one
    for pipe in pipes:
        os.close(pipe[0]), os.close(pipe[1])
    highest = max(
        int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    )
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(4):
            os.close(taken.pop())
        with child(fork, work) as pid:
            code = exit_code(pid)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in taken:
            os.close(file)
    assert code == 0
    buffer.add(x=1)
    buffer.check_invariants()


@contextlib.contextmanager
def forbid_hanging(seconds=120):
    """End the test run rather than wait for ever in native code."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


# --------------------------------------------------------------------------------------- namespaces


def enter_namespaces(flags):
    """Leave this process's namespaces, or return False where that is not allowed."""
    return libc.unshare(flags) == 0 or libc.unshare(flags | CLONE_NEWUSER) == 0


def may_unshare(flags):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if enter_namespaces(flags) else 1)
    return exit_code(pid) == 0


def in_namespace(flags, work, mount_proc=False):
    """Return the exit code of ``work()`` in a grandchild that lives in namespaces of its own."""
    helper = os.fork()
    if helper == 0:
        code = 99
        try:
            assert enter_namespaces(flags)
            if flags & CLONE_NEWTIME:
                with open("/proc/self/timens_offsets", "w") as offsets:
                    offsets.write("boottime 100000 0\n")
            pid = os.fork()
            if pid == 0:
                code = 98
                if mount_proc:
                    assert libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
                    assert libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0
                code = work() or 0
            else:
                code = exit_code(pid)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return exit_code(helper)


def refused(buffer):
    """Everything that may need to know who lives says that it cannot."""
    uses = [
        lambda: buffer.add(x=1),
        lambda: buffer.sample(1),
        buffer.check_invariants,
        buffer.reset,
        lambda: setattr(buffer, "alpha", 0.3),
        lambda: buffer.tree.set(0, 1.0),
    ]
    for use in uses:
        with pytest.raises(AttachError, match="namespace"):
            use()
    return 0


@pytest.mark.skipif(not may_unshare(CLONE_NEWPID), reason="this system allows no namespaces")
@pytest.mark.parametrize("own_proc", [False, True])
def test_a_child_in_a_namespace_of_process_numbers_is_refused(own_proc):
    flags = CLONE_NEWPID | (CLONE_NEWNS if own_proc else 0)
    if not may_unshare(flags):
        pytest.skip("this system allows no mounts")
    buffer = make()
    code = in_namespace(flags, lambda: refused(buffer), own_proc)
    if code == 98 and own_proc:
        pytest.skip("this system allows no mounts")
    assert code == 0
    with forbid_hanging():
        buffer.check_invariants()
        buffer.add(x=np.arange(64))
    assert len(buffer) == 64


@pytest.mark.skipif(not may_unshare(CLONE_NEWPID), reason="this system allows no namespaces")
def test_nobody_attaches_from_another_namespace():
    buffer = make()
    descriptor = buffer.descriptor

    def work():
        with pytest.raises(AttachError):
            kr.PrioritizedReplayBuffer.attach(descriptor)

    assert in_namespace(CLONE_NEWPID, work) == 0


@pytest.mark.skipif(not may_unshare(CLONE_NEWTIME), reason="this system has no time namespaces")
def test_another_clock_makes_nobody_dead():
    """A process whose clock says that everybody started at another time adds, and buries nobody."""
    buffer = make()
    number = buffer._slots.block.me
    assert in_namespace(CLONE_NEWTIME, lambda: buffer.add(x=7) is None) == 0
    other = kr.PrioritizedReplayBuffer.attach(buffer.descriptor)
    assert other._slots.block.me != number and 7 in buffer.field_view("x")
    buffer.check_invariants()
