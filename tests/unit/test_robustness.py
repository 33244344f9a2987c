"""What an adversarial reading of the core once broke."""

import contextlib
import gc
import subprocess
import sys

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {"x": kr.Field((2,), "f4")}


def filled(n=8, **options):
    buffer = kr.PrioritizedReplayBuffer(n, FIELDS, seed=0, uniform_share=0.0, **options)
    buffer.add(x=np.zeros((n, 2)))
    return buffer


def test_the_most_axes_a_field_may_have():
    shape = (1,) * 31
    buffer = kr.ReplayBuffer(2, {"x": kr.Field(shape, "f4")}, seed=0)
    buffer.add(x=np.zeros(shape))
    assert buffer.sample(3).x.shape == (3, *shape)
    with pytest.raises(ValueError, match="at most 31 axes"):
        kr.Field((1,) * 32, "f4")


@pytest.mark.parametrize(
    ("shape", "dtype"), [(1.5, "f4"), (None, "f4"), ((), "bogus"), ((), None), ((True,), "f4")]
)
def test_what_is_no_field(shape, dtype):
    with pytest.raises(TypeError, match=r"shape|dtype"):
        kr.Field(shape, dtype)


def test_a_field_larger_than_any_memory():
    with pytest.raises(ValueError, match="bytes"):
        kr.Field((2**32, 2**32), "f4")


def unaligned(array):
    """Return a copy at an odd address, which NumPy calls aligned where a dtype is packed."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    copy = memory[1:].view(array.dtype).reshape(array.shape)
    copy[:] = array
    assert copy.ctypes.data % 2 == 1
    return copy


def reversed_in_memory(array):
    return np.copy(array[::-1])[::-1]


@pytest.mark.parametrize("shape", [(8,), (8, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", ">f8", "i8"])
@pytest.mark.parametrize(
    "layout", [np.copy, reversed_in_memory, lambda h: np.repeat(h, 2, 0)[::2], unaligned]
)
def test_handles_and_td_errors_in_any_layout_reach_their_rows(layout, dtype, shape):
    buffer = filled(alpha=1.0)
    handle = buffer.sample(8).handle  # strata of equal masses: every row once
    td_error = layout(np.arange(1, 9).reshape(shape).astype(dtype))
    assert buffer.update_priorities(layout(handle), td_error) == 8
    np.testing.assert_allclose(buffer.tree.get(handle["index"]), np.arange(1.0, 9.0), rtol=1e-5)
    assert buffer.update_priorities(layout(handle)[::-3], [5.0, 6.0, 7.0]) == 3
    np.testing.assert_allclose(
        buffer.tree.get(handle["index"])[[7, 4, 1]], [5.0, 6.0, 7.0], rtol=1e-5
    )


def test_no_setter_makes_the_total_infinite():
    buffer = filled(alpha=1.0, priority_epsilon=1.7e308)
    with pytest.raises(ValueError, match="priority_epsilon"):
        buffer.update_priorities(buffer.sample(4).handle, np.zeros(4))
    buffer = filled(alpha=0.5)
    buffer.tree.set(np.arange(8), 1e200)
    buffer.alpha = 1.0
    assert np.isfinite(buffer.total_mass)
    assert np.isfinite(buffer.sample(4).importance_weight).all()
    buffer = kr.PrioritizedReplayBuffer(8, FIELDS, alpha=1.0, seed=0)
    buffer.add(x=np.zeros((8, 2)), priority=1e300)
    buffer.alpha = 2e-19
    buffer.alpha = 1.0
    assert np.isfinite(buffer.total_mass)
    buffer.check_invariants()


def test_a_finalizer_may_use_the_buffer_while_it_is_pickled():
    buffer = filled(100)

    class Adds:
        def __init__(self):
            self.me = self

        def __del__(self):
            buffer.add(x=[0, 0])

    thresholds = gc.get_threshold()
    try:
        for extra in range(1, 40):
            gc.collect()
            gc.set_threshold(100_000)
            for _ in range(5):
                Adds()
            gc.set_threshold(max(1, gc.get_count()[0] + extra), 10, 10)
            buffer.__getstate__()
            buffer.check_invariants()
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("answer", [np.zeros(1), np.zeros(1000, "f4")])
def test_a_generator_that_answers_something_else(answer):
    class Liar(np.random.Generator):
        def random(self, size=None, dtype=np.float64, out=None):
            return answer

    tree = kr.SumTree(10)
    tree.set(0, 1.0)
    assert (tree.sample(1000, rng=Liar(np.random.PCG64(0))) == 0).all()


@pytest.mark.parametrize(
    "damage",
    [
        {"position": 10**6},
        {"position": -1},
        {"n_started": 10**9},
        {"alpha": np.nan},
        {"max_priority": np.inf},
        {"mass": np.ones(3)},
    ],
)
def test_a_damaged_pickle_is_refused(damage):
    state = filled().__getstate__()
    state["storage"].update(damage)
    with pytest.raises(ValueError, match="damaged"):
        kr.PrioritizedReplayBuffer.__new__(kr.PrioritizedReplayBuffer).__setstate__(state)


def forged(change, **options):
    """Restore a buffer of 8 rows from its own state, changed."""
    buffer = kr.PrioritizedReplayBuffer(8, {"x": kr.Field((), "int64")}, seed=0, **options)
    buffer.add(x=np.arange(8), priority=np.linspace(1, 2, 8))
    buffer.rank()
    state = buffer.__getstate__()
    change(state["storage"])
    other = kr.PrioritizedReplayBuffer.__new__(kr.PrioritizedReplayBuffer)
    other.__setstate__(state)
    return other


def put(name, index, value):
    """Return a change of one number of an array."""

    def change(storage):
        storage[name][index] = value

    return change


def put_generation(value, slot=3):
    """Return a change of one slot's generation."""

    def change(storage):
        storage["rows"].reshape(8, -1)[slot, :8] = np.array([value], np.uint64).view(np.uint8)

    return change


def put_in_ranking(index, value, kind=np.float64):
    """Return a change of one number of the table of ranks."""

    def change(storage):
        storage["ranking"].view(kind)[index] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda storage: storage.update(n_added=-5),
        lambda storage: storage.update(n_added=2**63 - 1),
        lambda storage: storage.update(alpha=1.5),
        lambda storage: storage.update(max_priority=-1.0),
        lambda storage: storage.update(position=8),
        lambda storage: storage.update(
            n_started=4, mass=np.ones(4), priority=np.ones(4), position=5
        ),
        lambda storage: storage.update(rows=storage["rows"][:-1]),
        lambda storage: storage.update(rows=storage["rows"].astype(np.int16)),
        lambda storage: storage.update(mass=None),
        lambda storage: storage.update(mass=storage["mass"].astype(np.float32)),
        put("mass", 3, np.nan),
        put("mass", 3, -1.0),
        put("mass", 3, 1e308),
        put("mass", 3, 0.0),
        put("priority", 3, np.nan),
        put("priority", 3, -1.0),
        put("priority", 3, np.inf),
        put("priority", 3, 0.0),
        put_generation(0),  # never used
        put_generation(3),  # being written, by nobody
        put_generation(5 << 48 | 3),  # by somebody of another life
        put_generation(7 << 48 | 2),  # published, by whom?
        put_generation(2**48 - 2),  # used up
        put_generation(0xFFFF << 48 | 3),  # vacant, and has mass
    ],
)
@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
def test_a_state_that_contradicts_itself_is_refused(change, prioritization):
    assert len(forged(lambda _: None, prioritization=prioritization)) == 8
    with pytest.raises((ValueError, TypeError)):
        forged(change, prioritization=prioritization)


@pytest.mark.parametrize(
    "change",
    [
        put_in_ranking(1, 2**40, np.int64),  # bounds
        put_in_ranking(1, -1, np.int64),
        put_in_ranking(0, -1, np.int64),
        put_in_ranking(2, -1, np.int64),
        put_in_ranking(3, np.nan),  # priorities
        put_in_ranking(3, 0.5),
        put_in_ranking(3 + 1024, 5.0),  # ranks
        put_in_ranking(3 + 2048, -1.0),  # masses
        put_in_ranking(3 + 3072, np.inf),  # sums
        put_in_ranking(3 + 3072 + 7, 1.7e308),
        put_in_ranking(3 + 3072 + 3, 1.0),
        put_in_ranking(3 + 1024, 1.5),
        lambda storage: storage.update(ranking=storage["ranking"][:100]),
        lambda storage: storage.update(ranking=None),
    ],
)
def test_a_table_of_ranks_that_contradicts_itself_is_refused(change):
    with pytest.raises((ValueError, TypeError)):
        forged(change, prioritization="rank")


def test_mass_on_a_slot_without_a_row_is_said_instead_of_searched_for():
    buffer = kr.PrioritizedReplayBuffer(8, {"x": kr.Field((), "int64")}, seed=0, uniform_share=0.0)
    buffer.add(x=np.arange(3))
    buffer.tree.set(6, 1e200)
    with pytest.raises(RuntimeError, match="hold no row"):
        buffer.sample(3)
    assert set(buffer.sample(3, unique=True).index.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("n_mine", [2, 5])
def test_draws_without_replacement_end_where_most_of_the_mass_cannot_be_drawn(n_mine):
    """More slots that no draw can be had from than the batch has rows."""
    n = 2000
    buffer = kr.PrioritizedReplayBuffer(n, {"x": kr.Field((), "int64")}, seed=0)
    buffer.add(x=np.arange(n_mine))
    buffer.tree.set(np.arange(n_mine, n), 1e6)
    with contextlib.suppress(RuntimeError):  # masses were set on slots that hold no row
        assert set(buffer.sample(2, unique=True).index.tolist()) <= set(range(n_mine))


def test_few_rows_with_nearly_all_the_mass_cost_draws_without_replacement_no_search():
    """The random numbers say how many draws there were: a few for each row, not a search."""
    n = 100_000
    buffer = kr.PrioritizedReplayBuffer(n, {"x": kr.Field((), "int64")}, seed=0, alpha=1.0)
    buffer.add(x=np.arange(n))
    heavy = np.arange(8) * 10_000
    for share in (0.9, 0.999, 1 - 1e-9, 1 - 1e-15):
        buffer.tree.set(heavy, share / (1 - share) * (n - 8) / 8)
        before = buffer._slots.block.random_state()[2]
        index = buffer.sample(256, unique=True).index
        assert buffer._slots.block.random_state()[2] - before <= 64 + 256 * 20
        assert len(set(index.tolist())) == 256 and set(heavy.tolist()) <= set(index.tolist())
    buffer.tree.set(np.arange(n), 1e-300)
    buffer.tree.set(heavy, 1e300)  # nothing is left of the rest beside these, in one float64
    rest = np.concatenate([buffer.sample(256, unique=True).index for _ in range(50)])
    rest = rest[~np.isin(rest, heavy)]
    assert len(rest) == 50 * 248
    counts = np.histogram(rest, bins=10, range=(0, n))[0]
    # chi-square with 9 degrees of freedom: 45 is exceeded once in a million times
    expected = len(rest) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 45


@pytest.mark.parametrize("flag", [[], ["-O"], ["-OO"]])
def test_invariants_are_checked_whatever_python_leaves_out(flag):
    program = (
        "import kary_replay as kr\n"
        "buffer = kr.PrioritizedReplayBuffer(8, {'x': kr.Field((), 'int64')})\n"
        "tree = kr.SumTree(8)\n"
        "tree.check_invariants()\n"
        "buffer.check_invariants()\n"
        "buffer.tree.set(6, 1.0)\n"
        "try:\n"
        "    buffer.check_invariants()\n"
        "except AssertionError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, *flag, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert run.stdout == "I4: slot 6 holds no row and has mass 1.0\n"


def test_subnormal_totals_are_drawn_in_proportion():
    tree = kr.SumTree(5)
    tree.set(np.arange(5), 5e-320)
    counts = np.bincount(tree.sample(65536), minlength=5)
    assert counts.min() > 65536 / 5 * 0.95


def test_a_field_may_be_called_self_but_not_keys():
    buffer = kr.ReplayBuffer(2, {"self": kr.Field((), "f4")}, seed=0)
    assert buffer.add(**{"self": 1.0}).tolist() == [0]
    with pytest.raises(ValueError, match="keys"):
        kr.ReplayBuffer(2, {"keys": kr.Field((), "f4")})


def test_a_mask_is_not_lost_silently():
    buffer = filled()
    masked = np.ma.masked_array(np.zeros((1, 2)), [[True, False]])
    with pytest.raises(kr.errors.FieldError, match="masked"):
        buffer.add(x=masked)
    tree = kr.SumTree(4)
    for index, mass in (
        ([0, 1], np.ma.masked_array([1.0, 2.0], [True, False])),
        (np.ma.masked_array([0, 1], [True, False]), [1.0, 2.0]),
    ):
        with pytest.raises(ValueError, match="masked"):
            tree.set(index, mass)
    with pytest.raises(ValueError, match="masked"):
        tree.find(np.ma.masked_array([0.0], [True]))
    assert tree.total == 0
    with pytest.raises(ValueError, match="masked"):
        buffer.update_priorities(
            buffer.sample(2).handle, np.ma.masked_array([1.0, 2.0], [True, False])
        )
