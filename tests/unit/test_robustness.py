"""What an adversarial reading of the core once broke."""

import gc

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {"x": kr.Field((2,), "f4")}


def filled(n=8, **options):
    buffer = kr.PrioritizedReplayBuffer(n, FIELDS, seed=0, **options)
    buffer.add(x=np.zeros((n, 2)))
    return buffer


def test_the_most_axes_a_field_may_have():
    shape = (1,) * 31
    buffer = kr.ReplayBuffer(2, {"x": kr.Field(shape, "f4")}, seed=0)
    buffer.add(x=np.zeros(shape))
    assert buffer.sample(3).x.shape == (3, *shape)
    with pytest.raises(ValueError, match="at most 31 axes"):
        kr.Field((1,) * 32, "f4")


@pytest.mark.parametrize(("shape", "dtype"), [(1.5, "f4"), (None, "f4"), ((), "bogus"), ((), None), ((True,), "f4")])
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
@pytest.mark.parametrize("layout", [np.copy, reversed_in_memory, lambda h: np.repeat(h, 2, 0)[::2], unaligned])
def test_handles_and_td_errors_in_any_layout_reach_their_rows(layout, dtype, shape):
    buffer = filled(alpha=1.0)
    handle = buffer.sample(8).handle  # strata of equal masses: every row once
    td_error = layout(np.arange(1, 9).reshape(shape).astype(dtype))
    assert buffer.update_priorities(layout(handle), td_error) == 8
    np.testing.assert_allclose(buffer.tree.get(handle["index"]), np.arange(1.0, 9.0), rtol=1e-5)
    assert buffer.update_priorities(layout(handle)[::-3], [5.0, 6.0, 7.0]) == 3
    np.testing.assert_allclose(buffer.tree.get(handle["index"])[[7, 4, 1]], [5.0, 6.0, 7.0], rtol=1e-5)


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
    with pytest.raises(ValueError, match="masked"):
        buffer.update_priorities(buffer.sample(2).handle, np.ma.masked_array([1.0, 2.0], [True, False]))
