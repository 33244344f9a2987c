"""Shards behind TCP: who is let in, and what becomes of connections that are cut."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards import FIELDS, add_rows, new_shard, reserved_port, rows

import kary_replay as kr
from kary_replay import HANDLE_DTYPE
from kary_replay.errors import ShardError, ShardLostError
from kary_replay.shards import (
    LocalTransport,
    RemoteShard,
    ShardServer,
    ShardService,
    SocketTransport,
    sockets,
)
from kary_replay.shards import remote_shard as module
from kary_replay.shards import service as service_module
from kary_replay.shards.layout import HIDDEN
from kary_replay.shards.messages import HEAD, LONGEST, Kind, pack, unpack
from kary_replay.shards.service import FOLDERS
from kary_replay.shards.sockets import WELCOME
from kary_replay.shards.transport import _There
from kary_replay.shards.vitals import VITALS_DTYPE

TOKEN = secrets.token_bytes(32)


class Served:
    """A shard, its server, and what is needed to replace the server."""

    def __init__(self, port: int) -> None:
        self.buffer = new_shard(1000, shared=True)
        self.server = ShardServer(ShardService(self.buffer), TOKEN, port=port)
        self.address = self.server.address

    def shard(self) -> RemoteShard:
        return RemoteShard(SocketTransport(self.address, TOKEN), patience_seconds=60.0)

    def replace(self, buffer: kr.PrioritizedReplayBuffer | None = None) -> None:
        """Let another server answer at the same address."""
        self.server.close()
        self.server = ShardServer(
            ShardService(self.buffer if buffer is None else buffer), TOKEN, port=self.address[1]
        )


@pytest.fixture
def served() -> Iterator[Served]:
    with reserved_port() as port:
        one = Served(port)
        yield one
        one.server.close()


def test_all_that_a_buffer_does(served: Served, rng: np.random.Generator) -> None:
    many = kr.ShardedReplayBuffer([served.shard(), new_shard(1000)], seed=1)
    for number in range(0, 400, 10):
        many.add(**rows(np.arange(number, number + 10)))
    many.settle()
    assert len(many) == 400
    for _ in range(50):
        batch = many.sample(64)
        np.testing.assert_array_equal(batch.row[:, 2], batch.number)
        many.update_priorities(batch.handle, rng.gamma(1.0, size=64))
    many.settle()
    masses = served.buffer.total_mass + many._shards[1].buffer.total_mass
    assert many.total_mass == pytest.approx(masses)
    many.check_invariants()
    many.close()


def test_a_wrong_token_is_not_answered(served: Served) -> None:
    with pytest.raises(ConnectionError, match="refuses the token"):
        SocketTransport(served.address, secrets.token_bytes(32))
    for token in (b"short", "x" * 32):
        with pytest.raises(ValueError, match="token must be 32 bytes"):
            SocketTransport(served.address, token)  # type: ignore[arg-type]
    with socket.create_connection(served.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 40)
        stranger.settimeout(5)
        assert stranger.recv(100) == b""
    assert len(served.shard().layout.fields) == 2


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    with pytest.raises(ConnectionError, match="no shard answers at 127"):
        SocketTransport(address, TOKEN)


def test_somebody_else_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            connection.sendall(b"220 mail.example ESMTP")
            time.sleep(0.1)
            connection.close()

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(ConnectionError, match=r"is no shard|refuses the token"):
            SocketTransport(other.getsockname(), TOKEN)


def test_other_versions_and_fields(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    local = kr.PrioritizedReplayBuffer(4, {"x": kr.Field((), "float32")})
    with pytest.raises(ShardError, match="must have the same fields"):
        kr.ShardedReplayBuffer([local, served.shard()])
    monkeypatch.setattr(module, "VERSION", "9.9.9")
    with pytest.raises(ShardError, match=r"install the same version on all machines"):
        served.shard()


def answered(service: ShardService, message: list[Any]) -> Any:
    """Return what a shard answers."""
    return unpack(b"".join(map(bytes, service.answer(b"".join(map(bytes, message))))))


def connected(served: Served) -> socket.socket:
    """Return a connection that has been let in."""
    connection = socket.create_connection(served.address)
    connection.sendall(TOKEN)
    connection.settimeout(5)
    assert connection.recv(len(WELCOME)) == WELCOME
    return connection


HELLO = b"".join(map(bytes, pack(Kind.HELLO, b"0.0.0", b"")))
GARBAGE = [
    b"x" * 100,
    HELLO[:10],
    HELLO[:-3],
    HEAD.pack(b"KRsh", 7, Kind.HELLO, 0, 0),
    HEAD.pack(b"KRsh", 1, 999, 0, 0),
    HEAD.pack(b"KRsh", 1, Kind.HELLO, 0, LONGEST + 1),
    HEAD.pack(b"KRsh", 1, Kind.HELLO, 3, 8) + struct.pack("<Q", 99),
]


@pytest.mark.parametrize("sent", GARBAGE, ids=range(len(GARBAGE)))
def test_messages_that_are_none(served: Served, sent: bytes) -> None:
    """The connection ends, or is told so; the shard goes on for others."""
    add_rows(served.buffer, np.arange(5))
    connection = connected(served)
    answer = b""
    with contextlib.suppress(OSError):  # it has been cut at the other end
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1000):
            answer += part
    assert not answer or unpack(answer).kind is Kind.FAILED
    assert kr.ShardedReplayBuffer([served.shard()]).sample(3).number.max() < 5
    assert len(served.buffer) == 5


@pytest.mark.parametrize("n_bytes", [1, 10, len(HELLO) - 1])
def test_who_stalls_within_a_message_is_let_go_of(
    served: Served, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has not begun with one is not."""
    monkeypatch.setattr(sockets, "STALL_SECONDS", 0.05)
    idle, stalled = connected(served), connected(served)
    stalled.sendall(HELLO[:n_bytes])
    with contextlib.suppress(ConnectionError):
        assert stalled.recv(1) == b""
    idle.sendall(HELLO)
    assert idle.recv(4) == b"KRsh"
    for connection in (idle, stalled):
        connection.close()


@pytest.mark.parametrize("exact", [None, "rejection"])
def test_a_shard_counts_the_rows_that_were_taken(served: Served, exact: Any) -> None:
    here = new_shard(500)
    many = kr.ShardedReplayBuffer([served.shard(), here], seed=0, exact=exact)
    for _ in range(2):
        many.add(**rows(np.arange(300)), priority=np.linspace(0.1, 5, 300))
    many.settle()
    there = sum(int((many.sample(64).handle["shard"] == 0).sum()) for _ in range(10))
    assert 0 < there < 640
    assert (served.buffer.n_sampled, here.n_sampled) == (there, 640 - there)
    assert many.n_sampled == 640
    many.close()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind < Kind.DONE])
def test_messages_without_their_parts(served: Served, kind: Kind) -> None:
    service = ShardService(served.buffer)
    for parts in ([], [b"\x01"], [b"", b"\xff" * 7], [np.zeros(4, np.uint64), b"abc"]):
        assert answered(service, pack(kind, *parts)).kind in (Kind.DONE, Kind.FAILED)
    assert len(served.buffer) == 0
    served.buffer.check_invariants()
    service.close()


def test_files_outside_are_not_read(served: Served) -> None:
    service = ShardService(served.buffer)
    answered(service, pack(Kind.SAVE))
    for name in (b"../../etc/passwd", b"/etc/passwd", b"."):
        message = pack(Kind.READ, name, np.array([0, 100], np.int64))
        assert answered(service, message).kind is Kind.FAILED
    service.close()


def test_a_server_that_closes_answers_nobody_who_is_about_to_be_let_in(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose thread has begun, and has said nothing yet."""
    has_begun, may_go_on = threading.Event(), threading.Event()

    def begin(_: Any) -> None:
        has_begun.set()
        may_go_on.wait(60)

    monkeypatch.setattr(sockets._Connection, "setup", begin)
    with socket.create_connection(served.address) as connection:
        connection.sendall(TOKEN)
        assert has_begun.wait(60)
        closing = threading.Thread(target=served.server.close)
        closing.start()
        connection.settimeout(60)
        assert connection.recv(100) == b""
        may_go_on.set()
        closing.join()


def test_a_new_server_goes_on(served: Served, rng: np.random.Generator) -> None:
    """Adds and updates that were cut off are done once; batches under way are drawn again."""
    many = kr.ShardedReplayBuffer([served.shard()], seed=2)
    number = 0
    for _ in range(20):
        for _ in range(5):
            many.add(**rows(np.arange(number, number + 3)))
            number += 3
        served.replace()
        batch = many.sample(32)
        served.replace()
        many.update_priorities(batch.handle, rng.gamma(1.0, size=32))
    many.settle()
    slots = served.buffer._slots.by_age()[0]
    assert served.buffer.field_view("number")[slots].tolist() == list(range(number))
    assert many.lost == []


def test_another_memory_is_lost(served: Served) -> None:
    many = kr.ShardedReplayBuffer([served.shard(), new_shard(100)], seed=2)
    many.add(**rows(np.arange(10)))
    many.add(**rows(np.arange(10, 20)))
    many.settle()
    handle = many.sample(64).handle
    served.replace(new_shard(1000))
    batch = many.sample(64)
    assert set(batch.number.tolist()) <= set(range(10, 20)), "the law is that of the survivor"
    np.testing.assert_allclose(batch.importance_weight, 1)
    assert many.lost == [0]
    of_lost = int((handle["shard"] == 0).sum())
    assert many.update_priorities(handle, np.ones(64)) == 64 - of_lost
    assert many.n_refused == of_lost
    assert many.join(served.shard()) == 0, "who comes takes the number of the lost"
    many.add(**rows(np.arange(20, 30)))
    many.add(**rows(np.arange(30, 40)))
    assert many.update_priorities(handle, np.ones(64)) == 64 - of_lost, "old handles stay refused"
    many.settle()
    assert set(many.sample(512).number.tolist()) == set(range(10, 40))


def test_rows_of_others_are_noticed(served: Served) -> None:
    """A shard without mass is not asked for rows; what it has become is asked for all the same."""
    many = kr.ShardedReplayBuffer([served.shard(), new_shard(10)], seed=2)
    many._shards[1].add(rows([1]), None)
    assert many.sample(4).number.tolist() == [1] * 4
    add_rows(served.buffer, np.arange(100, 200))
    while many.sample(64).number.max() < 100:
        time.sleep(0.001)


def test_all_are_lost(served: Served) -> None:
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard], seed=2)
    many.add(**rows(np.arange(10)))
    many.settle()
    handle = many.sample(4).handle
    shard.patience_seconds = 0.2
    served.server.close()
    with pytest.raises(ShardLostError, match="all shards are lost"):
        many.sample(4)
    with pytest.raises(ShardLostError, match="all shards are lost"):
        many.add(**rows([1]))
    with pytest.raises(ShardLostError, match="all shards are lost"):
        many.update_priorities(handle, np.ones(4))
    assert many.join(new_shard(10)) == 0
    many.add(**rows([1]))
    assert many.sample(4).number.tolist() == [1] * 4


def test_a_silent_shard_is_lost(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is connected, and answers nothing any more."""
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard, new_shard(10)], seed=2)
    many.add(**rows([1]))
    many.add(**rows([2]))
    many.settle()
    shard.patience_seconds = 0.3
    never = threading.Event()
    service = served.server._server.RequestHandlerClass.service  # type: ignore[attr-defined]
    monkeypatch.setattr(service, "answer", lambda _: never.wait(20))
    began = time.monotonic()
    assert many.sample(8).number.tolist() == [2] * 8
    assert time.monotonic() - began < 10
    never.set()


def test_what_a_shard_refuses_is_raised(served: Served) -> None:
    shard = served.shard()
    shard._send(pack(Kind.SET, b"alpha", np.array([7.0])))
    with pytest.raises(ValueError, match="alpha must be from 0 to 1"):
        shard.settle()
    shard._send(pack(Kind.SET, b"max_priority", np.array([np.inf])))
    with pytest.raises(ValueError, match="max_priority must be from 1 to"):
        shard.settle()
    shard._send(pack(Kind.SET, b"capacity", np.array([7.0])))
    with pytest.raises(ShardError, match="has no setting 'capacity'"):
        shard.settle()
    assert served.buffer.alpha == 1.0
    assert set(FIELDS) == set(shard.layout.fields)


def test_two_threads_at_once(served: Served, run_threaded) -> None:  # type: ignore[no-untyped-def]
    many = kr.ShardedReplayBuffer([served.shard(), new_shard(1000)], seed=2)
    many.add(**rows(np.arange(10)))
    many.add(**rows(np.arange(10)))

    def draw() -> None:
        for _ in range(100):
            batch = many.sample(16)
            np.testing.assert_array_equal(batch.row[:, 0], batch.number)
            many.update_priorities(batch.handle, np.ones(16))

    def add() -> None:
        for number in range(100):
            many.add(**rows(np.arange(number, number + 5)))

    run_threaded([draw, add])
    many.settle()
    assert many.n_added == 520


def test_a_refusal_costs_no_other_add(served: Served) -> None:
    """It is raised by the next call, before that does anything."""
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard], seed=0)
    n_refused = 0
    number = 0
    while number < 300:
        if number == 50 and not n_refused:
            shard._send(pack(Kind.SET, b"alpha", np.array([7.0])))
        try:
            many.add(**rows([number]))
            number += 1
        except ValueError:
            n_refused += 1
    many.settle()
    slots = served.buffer._slots.by_age()[0]
    assert served.buffer.field_view("number")[slots].tolist() == list(range(300))
    assert n_refused == 1


def test_rows_that_are_sent_again_are_those_that_were_given(served: Served) -> None:
    many = kr.ShardedReplayBuffer([served.shard()], seed=0)
    one = rows(np.arange(4))
    served.replace()
    many.add(**one)
    one["number"][:] = 99
    served.replace()
    many.settle()
    assert served.buffer.field_view("number")[:4].tolist() == [0, 1, 2, 3]


def test_answers_of_a_lost_shard_are_not_its_successors(served: Served) -> None:
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard, new_shard(10)], seed=0)
    many.add(**rows(np.arange(10)))
    many.add(**rows(np.arange(10, 20)))
    many.settle()
    batches = many.batches(16, per_request=1, under_way=2)
    handle = next(batches).handle
    shard.patience_seconds = 0.5
    served.server.close()
    with contextlib.suppress(ShardLostError):
        many._shards[0].look()
    new = new_shard(100)
    add_rows(new, np.arange(500, 600))
    assert many.join(new) == 0
    for _ in range(4):
        batch = next(batches)
        assert batch.number.min() >= 10, "none is of the lost shard"
        assert ((batch.handle["epoch"] == 1) == (batch.number >= 500)).all()
    before = new.total_mass
    n_lost = int((handle["shard"] == 0).sum())
    assert many.update_priorities(handle, np.full(16, 9.0)) == 16 - n_lost
    assert new.total_mass == before
    assert many.n_refused == n_lost


def test_a_stranger_at_the_old_address_is_no_shard(served: Served) -> None:
    many = kr.ShardedReplayBuffer([served.shard(), new_shard(10)], seed=0)
    many.add(**rows([1]))
    many.add(**rows([2]))
    many.settle()
    other = kr.PrioritizedReplayBuffer(
        10, {**FIELDS, "row": kr.Field((4,), "float32"), **HIDDEN}, alpha=1.0
    )
    served.server.close()
    served.server = ShardServer(ShardService(other), TOKEN, port=served.address[1])
    for _ in range(3):
        assert many.sample(8).number.tolist() == [2] * 8
        many.add(**rows([2]))
    assert many.lost == [0]
    assert len(other) == 0


class Evil(LocalTransport):
    """A shard that says what is not so."""

    def __init__(self, service: ShardService, change: Any) -> None:
        super().__init__(service)
        self._change = change

    def send(self, message: Any) -> Any:
        answer = unpack(super().send(message).result(1))
        if answer.kind is not Kind.DONE or len(answer.parts) < 4:
            return super().send(message)
        parts = [bytearray(part) for part in answer.parts]
        self._change(parts)
        return _There(b"".join(map(bytes, pack(Kind.DONE, *parts))))


def changed(part: int, dtype: Any, value: Any, name: str = "") -> Any:
    def change(parts: list[bytearray]) -> None:
        array = np.frombuffer(parts[part], dtype)
        (array[name] if name else array)[...] = value

    return change


EVIL = {
    "total": changed(0, VITALS_DTYPE, -5.0, "total"),
    "infinite total": changed(0, VITALS_DTYPE, np.inf, "total"),
    "rows": changed(0, VITALS_DTYPE, -5, "n_rows"),
    "more rows": changed(0, VITALS_DTYPE, 1 << 62, "n_rows"),
    "priority": changed(0, VITALS_DTYPE, np.inf, "max_priority"),
    "broken": changed(1, np.int64, 1),
    "mass": changed(2, np.float64, np.nan),
    "negative mass": changed(2, np.float64, -1.0),
    "count": changed(3, np.float64, 0.0),
    "no rows": changed(4, HANDLE_DTYPE, -1, "index"),
}


@pytest.mark.parametrize("what", EVIL)
@pytest.mark.parametrize("exact", [None, "rejection"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_a_shard_says_is_not_believed_unseen(
    what: str, exact: Any, share: float, served: Served
) -> None:
    """The shard is lost, or the draw fails in words; nothing hangs or crashes."""
    add_rows(served.buffer, np.arange(50))
    evil = RemoteShard(Evil(ShardService(served.buffer), EVIL[what]))
    here = new_shard(10)
    add_rows(here, np.arange(100, 110))
    many = kr.ShardedReplayBuffer([here, evil], seed=0, exact=exact, uniform_share=share)
    try:
        batch = many.sample(64)
    except (RuntimeError, ShardError):
        return
    assert np.isfinite(batch.importance_weight).all()
    assert many.lost == [1] or what in ("broken", "no rows")


def test_large_answers_and_large_adds_at_once() -> None:
    """Neither side waits for the other to take what it sends."""
    fields = {"image": kr.Field((84, 84, 4), np.uint8)}
    server = ShardServer(ShardService(ShardService.new_buffer(1200, fields)), TOKEN)
    shard = RemoteShard(SocketTransport(server.address, TOKEN), patience_seconds=60.0)
    many = kr.ShardedReplayBuffer([shard], seed=0)
    images = np.zeros((512, 84, 84, 4), np.uint8)
    many.add(image=images)
    batches = many.batches(256)
    for _ in range(4):
        next(batches)
        many.add(image=images)
    many.settle()
    assert many.n_added == 5 * 512
    assert shard._line == 0, "it has not been reached anew"
    many.close()
    server.close()


def test_one_cut_is_one_new_connection(served: Served) -> None:
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard], seed=0)
    many.add(**rows(np.arange(10)))
    batches = many.batches(16, per_request=1, under_way=4)
    next(batches)
    served.replace()
    for _ in range(50):
        next(batches)
    assert shard._line == 1


def test_a_child_has_a_connection_of_its_own(served: Served) -> None:
    many = kr.ShardedReplayBuffer([served.shard()], seed=0)
    many.add(**rows(np.arange(10)))
    many.settle()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for _ in range(50):
                batch = many.sample(24)
                assert (batch.row[:, 0] == batch.number).all()
                many.add(**rows([1000]))
            many.settle()
            code = 0
        finally:
            os._exit(code)
    for _ in range(50):
        batch = many.sample(16)
        assert (batch.row[:, 0] == batch.number).all()
        many.add(**rows([2000]))
    many.settle()
    assert os.waitpid(pid, 0)[1] == 0
    assert served.buffer.n_added == 110


def folders() -> set[Path]:
    """Return what services of this process have saved for others to fetch."""
    return set(Path(tempfile.gettempdir()).glob(f"{FOLDERS}{os.getpid()}-*"))


def test_several_save_the_same_shard(served: Served, tmp_path: Path, run_threaded: Any) -> None:
    add_rows(served.buffer, np.arange(200))
    before = folders()

    def save(number: int) -> int:
        with kr.ShardedReplayBuffer([served.shard()]) as many:
            for _ in range(3):
                many.save(tmp_path / str(number))
            return len(many)

    assert run_threaded(save, n_threads=4) == [200] * 4
    for number in range(4):
        after = kr.ShardedReplayBuffer([new_shard(200)])
        after.load(tmp_path / str(number))
        assert len(after) == 200
    assert folders() == before


def test_a_shard_dies_during_a_save(served: Served, tmp_path: Path) -> None:
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard, new_shard(10)], seed=0)
    many.add(**rows([1]))
    many.add(**rows([2]))
    many.save(tmp_path)
    shard.patience_seconds = 0.2
    fetched = shard._fetched

    def die(message: Any) -> Any:
        if unpack(b"".join(map(bytes, message))).kind is Kind.READ:
            served.server.close()
        return fetched(message)

    shard._fetched = die  # type: ignore[method-assign]
    with pytest.raises(ShardLostError):
        many.save(tmp_path)
    assert many.lost == [0]
    after = kr.ShardedReplayBuffer([new_shard(10)])
    after.load(tmp_path)
    assert len(after) == 2, "the checkpoint before stays"


def test_a_save_is_on_the_disk_before_it_counts(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, synced = served.shard(), set()

    def noted(file: int, fsync: Any = os.fsync) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{file}")))
        fsync(file)

    monkeypatch.setattr(module.os, "fsync", noted)
    (tmp_path / "shard").mkdir()
    shard.save(tmp_path / "shard")
    everything = {path for path in tmp_path.rglob("*") if path.name != "kary-replay.lock"}
    assert len(everything) > 3 and everything <= synced


def test_what_nobody_reads_is_removed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the learner was killed while it saved."""
    before = folders()
    served.shard()._fetched(pack(Kind.SAVE))
    (left,) = folders() - before
    served.shard()._fetched(pack(Kind.SAVE))
    assert len(folders() - before) == 2 and left.exists()
    monkeypatch.setattr(service_module, "UNREAD_SECONDS", -1.0)
    served.shard()._fetched(pack(Kind.SAVE))
    assert len(folders() - before) == 1 and not left.exists()
    served.server.close()


def test_a_full_disk_there_is_named(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shard, before = served.shard(), folders()
    monkeypatch.setattr(served.buffer, "save", full)
    where = f"on {socket.gethostname()}, in {tempfile.gettempdir()}.*TMPDIR.*No space left"
    with pytest.raises(OSError, match=where):
        shard.save(tmp_path)
    assert folders() == before
    many = kr.ShardedReplayBuffer([shard])
    many.add(**rows(np.arange(5)))
    many.settle()
    assert len(many) == 5 and many.lost == []


def test_a_slow_disk_costs_the_save_and_not_the_shard(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, save = threading.Event(), served.buffer.save

    def slow(folder: Path) -> None:
        may_go_on.wait()
        save(folder)

    shard = served.shard()
    monkeypatch.setattr(served.buffer, "save", slow)
    monkeypatch.setattr(module, "PATIENCE_WITH_DISKS", 0.05)
    with pytest.raises(TimeoutError, match=r"has not answered in 0\.05 seconds"):
        shard.save(tmp_path)
    may_go_on.set()
    monkeypatch.undo()
    many = kr.ShardedReplayBuffer([shard])
    many.add(**rows(np.arange(5)))
    many.settle()
    assert len(many) == 5 and many.lost == []
    shard.save(tmp_path)


@pytest.mark.parametrize("when", ["in the midst", "before it is noted"])
def test_an_interrupt_while_rows_are_sent(
    served: Served, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is half of one and half of another, and none comes twice."""
    many = kr.ShardedReplayBuffer([served.shard()], seed=0)
    many.add(**rows(np.arange(10)))

    def half(
        connection: socket.socket, buffers: Any, send: Any = sockets.send_in_parts
    ) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # the server, which answers
            yield from send(connection, buffers)
            return
        whole = b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers if len(buffer))
        connection.send(whole[: len(whole) - 40])
        raise KeyboardInterrupt

    def sent(line: Any, message: Any, send: Any = sockets._Line.send) -> None:
        send(line, message)
        raise KeyboardInterrupt

    if when == "in the midst":
        monkeypatch.setattr(sockets, "send_in_parts", half)
    else:
        monkeypatch.setattr(sockets._Line, "send", sent)
    with pytest.raises(KeyboardInterrupt):
        many.add(**rows(np.arange(10, 20)))
    monkeypatch.undo()
    many.add(**rows(np.arange(20, 30)))
    many.settle()
    assert len(many) == 30 and many.lost == []
    seen = set()
    for _ in range(30):
        batch = many.sample(64)
        np.testing.assert_array_equal(batch.row[:, 2], batch.number)
        seen.update(batch.number.tolist())
    assert seen == set(range(30))


def test_what_all_lost_says(served: Served, tmp_path: Path) -> None:
    shard = served.shard()
    many = kr.ShardedReplayBuffer([shard], seed=0)
    shard.patience_seconds = 0.2
    served.server.close()
    with pytest.raises(ShardLostError):
        many.sample(1)
    for call in (
        lambda: many.alpha,
        lambda: setattr(many, "alpha", 0.5),
        lambda: many.save(tmp_path),
        lambda: many.sample(1),
        lambda: many.add(**rows([1])),
        lambda: kr.ShardedReplayBuffer([shard]),
    ):
        with pytest.raises(ShardLostError):
            call()
    assert len(many) == 0


def test_addresses_that_are_none() -> None:
    for address, error in (("host:1", TypeError), ((1, 2), TypeError), (("x", 70000), ValueError)):
        with pytest.raises(error, match=r"address must be|port of address"):
            SocketTransport(address, TOKEN)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="service must be a ShardService"):
        ShardServer(new_shard(4), TOKEN)  # type: ignore[arg-type]


class Dying(LocalTransport):
    """A shard that is gone after it has drawn so many times."""

    def __init__(self, service: ShardService, n_draws: int) -> None:
        super().__init__(service)
        self.n_draws = n_draws

    def send(self, message: Any) -> Any:
        self.n_draws -= unpack(b"".join(map(bytes, message))).kind is Kind.DRAW
        self.reconnect(0)
        return super().send(message)

    def reconnect(self, timeout_seconds: float) -> None:
        if self.n_draws < 0:
            raise ConnectionError("it is gone")


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_rows_of_a_shard_that_goes_before_the_batch_is_whole_keep_their_weights(
    share: float, beta: float
) -> None:
    """The second shard goes at the first draw, and the first one as the missing rows are drawn."""
    shards: list[Any] = []
    for first, n_draws in ((0, 1), (10, 0)):
        buffer = new_shard(10)
        add_rows(buffer, np.arange(first, first + 10))
        shards.append(RemoteShard(Dying(ShardService(buffer), n_draws), 0.02))
    here = new_shard(10)
    add_rows(here, np.arange(20, 30))
    many = kr.ShardedReplayBuffer([*shards, here], seed=0, uniform_share=share, beta=beta)
    batch = many.sample(64)
    assert many.lost == [0, 1]
    assert (batch.number < 10).any() and not (batch.number // 10 == 1).any()
    np.testing.assert_allclose(batch.importance_weight, 1.0, rtol=1e-6)


@pytest.mark.parametrize("exact", [None, "rejection"])
def test_weights_are_of_the_moment_at_which_rows_were_drawn(served: Served, exact: Any) -> None:
    """Priorities fall while a batch that was asked for ahead is under way."""
    options: Any = {"beta": 1.0, "uniform_share": 0.5, "exact": exact}
    many = kr.ShardedReplayBuffer([served.shard()], seed=0, **options)
    mass = np.where(np.arange(1000) < 500, 1.0, 3.0)
    many.add(**rows(np.arange(1000)), priority=mass)
    many.settle()
    ahead = many.batches(64, per_request=1, under_way=2)
    next(ahead)
    whole = many.sample(1000, unique=True)  # the answer to the second batch comes before this one
    many.update_priorities(whole.handle, mass[whole.number] / 10)
    many.settle()
    batch = next(ahead)
    relative = 0.5 * 1000 * mass[batch.number] / mass.sum() + 0.5
    np.testing.assert_allclose(batch.handle["relative"], relative, rtol=1e-5)
    np.testing.assert_allclose(batch.importance_weight, 1 / relative, rtol=1e-5)
    many.close()


def test_different_rows_may_be_as_many_as_somebody_else_has_added(served: Served) -> None:
    many, other = (kr.ShardedReplayBuffer([served.shard()], seed=0) for _ in range(2))
    many.add(**rows(np.arange(10)))
    many.settle()
    other.add(**rows(np.arange(10, 100)))
    other.settle()
    assert len(many) == 10
    assert sorted(many.sample(100, unique=True).number) == list(range(100))
    with pytest.raises(ValueError, match="at most the number of rows that can be drawn"):
        many.sample(101, unique=True)
    for wrong in ("8", None, [3], np.array([8, 9])):
        with pytest.raises(TypeError, match="batch_size must be an integer"):
            many.sample(wrong, unique=True)  # type: ignore[arg-type]
    many.close()
    other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_takes_no_answers_of_its_parent(served: Served) -> None:
    many = kr.ShardedReplayBuffer([served.shard()], seed=0)
    many.add(**rows(np.arange(100)))
    many.settle()
    ahead = many.batches(64, per_request=1, under_way=4, stratified=False)
    next(ahead)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(50):
                next(ahead)
            status = 0
        finally:
            os._exit(status)
    for _ in range(50):
        batch = next(ahead)
        np.testing.assert_array_equal(batch.row[:, 2], batch.number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert many.lost == []
    many.close()


def test_a_shard_that_stalls_within_an_answer_is_lost(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, whole = threading.Event(), sockets.send
    shard = served.shard()
    here = new_shard(1000)
    many = kr.ShardedReplayBuffer([shard, here], seed=0)
    many.add(**rows(np.arange(500)))
    many.add(**rows(np.arange(500)))
    many.settle()

    def half(connection: socket.socket, buffers: Any) -> None:
        joined = b"".join(bytes(memoryview(one).cast("B")) for one in buffers if len(one))
        connection.sendall(joined[:40])
        may_go_on.wait()
        connection.sendall(joined[40:])

    monkeypatch.setattr(sockets, "send", half)
    pending = shard.transport.send(pack(Kind.LOOK))
    time.sleep(0.1)
    assert not pending.has_come() and not pending.has_come()
    shard.patience_seconds = 0.2
    assert len(many.sample(64).number) == 64
    assert many.lost == [0]
    may_go_on.set()
    monkeypatch.setattr(sockets, "send", whole)
    many.close()


def test_a_shard_that_was_closed_is_not_reached_again(served: Served) -> None:
    shard = served.shard()
    shard.close()
    for call in (shard.look, shard.settle):
        with pytest.raises(kr.errors.ClosedError, match="connection to the shard is closed"):
            call()
    shard.close()


def test_the_only_shard_may_leave(served: Served) -> None:
    many = kr.ShardedReplayBuffer([served.shard()])
    for wrong in ("0", 0.0, True, None):
        with pytest.raises(TypeError, match="number must be an integer"):
            many.leave(wrong)  # type: ignore[arg-type]
    many.leave(0)
    assert many.lost == [0]
    with pytest.raises(kr.errors.ShardLostError):
        many.sample(1)
    many.close()


@pytest.mark.parametrize("capacities", [(5000, 5000), (4900, 100), (900, 100)])
def test_what_is_loaded_overwrites_the_oldest_rows_of_shards_of_any_size(
    capacities: tuple[int, int], tmp_path: Path
) -> None:
    whole = kr.ShardedReplayBuffer([new_shard(10_000)])
    whole.add(**rows(np.arange(10_000)))
    whole.save(tmp_path)
    parts = [new_shard(capacity) for capacity in capacities]
    kr.ShardedReplayBuffer(parts).load(tmp_path)
    kept = np.sort(np.concatenate([np.asarray(part.field_view("number")) for part in parts]))
    assert len(kept) == sum(capacities)
    assert (kept >= 10_000 - sum(capacities) - 2).all()  # but for rounding
