"""SequenceWriter and its helpers: literal tables, trajectory in and rows out, by promise."""

import numpy as np
import pytest
from reference import reference_sequences
from sequence_writers import (
    ForgetsResets,
    IgnoresTruncation,
    NeverEnds,
    NeverPads,
    check_against_reference,
    end_of,
    make,
    rows,
    step,
)
from test_docs import documented, public_names, run_examples

import kary_replay as kr

# length, period, burn_in, steps of the episode -> observations of the rows (they count from 1; a
# padded one is 0)
EPISODES = [
    (4, 4, 0, 8, [[1, 2, 3, 4], [5, 6, 7, 8]]),
    (4, 4, 0, 7, [[1, 2, 3, 4], [5, 6, 7, 0]]),
    (4, 2, 0, 7, [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 0]]),
    (4, 2, 0, 6, [[1, 2, 3, 4], [3, 4, 5, 6]]),  # [5, 6, 0, 0] would have nothing new
    (4, 2, 0, 5, [[1, 2, 3, 4], [3, 4, 5, 0]]),
    (4, 2, 0, 4, [[1, 2, 3, 4]]),
    (4, 2, 0, 3, [[1, 2, 3, 0]]),
    (4, 2, 0, 1, [[1, 0, 0, 0]]),
    (4, 1, 0, 5, [[1, 2, 3, 4], [2, 3, 4, 5]]),
    (4, 3, 0, 5, [[1, 2, 3, 4], [4, 5, 0, 0]]),
    (3, 2, 0, 6, [[1, 2, 3], [3, 4, 5], [5, 6, 0]]),
    (1, 1, 0, 3, [[1], [2], [3]]),
    (4, 2, 2, 7, [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 0]]),
    (4, 2, 2, 2, []),  # nothing beyond the burn-in
    (4, 2, 2, 3, [[1, 2, 3, 0]]),
    (4, 4, 2, 6, [[1, 2, 3, 4]]),  # [5, 6, 0, 0] would be burn-in only
    (4, 4, 2, 7, [[1, 2, 3, 4], [5, 6, 7, 0]]),
    (4, 2, 3, 5, [[1, 2, 3, 4]]),  # [3, 4, 5, 0] would be burn-in only
    (4, 2, 3, 3, []),
]
# with padding before an episode
PADDED = [
    (4, 4, 0, 5, [[1, 2, 3, 4], [5, 0, 0, 0]]),
    (4, 2, 2, 1, [[0, 0, 1, 0]]),
    (4, 2, 2, 2, [[0, 0, 1, 2]]),
    (4, 2, 2, 5, [[0, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 0]]),
    (5, 2, 3, 4, [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]),
    (5, 2, 3, 5, [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [2, 3, 4, 5, 0]]),
    (5, 1, 3, 3, [[0, 0, 0, 1, 2], [0, 0, 1, 2, 3]]),
    (4, 4, 2, 4, [[0, 0, 1, 2]]),  # [3, 4, 0, 0] would be burn-in only
    (4, 4, 2, 5, [[0, 0, 1, 2], [3, 4, 5, 0]]),
]
ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}


def check_episode(writer_class, length, period, burn_in, n_steps, expected, end, **options):
    """Twice in a row: the second episode has nothing of the first."""
    buffer, writer = make(length, period, burn_in, writer=writer_class, **options)
    for _ in range(2):
        for number in range(1, n_steps + 1):
            index = writer.add(**step(number, end if number == n_steps else (False, False)))
            assert index.dtype == np.int64 and index.size <= 1
    assert rows(buffer)["observation"] == expected * 2
    assert rows(buffer)["mask"] == [[number > 0 for number in row] for row in expected * 2]
    assert rows(buffer)["terminated"] == [
        [number == n_steps and end[0] for number in row] for row in expected * 2
    ]
    assert rows(buffer)["truncated"] == [
        [number == n_steps and end[1] for number in row] for row in expected * 2
    ]
    first = [next(number for number in row if number) for row in expected * 2]
    assert rows(buffer)["recurrent_state"] == [[number, -number] for number in first]


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize(("length", "period", "burn_in", "n_steps", "expected"), EPISODES)
def test_one_episode_after_another(length, period, burn_in, n_steps, expected, end):
    check_episode(kr.SequenceWriter, length, period, burn_in, n_steps, expected, end)


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize(("length", "period", "burn_in", "n_steps", "expected"), PADDED)
def test_episodes_with_padding_before_them(length, period, burn_in, n_steps, expected, end):
    how = {"pad_start": True}
    check_episode(kr.SequenceWriter, length, period, burn_in, n_steps, expected, end, **how)


@pytest.mark.parametrize(("length", "period", "burn_in", "n_steps", "expected"), EPISODES)
def test_an_episode_that_goes_on_has_no_padding(length, period, burn_in, n_steps, expected):
    buffer, writer = make(length, period, burn_in)
    for number in range(1, n_steps + 1):
        writer.add(**step(number))
    assert rows(buffer)["observation"] == [row for row in expected if 0 not in row]


def test_r2d2():
    """80 steps, 40 of them burn-in, every 40: each step beyond the first 40 is learned once."""
    buffer, writer = make(80, 40, 40)
    for number in range(1, 251):
        writer.add(**step(number, (number == 250, False)))
    observation, mask = [np.array(rows(buffer)[name]) for name in ("observation", "mask")]
    assert observation[:, 0].tolist() == [1, 41, 81, 121, 161, 201]
    assert mask.sum(axis=1).tolist() == [80, 80, 80, 80, 80, 50]
    learned = kr.split_burn_in(observation, writer.burn_in)[1][
        kr.split_burn_in(mask, writer.burn_in)[1]
    ]
    assert learned.tolist() == list(range(41, 251))


@pytest.mark.parametrize(("length", "burn_in", "n_steps"), [(80, 40, 250), (9, 4, 3), (6, 5, 30)])
def test_with_padding_each_step_is_learned_from_once(length, burn_in, n_steps):
    buffer, writer = make(length, length - burn_in, burn_in, pad_start=True)
    for number in range(1, n_steps + 1):
        writer.add(**step(number, (number == n_steps, False)))
    observation, mask = [np.array(rows(buffer)[name]) for name in ("observation", "mask")]
    learned = observation[:, burn_in:][mask[:, burn_in:]]
    assert learned.tolist() == list(range(1, n_steps + 1))


def test_resetting_begins_with_padding_again():
    buffer, writer = make(4, 2, 2, pad_start=True)
    writer.add(**step(1))
    writer.reset()
    writer.add(**step(2, (True, False)))
    assert rows(buffer)["observation"] == [[0, 0, 2, 0]]
    assert rows(buffer)["recurrent_state"] == [[2, -2]]
    assert writer.pad_start and "pad_start=True" in repr(writer)
    assert not make(4, 2, 2)[1].pad_start


def check_two_environments(writer_class):
    """0 terminates at 3 and is cut off at 5 more; 1 crashes after 2, and goes on without an end."""
    buffer, writer = make(3, 2, n_envs=2, writer=writer_class)
    no = False, False
    index = [writer.add(**step([1, 101], [no, no])), writer.add(**step([2, 102], [no, no]))]
    writer.reset(env=1)
    index += [
        writer.add(**step([3, 201], [(True, False), no])),
        writer.add(**step([11, 202], [no, no])),
        writer.add(**step([12, 203], [no, no])),
        writer.add(**step([13, 204], [no, no])),
        writer.add(**step([14, 205], [(False, True), no])),
    ]
    assert [one.tolist() for one in index] == [[], [], [0], [], [1], [2], [3, 4]]
    assert rows(buffer)["observation"] == [
        [1, 2, 3],
        [201, 202, 203],
        [11, 12, 13],
        [13, 14, 0],
        [203, 204, 205],
    ]
    assert rows(buffer)["recurrent_state"] == [
        [1, -1],
        [201, -201],
        [11, -11],
        [13, -13],
        [203, -203],
    ]


def test_environments_end_at_different_times_and_crash():
    check_two_environments(kr.SequenceWriter)


def test_the_tables_reject_planted_faults():
    def rejects(check, *args):
        with pytest.raises(AssertionError):
            check(*args)

    for case in EPISODES:
        # an episode whose end is no sequence's by chance
        if case[3] % case[1] or case[3] < case[0]:
            rejects(check_episode, NeverEnds, *case, ENDS["terminated"])
    for fault in (NeverEnds, IgnoresTruncation):
        rejects(check_episode, fault, 4, 2, 0, 6, EPISODES[3][4], ENDS["truncated"])
    rejects(check_episode, NeverPads, 4, 2, 0, 5, EPISODES[4][4], ENDS["terminated"])
    for fault in (NeverEnds, IgnoresTruncation, NeverPads, ForgetsResets):
        rejects(check_two_environments, fault)
        with pytest.raises(AssertionError):
            check_against_reference(
                fault,
                3,
                2,
                0,
                False,
                [["step"], ["reset"], ["step"], ["truncated"], ["step"], ["step"]],
                False,
            )


def test_the_reference_writes_the_tables():
    every = [(*each, False) for each in EPISODES] + [(*each, True) for each in PADDED]
    for length, period, burn_in, n_steps, expected, pad_start in every:
        log = [
            {"number": number, "terminated": number == n_steps, "truncated": False}
            for number in range(1, n_steps + 1)
        ]
        found = reference_sequences(log, length, period, burn_in, pad_start)
        assert [
            [one["number"] if one else 0 for one in window] + [0] * (length - len(window))
            for window in found
        ] == expected


def test_only_some_environments_step():
    buffer, writer = make(2, 1, n_envs=3)
    assert writer.add(**step([21, 1], [(False, False)] * 2), env=[2, 0]).size == 0
    assert writer.add(**step(2), env=0).tolist() == [0]
    assert writer.add(**step([], np.empty((0, 2), bool)), env=[]).tolist() == []
    assert writer.add(
        **step([11, 22, 3], [(True, False)] * 2 + [(False, False)]), env=[1, 2, 0]
    ).tolist() == [1, 2, 3]
    assert rows(buffer)["observation"] == [[1, 2], [11, 0], [21, 22], [2, 3]]


def test_nested_fields_and_recurrent_states():
    image = {"camera": kr.Field((2, 2), "uint8"), "inner": {"speed": kr.Field((), "float32")}}
    state = {"hidden": kr.Field((3,), "float32"), "cell": kr.Field((1, 3), "float64")}
    fields = kr.sequence_fields({"observation": image, "action": kr.Field((), "int64")}, 3, state)
    assert fields["observation"]["camera"] == kr.Field((3, 2, 2), "uint8")
    assert fields["recurrent_state"] == state
    buffer = kr.ReplayBuffer(10, fields, seed=0)
    writer = kr.SequenceWriter(buffer, n_envs=2, length=3, period=2)
    for t in range(1, 5):
        speed = np.array([t, 10 * t])
        writer.add(
            observation={"camera": np.full((2, 2, 2), t, np.uint8), "inner": {"speed": speed}},
            action=speed,
            recurrent_state={"hidden": np.full((2, 3), t), "cell": np.full((2, 1, 3), -t)},
            terminated=[False, t == 4],
            truncated=[False, False],
        )
    assert len(buffer) == 3
    assert buffer.field_view("observation")["camera"][:3, :, 1, 1].tolist() == [
        [1, 2, 3],
        [1, 2, 3],
        [3, 4, 0],
    ]
    assert buffer.field_view("observation")["inner"]["speed"][:3].tolist() == [
        [1, 2, 3],
        [10, 20, 30],
        [30, 40, 0],
    ]
    assert buffer.field_view("recurrent_state")["hidden"][:3, 0].tolist() == [1, 1, 3]
    assert buffer.field_view("recurrent_state")["cell"][:3, 0, 2].tolist() == [-1, -1, -3]
    assert buffer.sample(5).observation["camera"].shape == (5, 3, 2, 2)


def test_the_arrays_handed_over_are_not_kept():
    buffer, writer = make(2, 2)
    arrays = step(np.array([1]), [(False, False)])
    writer.add(**arrays)
    for array in arrays.values():
        array[...] = True
    writer.add(**step([2]))
    assert rows(buffer)["observation"] == [[1, 2]] and rows(buffer)["recurrent_state"] == [[1, -1]]


def test_priorities_come_from_a_function_of_the_rows():
    def priority(written):
        assert written["mask"].tolist() == [[True, True, False]]
        return kr.sequence_priority(written["observation"], written["mask"], eta=0.5) + 0.25

    buffer, writer = make(3, 3, priority=priority)
    writer.add(**step(4))
    writer.add(**step(2, (True, False)))
    assert buffer.tree.get(0) == pytest.approx((0.5 * 4 + 0.5 * 3 + 0.25) ** 0.6)


def test_a_step_that_was_refused_has_not_been_taken():
    answers = [np.array([0.0]), np.array([1.0, 2.0]), "x", *[np.array([1.5])] * 3]
    buffer, writer = make(3, 1, priority=lambda _: answers.pop(0))
    for number in range(1, 3):
        writer.add(**step(number))
    for number in (70, 80, 90):
        with pytest.raises((ValueError, TypeError)):
            writer.add(**step(number, (True, False)))
        assert len(buffer) == 0
    for number in range(3, 6):
        assert writer.add(**step(number)).size == 1
    assert rows(buffer)["observation"] == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert rows(buffer)["recurrent_state"] == [[1, -1], [2, -2], [3, -3]]
    assert not any(map(any, rows(buffer)["terminated"]))


def test_writers_of_several_threads_feed_one_buffer(run_threaded):
    buffer, _ = make(4, 2, capacity=1000)

    def act(number):
        writer = kr.SequenceWriter(buffer, n_envs=1, length=4, period=2)
        for t in range(1, 301):
            writer.add(**step(10_000 * number + t, end_of("truncated" if t % 6 == 0 else "step")))

    run_threaded(act, n_threads=3)
    expected = [
        [10_000 * number + 6 * e + s + i for i in range(4)]
        for number in range(3)
        for e in range(50)
        for s in (1, 3)
    ]
    assert sorted(rows(buffer)["observation"]) == expected
    buffer.check_invariants()


def test_the_priority_of_a_sequence():
    errors = np.array(
        [[1.0, -3.0, np.nan], [0.5, 0.5, 0.5], [-2.0, 0.0, 0.0], [np.inf, np.inf, np.inf]],
        np.float32,
    )
    mask = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
    priority = kr.sequence_priority(errors, mask)
    assert priority.dtype == np.float64
    assert priority.tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0.5, 2.0, 0.0])
    assert kr.sequence_priority(errors, mask, eta=1.0).tolist() == [3.0, 0.5, 2.0, 0.0]
    assert kr.sequence_priority(errors, mask, eta=0).tolist() == [2.0, 0.5, 2.0, 0.0]
    assert kr.sequence_priority([[-3, 1]], [[True, True]], 0.5).tolist() == [2.5]
    assert kr.sequence_priority(np.empty((0, 5)), np.empty((0, 5), bool)).shape == (0,)


def test_splitting_off_the_burn_in():
    array = np.arange(24).reshape(2, 4, 3)
    context, learned = kr.split_burn_in({"a": array, "b": {"c": array[:, :, 0]}}, 1)
    assert (
        context["a"].tolist() == array[:, :1].tolist()
        and learned["a"].tolist() == array[:, 1:].tolist()
    )
    assert context["b"]["c"].tolist() == [[0], [12]] and learned["b"]["c"].shape == (2, 3)
    assert learned["a"].base is not None
    assert [part.shape for part in kr.split_burn_in(array, 0)] == [(2, 0, 3), (2, 4, 3)]


def test_examples_in_docstrings():
    texts = {
        **dict(documented("kary_replay.writers.sequences")),
        **dict(documented("kary_replay.writers.sequence_writer")),
    }
    assert (
        sum(run_examples(text, name, public_names(), name) for name, text in texts.items() if text)
        >= 15
    )
