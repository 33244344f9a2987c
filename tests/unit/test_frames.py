"""FrameReplayBuffer and its writer: literal tables, frames in and stacks out, by promise."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
from frame_writers import (
    BOTH,
    FAULTS,
    FIELDS,
    NOT,
    NUMBER,
    TERMINATED,
    TRUNCATED,
    FollowsSlots,
    drawable,
    make,
    step,
)
from test_docs import documented, public_names, run_examples

import kary_replay as kr

SCALAR = kr.Field((), "float32")


def play(writer, frames, end=NOT, env=None, reward=1.0):
    """Play an episode of one environment: a first frame, then a step to each of the others."""
    writer.reset(frames[0], env=env)
    for frame in frames[1:]:
        writer.add(**step(frame, reward, end if frame == frames[-1] else NOT, env=env))


def check_the_start_of_an_episode(writer_class):
    buffer, writer = make(3, writer=writer_class)
    play(writer, [10, 11, 12, 13, 14])
    assert drawable(buffer) == [
        ((10, 10, 10), (10, 10, 11), 1.0, 0.5),
        ((10, 10, 11), (10, 11, 12), 1.0, 0.5),
        ((10, 11, 12), (11, 12, 13), 1.0, 0.5),
        ((11, 12, 13), (12, 13, 14), 1.0, 0.5),
    ]


def test_the_start_of_an_episode():
    check_the_start_of_an_episode(kr.FrameStackWriter)


def test_the_start_of_an_episode_padded_with_zeros():
    buffer, writer = make(3, padding="zeros")
    play(writer, [10, 11, 12, 13])
    assert [row[:2] for row in drawable(buffer)] == [
        ((0, 0, 10), (0, 10, 11)),
        ((0, 10, 11), (10, 11, 12)),
        ((10, 11, 12), (11, 12, 13)),
    ]
    buffer, writer = make(3, 2, padding="zeros")
    play(writer, [10, 11, 12, 13])
    assert [row[:2] for row in drawable(buffer)] == [
        ((0, 0, 10), (10, 11, 12)),
        ((0, 10, 11), (11, 12, 13)),
    ]


def test_a_stack_of_one():
    for n_step, rows in [
        (1, [((10,), (11,)), ((11,), (12,))]),
        (2, [((10,), (12,)), ((11,), (12,))]),
    ]:
        buffer, writer = make(1, n_step)
        play(writer, [10, 11, 12], TRUNCATED)
        assert [row[:2] for row in drawable(buffer)] == rows


def check_two_episodes(writer_class):
    """The first one is cut off, the second ends; neither looks into the other."""
    buffer, writer = make(2, writer=writer_class)
    play(writer, [10, 11, 12], TRUNCATED)
    play(writer, [50, 51, 52], TERMINATED)
    assert drawable(buffer) == [
        ((10, 10), (10, 11), 1.0, 0.5),
        ((10, 11), (11, 12), 1.0, 0.5),
        ((50, 50), (50, 51), 1.0, 0.5),
        ((50, 51), (51, 52), 1.0, 0.0),
    ]


def test_two_episodes():
    check_two_episodes(kr.FrameStackWriter)


# Frames 10 to 14, rewards 1, 10, 100, 1000, gamma = 1/2, stack = 4, n_step = 3.
FLUSHED = [
    ((10, 10, 10, 10), (10, 11, 12, 13), 31.0, 0.125),
    ((10, 10, 10, 11), (11, 12, 13, 14), 310.0, 0.125),
    ((10, 10, 11, 12), (11, 12, 13, 14), 600.0, 0.25),
    ((10, 11, 12, 13), (11, 12, 13, 14), 1000.0, 0.5),
]


@pytest.mark.parametrize(
    "end", [TERMINATED, TRUNCATED, BOTH], ids=["terminated", "truncated", "both"]
)
def test_windows_of_three_steps_at_an_episodes_end(end):
    buffer, writer = make(4, 3)
    writer.reset(10)
    index = [writer.add(**step(11 + t, 10.0**t, end if t == 3 else NOT)).tolist() for t in range(4)]
    assert index == [[], [], [3], [4, 5, 6]]
    expected = FLUSHED[:1] + [(*row[:3], 0.0 if end[0] else row[3]) for row in FLUSHED[1:]]
    assert drawable(buffer) == expected
    assert (len(buffer), buffer.n_added, buffer.total_mass) == (7, 4, 4.0)


def test_an_episode_shorter_than_the_window():
    buffer, writer = make(2, 5)
    play(writer, [10, 11], TRUNCATED)
    play(writer, [20, 21, 22], TERMINATED)
    assert drawable(buffer) == [
        ((10, 10), (10, 11), 1.0, 0.5),
        ((20, 20), (21, 22), 1.5, 0.0),
        ((20, 21), (21, 22), 1.0, 0.0),
    ]


def check_two_environments(writer_class):
    """Environment 0 terminates after two steps, 1 goes on; their rows take turns."""
    buffer, writer = make(2, 2, n_envs=2, writer=writer_class)
    writer.reset([10, 100])
    index = [
        writer.add(**step([11, 101], [1.0, 2.0], [NOT, NOT])),
        writer.add(**step([12, 102], [10.0, 20.0], [TERMINATED, NOT])),
    ]
    writer.reset([50], env=[0])
    index.append(writer.add(**step([103, 51], [200.0, 7.0], [NOT, NOT], env=[1, 0])))
    index.append(writer.add(**step([52], [70.0], [NOT], env=0)))
    assert [one.tolist() for one in index] == [[], [4, 5, 6], [8], [10]]
    assert drawable(buffer) == [
        ((10, 10), (11, 12), 6.0, 0.0),
        ((10, 11), (11, 12), 10.0, 0.0),
        ((100, 100), (101, 102), 12.0, 0.25),
        ((100, 101), (102, 103), 120.0, 0.25),
        ((50, 50), (51, 52), 42.0, 0.25),
    ]
    assert writer.n_pending.tolist() == [1, 1]


def test_two_environments():
    check_two_environments(kr.FrameStackWriter)


def check_the_oldest_are_overwritten(writer_class):
    """Of frames 10 … 21 the last eight are left, 14 … 21; three transitions have lost frames."""
    buffer, writer = make(3, capacity=8, writer=writer_class)
    play(writer, list(range(10, 22)))
    assert sorted(drawable(buffer)) == [
        ((t - 3, t - 2, t - 1), (t - 2, t - 1, t), 1.0, 0.5) for t in range(17, 22)
    ]


def check_a_pause(writer_class):
    """Environment 0 overwrites what 1 has seen: 1's next transitions are not drawn for a while."""
    buffer, writer = make(2, n_envs=2, capacity=7, writer=writer_class)
    writer.reset([10, 100])
    for t in range(8):
        writer.add(**step([11 + t], env=0))
    for t in range(4):
        writer.add(**step([101 + t], env=1))
    expected = [((16, 17), (17, 18)), ((101, 102), (102, 103)), ((102, 103), (103, 104))]
    assert sorted(row[:2] for row in drawable(buffer)) == expected


def test_the_oldest_are_overwritten():
    check_the_oldest_are_overwritten(kr.FrameStackWriter)


def test_an_environment_that_waits_too_long():
    check_a_pause(kr.FrameStackWriter)


def test_the_tables_reject_planted_faults():
    checks = [
        check_the_start_of_an_episode,
        check_two_episodes,
        check_two_environments,
        check_the_oldest_are_overwritten,
    ]
    for fault in FAULTS:
        rejected = 0
        for check in checks:
            try:
                check(fault)
            except AssertionError:
                rejected += 1
        assert rejected, fault
    with pytest.raises(AssertionError):
        check_a_pause(FollowsSlots)


def test_an_environment_that_crashed_begins_anew():
    buffer, writer = make(2, 2)
    writer.reset(10)
    writer.add(**step(11))
    writer.reset(50)
    assert writer.n_pending.tolist() == [0]
    for frame in (51, 52):
        writer.add(**step(frame))
    assert [row[:2] for row in drawable(buffer)] == [((50, 50), (51, 52))]


def test_frames_and_fields_of_any_kind():
    camera, fields = (
        kr.Field((2, 3, 3), "uint8"),
        {"left": kr.Field((), "int8"), "right": kr.Field((2,), "float32")},
    )
    buffer = kr.FrameReplayBuffer(
        50,
        {"camera": camera, "inner": {"speed": SCALAR}},
        {"action": fields, "log_prob": SCALAR},
        stack=2,
        seed=0,
    )
    writer = kr.FrameStackWriter(buffer, n_envs=2, gamma=0.9)

    def see(t):
        return {"camera": np.full((2, 2, 3, 3), t, np.uint8), "inner": {"speed": [t, t + 0.5]}}

    writer.reset(see(1))
    for t in (2, 3):
        action = {"left": [t, -t], "right": np.full((2, 2), t)}
        more = {"terminated": [False] * 2, "truncated": [False] * 2, "log_prob": [-t, t]}
        index = writer.add(action=action, reward=[1, 2], next_frame=see(t), **more)
    assert index.tolist() == [4, 5]
    batch = buffer.sample(100)
    at = np.flatnonzero(batch.index == 5)[0]
    assert batch.observation["camera"].shape == (100, 2, 2, 3, 3) and batch.frames[
        "camera"
    ].shape == (100, 3, 2, 3, 3)
    assert batch.observation["camera"][at, :, 0, 0, 0].tolist() == [1, 2]
    assert batch.next_observation["inner"]["speed"][at].tolist() == [2.5, 3.5]
    assert (
        batch.action["right"][at].tolist() == [3, 3]
        and batch.action["left"][at] == -3
        and batch.log_prob[at] == 3
    )
    assert (batch.reward[at], batch.discount[at], batch.terminated[at]) == (
        2,
        np.float32(0.9),
        False,
    )
    assert (
        batch.reward.dtype == batch.discount.dtype == np.float32
        and batch.terminated.dtype == np.bool_
    )


@pytest.mark.parametrize(("n_step", "width"), [(1, 4), (3, 6)])
def test_observations_are_views_of_the_frames(n_step, width):
    buffer, writer = make(3, n_step)
    play(writer, [10, 11, 12, 13, 14])
    batch = buffer.sample(5)
    assert batch.frames.shape == (5, width) and batch.frames.flags.c_contiguous
    assert np.shares_memory(batch.observation, batch.frames) and np.shares_memory(
        batch.next_observation, batch.frames
    )
    assert (batch.frames[:, :3] == batch.observation).all() and (
        batch.frames[:, -3:] == batch.next_observation
    ).all()
    names = [
        "observation",
        "next_observation",
        "reward",
        "discount",
        "terminated",
        "action",
        "importance_weight",
    ]
    assert list(batch.keys()) == [*names, "index", "handle", "frames"]


def test_priorities():
    buffer = kr.FrameReplayBuffer(
        20, NUMBER, FIELDS, stack=2, n_step=2, alpha=1.0, beta=1.0, priority_epsilon=0.5, seed=0
    )
    seen = []
    writer = kr.FrameStackWriter(
        buffer, 1, 0.5, priority=lambda rows: seen.append(rows) or np.abs(rows["reward"]) + 1
    )
    play(writer, [10, 11, 12, 13], TERMINATED, reward=2.0)
    assert buffer.tree.get(np.arange(6)).tolist() == [0.0, 0.0, 4.0, 4.0, 3.0, 0.0]
    assert set(seen[0]) == {"action", "reward", "discount", "terminated"} and seen[1][
        "reward"
    ].tolist() == [3.0, 2.0]
    batch = buffer.sample(1000)
    assert set(batch.index.tolist()) == {2, 3, 4}
    assert (
        batch.importance_weight.tolist()
        == np.where(batch.index == 4, 1.0, 0.75).astype(np.float32).tolist()
    )
    handle = batch.handle[[int(np.flatnonzero(batch.index == slot)[0]) for slot in (2, 3, 4)]]
    assert buffer.update_priorities(handle, [0.5, 1.5, 9.5]) == 3
    assert buffer.tree.get(np.arange(6)).tolist() == [0.0, 0.0, 1.0, 2.0, 10.0, 0.0]
    plain = kr.FrameStackWriter(buffer, 1, 0.5)
    play(plain, [20, 21, 22])
    # the largest seen; frames alone have none
    assert buffer.tree.get(np.arange(5, 9)).tolist() == [0.0, 0.0, 10.0, 0.0]
    buffer.alpha = 0.0
    assert buffer.tree.get(np.arange(9)).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 0]
    buffer.alpha = 1.0
    assert buffer.tree.get(np.arange(9)).tolist() == [0, 0, 1, 2, 10, 0, 0, 10, 0]


def test_a_late_update_gives_no_mass_to_a_row_whose_frames_are_gone():
    buffer, writer = make(3, capacity=8)
    play(writer, list(range(10, 17)), TRUNCATED)
    batch = buffer.sample(200)
    # needs the oldest frame
    first = batch.handle[[int(np.flatnonzero(batch.index == batch.index.min())[0])]]
    writer.reset(20)
    writer.add(**step(21))  # which is overwritten
    buffer.sample(200)  # whoever draws the row notices
    slot = int(first["index"][0])
    assert buffer.tree.get(slot) == 0
    assert buffer.update_priorities(first, [100.0]) == 0
    assert buffer.tree.get(slot) == 0 and buffer.max_priority == 1.0
    buffer.alpha = 0.1
    assert buffer.tree.get(slot) == 0
    buffer.check_invariants()


def test_transitions_of_given_slots():
    buffer, writer = make(3, capacity=8)
    play(writer, list(range(10, 17)), TRUNCATED)
    drawn = buffer.sample(200)
    taken = buffer.take(drawn.index)
    assert (taken.observation == drawn.observation).all()
    assert (taken.next_observation == drawn.next_observation).all()
    oldest = int(drawn.index.min())
    writer.reset(20)
    writer.add(**step(21))  # overwrites a frame that the oldest needs
    with pytest.raises(IndexError, match=f"slot {oldest} has none, got at position 1"):
        buffer.take([int(drawn.index.max()), oldest])
    assert buffer.tree.get(oldest) == 0


def test_draws_without_replacement_end_when_all_histories_are_lost():
    """Writers that go on after a reset as if there had been none refer to frames that are gone."""
    n_envs = 64
    buffer = kr.FrameReplayBuffer(2000, NUMBER, FIELDS, stack=4, seed=0)
    writer = kr.FrameStackWriter(buffer, n_envs, 0.5)
    no = np.zeros(n_envs, bool)
    writer.reset(np.zeros(n_envs, np.int64))
    end = {
        "terminated": no,
        "truncated": no,
        "action": np.zeros(n_envs, np.int64),
        "reward": np.ones(n_envs),
    }
    for t in range(4):
        writer.add(next_frame=np.full(n_envs, t), **end)
    buffer.reset()
    for t in range(3):
        writer.add(next_frame=np.full(n_envs, t), **end)
    for unique in (True, False):
        with pytest.raises((kr.errors.EmptyBufferError, ValueError)):
            buffer.sample(2, unique=unique)
    buffer.check_invariants()


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_only_transitions_are_drawn(alpha):
    buffer = kr.FrameReplayBuffer(20, NUMBER, FIELDS, stack=2, n_step=3, alpha=alpha, seed=0)
    writer = kr.FrameStackWriter(buffer, 1, 0.5)
    play(writer, [10, 11, 12])
    assert (len(buffer), buffer.n_added, buffer.total_mass) == (3, 0, 0.0)
    with pytest.raises(kr.errors.EmptyBufferError):
        buffer.sample(1)
    writer.add(**step(13))
    assert set(buffer.sample(50).index.tolist()) == {3}
    assert buffer.sample(1, unique=True).index.tolist() == [3]
    with pytest.raises(ValueError, match="number of rows"):
        buffer.sample(2, unique=True)


def test_draws_without_replacement_skip_what_is_gone():
    buffer, writer = make(3, capacity=8)
    play(writer, list(range(10, 22)))
    batch = buffer.sample(5, unique=True)
    assert sorted(batch.next_observation[:, -1].tolist()) == [17, 18, 19, 20, 21]
    with pytest.raises(ValueError, match="number of rows"):
        buffer.sample(6, unique=True)


def test_an_update_does_not_bring_a_lost_transition_back():
    buffer, writer = make(3, capacity=8)
    play(writer, list(range(10, 18)))
    old = buffer.sample(64).handle
    for frame in range(18, 22):
        writer.add(**step(frame))
    buffer.update_priorities(old, np.ones(64))
    assert sorted(row[1][-1] for row in drawable(buffer)) == [17, 18, 19, 20, 21]
    buffer.update_priorities(old, np.ones(64))
    assert sorted(row[1][-1] for row in drawable(buffer)) == [17, 18, 19, 20, 21]


def test_frames_from_before_a_reset_are_forgotten():
    buffer, writer = make(2, 2)
    play(writer, [10, 11, 12, 13])
    buffer.reset()
    # on as if nothing had happened: transitions with forgotten frames are never drawn
    for frame in (14, 15, 16, 17):
        writer.add(**step(frame))
    assert [row[:2] for row in drawable(buffer)] == [((14, 15), (16, 17))]
    buffer.reset()
    assert drawable(buffer) == []
    play(writer, [20, 21, 22])
    assert [row[:2] for row in drawable(buffer)] == [((20, 20), (21, 22))]


def saved_and_loaded(buffer, directory):
    buffer.save(directory / "checkpoint")
    return kr.FrameReplayBuffer.load(directory / "checkpoint")


CLONES = {
    "deepcopy": lambda one, _: copy.deepcopy(one),
    "pickle": lambda one, _: pickle.loads(pickle.dumps(one)),
    "attach": lambda one, _: kr.FrameReplayBuffer.attach(one.descriptor),
    "save and load": saved_and_loaded,
}


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
def test_clones(clone, tmp_path):
    buffer, writer = make(3, 2, capacity=12, padding="zeros", shared=True)
    play(writer, list(range(10, 25)))
    twin = clone(buffer, tmp_path)
    assert (twin.stack, twin.n_step, twin.padding, twin.fields) == (3, 2, "zeros", buffer.fields)
    assert drawable(twin) == drawable(buffer) != []
    play(kr.FrameStackWriter(twin, 1, 0.5), [50, 51, 52])
    assert ((0, 0, 50), (50, 51, 52)) in [row[:2] for row in drawable(twin)]


def test_a_buffer_on_disk(tmp_path):
    buffer, writer = make(2, storage_directory=tmp_path)
    play(writer, [10, 11, 12])
    assert len(drawable(buffer)) == 2


def _play_elsewhere(buffer):
    play(kr.FrameStackWriter(buffer, 1, 0.5), [50, 51, 52])


def test_another_process_writes():
    buffer, writer = make(2, shared=True)
    play(writer, [10, 11])
    process = multiprocessing.get_context("spawn").Process(target=_play_elsewhere, args=(buffer,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    writer.add(**step(12))
    stacks = [
        ((10, 10), (10, 11)),
        ((50, 50), (50, 51)),
        ((50, 51), (51, 52)),
        ((10, 11), (11, 12)),
    ]
    assert [row[:2] for row in drawable(buffer)] == stacks


def test_spaces():
    spaces = pytest.importorskip("gymnasium").spaces
    buffer = kr.FrameReplayBuffer.from_spaces(
        100,
        spaces.Box(0, 255, (8, 8), np.uint8),
        spaces.Discrete(4),
        extra_fields={"truncated": kr.Field((), "bool")},
        stack=3,
    )
    assert {"frame", "action", "reward", "discount", "terminated", "truncated"} <= set(
        buffer.fields
    )
    writer = kr.FrameStackWriter(buffer, 1, 0.9)
    writer.reset(np.zeros((8, 8), np.uint8))
    frame = np.ones((8, 8), np.uint8)
    writer.add(action=np.int64(3), reward=0.5, next_frame=frame, terminated=False, truncated=True)
    batch = buffer.sample(2)
    assert (
        batch.observation.shape == (2, 3, 8, 8)
        and batch.truncated.all()
        and batch.action.tolist() == [3, 3]
    )


def test_a_million_atari_transitions_fit():
    """Stacks of 4 frames of 84 × 84: at most 7.6 GB, tree and all, for one step and for three."""
    for n_step in (1, 3):
        sizes = {}
        for capacity in (4_096, 100_000):
            buffer = kr.FrameReplayBuffer(
                capacity, kr.Field((84, 84), "uint8"), {"action": NUMBER}, stack=4, n_step=n_step
            )
            sizes[capacity] = buffer.nbytes
            row = buffer._slots.row_nbytes
        head = sizes[4_096] - 4_096 * row - kr.SumTree(4_096).nbytes
        assert sizes[100_000] <= 0.76e9
        assert head + 1_000_000 * row + kr.SumTree(1_000_000).nbytes <= 7.25e9


def test_examples_in_docstrings():
    texts = {
        **dict(documented("kary_replay.buffers.frame_replay_buffer")),
        **dict(documented("kary_replay.writers.frame_stack_writer")),
    }
    assert (
        sum(run_examples(text, name, public_names(), name) for name, text in texts.items() if text)
        >= 10
    )


def test_flags_may_be_tensors():
    torch = pytest.importorskip("torch")
    buffer = kr.FrameReplayBuffer(30, SCALAR, {"action": SCALAR, "reward": SCALAR}, stack=2)
    writer = kr.FrameStackWriter(buffer, 3, gamma=0.5)
    writer.reset([0.0, 0.0, 0.0])
    ones, ends = [1.0, 1.0, 1.0], torch.tensor([False, True, False])
    step = {"next_frame": ones, "action": ones, "reward": ones}
    writer.add(**step, terminated=ends, truncated=torch.zeros(3, dtype=torch.bool))
    assert writer._has_begun.tolist() == [True, False, True]
