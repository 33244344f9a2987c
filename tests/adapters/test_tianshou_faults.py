"""What is wrong with Tianshou's own prioritized buffers, shown on them; ours do it right."""

import numpy as np
import pytest
import tianshou.data
from tianshou.data.utils import segtree
from tianshou_rows import BOTH, step


def is_stock(module):
    return module is tianshou.data


def single(module, size=20, steps=20, **kwargs):
    buffer = module.PrioritizedReplayBuffer(size, **{"alpha": 0.6, "beta": 0.4} | kwargs)
    for t in range(steps):
        buffer.add(step(t))
    return buffer


def vector(module, size=20, n=2, steps=10, **kwargs):
    buffer = module.PrioritizedVectorReplayBuffer(size, n, **{"alpha": 0.6, "beta": 0.4} | kwargs)
    for t in range(steps):
        buffer.add(step(t, n))
    return buffer


@BOTH
def test_annealing_beta_of_a_vector_buffer(module):
    """Fault 1: set_beta reaches only the children, whose beta nothing uses."""
    buffer = vector(module)
    index = np.arange(4)
    buffer.update_weight(index, np.array([0.1, 1.0, 2.0, 4.0]))
    before = buffer[index].weight
    buffer.set_beta(1.0)
    assert np.array_equal(buffer[index].weight, before) is is_stock(module)
    if not is_stock(module):
        np.testing.assert_allclose(buffer[index].weight, before ** (1.0 / 0.4))


@BOTH
def test_weight_norm_of_a_vector_buffer(module):
    """Fault 2: weight_norm=False is dropped on the way."""
    buffer = vector(module, weight_norm=False)
    buffer.update_weight(np.arange(20), np.linspace(0.1, 4.0, 20))
    largest = buffer[np.array([5, 9])].weight.max()
    assert bool(largest == 1.0) is is_stock(module)


@BOTH
@pytest.mark.parametrize("make", [single, vector])
def test_reset_forgets_priorities(module, make):
    """Fault 3: a reset keeps old priorities, so rows are drawn that nobody has added since."""
    buffer = make(module)
    buffer.update_weight(np.arange(20), np.full(20, 50.0))
    buffer.reset()
    buffer.add(step(0) if make is single else step(0, 2))
    stored = set(buffer.sample_indices(0).tolist())
    drawn = set(buffer.sample_indices(200).tolist())
    assert (not drawn <= stored) is is_stock(module)
    if not is_stock(module):
        assert buffer.weight.reduce() == len(stored) == len(buffer)  # each at the first priority, 1


@BOTH
@pytest.mark.parametrize("make", [single, vector])
def test_draws_follow_random_seed_alone(module, make):
    """Fault 4: draws come from NumPy's global stream, and random_seed is ignored."""
    runs = []
    for global_seed, seed in ((0, 7), (1, 7), (0, 8)):
        np.random.seed(global_seed)
        runs.append(make(module, random_seed=seed).sample_indices(50).tolist())
    same_seed, same_global = runs[0] == runs[1], runs[0] == runs[2]
    assert (same_seed, same_global) == ((False, True) if is_stock(module) else (True, False))
    np.random.seed(5)
    state = np.random.get_state()[1].copy()
    make(module).sample(8)
    assert np.array_equal(state, np.random.get_state()[1]) or is_stock(module)


@BOTH
@pytest.mark.parametrize("make", [single, vector])
def test_sample_avail(module, make):
    """Fault 4: rows without all their earlier frames are drawn though sample_avail is set."""
    buffer = make(module, stack_num=4, sample_avail=True)
    drawn = np.unique(buffer.sample_indices(2000))
    available = buffer.sample_indices(0)
    assert 0 < len(available) < 20
    assert (not set(drawn) <= set(available)) is is_stock(module)
    if not is_stock(module):
        assert set(drawn) == set(available)


@BOTH
def test_the_least_priority_is_raised_to_alpha(module):
    """Fault 5: get_weight divides masses by a priority: the least one's weight is not 1."""
    buffer = single(module, weight_norm=False)
    buffer.update_weight(np.arange(20), np.linspace(0.1, 4.0, 20))
    assert bool(np.isclose(buffer.get_weight(np.arange(20)).max(), 1.0)) is not is_stock(module)


@BOTH
def test_update_from_an_empty_buffer(module, monkeypatch):
    """Fault 6: compiled code looks at the first of no rows, unchecked, and may never end."""
    monkeypatch.setattr(segtree, "_setitem", segtree._setitem.py_func)  # not compiled: it says so
    buffer, empty = single(module), single(module, steps=0)
    if is_stock(module):
        with pytest.raises(IndexError):
            buffer.update(empty)
        return
    assert buffer.update(empty).size == empty.update(empty).size == 0
    assert len(buffer) == buffer.weight.reduce() == 20


@BOTH
def test_a_pickled_vector_buffer_goes_on(module):
    """Fault 7: after a copy the children show rows of their own, and lose the ends of episodes."""
    import copy

    buffer = copy.deepcopy(vector(module, steps=4))
    for t in range(4, 7):  # step 6 ends an episode
        buffer.add(step(t, 2))
    assert (buffer.unfinished_index().size > 0) is is_stock(module)


@BOTH
def test_nan_priorities(module):
    """And another: a NaN gets into the tree, and from then on the total is NaN."""
    buffer = single(module)
    bad = np.array([1.0, np.nan])
    if is_stock(module):
        buffer.update_weight(np.array([0, 1]), bad)
        assert np.isnan(buffer.weight.reduce())
        return
    before = buffer.weight[np.arange(20)]
    for wrong in (bad, np.array([1.0, np.inf])):
        with pytest.raises(ValueError, match=r"new_weight is .* at position 1 of 2"):
            buffer.update_weight(np.array([0, 1]), wrong)
    np.testing.assert_array_equal(buffer.weight[np.arange(20)], before)
    assert (buffer._max_prio, buffer._min_prio) == (1.0, 1.0)
