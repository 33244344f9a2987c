"""Litmus tests: two calls at once, over and over, and a table of the outcomes that are allowed.

A round is one row, or one slot, for which the two calls raced. Each iteration starts behind a
barrier and settles N_ROUNDS_EACH rounds at once; at least 1e5 rounds a test. Outcomes outside the
table fail, with how often each came. Two sides that always ran in the same order would prove
little, so one of them waits a little, now this one, now that one, and the tables' REACHED outcomes
have to come up.
"""

import collections
import re
import threading
import time

import faulty
import numpy as np
import pytest

import kary_replay as kr

N_ROUNDS = 100_000
N_SLOTS = 64
N_WORDS = 64  # a row of 512 bytes
N_WORDS_LARGE = 2048  # a copy of 16 KiB takes so long that others get in between
EPSILON = 0.5


def judge(outcomes, allowed, reached=()):
    """Fail on an outcome that is not allowed, and where one that has to be reached was not."""
    assert set(outcomes) <= set(allowed), (
        f"not allowed: {sorted(set(outcomes) - set(allowed))}; outcomes: {dict(outcomes)}"
    )
    assert sum(outcomes.values()) >= N_ROUNDS, f"only {sum(outcomes.values())} rounds"
    assert set(reached) <= set(outcomes), (
        f"never reached: {sorted(set(reached) - set(outcomes))}; outcomes: {dict(outcomes)}"
    )


def race(run_threaded, left, right, settle, n_iterations):
    """Run left(i) beside right(i) in each iteration, then settle(i, left's result, right's)."""
    together, results = threading.Barrier(2), [None, None]

    def delay(side, iteration):
        """Wait 0 to 50 µs on one side; every 100th time long enough for the other to finish."""
        step = iteration % 100
        if iteration % 2 == side:
            until = time.perf_counter() + (2e-3 if step >= 98 else step * 5e-7)
            while time.perf_counter() < until:
                if step >= 98:
                    time.sleep(1e-4)

    def run(side, call):
        try:
            for iteration in range(n_iterations):
                together.wait(60)
                delay(side, iteration)
                results[side] = call(iteration)
                together.wait(60)
                if side == 0:
                    settle(iteration, *results)
        except BaseException:
            together.abort()
            raise

    run_threaded([lambda: run(0, left), lambda: run(1, right)])


def rows(first, n_rows, n_words=N_WORDS):
    """Rows first, first + 1, …: every word of a row is its number."""
    return {"words": np.repeat(np.arange(first, first + n_rows)[:, None], n_words, 1)}


def full_buffer(capacity, n_words=N_WORDS, kind=None):
    """A buffer whose rows are 0 … capacity - 1, with masses of 1."""
    kind = kind or kr.PrioritizedReplayBuffer
    options = (
        {"alpha": 1.0, "beta": 1.0, "priority_epsilon": EPSILON}
        if issubclass(kind, kr.PrioritizedReplayBuffer)
        else {}
    )
    buffer = kind(capacity, {"words": kr.Field((n_words,), "int64")}, seed=0, **options)
    buffer.add(**rows(0, capacity, n_words))
    return buffer


def masses(buffer):
    return buffer.tree.get(np.arange(buffer.capacity))


def handles_of_all_slots(buffer):
    """One current handle per slot, in order."""
    # all masses are equal: one row from each stratum
    handles = buffer.sample(buffer.capacity).handle
    assert (handles["index"] == np.arange(buffer.capacity)).all()
    return handles


# -------------------------------------------------- add ∥ sample: a row is wholly old or wholly new


def row_outcomes(words, oldest, newest):
    """Name what was seen of each drawn row [B, n_words]."""
    number = words[:, 0]
    torn = (words != number[:, None]).any(1)
    names = np.where(number < oldest, "gone", np.where(number > newest, "not yet added", "whole"))
    return collections.Counter(np.where(torn, "torn", names).tolist())


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize("capacity", [1, 2])
def test_add_beside_sample(kind, capacity, run_threaded):
    """One thread goes round a buffer of one or two slots; a batch has rows of any time in the call.

    Nothing else: no row that was overwritten before the call, none that came after it, none half
    and half; and the buffer is never empty, although its only slot is being written much of the
    time.
    """
    buffer = full_buffer(capacity, N_WORDS_LARGE, kind)
    outcomes = collections.Counter()
    started = finished = capacity - 1  # the last number whose add has begun, has returned
    stop = []

    def add():
        nonlocal started, finished
        while not stop:
            started += 1
            buffer.add(**rows(started, 1, N_WORDS_LARGE))
            finished = started

    def sample():
        try:
            while sum(outcomes.values()) < N_ROUNDS or started < N_ROUNDS // 1000:
                oldest = finished - capacity + 1
                words = buffer.sample(32).words
                outcomes.update(row_outcomes(words, oldest, started))
        finally:
            stop.append(True)

    run_threaded([add, sample])
    judge(outcomes, allowed=["whole"])
    buffer.check_invariants()


def test_the_table_of_rows_sees_what_is_wrong():
    words = np.repeat(np.array([3, 5, 6, 9])[:, None], N_WORDS, 1)
    words[2, -1] = 7
    assert row_outcomes(words, 4, 8) == {"gone": 1, "whole": 1, "torn": 1, "not yet added": 1}


# ---------------------------------------------------- add ∥ update: a stale handle is never applied


def test_add_beside_update(run_threaded):
    """All slots get new rows while the handles of the old ones are updated.

    Whichever came first, the new row keeps its own priority: an update before it was overwritten,
    one after it stale.
    """
    buffer = full_buffer(N_SLOTS)
    outcomes = collections.Counter()
    handles = handles_of_all_slots(buffer)
    n_iterations = -(-N_ROUNDS // N_SLOTS)

    def settle(iteration, _, applied):
        nonlocal handles
        mine = masses(buffer) == 2.0 + iteration % 7
        outcomes.update({"overwritten": applied, "stale": N_SLOTS - applied})
        if mine.all():
            handles = handles_of_all_slots(buffer)
        else:  # a faulty buffer may have no mass left to draw by
            outcomes["applied to another row"] += np.count_nonzero(~mine)

    race(
        run_threaded,
        lambda i: buffer.add(**rows(i * N_SLOTS, N_SLOTS), priority=2.0 + i % 7),
        lambda i: buffer.update_priorities(handles, np.full(N_SLOTS, 1000.0)),
        settle,
        n_iterations,
    )
    judge(outcomes, allowed=["overwritten", "stale"], reached=["overwritten", "stale"])
    buffer.check_invariants()


# ---------------------------------------------------------- add ∥ add: every slot has one whole row


def test_add_beside_add(run_threaded):
    """Two writers fill a buffer that is smaller than what they add, and lap each other.

    Every slot ends with one writer's row, whole, and with that writer's priority.
    """
    buffer = full_buffer(N_SLOTS)
    outcomes = collections.Counter()
    words = buffer.field_view("words")

    def settle(iteration, left, right):
        number = words[:, 0]
        whole = (words == number[:, None]).all(1)
        side = np.where(masses(buffer) == 3.0, 0, np.where(masses(buffer) == 5.0, 1, -1))
        mine = (number // 1000 == 2 * iteration + side) & (side >= 0)
        outcomes.update(
            np.where(
                ~whole,
                "torn",
                np.where(~mine, "mass of another row", np.where(side, "right", "left")),
            ).tolist()
        )
        assert sorted(np.bincount(left, minlength=N_SLOTS)) == sorted(
            np.bincount(right, minlength=N_SLOTS)
        )

    def add(side, priority):
        return lambda i: buffer.add(**rows((2 * i + side) * 1000, N_SLOTS), priority=priority)

    race(run_threaded, add(0, 3.0), add(1, 5.0), settle, -(-N_ROUNDS // N_SLOTS))
    judge(outcomes, allowed=["left", "right"], reached=["left", "right"])
    buffer.check_invariants()


# ----------------------------------------------------------- update ∥ update: one of the two, whole


def test_update_beside_update(run_threaded):
    """Two updates of the same slots in opposite orders: each slot has one's mass, and sums fit."""
    buffer = full_buffer(N_SLOTS)
    outcomes = collections.Counter()
    handles = handles_of_all_slots(buffer)
    error = np.arange(N_SLOTS, dtype=float)

    def settle(iteration, left, right):
        mass = masses(buffer) - EPSILON
        names = np.where(
            mass == error, "left", np.where(mass == error + 1000.0, "right", "neither")
        )
        outcomes.update(names.tolist())
        assert left == right == N_SLOTS
        buffer.check_invariants()

    race(
        run_threaded,
        lambda i: buffer.update_priorities(handles, error),
        lambda i: buffer.update_priorities(handles[::-1], error[::-1] + 1000.0),
        settle,
        -(-N_ROUNDS // N_SLOTS),
    )
    judge(outcomes, allowed=["left", "right"], reached=["left", "right"])


def test_set_beside_set(run_threaded):
    """The same on a bare tree, for leaves side by side that share all their ancestors."""
    tree = kr.SumTree(N_SLOTS)
    outcomes = collections.Counter()
    even, odd = np.arange(0, N_SLOTS, 2), np.arange(1, N_SLOTS, 2)

    def settle(iteration, *_):
        fits = (
            tree.get(np.arange(N_SLOTS)) == np.where(np.arange(N_SLOTS) % 2, 3.0, 5.0) + iteration
        )
        outcomes.update(np.where(fits, "set", "lost").tolist())
        outcomes.update(
            ["set" if tree.total == (8.0 + 2 * iteration) * N_SLOTS / 2 else "stale parent"]
        )
        tree.check_invariants()

    race(
        run_threaded,
        lambda i: tree.set(even, 5.0 + i),
        lambda i: tree.set(odd, 3.0 + i),
        settle,
        -(-N_ROUNDS // N_SLOTS),
    )
    judge(outcomes, allowed=["set"])


# ------------------------------------------ update ∥ sample: each weight from one mass or the other


def weight_outcomes(weight):
    """Name the masses that weights with beta = 1 speak of: 1 and 4, or 4 and 1, in any mixture."""
    return collections.Counter(
        np.where(np.isin(weight, [1.0, 0.25]), "old or new mass", "no mass of either").tolist()
    )


def test_update_beside_sample(run_threaded):
    """Two rows swap masses 1 and 4: a batch is no snapshot, but sees no other masses."""
    buffer = full_buffer(2)
    handles = handles_of_all_slots(buffer)
    outcomes, stop = collections.Counter(), []

    def update():
        errors = np.array([1.0, 4.0]) - EPSILON
        while not stop:
            assert buffer.update_priorities(handles, errors) == 2
            errors = errors[::-1].copy()

    def sample():
        try:
            while sum(outcomes.values()) < N_ROUNDS:
                batch = buffer.sample(32)
                outcomes.update(weight_outcomes(batch.importance_weight))
                outcomes.update(row_outcomes(batch.words, 0, 1))
                assert (batch.handle == handles[batch.index]).all()
        finally:
            stop.append(True)

    run_threaded([update, sample])
    judge(outcomes, allowed=["old or new mass", "whole"])


def test_set_to_zero_beside_sample(run_threaded):
    """Mass moves from leaf to leaf; a search may arrive where there is none any more, and goes on.

    Leaf 0 and the last leaf stay empty for good; the others take turns, and their group is never
    quite empty.
    """
    tree = kr.SumTree(N_SLOTS)
    leaves = np.arange(1, N_SLOTS - 1)
    tree.set(leaves, 1.0)
    outcomes, stop = collections.Counter(), []

    def move():
        turn = 0
        while not stop:
            turn += 1
            tree.set(leaves, np.where((leaves + turn) % 3 == 0, 1.0, 0.0))

    def sample():
        try:
            while sum(outcomes.values()) < N_ROUNDS:
                for stratified in (True, False):
                    drawn = tree.sample(256, stratified=stratified)
                    empty = (drawn <= 0) | (drawn >= N_SLOTS - 1)
                    outcomes.update(np.where(empty, "empty leaf", "leaf").tolist())
        finally:
            stop.append(True)

    run_threaded([move, sample])
    judge(outcomes, allowed=["leaf"])
    tree.check_invariants()


def test_the_table_of_weights_sees_a_made_up_mass():
    assert weight_outcomes(np.array([1.0, 0.25, 0.5], np.float32)) == {
        "old or new mass": 2,
        "no mass of either": 1,
    }


# --------------------------------------------------------------------- the tables see planted races


def assert_seen(outcome, litmus, *arguments, tries=20):
    """A race shows itself if the scheduler allows it: a busy machine may take several runs."""
    for _ in range(tries):
        try:
            litmus(*arguments)
        except AssertionError as error:
            if "not allowed" in str(error):  # and not that something else was not reached
                assert re.search(f"not allowed: .*{outcome}", str(error)), error  # noqa: PT017
                return
    pytest.fail(f"{tries} runs of {litmus.__name__} did not see a planted race")


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_torn_row_is_seen(capacity, run_threaded):
    assert_seen("torn", test_add_beside_sample, faulty.ReadsWithoutLooking, capacity, run_threaded)


@pytest.mark.parametrize(
    ("fault", "litmus", "outcome"),
    [
        (faulty.AppliesStaleHandles, test_add_beside_update, "applied to another row"),
        (faulty.ChecksHandlesTooEarly, test_add_beside_update, "applied to another row"),
        (faulty.WritesAfterPublishing, test_add_beside_add, "torn"),
        (faulty.AddsDifferences, test_update_beside_update, "neither"),
        (faulty.UpdatesInTwoSteps, test_update_beside_sample, "no mass of either"),
    ],
)
def test_a_faulty_buffer_is_seen(fault, litmus, outcome, run_threaded, monkeypatch):
    monkeypatch.setattr(kr, "PrioritizedReplayBuffer", fault)
    assert_seen(outcome, litmus, run_threaded)


@pytest.mark.parametrize(
    ("fault", "litmus", "outcome"),
    [
        (faulty.LosesUpdates, test_set_beside_set, "lost"),
        (faulty.FindsTheNextLeaf, test_set_to_zero_beside_sample, "empty leaf"),
    ],
)
def test_a_faulty_tree_is_seen(fault, litmus, outcome, run_threaded, monkeypatch):
    monkeypatch.setattr(kr, "SumTree", fault)
    assert_seen(outcome, litmus, run_threaded)
