"""Checkpoints of shards, loaded onto as many shards as there are then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shards import far, new_shard, sharded

import kary_replay as kr
from kary_replay.errors import CheckpointError


def saved(folder: Path, are_far: list[bool], rng: np.random.Generator) -> kr.ShardedReplayBuffer:
    masses = [rng.gamma(1.0, size=n) for n in (40, 0, 25)]
    buffer, _ = sharded(masses, are_far)
    buffer.beta, buffer.uniform_share = 0.7, 0.2
    for _ in range(10):
        batch = buffer.sample(32)
        buffer.update_priorities(batch.handle, rng.gamma(0.5, size=32) * 10)
    buffer.save(folder)
    return buffer


def contents(buffer: kr.ShardedReplayBuffer, shards: list) -> dict[int, float]:
    found = {}
    for shard in shards:
        slots, priority = shard._slots.by_age()
        found.update(zip(shard.field_view("number")[slots].tolist(), priority, strict=True))
    return found


@pytest.mark.parametrize("n_shards", [1, 2, 5])
@pytest.mark.parametrize("is_far", [False, True])
def test_rows_and_priorities_come_back(
    n_shards: int, is_far: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    before = saved(tmp_path, [False, is_far, is_far], rng)
    shards = [new_shard(65) for _ in range(n_shards)]
    parts = [far(one) if is_far and s else one for s, one in enumerate(shards)]
    after = kr.ShardedReplayBuffer(parts)
    after.load(tmp_path)
    old = [
        one.buffer if hasattr(one, "buffer") else one.transport._service.buffer
        for one in before._shards
    ]
    assert contents(after, shards) == contents(before, old)
    assert after.total_mass == pytest.approx(before.total_mass)
    assert (after.beta, after.uniform_share, after.max_priority) == (0.7, 0.2, before.max_priority)
    assert after.relative_noise == before.relative_noise > 0
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 3, "each shard gets its part"
    for shard in shards:  # oldest first, of every shard that was saved
        numbers = shard.field_view("number")[shard._slots.by_age()[0]]
        for low, high in ((0, 40), (40, 65)):
            part = numbers[(numbers >= low) & (numbers < high)]
            assert (np.diff(part) > 0).all()
    after.check_invariants()


def test_random_numbers_go_on(tmp_path: Path, rng: np.random.Generator) -> None:
    before = saved(tmp_path, [False] * 3, rng)
    after = kr.ShardedReplayBuffer([new_shard(65) for _ in range(3)])
    after.load(tmp_path)
    assert after._reader.state()[0] == before._reader.state()[0]


def test_new_rows_displace_the_oldest(tmp_path: Path, rng: np.random.Generator) -> None:
    saved(tmp_path, [False] * 3, rng)
    small = kr.ShardedReplayBuffer([new_shard(30), new_shard(30)])
    small.load(tmp_path)
    assert len(small) == 60


def test_what_is_there_stays_when_a_save_fails(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = saved(tmp_path, [False] * 3, rng)

    def fail(directory: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(buffer._shards[2], "save", fail)
    with pytest.raises(OSError, match="the disk is full"):
        buffer.save(tmp_path)
    after = kr.ShardedReplayBuffer([new_shard(65)])
    after.load(tmp_path)
    assert len(after) == 65
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_what_cannot_be_loaded(tmp_path: Path, rng: np.random.Generator) -> None:
    saved(tmp_path / "shards", [False] * 3, rng)
    one = kr.PrioritizedReplayBuffer(4, {"x": kr.Field((), "float32")})
    one.add(x=1.0)
    one.save(tmp_path / "one")
    empty = kr.ShardedReplayBuffer([new_shard(65)])
    with pytest.raises(CheckpointError, match=r"load it with PrioritizedReplayBuffer\.load"):
        empty.load(tmp_path / "one")
    with pytest.raises(CheckpointError, match="holds a ShardedReplayBuffer"):
        kr.PrioritizedReplayBuffer.load(tmp_path / "shards")
    with pytest.raises(FileNotFoundError, match="there is no such checkpoint"):
        empty.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="has the fields"):
        kr.ShardedReplayBuffer(
            [kr.PrioritizedReplayBuffer(4, {"x": kr.Field((), "float32")})]
        ).load(tmp_path / "shards")
    data = next((tmp_path / "shards").glob("data-*/shard-0000/data-*/rows.bin"))
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        empty.load(tmp_path / "shards")
    full, _ = sharded([[1.0] * 4])
    with pytest.raises(ValueError, match="load into shards without rows, there are 4"):
        full.load(tmp_path / "shards")
