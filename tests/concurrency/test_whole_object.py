"""Clones, checks, alpha and reset, beside threads that add, draw and update.

Nothing may hang, and a clone is a consistent cut: all rows whole, all masses of their own rows, and
both go on independently.
"""

import copy
import itertools
import pickle
import time

import numpy as np
import pytest
from rows import (
    EPSILON,
    Rows,
    SeenSlots,
    check_at_rest,
    check_batch,
    check_masses,
    priority,
    td_error,
)

import kary_replay as kr

CAPACITY = 40
SECONDS = 0.7


def new_rows():
    return Rows(20, 64)


def new_buffer(kind=kr.PrioritizedReplayBuffer):
    options = (
        {"alpha": 1.0, "beta": 1.0, "priority_epsilon": EPSILON}
        if kind is kr.PrioritizedReplayBuffer
        else {}
    )
    buffer = kind(CAPACITY, new_rows().fields(), seed=0, **options)
    add(buffer, new_rows(), np.arange(CAPACITY))
    return buffer


def add(buffer, rows, number):
    row = rows.make(number)
    if isinstance(buffer, kr.PrioritizedReplayBuffer):
        row["priority"] = priority(number, number % 4)
    buffer.add(**row)


def run_beside(run_threaded, buffer, disturb, draw):
    """Call disturb(turn) for SECONDS while a thread adds and another calls draw(rows)."""
    stop, n_added, n_drawn, until = [], [0], [0], time.monotonic() + SECONDS

    def write():
        rows, number = new_rows(), np.arange(1_000, 1_000 + 7)
        while not stop:
            add(buffer, rows, number)
            number = number + 7
            n_added[0] += 1

    def read():
        rows = new_rows()
        while not stop:
            draw(rows)
            n_drawn[0] += 1

    def run():
        try:
            for turn in itertools.count():
                disturb(turn)
                if time.monotonic() > until and n_added[0] > 100 and n_drawn[0] > 100:
                    break
        finally:
            stop.append(True)

    run_threaded([write, read, run])
    buffer.check_invariants()


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    "clone",
    [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))],
    ids=["deepcopy", "pickle"],
)
def test_a_clone_is_a_consistent_cut(kind, clone, run_threaded):
    buffer, seen = new_buffer(kind), SeenSlots(CAPACITY)

    def check_clone(turn):
        twin = clone(buffer)
        number = twin.field_view("number").copy()
        check_at_rest(new_rows(), twin, number[None, :])
        # Seven rows at a time were added, in order: what a ring of 40 slots holds are the last 40
        # numbers.
        assert number.max() - number.min() == CAPACITY - 1 or number.min() < 1_000
        if kind is kr.PrioritizedReplayBuffer:
            handle = twin.sample(8).handle
            assert twin.update_priorities(handle, np.ones(8)) == 8

    run_beside(
        run_threaded, buffer, check_clone, lambda rows: check_batch(rows, seen, buffer.sample(16))
    )


def test_checking_invariants_beside_everything(run_threaded):
    buffer, seen = new_buffer(), SeenSlots(CAPACITY)

    def draw_and_update(rows):
        batch = buffer.sample(16)
        check_batch(rows, seen, batch)
        buffer.update_priorities(batch.handle, td_error(batch.number, 2))

    run_beside(run_threaded, buffer, lambda turn: buffer.check_invariants(), draw_and_update)
    check_masses(buffer.field_view("number"), buffer.tree.get(np.arange(CAPACITY)))


def test_setting_alpha_beside_everything(run_threaded):
    """Every mass is raised to the exponent that holds when all is over, whenever its row came."""
    buffer = new_buffer()
    buffer._slots.swept = 3

    def draw_and_update(rows):
        batch = buffer.sample(16)
        rows.check_whole(batch)
        buffer.update_priorities(batch.handle, td_error(batch.number, 2))

    def set_alpha(turn):
        buffer.alpha = (0.5, 1.0)[turn % 2]

    run_beside(run_threaded, buffer, set_alpha, draw_and_update)
    buffer.alpha = 0.5
    number, mass = buffer.field_view("number"), buffer.tree.get(np.arange(CAPACITY))
    exponent = np.rint(np.log2(mass**2 / priority(number, 0))).astype(int)
    np.testing.assert_allclose(mass, priority(number, exponent) ** 0.5, rtol=1e-9)
    assert set(exponent.tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_reset_beside_everything(kind, run_threaded):
    """Batches stay whole, and a handle from before a reset never updates a row from after it."""
    buffer, n_empty = new_buffer(kind), [0]
    prioritized = kind is kr.PrioritizedReplayBuffer

    def draw_and_update(rows):
        try:
            batch = buffer.sample(16)
        except kr.errors.EmptyBufferError:
            n_empty[0] += 1  # here it may be
            return
        rows.check_whole(batch)
        if prioritized:
            buffer.update_priorities(batch.handle, td_error(batch.number, 2))

    run_beside(run_threaded, buffer, lambda turn: buffer.reset(), draw_and_update)
    if prioritized:
        mass = buffer.tree.get(np.arange(CAPACITY))
        assert np.count_nonzero(mass) == len(buffer)
        check_masses(buffer.field_view("number")[: len(buffer)], mass[: len(buffer)])
    add(buffer, new_rows(), np.arange(3 * CAPACITY))
    last = np.arange(2 * CAPACITY, 3 * CAPACITY)
    assert sorted(buffer.field_view("number").tolist()) == last.tolist()
