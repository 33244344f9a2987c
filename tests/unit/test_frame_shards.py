"""Shards whose observations are stacks of frames that are stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.errors import CheckpointError, ShardError
from kary_replay.shards import LocalTransport, RemoteShard, ShardService, frame_rows
from kary_replay.shards.layout import Layout
from kary_replay.shards.messages import Kind, pack, unpack
from kary_replay.shards.numbered_rows import NumberedRows

STACK, N_ENVS = 3, 2
FIELDS = {"action": kr.Field((), np.int64)}
FRAME = kr.Field((4,), np.int64)


def frame(env: Any, episode: Any, t: Any) -> np.ndarray:
    """Return frames that tell whose they are: environment, episode, step, and their sum."""
    parts = np.broadcast_arrays(env, episode, t)
    return np.stack([*parts, np.sum(parts, axis=0)], axis=-1).astype(np.int64)


class Played:
    """A shard, and the environments beside it, numbered throughout all shards."""

    def __init__(self, number: int, capacity: int, n_step: int = 1, **options: Any) -> None:
        self.buffer = kr.FrameReplayBuffer(
            capacity, FRAME, FIELDS, stack=STACK, n_step=n_step, seed=number, alpha=1.0, **options
        )
        self.writer = kr.FrameStackWriter(self.buffer, N_ENVS, 0.9)
        self.env = number * N_ENVS + np.arange(N_ENVS)
        self.episode, self.t = np.ones(N_ENVS, int), np.zeros(N_ENVS, int)
        self.rng = np.random.default_rng(number)
        self.writer.reset(frame(self.env, self.episode, self.t))

    def play(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.t += 1
            ends = self.rng.random(N_ENVS) < 0.1
            self.writer.add(
                action=self.t,
                reward=self.t.astype(np.float32),
                next_frame=frame(self.env, self.episode, self.t),
                terminated=ends,
                truncated=np.zeros(N_ENVS, bool),
            )
            old = np.flatnonzero(ends)
            self.episode[old] += 1
            self.t[old] = 0
            if len(old):
                self.writer.reset(frame(self.env[old], self.episode[old], self.t[old]), env=old)


def far(buffer: kr.FrameReplayBuffer) -> RemoteShard:
    return RemoteShard(LocalTransport(ShardService(buffer)))


def check(batch: Any, padding: str = "repeat") -> None:
    """Every stack is of one episode, its frames follow each other, and the row is theirs."""
    first, last = batch.observation, batch.next_observation
    env, episode = first[:, -1, 0], first[:, -1, 1]
    n = last[:, -1, 2] - first[:, -1, 2]
    assert (n >= 1).all()
    for stacks in (first, last):
        newest = stacks[:, -1, 2]
        for age in range(STACK):
            shown = newest - age
            got = stacks[:, STACK - 1 - age]
            expected = frame(env, episode, np.maximum(shown, 0))
            if padding == "zeros":
                expected[shown < 0] = 0
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(batch.action, first[:, -1, 2] + 1)


def transitions(buffer: kr.FrameReplayBuffer) -> dict[bytes, float]:
    """Return all that can be drawn, as bytes, with their priorities."""
    if not buffer.total_mass:
        return {}
    n = int((buffer.tree.get(np.arange(buffer.capacity)) > 0).sum())
    while True:  # rows whose frames are gone lose their mass when they are drawn
        slots, _ = buffer._slots.by_age()
        try:
            drawn = buffer._reader.take(slots)
            break
        except kr.errors.IndexRangeError:
            buffer.sample(4 * n)
    names = "frame", "action", "reward", "discount", "terminated"
    columns = [np.ascontiguousarray(drawn[name]) for name in names]
    rows = (b"".join(part.tobytes() for part in row) for row in zip(*columns, strict=True))
    _, priority = buffer._slots.by_age()
    return dict(zip(rows, priority.tolist(), strict=True))


@pytest.mark.parametrize(("n_step", "padding"), [(1, "repeat"), (1, "zeros"), (3, "repeat")])
@pytest.mark.parametrize("are_far", [(False, False), (False, True), (True, True)])
def test_stacks_are_those_that_were_seen(n_step, padding, are_far):
    played = [Played(s, 400, n_step, padding=padding) for s in range(2)]
    parts = [far(p.buffer) if f else p.buffer for p, f in zip(played, are_far, strict=True)]
    for one in played:
        one.play(60)
    shards = kr.ShardedReplayBuffer(parts, seed=0)
    batch = shards.sample(512)
    check(batch, padding)
    assert batch.observation.shape == batch.next_observation.shape == (512, STACK, 4)
    assert set(batch.observation[:, -1, 0]) == {0, 1, 2, 3}
    for _, one in zip(range(3), shards.batches(64), strict=False):
        check(one, padding)
    again = shards.sample(512, out=batch)
    assert again.frames is batch.frames
    check(again, padding)
    assert shards.update_priorities(batch.handle, np.full(512, 2.0)) == 512
    shards.settle()
    assert shards.max_priority == pytest.approx(2.0)
    shards.check_invariants()


def test_rows_whose_frames_are_gone_are_not_drawn():
    played = [Played(s, 60) for s in range(2)]
    shards = kr.ShardedReplayBuffer([played[0].buffer, far(played[1].buffer)], seed=1)
    for one in played:
        one.play(300)
    for _ in range(20):
        check(shards.sample(128))


def test_the_law_is_that_of_one_buffer():
    played = [Played(s, 100) for s in range(2)]
    for one in played:
        one.play(40)
    mass = [one.buffer.total_mass for one in played]
    shards = kr.ShardedReplayBuffer([played[0].buffer, far(played[1].buffer)], seed=2)
    batch = shards.sample(100_000, stratified=False)
    is_first = np.isin(batch.handle["shard"], [0]).mean()
    assert is_first == pytest.approx(mass[0] / sum(mass), abs=0.01)


def saved(folder: Path, rng: np.random.Generator, n_step: int = 1) -> list[dict[bytes, float]]:
    """Save two shards, one of which has been written over; return what could be drawn."""
    played = [Played(s, 100, n_step) for s in range(2)]
    shards = kr.ShardedReplayBuffer([one.buffer for one in played], seed=3, beta=0.7)
    played[0].play(30)
    played[1].play(200)
    for _ in range(20):
        batch = shards.sample(64)
        shards.update_priorities(batch.handle, rng.gamma(1.0, size=64) + 0.1)
    shards.save(folder)
    return [transitions(one.buffer) for one in played]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("n_shards", [1, 2, 3, 5])
@pytest.mark.parametrize("are_far", [False, True])
@pytest.mark.parametrize("fewest_rows", [10, 1000])
def test_checkpoints_go_to_any_number_of_shards(
    n_step, n_shards, are_far, fewest_rows, tmp_path, rng, monkeypatch
):
    monkeypatch.setattr(frame_rows, "FEWEST_ROWS", fewest_rows)
    monkeypatch.setattr(frame_rows, "CHUNK_ROWS", 7)
    before = saved(tmp_path, rng, n_step)
    empty = [
        kr.FrameReplayBuffer(1000 // n_shards, FRAME, FIELDS, stack=STACK, n_step=n_step, alpha=1.0)
        for _ in range(n_shards)
    ]
    parts = [far(one) if are_far and s else one for s, one in enumerate(empty)]
    shards = kr.ShardedReplayBuffer(parts)
    shards.load(tmp_path)
    after = [transitions(one) for one in empty]
    assert sum(map(len, after)) == sum(map(len, before)), "no row comes twice"
    assert {k: v for one in after for k, v in one.items()} == {
        k: v for one in before for k, v in one.items()
    }
    if n_shards == 2:
        assert after == before
    assert all(after)
    check(shards.sample(256))
    for one in empty:  # oldest first: of every environment, in order
        slots, _ = one._slots.by_age()
        newest = one._reader.take(slots)["frame"][:, -1]
        for env in np.unique(newest[:, 0]):
            when = newest[newest[:, 0] == env][:, 1] * 1000 + newest[newest[:, 0] == env][:, 2]
            if n_step == 1:
                assert (np.diff(when) > 0).all()
    assert shards.beta == 0.7
    shards.check_invariants()


def test_few_frames_are_copied(tmp_path, rng):
    saved(tmp_path, rng)
    empty = [kr.FrameReplayBuffer(100, FRAME, FIELDS, stack=STACK, alpha=1.0) for _ in range(3)]
    kr.ShardedReplayBuffer(empty).load(tmp_path)
    n_rows = sum(map(len, empty))
    n_transitions = sum(len(transitions(one)) for one in empty)
    assert n_rows < 1.5 * n_transitions


def test_the_newest_stay_where_there_is_less_room(tmp_path, rng):
    saved(tmp_path, rng)
    empty = [kr.FrameReplayBuffer(30, FRAME, FIELDS, stack=STACK, alpha=1.0) for _ in range(2)]
    shards = kr.ShardedReplayBuffer([empty[0], far(empty[1])])
    shards.load(tmp_path)
    assert len(shards) == 60
    check(shards.sample(100))


def test_a_load_that_fails_leaves_nothing(tmp_path, rng, monkeypatch):
    before = saved(tmp_path, rng)
    empty = [kr.FrameReplayBuffer(300, FRAME, FIELDS, stack=STACK, alpha=1.0) for _ in range(2)]
    remote = far(empty[1])
    shards = kr.ShardedReplayBuffer([empty[0], remote])
    add, calls = NumberedRows.add, []

    def failing(self: Any, columns: Any, priority: Any) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise MemoryError("planted")
        add(self, columns, priority)

    monkeypatch.setattr(NumberedRows, "add", failing)
    with pytest.raises((MemoryError, ShardError), match="planted"):
        shards.load(tmp_path)
    assert len(shards) == 0
    monkeypatch.undo()
    shards.load(tmp_path)
    assert [transitions(one) for one in empty] == before


class Dies(LocalTransport):
    """A service that dies after some adds, before it says that they came; another takes over."""

    def __init__(self, service: ShardService, after: int) -> None:
        super().__init__(service)
        self._left = after

    def send(self, message: Any) -> Any:
        pending = super().send(message)
        if unpack(b"".join(map(bytes, message))).kind is Kind.ADD:
            self._left -= 1
            if self._left == 0:
                self._service = ShardService(self._service.buffer)
                raise ConnectionError("planted")
        return pending


@pytest.mark.parametrize("after", [1, 2, 3])
def test_no_row_comes_twice_if_a_service_dies_during_a_load(after, tmp_path, rng, monkeypatch):
    monkeypatch.setattr(frame_rows, "CHUNK_ROWS", 20)
    before = saved(tmp_path, rng)
    empty = [kr.FrameReplayBuffer(300, FRAME, FIELDS, stack=STACK, alpha=1.0) for _ in range(2)]
    shards = kr.ShardedReplayBuffer([empty[0], RemoteShard(Dies(ShardService(empty[1]), after))])
    with pytest.raises(kr.errors.ShardLostError, match="while rows with frames were added"):
        shards.load(tmp_path)
    assert len(empty[0]) == 0
    empty[1].reset()
    again = kr.ShardedReplayBuffer([empty[0], far(empty[1])])
    again.load(tmp_path)
    assert [transitions(one) for one in empty] == before


def test_nothing_is_kept_of_loads_that_are_over(tmp_path, rng):
    saved(tmp_path, rng)
    empty = [kr.FrameReplayBuffer(300, FRAME, FIELDS, stack=STACK, alpha=1.0) for _ in range(2)]
    remote = far(empty[1])
    shards = kr.ShardedReplayBuffer([empty[0], remote])
    for _ in range(3):
        shards.load(tmp_path)
        shards.reset()
    assert not remote.transport._service._numbered
    assert [shard.n_sent for shard in shards._shards] == [0, 0]


def test_a_saved_shard_of_another_kind_is_named(tmp_path, rng):
    saved(tmp_path, rng)
    other = kr.FrameReplayBuffer(50, kr.Field((4,), np.float64), FIELDS, stack=STACK)
    (shard,) = tmp_path.glob("data-*/shard-0001")
    other.save(shard)
    empty = kr.FrameReplayBuffer(300, FRAME, FIELDS, stack=STACK, alpha=1.0)
    with pytest.raises(CheckpointError, match="shard-0001"):
        kr.ShardedReplayBuffer([far(empty)]).load(tmp_path)
    assert len(empty) == 0


@pytest.mark.parametrize(
    "text",
    [
        '[{"stack": 3, "n_step": 1, "padding": "repeat", "storage_directory": "/tmp"}, {}]',
        '[{"stack": 3, "n_step": 1}, {}]',
        '[{"stack": 3, "n_step": 1, "padding": "repeat"}, {"frame": [[4], "<i8"]}]',
        '[{"stack": 1000000000000, "n_step": 1, "padding": "repeat"}, FIELDS]',
        '[{"stack": 3, "n_step": 1, "padding": "half"}, FIELDS]',
        '[{"stack": 2, "n_step": 1, "padding": "repeat"}, FIELDS]',
        '{"row": [[1000000, 1000000], "<f8"]}',
        "[" * 100_000,
        "[3, 4]",
    ],
)
def test_layouts_that_lie_are_refused(text):
    fields = Layout.of(Played(0, 50).buffer).text().split("}, ", 1)[1][:-1]
    with pytest.raises(ShardError, match="says that its fields are"):
        Layout.read(text.replace("FIELDS", fields))
    Layout.read('[{"stack": 3, "n_step": 1, "padding": "repeat"}, ' + fields + "]")


def test_what_does_not_fit_is_refused(tmp_path, rng):
    plain = kr.PrioritizedReplayBuffer(10, {"action": kr.Field((), np.int64)})
    frames = Played(0, 50).buffer
    with pytest.raises(ShardError, match="same fields"):
        kr.ShardedReplayBuffer([frames, plain])
    other = kr.FrameReplayBuffer(50, FRAME, FIELDS, stack=STACK + 1)
    with pytest.raises(ShardError, match="same fields"):
        kr.ShardedReplayBuffer([frames, far(other)])
    shards = kr.ShardedReplayBuffer([frames])
    with pytest.raises(TypeError, match="FrameStackWriter"):
        shards.add(action=1)
    saved(tmp_path, rng)
    with pytest.raises(CheckpointError, match="has the fields"):
        kr.ShardedReplayBuffer([other]).load(tmp_path)

    class Derived(kr.FrameReplayBuffer):
        pass

    with pytest.raises(TypeError, match="derived"):
        kr.ShardedReplayBuffer([Derived(50, FRAME, FIELDS, stack=STACK)])


@pytest.mark.parametrize(
    ("history", "priority", "message"),
    [
        ([[0, 1], [0, 0], [0, 0]], [1.0], "came before"),
        ([[5, 1], [0, 0], [0, 0]], [1.0], "came before"),
        ([[-1, 0], [0, 0], [0, 0]], [1.0], "came before"),
        ([[0, 2], [0, 0], [0, 0]], [1.0], "came before"),
        ([[0, 0], [0, 0], [0, 0]], [-1.0], "priorities"),
        ([[0, 0], [0, 0], [0, 0]], [np.nan], "priorities"),
        ([[0, 0], [0, 0], [0, 0]], None, "priorities"),
    ],
)
def test_rows_that_name_what_cannot_be_are_refused(history, priority, message):
    buffer = kr.FrameReplayBuffer(50, FRAME, FIELDS, stack=STACK)
    service = ShardService(buffer)
    names = service.layout.names
    columns = {
        name: np.zeros((1, *field.shape), field.dtype)
        for name, field in zip(names, service.layout.leaves, strict=True)
    }
    columns["history"] = np.array([history], np.int64)
    head = np.array([7, 0, 1, priority is not None], np.uint64)
    given = np.empty(0) if priority is None else np.array(priority)
    message_parts = pack(Kind.ADD, head, given, *(columns[name] for name in names))
    answer = unpack(b"".join(map(bytes, service.answer(b"".join(map(bytes, message_parts))))))
    assert answer.kind is Kind.FAILED and message in answer.text(1)
    assert len(buffer) == 0


def test_rows_are_added_once_and_not_across_services():
    buffer = kr.FrameReplayBuffer(50, FRAME, FIELDS, stack=STACK)
    remote = far(buffer)
    service = remote.transport._service
    layout = service.layout
    columns = {
        name: np.zeros((2, *field.shape), field.dtype)
        for name, field in zip(layout.names, layout.leaves, strict=True)
    }

    def add(which: ShardService, first: int) -> Any:
        head = np.array([7, first, 2, 1], np.uint64)
        parts = pack(Kind.ADD, head, np.zeros(2), *(columns[name] for name in layout.names))
        answer = which.answer(b"".join(map(bytes, parts)))
        return unpack(b"".join(map(bytes, answer)))

    assert add(service, 0).kind is Kind.DONE and add(service, 0).kind is Kind.DONE
    assert len(buffer) == 2
    answer = add(ShardService(buffer), 2)
    assert answer.kind is Kind.FAILED and "load the checkpoint anew" in answer.text(1)
    assert len(buffer) == 2
