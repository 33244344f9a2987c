"""A sharded buffer at rest draws what one buffer with all its rows draws, row for row."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from shards import DYADIC, FIELDS, add_rows, far, new_shard, one_buffer, sharded

import kary_replay as kr
from kary_replay.errors import (
    ClosedError,
    EmptyBufferError,
    FieldError,
    IndexRangeError,
    ShardError,
)
from kary_replay.shards import LocalTransport, RemoteShard, ShardService

# uneven shards, empty ones and ones without mass among them
SIZES = {
    1: [1000],
    2: [700, 300],
    3: [1, 0, 999],
    8: [10, 0, 400, 3, 250, 37, 0, 300],
}


def dyadic(sizes: list[int], rng: np.random.Generator) -> list[np.ndarray]:
    masses = [rng.integers(0, 1 << 20, n) * DYADIC for n in sizes]
    if len(sizes) == 8:
        masses[3][:] = 0
    return masses


@pytest.mark.parametrize("n_shards", SIZES)
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("is_far", [False, True], ids=["here", "far"])
def test_draws_of_one_buffer(
    n_shards: int, stratified: bool, share: float, is_far: bool, rng: np.random.Generator
) -> None:
    """In all, a million draws of each number of shards without a uniform share."""
    masses = dyadic(SIZES[n_shards], rng)
    one = one_buffer(masses, 5, uniform_share=share)
    are_far = [is_far and s % 2 == 0 for s in range(n_shards)]
    many, _ = sharded(masses, are_far, 5, uniform_share=share)
    sizes = [1, 7, 256, 1000] * (4 if is_far or share else 400)
    for batch_size in sizes:
        expected = one.sample(batch_size, stratified=stratified)
        batch = many.sample(batch_size, stratified=stratified)
        if share == 0:
            np.testing.assert_array_equal(batch.number, expected.number)
            np.testing.assert_array_equal(batch.row, expected.row)
            np.testing.assert_allclose(
                batch.importance_weight, expected.importance_weight, rtol=4e-7
            )
        shard, index = batch.handle["shard"], batch.handle["index"]
        first = np.cumsum([0, *SIZES[n_shards]])
        np.testing.assert_array_equal(first[shard] + index, batch.number)
        np.testing.assert_array_equal(index, batch.index)
    assert many.distance == 0
    assert many.n_sampled == sum(sizes)


def test_weights_are_of_the_probabilities(rng: np.random.Generator) -> None:
    masses = [rng.gamma(0.5, size=n) for n in (30, 50)]
    many, _ = sharded(masses, [False, True], beta=1.0, uniform_share=0.3)
    mass = np.concatenate(masses)
    probability = 0.7 * mass / mass.sum() + 0.3 / 80
    batch = many.sample(500)
    expected = 1 / (80 * probability[batch.number])
    np.testing.assert_allclose(batch.importance_weight, expected, rtol=1e-6)
    np.testing.assert_allclose(batch.handle["relative"], 80 * probability[batch.number], rtol=1e-9)
    many.uniform_share, many.beta = 0.0, 0.5
    batch = many.sample(500)
    expected = mass[batch.number] ** -0.5
    np.testing.assert_allclose(batch.importance_weight, expected / expected.max(), rtol=1e-6)


@pytest.mark.parametrize("are_far", [[False, False], [True, False], [True, True]])
def test_no_row_comes_twice(are_far: list[bool], rng: np.random.Generator) -> None:
    masses = [rng.uniform(0.2, 3, size=30), [0.0, 1.0, 2.0]]
    many, _ = sharded(masses, are_far)
    n = sum(int(np.count_nonzero(mass)) for mass in masses)
    for batch_size in [1, 5, n, n]:
        assert len(np.unique(many.sample(batch_size, unique=True).number)) == batch_size
    with pytest.raises(ValueError, match="at most the number of rows that can be drawn"):
        many.sample(n + 1, unique=True)
    many, _ = sharded([[1e300, 1.0, 1.0]], None)
    with pytest.raises(ValueError, match="draw without unique"):
        many.sample(2, unique=True)


@pytest.mark.parametrize("is_far", [False, True])
def test_out_is_filled(is_far: bool) -> None:
    many, _ = sharded([[1.0] * 8, [2.0] * 4], [is_far, False])
    first = many.sample(16)
    again = many.sample(16, out=first)
    assert again.row is first.row
    assert again.handle is first.handle
    np.testing.assert_array_equal(again.row[:, 0], again.number)
    with pytest.raises(ValueError, match="number must be an array"):
        many.sample(8, out=first)


@pytest.mark.parametrize("are_far", [[False, False], [True, True]])
def test_updates_reach_their_rows(are_far: list[bool]) -> None:
    many, shards = sharded([[1.0] * 8, [1.0] * 4], are_far)
    batch = many.sample(64)
    error = -(batch.number + 1.0)
    assert many.update_priorities(batch.handle, error[:, None]) == 64
    many.settle()
    for s, first in enumerate((0, 8)):
        drawn = np.unique(batch.number[batch.handle["shard"] == s])
        expected = drawn + 1.0 + many.priority_epsilon
        np.testing.assert_allclose(shards[s].tree.get(drawn - first), expected, rtol=1e-12)
    assert many.max_priority == shards[0].max_priority == shards[1].max_priority
    assert many.total_mass == pytest.approx(sum(shard.total_mass for shard in shards))


def test_settings_are_those_of_all_shards() -> None:
    many, shards = sharded([[1.0] * 8, [1.0] * 4], [False, True])
    many.alpha, many.priority_epsilon = 0.25, 0.5
    assert [shard.alpha for shard in shards] == [0.25] * 2
    assert [shard.priority_epsilon for shard in shards] == [0.5] * 2
    assert (many.alpha, many.priority_epsilon) == (0.25, 0.5)
    assert len(many) == 12
    assert many.capacity == 12
    assert many.n_shards == 2
    many.reset()
    assert len(many) == 0
    with pytest.raises(EmptyBufferError):
        many.sample(1)


def test_adds_take_turns() -> None:
    buffers = [new_shard(8) for _ in range(3)]
    many = kr.ShardedReplayBuffer(buffers, seed=0)
    for number in range(6):
        many.add(number=[number], row=np.full((1, 3), number))
    held = [shard.field_view("number")[:2].tolist() for shard in buffers]
    assert held == [[0, 3], [1, 4], [2, 5]]
    many.add(number=6, row=[6, 6, 6], priority=9.0)
    assert [shard.max_priority for shard in buffers] == [9.0] * 3
    many.check_invariants()


def test_the_share_adapts_as_that_of_one_buffer(rng: np.random.Generator) -> None:
    masses = [rng.gamma(0.5, size=n) for n in (300, 500)]
    for few_have_most in (False, True):
        many, _ = sharded(masses, [True, False], uniform_share="auto")
        one = one_buffer(masses, uniform_share="auto")
        assert many.uniform_share == 1.0
        for _ in range(60):
            for buffer in (one, many):
                batch = buffer.sample(256)
                error = np.where(batch.number % 50 == 0, 30.0, 0.01) if few_have_most else 1.0
                buffer.update_priorities(batch.handle, np.broadcast_to(error, 256))
        assert many.uniform_share == one.uniform_share == (0.1 if few_have_most else 1.0)
        assert many.least_noise == pytest.approx(one.least_noise, rel=0.3)


def test_batches_asked_for_ahead() -> None:
    many, _ = sharded([[1.0] * 8, [3.0] * 4], [True, False])
    batches = many.batches(32, per_request=3, under_way=2)
    for _ in range(10):
        batch = next(batches)
        np.testing.assert_array_equal(batch.row[:, 0], batch.number)
        assert many.update_priorities(batch.handle, np.ones(32)) == 32


class Derived(kr.PrioritizedReplayBuffer):
    """What a shard cannot be: it may mean something else by its rows."""


REFUSED = [
    (lambda b: b.sample(0), ValueError, "batch_size must be at least 1"),
    (lambda b: b.sample(1.5), TypeError, "batch_size must be an integer"),
    (lambda b: b.add(number=[1]), FieldError, "field row is missing"),
    (lambda b: b.add(number=1, row=[1, 2, 3], x=1), FieldError, "field x is unknown"),
    (lambda b: b.add(number=[1, 2], row=np.zeros((1, 3))), FieldError, "same leading axis"),
    (lambda b: b.add(number=1, row=[1, 2, 3], priority=-1), ValueError, "priority must be finite"),
    (lambda b: b.update_priorities(np.zeros(2), [1, 2]), TypeError, "handle must be the handle"),
    (
        lambda b: b.update_priorities(b.sample(2).handle, [1]),
        ValueError,
        "one value per handle, 2, got 1",
    ),
    (
        lambda b: b.update_priorities(b.sample(2).handle, [1, np.nan]),
        ValueError,
        "td_error must be finite",
    ),
    (lambda b: setattr(b, "beta", 2), ValueError, "beta must be from 0 to 1"),
    (lambda b: setattr(b, "uniform_share", "some"), ValueError, "uniform_share must be 'auto'"),
    (lambda b: kr.ShardedReplayBuffer([]), ValueError, "at least one"),
    (lambda b: kr.ShardedReplayBuffer([3]), TypeError, "got int"),
    (lambda b: kr.ShardedReplayBuffer([new_shard(4)], exact="yes"), ValueError, "exact must be"),
    (
        lambda b: kr.ShardedReplayBuffer(
            [new_shard(4), kr.PrioritizedReplayBuffer(4, {"x": kr.Field((), "float32")})]
        ),
        ShardError,
        "shard 1 has",
    ),
    (
        lambda b: kr.ShardedReplayBuffer(
            [kr.PrioritizedReplayBuffer(4, FIELDS, prioritization="rank")]
        ),
        ValueError,
        "must not be prioritized by rank",
    ),
    (lambda b: kr.ShardedReplayBuffer(new_shard(4)), TypeError, "shards must be a sequence"),
    (
        lambda b: kr.ShardedReplayBuffer([Derived(4, FIELDS)]),
        TypeError,
        "not one derived from these, got Derived",
    ),
    (lambda b: ShardService(Derived(4, FIELDS)), TypeError, "buffer must be of"),
    (lambda b: ShardService(None), TypeError, "got NoneType"),
    (
        lambda b: ShardService.new_buffer(4, FIELDS, prioritization="rank"),
        ValueError,
        "must not be prioritized by rank",
    ),
    (
        lambda b: kr.ShardedReplayBuffer([new_shard(4), new_shard(4, alpha=0.5)]),
        ValueError,
        "shards must have the same alpha; shard 1 has 0.5, the first 1.0",
    ),
    (lambda b: b.join(b._shards[0].buffer), ValueError, "shard 2 is there already"),
    (lambda b: b.batches(0), ValueError, "batch_size must be at least 1"),
    (lambda b: b.batches(1, per_request=0), ValueError, "per_request must be at least 1"),
    (lambda b: b.add(number=1, row=[1, 2, 3], priority=1e306), ValueError, "of at most"),
    (
        lambda b: b.update_priorities(b.sample(2).handle, [1, 1e308]),
        ValueError,
        "td_error must lead to priorities of at most",
    ),
    (lambda b: b.update_priorities(_beyond(b), [5, 5]), IndexRangeError, "has no slot 99"),
    (
        lambda b: RemoteShard(LocalTransport(ShardService(new_shard(4))), -1.0),
        ValueError,
        "patience",
    ),
]


def _beyond(buffer: kr.ShardedReplayBuffer) -> np.ndarray:
    """Return a handle of a row, and one of a slot that its shard does not have."""
    handle = buffer.sample(2).handle
    handle["shard"], handle["index"][1] = [0, 1], 99
    return handle


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(call: object, error: type[Exception], message: str) -> None:
    many, shards = sharded([[1.0] * 8, [1.0] * 4], [False, True])
    with pytest.raises(error, match=message):
        call(many)  # type: ignore[operator]
    assert [shard.n_added for shard in shards] == [8, 4]
    assert many.total_mass == 12.0


def test_handles_of_no_shard_are_counted() -> None:
    many, _ = sharded([[1.0] * 8], None)
    handle = many.sample(4).handle
    handle["shard"] = [-1, 5, 0, 0]
    handle["epoch"] = [0, 0, 3, 0]
    assert many.update_priorities(handle, np.ones(4)) == 1
    assert many.n_refused == 3


def test_a_closed_one_refuses_everything() -> None:
    shards = [new_shard(8), new_shard(8)]
    with kr.ShardedReplayBuffer(shards) as many:
        many.add(number=[1, 2], row=np.ones((2, 3)))
        handle = many.sample(4).handle
        shards[1].close()
        with pytest.raises(ClosedError, match="the buffer is closed"):
            many.sample(4)
    many.close()
    for call in (
        lambda: many.sample(4),
        lambda: len(many),
        lambda: many.add(number=[1], row=np.ones((1, 3))),
        lambda: many.update_priorities(handle, np.ones(4)),
        lambda: many.total_mass,
        lambda: many.reset(),
        lambda: many.settle(),
        lambda: many.join(new_shard(8)),
        lambda: next(many.batches(4)),
        lambda: setattr(many, "alpha", 0.5),
        lambda: setattr(many, "uniform_share", 0.5),
    ):
        with pytest.raises(ClosedError, match="the buffer is closed"):
            call()
    with pytest.raises(ClosedError):
        shards[0].sample(1)


def test_it_is_not_pickled() -> None:
    many, _ = sharded([[1.0]])
    with pytest.raises(TypeError, match="make another one over the same shards"):
        pickle.dumps(many)


@pytest.mark.parametrize("is_far", [False, True])
def test_shards_come_while_batches_are_under_way(is_far: bool) -> None:
    many, _ = sharded([[1.0] * 8, [3.0] * 4], [True, False])
    batches = many.batches(32)
    next(batches)
    for number in range(20):
        new = new_shard(8, alpha=0.5)
        add_rows(new, [100 + number])
        assert many.join(far(new) if is_far else new) == 2 + number
        for _ in range(5):
            batch = next(batches)
            np.testing.assert_array_equal(batch.row[:, 0], batch.number)
    assert new.alpha == 1.0, "it is as the others"
    assert set(many.sample(2000).number.tolist()) == {*range(12), *range(100, 120)}


def test_one_shard_twice_is_refused() -> None:
    shard = new_shard(4)
    for other in (shard, far(shard)):
        with pytest.raises(ValueError, match="shard 1 is there already"):
            kr.ShardedReplayBuffer([shard, other])


def test_an_update_in_part_is_none() -> None:
    many, shards = sharded([[1.0] * 8, [1.0] * 4], [False, False])
    handle = _beyond(many)
    with pytest.raises(IndexRangeError):
        many.update_priorities(handle, [5.0, 5.0])
    assert [shard.total_mass for shard in shards] == [8.0, 4.0]
    assert np.isnan(many.relative_noise)


@pytest.mark.parametrize("options", [{}, {"unique": True}], ids=str)
@pytest.mark.parametrize("exact", [None, "rejection"])
def test_rows_that_are_being_overwritten_are_waited_for(exact, options, run_threaded) -> None:
    """An add that covers a shard leaves no row for a moment, and is no empty buffer."""
    shard, n_adds = new_shard(8), 30_000
    many = kr.ShardedReplayBuffer([shard], exact=exact, seed=0)
    add_rows(shard, np.arange(8))
    ended = threading.Event()

    def write() -> None:
        for _ in range(n_adds):
            add_rows(shard, np.arange(8))
        ended.set()

    def draw() -> None:
        while not ended.is_set():
            assert len(many.sample(4, **options)) > 0

    run_threaded([write, draw])
    with pytest.raises(ValueError, match="must be at most the number of rows"):
        many.sample(9, unique=True)
    shard.tree.set(np.arange(8), 0.0)
    with pytest.raises(EmptyBufferError):
        many.sample(4, **options)


def test_a_batch_of_all_rows_is_no_matter_of_luck() -> None:
    """The last of many equal rows takes many draws."""
    n = 4096
    many, _ = sharded([np.ones(n // 2), np.ones(n // 2)], [False, True])
    assert len(np.unique(many.sample(n, unique=True).number)) == n


def test_a_rate_limiter_asks_shards_elsewhere(run_threaded) -> None:
    """Whose counts are known from their answers alone."""
    shard = new_shard(1000)
    learner = kr.ShardedReplayBuffer([far(shard)])
    limiter = kr.RateLimiter(learner, samples_per_insert=1, min_size=10, error=64)

    def write() -> None:
        for _ in range(50):
            add_rows(shard, np.arange(4))

    run_threaded([write, lambda: limiter.await_sample(32, 300.0)])
    assert len(learner.sample(32)) > 0
