"""What is stored, and which rows belong together, as tables, on Tianshou's buffers and ours."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tianshou.data import Batch
from tianshou_rows import BOTH, step

FORMS = ["single", "vector"]


def make(module, form, size, n=2, **kwargs):
    kwargs = {"alpha": 0.5, "beta": 0.5} | kwargs
    if form == "single":
        return module.PrioritizedReplayBuffer(size, **kwargs)
    return module.PrioritizedVectorReplayBuffer(size * n, n, **kwargs)


def add(buffer, form, row, n=2):
    """One row, or the same one to each of n rings."""
    return buffer.add(Batch.stack([row] * n)) if form == "vector" else buffer.add(row)


@BOTH
def test_fields_keep_their_types_and_may_turn_up_late(module):
    buffer = make(module, "single", 6)
    assert repr(buffer) == "PrioritizedReplayBuffer()"
    first = buffer.add(
        Batch(
            obs=7,
            act=[1, 0],
            rew=2,
            terminated=1,
            truncated=0,
            obs_next="end",
            info={"a": 3, "deep": {"b": 0.5}},
        )
    )
    assert [x.tolist() for x in first] == [[0], [2], [1], [0]]
    assert buffer.act.shape == (6, 2) and buffer.act.dtype == int and buffer.rew.dtype == float
    assert {buffer.done.dtype, buffer.terminated.dtype, buffer.truncated.dtype} == {np.dtype(bool)}
    assert buffer.obs_next.tolist() == ["end"] + [None] * 5
    assert buffer.info.a.dtype == int and buffer.info.deep.b.tolist() == [0.5, 0, 0, 0, 0, 0]
    late = Batch(
        obs=8,
        act=[0, 0],
        rew=3,
        terminated=0,
        truncated=0,
        obs_next="on",
        info={"a": 4, "new": {"c": -np.inf}},
    )
    buffer.add(late)
    assert set(buffer.info.get_keys()) == {"a", "deep", "new"}
    assert buffer.info.new.c.tolist() == [0, -np.inf, 0, 0, 0, 0] and buffer.info.deep.b[1] == 0
    late.truncated, late.info.wide = 1, np.ones((2, 3))
    stacked = buffer.add(Batch.stack([late]), buffer_ids=[0])
    assert [x.tolist() for x in stacked] == [[2], [6], [2], [1]]
    assert buffer.info.wide.shape == (6, 2, 3) and buffer.truncated.tolist() == [0, 0, 1, 0, 0, 0]
    rows = np.arange(3)
    assert buffer.prev(rows).tolist() == [0, 1, 1] and buffer.next(rows).tolist() == [0, 2, 2]
    np.testing.assert_array_equal(buffer.weight[np.arange(6)], [1, 1, 1, 0, 0, 0])
    with pytest.raises(IndexError):
        buffer[6]


@BOTH
def test_fields_of_ones_own(module):
    buffer = make(module, "single", 4)
    row = step(3)
    row.returns = 74.5
    buffer.add(row)
    batch, _ = buffer.sample(2)
    assert set(batch.get_keys()) == {*row.get_keys(), "done", "weight"}
    assert batch.returns.tolist() == [74.5, 74.5]
    buffer.add(row)
    buffer.set_array_at_key(np.array([5.0]), "later", index=[1], default_value=0.0)
    assert buffer[np.array([1, 0])].later.tolist() == [5.0, 0.0]


@BOTH
def test_nested_observations_and_a_changed_stack_num(module):
    """No obs_next, and episodes 0-2, 3-5 and 6-7: row t is followed by t + 1 unless it ends one."""
    buffer = make(module, "single", 8, ignore_obs_next=True)
    for t in range(8):
        obs = {"at": t, "mask": np.array([t, 1, 0])}
        buffer.add(
            Batch(
                obs=obs,
                act={"id": t, "aim": t + 3},
                rew=t,
                terminated=t % 3 == 2,
                truncated=False,
                info={"if": t},
            )
        )
    t = np.arange(8)
    following, start = np.array([1, 2, 2, 4, 5, 5, 7, 7]), t // 3 * 3
    batch = buffer[t]
    assert (
        batch.obs_next.at.tolist() == following.tolist()
        and batch.act.aim.tolist() == (t + 3).tolist()
    )
    buffer.stack_num = 3
    frames = np.arange(-2, 1)
    batch = buffer[t]
    np.testing.assert_array_equal(batch.obs.at, np.maximum(t[:, None] + frames, start[:, None]))
    np.testing.assert_array_equal(
        batch.obs_next.at, np.maximum(following[:, None] + frames, start[:, None])
    )
    np.testing.assert_array_equal(batch.info["if"], batch.obs.at)
    assert batch.obs_next.mask.shape == (8, 3, 3) and batch.act.id.shape == (8,)


@BOTH
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("only_last", [False, True])
def test_stacks_in_a_ring_that_has_come_round(module, form, only_last):
    """12 rows into 7, episodes of 5: a stack goes back to its episode's start, or to row t = 5."""
    options = {"save_only_last_obs": only_last, "ignore_obs_next": only_last, "stack_num": 3}
    buffers = [make(module, form, 7, sample_avail=avail, **options) for avail in (False, True)]
    for t in range(12):
        obs = np.array([[-1], [t]]) if only_last else np.array([t])
        row = Batch(obs=obs, act=1, rew=0.0, terminated=False, truncated=t % 5 == 4, info={})
        for buffer in buffers:
            add(buffer, form, row)
    t = np.array([7, 8, 9, 10, 11, 5, 6])
    expected = np.maximum(t[:, None] + np.arange(-2, 1), np.maximum(t // 5 * 5, 5)[:, None])
    rings = 2 if form == "vector" else 1
    buffer, choosy = buffers
    index = np.arange(7 * rings)
    np.testing.assert_array_equal(buffer.get(index, "obs")[..., 0], np.tile(expected, (rings, 1)))
    np.testing.assert_array_equal(buffer[index].obs, buffer.get(index, "obs"))
    assert buffer.obs.shape == (7 * rings, 1)
    _, available = choosy.sample(0)
    assert available.tolist() == [i + 7 * ring for ring in range(rings) for i in (0, 1, 2)]
    choosy.stack_num = 2  # as may be set by hand, of each ring too
    for ring in getattr(choosy, "buffers", ()):
        ring.stack_num = 2
    assert sorted(choosy.sample_indices(0)) == [
        i + 7 * ring for ring in range(rings) for i in (0, 1, 2, 4, 6)
    ]


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_priorities_through_a_run(module, form):
    """Batches of half of what there is; a zero TD error makes rows rare, and so weighty."""
    buffer, n = make(module, form, 5, n=3), 3 if form == "vector" else 1
    for t in range(12):
        row = step(t)
        row.policy = float(t)
        add(buffer, form, row, n=3)
        assert len(buffer) == n * min(t + 1, 5)
        half = len(buffer) // 2
        batch, index = buffer.sample(half)
        assert len(batch) == len(index) == (half or len(buffer))  # 0 stands for all
    every = np.arange(buffer.maxsize)
    np.testing.assert_allclose(buffer[every].weight, 1.0)
    batch, index = buffer.sample(3)
    buffer.update_weight(index, torch.as_tensor(-batch.weight / 2))
    np.testing.assert_allclose(buffer.weight[index], 0.5**0.5, rtol=1e-6)
    buffer.update_weight(index, 0 * batch.weight)
    weight, rare = buffer[every].weight, np.isin(every, index)
    assert len(np.unique(weight[rare])) == len(np.unique(weight[~rare])) == 1
    assert weight[~rare][0] < weight[rare][0] <= 1.0


@BOTH
def test_neighbours_across_rings(module):
    """Four rings of 5, filled unevenly; the third comes round."""
    buffer = make(module, "vector", 5, n=4)

    def rows(ends, value=1.0):
        n = len(ends)
        return Batch(
            obs=[value] * n, act=[0] * n, rew=[value] * n, terminated=ends, truncated=[False] * n
        )

    index, returns, lengths, starts = buffer.add(rows([0, 0, 1], 2.0), buffer_ids=[0, 1, 2])
    assert index.tolist() == starts.tolist() == [0, 5, 10]
    assert lengths.tolist() == [0, 0, 1] and returns.tolist() == [0, 0, 2]
    every = buffer.sample_indices(0)
    assert (
        every.tolist() == buffer.prev(every).tolist() == buffer.next(every).tolist() == [0, 5, 10]
    )
    buffer.add(rows([1]), buffer_ids=[3])
    for ends in ([0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]):
        buffer.add(rows(ends))
    assert buffer.unfinished_index().tolist() == [4, 14] and len(buffer) == 20
    # the third's sixth
    index, returns, lengths, starts = buffer.add(rows([1], 4.0), buffer_ids=[2])
    assert [x[0] for x in (index, returns, lengths, starts)] == [10, 6, 3, 13]
    assert buffer.unfinished_index().tolist() == [4]
    every = np.arange(20)
    before = [0, 0, 1, 3, 3, 5, 5, 6, 7, 8, 14, 11, 11, 13, 13, 15, 16, 16, 17, 18]
    after = [1, 2, 2, 4, 4, 6, 7, 8, 9, 9, 10, 12, 12, 14, 10, 15, 17, 18, 19, 19]
    assert buffer.prev(every).tolist() == before and buffer.next(every).tolist() == after
    assert sorted(buffer.sample_indices(0)) == every.tolist()
    assert buffer.prev(-1) == buffer.prev([19])[0] and buffer.next(-1) == buffer.next([19])[0]
    meta = buffer._meta
    meta.info = np.arange(20)
    buffer.set_batch(meta)
    assert buffer.buffers[-1].info.tolist() == [15, 16, 17, 18, 19]
    assert np.array([buffer]).dtype == object
    with pytest.raises(NotImplementedError):
        buffer.update(buffer)


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_stretches_of_rows(module, form):
    buffer = make(module, form, 5)
    for t in range(6):
        add(buffer, form, step(t))
    shift = 5 if form == "vector" else 0
    for start, stop, rows in (
        (0, 3, [0, 1, 2]),
        (3, 2, [3, 4, 0, 1]),
        (0, 5, [0, 1, 2, 3, 4]),
        (4, 1, [4, 0]),
    ):
        assert buffer.get_buffer_indices(start + shift, stop + shift).tolist() == [
            row + shift for row in rows
        ]
    if form == "vector":
        for start, stop in ((3, 6), (6, 3)):
            with pytest.raises(ValueError, match="subbuffer"):
                buffer.get_buffer_indices(start, stop)


@BOTH
@pytest.mark.parametrize("way", ["pickle", "deepcopy", "hdf5"])
@pytest.mark.parametrize("form", FORMS)
def test_copies_of_what_is_not_plain_numbers(module, form, way, tmp_path):
    """Two rewards a step, tensors and None in info; the copy takes a field that is new."""
    buffer, n = make(module, form, 6), 2 if form == "vector" else 1
    for t in range(4):
        info = {"number": {"n": t, "t": torch.tensor([1.0 + t])}, "extra": None}
        row = Batch(
            obs={"at": np.array([t])},
            act=t,
            rew=np.array([t, 1.0]),
            terminated=t == 2,
            truncated=False,
            info=info,
        )
        returns, lengths = add(buffer, form, row)[1:3]
        assert lengths.tolist() == [3 if t == 2 else 0] * n
        assert returns.tolist() == [[3.0, 3.0] if t == 2 else [0.0, 0.0]] * n
    buffer.update_weight(np.array([0, 1]), np.array([0.2, 3.0]))
    if way == "hdf5":
        buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
        other = type(buffer).load_hdf5(str(tmp_path / "buffer.hdf5"))
    else:
        other = copy.deepcopy(buffer) if way == "deepcopy" else pickle.loads(pickle.dumps(buffer))
    assert (len(other), other.maxsize, other.stack_num) == (
        len(buffer),
        buffer.maxsize,
        buffer.stack_num,
    )
    every = np.arange(buffer.maxsize)
    np.testing.assert_array_equal(other.weight[every], buffer.weight[every])
    for one in (buffer, other):
        assert isinstance(one.get(0, "info"), Batch) and one[:].rew.shape == (4 * n, 2)
        assert (
            one[np.array([2])].info.number.t.tolist() == [[3.0]]
            and one.info.extra[:4].tolist() == [None] * 4
        )
        late = Batch(
            obs={"at": np.array([9])},
            act=9,
            rew=np.zeros(2),
            terminated=False,
            truncated=False,
            info={"number": {"n": 9}, "late": True},
        )
        add(one, form, late)
        assert one.act.tolist() == [0, 1, 2, 3, 9, 0] * n
        assert set(one.info.get_keys()) == {"number", "extra", "late"}


@BOTH
def test_rows_shared_with_the_rings(module):
    buffer = make(module, "vector", 5)
    buffer.add(step(0, 2))
    buffer.info.lives[0] = -100
    assert buffer.buffers[0].info.lives[0] == -100


@BOTH
def test_update_keeps_the_order(module):
    source, target = (make(module, "single", 4, stack_num=2) for _ in range(2))
    for t in range(5):
        source.add(
            Batch(
                obs=np.array([t]),
                act=float(t),
                rew=t,
                terminated=t % 2 == 0,
                truncated=False,
                info={"what": "x"},
            )
        )
    target.update(source)
    assert len(target) == len(source) == 4
    np.testing.assert_array_equal(target[0].obs, source[1].obs)
    np.testing.assert_array_equal(target[-1].obs, source[0].obs)
    assert target.weight.reduce() == 4.0 and target.act.tolist() == [1.0, 2.0, 3.0, 4.0]


@BOTH
def test_rows_with_a_missing_value_are_dropped(module):
    buffer = make(module, "single", 10, ignore_obs_next=True)
    for t in range(4):
        obs = {"at": t, "mask": t + 4}
        buffer.add(
            Batch(
                obs=obs,
                act={"id": t},
                rew=t,
                terminated=t % 3 == 0,
                truncated=False,
                info={"if": t},
            )
        )
    buffer.set_array_at_key(np.array([1.0, 2.0, 3.0]), "key", [0, 1, 2])
    assert buffer.key[:3].tolist() == [1.0, 2.0, 3.0] and buffer.hasnull()
    assert buffer.isnull().key[:4].tolist() == [False, False, False, True]
    buffer.dropnull()
    assert len(buffer[:3]) == 3 and not buffer.hasnull()
    np.testing.assert_array_equal(buffer[:3].obs.at, [0, 1, 2])


@BOTH
def test_from_data_lacks_alpha_and_beta(module):
    with pytest.raises(TypeError, match="alpha"):
        module.PrioritizedReplayBuffer.from_data(*[np.zeros(3)] * 7)
