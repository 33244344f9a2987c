"""The buffers as Tianshou sees them: rows, neighbours, draws, weights, copies, files, refusals."""

import copy
import pickle

import numpy as np
import pytest
import tianshou.data
from tianshou.data import Batch, CachedReplayBuffer, ReplayBuffer
from tianshou_rows import step

from kary_replay.adapters import tianshou as ours

OPTIONS = {
    "plain": {},
    "last obs, no obs_next": {"save_only_last_obs": True, "ignore_obs_next": True, "stack_num": 4},
    "no obs_next": {"ignore_obs_next": True},
    "stack": {"stack_num": 3},
    "stack, no obs_next": {"stack_num": 4, "ignore_obs_next": True, "sample_avail": True},
    "last obs": {"save_only_last_obs": True, "stack_num": 2},
}
FORMS = ["single", "vector"]


def make(module, form="single", size=24, **kwargs):
    kwargs = {"alpha": 0.6, "beta": 0.4} | kwargs
    return (
        module.PrioritizedReplayBuffer(size, **kwargs)
        if form == "single"
        else module.PrioritizedVectorReplayBuffer(size, 3, **kwargs)
    )


def filled(module, form="single", steps=11, obs_shape=(3,), ids=True, **kwargs):
    buffer = make(module, form, **kwargs)
    for t in range(steps):
        if form == "vector":
            which = np.array([0, 2]) if t % 4 == 3 else np.arange(3)  # rings of unequal length
            buffer.add(step(t, 3, obs_shape)[which], buffer_ids=which)
        elif ids:
            buffer.add(step(t, 1, obs_shape), buffer_ids=[0])
        else:
            buffer.add(step(t, None, obs_shape))
    return buffer


def assert_same(one, other, path=""):
    """Two batches, field by field, dtype by dtype."""
    assert set(one.__dict__) == set(other.__dict__), path
    for name, value in one.__dict__.items():
        if isinstance(value, Batch):
            assert_same(value, other[name], f"{path}.{name}")
        elif name != "weight":
            np.testing.assert_array_equal(value, other[name], err_msg=f"{path}.{name}")
            assert np.asarray(value).dtype == np.asarray(other[name]).dtype, f"{path}.{name}"


@pytest.mark.parametrize("steps", [4, 11, 40])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_stock(form, options, steps):
    shape = (4, 3) if "last obs" in options else (3,)
    stock, buffer = (
        filled(m, form, steps, shape, **OPTIONS[options]) for m in (tianshou.data, ours)
    )
    assert isinstance(buffer, type(stock)) and len(buffer) == len(stock)
    rows = ReplayBuffer.sample_indices(stock, 0) if form == "single" else buffer.sample_indices(0)
    np.testing.assert_array_equal(buffer.sample_indices(0), stock.sample_indices(0))
    for index in (rows, rows[::-1], rows[:1], rows[[0, 0, -1]], slice(None), slice(1, 3)):
        assert_same(stock[index], buffer[index])
    assert_same(stock[int(rows[0])], buffer[int(rows[0])])
    for name in ("prev", "next"):
        np.testing.assert_array_equal(getattr(buffer, name)(rows), getattr(stock, name)(rows))
    np.testing.assert_array_equal(
        np.sort(buffer.unfinished_index()), np.sort(stock.unfinished_index())
    )
    assert buffer.hasnull() is stock.hasnull() is False


@pytest.mark.parametrize("form", FORMS)
def test_add_returns_what_stock_returns(form):
    stock, buffer = (make(m, form, size=9) for m in (tianshou.data, ours))
    for t in range(20):
        row = step(t, 3 if form == "vector" else 1)
        if t == 9:
            row.info.new = np.arange(len(row))  # a field not seen before
        ids = np.arange(len(row))
        for mine, theirs in zip(buffer.add(row, ids), stock.add(row, ids), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert_same(stock[:], buffer[:])


def test_objects_and_one_by_one():
    stock, buffer = (filled(m, ids=False) for m in (tianshou.data, ours))
    assert_same(stock[:], buffer[:])
    for module_buffer in (stock, buffer):
        row = step(11)
        row.info.name = "x"
        row.policy = Batch(hidden=np.ones(2))
        module_buffer.add(row)
    index = stock.sample_indices(0)
    assert_same(stock[index], buffer[index])
    mask = np.zeros(24, bool)
    mask[[2, 5]] = True
    assert_same(buffer[np.array([2, 5])], buffer[mask])
    assert_same(buffer[np.array([2, 5])], buffer[[2, 5]])
    assert buffer[np.array([[0, 1], [2, 3]])].weight.shape == (2, 2)
    assert len(buffer.sample(-1)[1]) == 0


@pytest.mark.parametrize("form", FORMS)
def test_weights_and_priorities_against_numpy(form, rng):
    for weight_norm in (True, False):
        buffer = filled(ours, form, weight_norm=weight_norm)
        rows = buffer.sample_indices(0)
        priority = {int(i): 1.0 for i in rows}
        least = largest = 1.0
        for _ in range(5):
            index = rng.choice(rows, 16)
            td_error = rng.normal(size=16).astype(np.float32)
            buffer.update_weight(index, td_error)
            new = np.abs(td_error.astype(float)) + np.finfo(np.float32).eps
            priority |= dict(zip(index.tolist(), new.tolist(), strict=True))  # the last one wins
            least, largest = min(least, new.min()), max(largest, new.max())
            mass = np.array([priority[int(i)] for i in index]) ** 0.6
            np.testing.assert_allclose(buffer.weight[index], mass)
            share = mass / sum(p**0.6 for p in priority.values())
            expected = (len(rows) * share) ** -0.4
            floor = (len(rows) * least**0.6 / sum(p**0.6 for p in priority.values())) ** -0.4
            expected /= expected.max() if weight_norm else floor
            np.testing.assert_allclose(buffer[index].weight, expected)
        new_row = buffer.add(step(50, 3) if form == "vector" else step(50))[0]
        np.testing.assert_allclose(buffer.weight[new_row], largest**0.6)


@pytest.mark.parametrize("form", FORMS)
def test_draws_follow_the_masses(form, rng):
    buffer = filled(ours, form)
    rows = buffer.sample_indices(0)
    buffer.update_weight(rows, rng.random(len(rows)) * 3)
    n = 20_000
    drawn = np.bincount(buffer.sample_indices(n), minlength=24)
    expected = buffer.weight[np.arange(24)] / buffer.weight.reduce() * n
    stored = expected > 0
    assert not drawn[~stored].any()
    chi_square = ((drawn - expected)[stored] ** 2 / expected[stored]).sum()
    # at most 23 degrees of freedom: one false alarm in 1e11
    assert chi_square < 100, (drawn, expected)


def test_sample_avail_with_few_available_rows():
    buffer = make(ours, size=500, stack_num=3, sample_avail=True)
    for t in range(400):
        buffer.add(step(t, episode=2 if t < 397 else 1000))
    rare = buffer.sample_indices(0)
    assert set(buffer.sample_indices(100)) == set(rare) and len(rare) < 5
    short = make(ours, stack_num=3, sample_avail=True)
    for t in range(6):
        short.add(step(t, episode=1))
    with pytest.raises(ValueError, match="sample_avail"):
        short.sample(4)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_all_in_a_random_order(form, options):
    shape = (4, 3) if "last obs" in options else (3,)
    buffer = filled(ours, form, obs_shape=shape, **OPTIONS[options])
    in_order, shuffled = buffer.sample_indices(0), buffer.sample_indices(None)
    assert shuffled.tolist() != in_order.tolist()
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(in_order))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.uint64])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_indices_of_any_integer_dtype_and_from_the_end(form, options, dtype):
    shape = (4, 3) if "last obs" in options else (3,)
    buffer = filled(ours, form, 40, shape, **OPTIONS[options])
    rows = np.arange(24)
    expected = buffer[rows]
    assert_same(expected, buffer[rows.astype(dtype)])
    np.testing.assert_array_equal(expected.weight, buffer[rows.astype(dtype)].weight)
    if np.issubdtype(dtype, np.signedinteger):
        assert_same(expected, buffer[rows.astype(dtype) - 24])
        np.testing.assert_array_equal(expected.weight, buffer[rows.astype(dtype) - 24].weight)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["pickle", "deepcopy", "hdf5"])
def test_copies_and_files(form, way, tmp_path):
    buffer = filled(ours, form, random_seed=3)
    buffer.update_weight(buffer.sample_indices(0), np.linspace(0.1, 2, len(buffer)))
    buffer.set_beta(0.9)
    if way == "hdf5":
        buffer.save_hdf5(str(tmp_path / "b.hdf5"), compression="gzip")
        other = type(buffer).load_hdf5(str(tmp_path / "b.hdf5"))
    else:
        other = copy.deepcopy(buffer) if way == "deepcopy" else pickle.loads(pickle.dumps(buffer))
    for t in range(11, 16):
        row = step(t, 3) if form == "vector" else step(t)
        for one in (buffer, other):
            one.add(row)
        (batch, index), (again, same) = buffer.sample(8), other.sample(8)
        np.testing.assert_array_equal(index, same)
        np.testing.assert_array_equal(batch.weight, again.weight)
        assert_same(batch, again)
    np.testing.assert_array_equal(buffer.unfinished_index(), other.unfinished_index())
    other.reset()
    assert len(other) == 0 and len(buffer) > 0


@pytest.mark.parametrize("form", FORMS)
def test_files_of_stock(form, tmp_path):
    stock = filled(tianshou.data, form)
    index = stock.sample_indices(0)
    stock.update_weight(index, np.linspace(0.1, 2, len(index)))
    stock.save_hdf5(str(tmp_path / "stock.hdf5"))
    buffer = type(make(ours, form)).load_hdf5(str(tmp_path / "stock.hdf5"))
    assert isinstance(buffer.weight, ours.SegmentTree)
    np.testing.assert_array_equal(buffer.weight[np.arange(24)], stock.weight[np.arange(24)])
    assert_same(stock[:], buffer[:])
    for one in (stock, buffer):
        one.add(step(11, 3) if form == "vector" else step(11))
        one.set_beta(0.9)
    assert_same(stock[:], buffer[:])
    assert set(buffer.sample(40)[1]) <= set(stock.sample_indices(0))
    np.testing.assert_array_equal(buffer.unfinished_index(), stock.unfinished_index())


@pytest.mark.parametrize("form", FORMS)
def test_files_of_other_versions(form):
    """A later format is refused by name, and no pickle of ours depends on NumPy's version."""
    buffer = filled(ours, form)
    pickled = pickle.dumps(buffer)
    assert b"MT19937" in pickled and b"_mt19937" not in pickled and b"RandomState" not in pickled
    state = buffer.__getstate__() | {"_random_state": buffer._random_state, "_format": 1}
    other = type(buffer).__new__(type(buffer))
    other.__setstate__(state)
    assert len(other) == len(buffer)
    with pytest.raises(ValueError, match="format 99 by a later version"):
        other.__setstate__(state | {"_format": 99})


def test_update_from_other_buffers():
    stock, buffer = (make(m, size=6) for m in (tianshou.data, ours))
    source = filled(ours)
    assert len(buffer.update(make(ours))) == 0  # stock may never return from this
    np.testing.assert_array_equal(buffer.update(source), stock.update(filled(tianshou.data)))
    assert_same(stock[:], buffer[:])
    assert buffer.weight.reduce() == 6.0
    cached = CachedReplayBuffer(ReplayBuffer(20), 2, 10)
    for t in range(7):
        cached.add(step(t, 2))
    wide = make(ours, size=30)
    wide.update(cached)
    assert len(wide) == len(cached) == 14 and set(wide.sample_indices(200)) == set(range(14))
    with pytest.raises(NotImplementedError):
        make(ours, "vector").update(source)
    # a cached buffer takes no prioritized one, ours or its own
    for module in (tianshou.data, ours):
        with pytest.raises(AssertionError):
            CachedReplayBuffer(make(module), 2, 10)


def test_null_values():
    buffer = filled(ours, size=60, steps=40)
    assert not buffer.hasnull() and not buffer.hasnull()
    row = step(40, 1)
    row.rew = np.array([np.nan])
    buffer.add(row, [0])
    assert buffer.hasnull() and buffer.hasnull()
    mass = buffer.weight[np.arange(40)]
    buffer.dropnull()
    assert len(buffer) == 59  # stock counts the rows nobody wrote, too
    np.testing.assert_array_equal(buffer.weight[np.arange(40)], mass)
    behind = filled(ours, steps=20)
    assert not behind.hasnull()
    behind.rew[3] = np.nan  # behind the buffer's back
    assert behind.hasnull()
    keyed = filled(ours, steps=20)
    assert not keyed.hasnull()
    keyed.set_array_at_key(np.ones(2), "extra", index=[1, 2], default_value=np.nan)
    assert keyed.hasnull() and keyed[np.array([1, 3])].extra[0] == 1.0
    keyed.reset()
    assert len(keyed) == 0
    with pytest.raises(NotImplementedError, match="ring"):
        filled(ours, "vector").dropnull()


def test_rows_keep_their_masses_when_one_before_them_is_dropped():
    buffer = filled(ours, size=6, steps=6)
    buffer.update_weight(np.arange(6), np.arange(1.0, 7.0))
    kept = np.array([0, 1, 3, 4, 5])
    reward, mass = buffer.rew[kept], buffer.weight[kept]
    buffer.rew[2] = np.nan
    buffer.dropnull()
    np.testing.assert_array_equal(buffer.rew, reward)
    np.testing.assert_array_equal(buffer.weight[np.arange(6)], [*mass, 0])


def test_a_null_value_from_another_buffer_is_found_at_once():
    buffer, source = filled(ours, size=60, steps=40, obs_shape=(1_000,)), make(ours)
    assert buffer.obs[:40].nbytes + buffer.obs_next[:40].nbytes > 1 << 18  # which a call reads
    assert not buffer.hasnull()
    row = step(40, 1, (1_000,))
    row.rew = np.array([np.nan])
    source.add(row, [0])
    assert buffer.update(source).tolist() == [40]
    assert buffer.hasnull()


@pytest.mark.parametrize("module", [tianshou.data, ours], ids=["stock", "ours"])
def test_refusals_have_the_types_of_stock(module):
    for wrong in (
        {"alpha": 0.0},
        {"alpha": -1.0},
        {"alpha": np.nan},
        {"beta": -0.1},
        {"stack_num": 0},
    ):
        with pytest.raises(AssertionError):
            make(module, **wrong)
    with pytest.raises(TypeError):
        make(module, alpha="0.6")
    with pytest.raises(AssertionError):
        module.PrioritizedVectorReplayBuffer(10, 0, alpha=0.6, beta=0.4)
    for form in FORMS:
        with pytest.raises(ValueError):  # noqa: PT011 - stock names nothing
            make(module, form).sample(4)
    buffer = filled(module)
    with pytest.raises(AssertionError):
        buffer.update_weight(np.array([0, 24]), np.ones(2))
    with pytest.raises(IndexError):
        buffer[np.array([24])]
    with pytest.raises(TypeError):
        buffer.sample(2.5)
    with pytest.raises(ValueError, match="keys"):
        buffer.add(Batch(obs=1, terminated=False, truncated=False))
    with pytest.raises(AssertionError):
        buffer.obs = 3
    for ids in ([1, 0], [0]):
        with pytest.raises(ValueError, match="buffer_ids"):
            buffer.add(step(0, 2), buffer_ids=ids)
    with pytest.raises(IndexError):
        filled(module, "vector").add(step(0, 3), buffer_ids=[0, 1, 3])


def test_refusals_change_nothing():
    buffer = filled(ours)
    before = buffer.weight[np.arange(24)]
    for index, values in (([0, 24], [1, 1]), ([0, -1], [1, 1]), ([0, 1], [1, 2, 3])):
        with pytest.raises((ValueError, IndexError)):
            buffer.update_weight(np.array(index), np.array(values, float))
    with pytest.raises(TypeError):
        buffer.update_weight(np.array([0, 1]), np.array(["a", "b"]))
    for beta in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="beta"):
            buffer.set_beta(beta)
    with pytest.raises(TypeError, match="beta"):
        buffer.set_beta("1")
    np.testing.assert_array_equal(buffer.weight[np.arange(24)], before)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("uniform_share", [0.0, 0.5, 1.0])
def test_rows_whose_mass_is_too_small_for_float64_are_not_drawn(form, uniform_share):
    buffer = filled(ours, form, alpha=50.0, uniform_share=uniform_share)
    rows = buffer.sample_indices(0)
    buffer.update_weight(rows[3:], np.zeros(len(rows) - 3))
    batch, index = buffer.sample(500)
    assert set(index) == set(rows[:3])
    np.testing.assert_allclose(batch.weight, 1.0)


def test_a_refused_priority_names_what_it_can():
    buffer = filled(ours)
    for index, value, message in (
        (3, np.nan, r"position 0 of 1 \(row 3\)"),
        (np.array([3, 4]), np.nan, r"position 0 of 1 \(row 3\)"),
        (np.array([3, 4]), np.array([1.0, np.inf]), r"inf at position 1 of 2 \(row 4\)"),
        (3, np.array([1.0, 1.0, np.nan]), "position 2 of 3: the network"),
        (np.array([3, 4]), np.array([1.0, 1.0, np.nan]), "position 2 of 3: the network"),
    ):
        with pytest.raises(ValueError, match=message):
            buffer.update_weight(index, value)
    np.testing.assert_array_equal(buffer.weight[buffer.sample_indices(0)], 1.0)
