"""NStepWriter: literal tables, trajectory in and rows out, and one promise at a time."""

import numpy as np
import pytest
from n_step_writers import (
    BOTH,
    FIELDS,
    NOT,
    TERMINATED,
    TRUNCATED,
    DropsShortWindows,
    ForgetsResets,
    NeverEnds,
    TakesTerminationForTruncation,
    TakesTruncationForTermination,
    make,
    rows,
    step,
)
from reference import reference_n_step
from test_docs import documented, public_names, run_examples

import kary_replay as kr

# Four steps with rewards 1, 10, 100, 1000 and gamma = 1/2: (first step, last step + 1, return),
# window by window.
FOUR_STEPS = {
    1: [(0, 1, 1.0), (1, 2, 10.0), (2, 3, 100.0), (3, 4, 1000.0)],
    2: [(0, 2, 6.0), (1, 3, 60.0), (2, 4, 600.0), (3, 4, 1000.0)],
    3: [(0, 3, 31.0), (1, 4, 310.0), (2, 4, 600.0), (3, 4, 1000.0)],
    4: [(0, 4, 156.0), (1, 4, 310.0), (2, 4, 600.0), (3, 4, 1000.0)],
}
DISCOUNT = {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.0625}


def check_four_steps(writer_class, n_step, end):
    buffer, writer = make(n_step, writer=writer_class)
    written = []
    for t, reward in enumerate([1.0, 10.0, 100.0, 1000.0]):
        index = writer.add(**step(t, reward, end if t == 3 else NOT))
        assert index.dtype == np.int64
        written.append(len(index))
    expected = []
    for first, stop, reward in FOUR_STEPS[min(n_step, 4)]:
        terminal = stop == 4 and end[0]
        expected.append(
            (first, stop, reward, 0.0 if terminal else DISCOUNT[stop - first], terminal)
        )
    assert rows(buffer) == expected
    assert written == {1: [1, 1, 1, 1], 2: [0, 1, 1, 2], 3: [0, 0, 1, 3]}.get(n_step, [0, 0, 0, 4])
    assert writer.n_pending.tolist() == [0]


@pytest.mark.parametrize(
    "end", [TERMINATED, TRUNCATED, BOTH], ids=["terminated", "truncated", "both"]
)
@pytest.mark.parametrize("n_step", range(1, 11))
def test_an_episode_of_four_steps(n_step, end):
    check_four_steps(kr.NStepWriter, n_step, end)


# Eleven steps of reward 1 without an end, gamma = 1/2: n, return, discount, windows pending.
NO_END = [
    (1, 1.0, 0.5, 0),
    (2, 1.5, 0.25, 1),
    (3, 1.75, 0.125, 2),
    (4, 1.875, 0.0625, 3),
    (5, 1.9375, 0.03125, 4),
    (6, 1.96875, 0.015625, 5),
    (7, 1.984375, 0.0078125, 6),
    (8, 1.9921875, 0.00390625, 7),
    (9, 1.99609375, 0.001953125, 8),
    (10, 1.998046875, 0.0009765625, 9),
]


@pytest.mark.parametrize(("n_step", "reward", "discount", "n_pending"), NO_END)
def test_an_episode_that_goes_on(n_step, reward, discount, n_pending):
    buffer, writer = make(n_step)
    for t in range(11):
        writer.add(**step(t, 1.0))
    assert rows(buffer) == [(t, t + n_step, reward, discount, False) for t in range(12 - n_step)]
    assert writer.n_pending.tolist() == [n_pending]


def check_two_environments(writer_class):
    """Environment 0 terminates after 2 steps, 1 is cut off after 3; then both go on."""
    buffer, writer = make(3, n_envs=2, writer=writer_class)
    index = [
        writer.add(**step([0, 100], [1.0, 2.0], [NOT, NOT])),
        writer.add(**step([1, 101], [10.0, 20.0], [TERMINATED, NOT])),
        writer.add(**step([50, 102], [7.0, 200.0], [NOT, TRUNCATED])),
        writer.add(**step([51, 150], [70.0, 3.0], [NOT, NOT])),
        writer.add(**step([52, 151], [700.0, 30.0], [NOT, BOTH])),
    ]
    assert [one.tolist() for one in index] == [[], [0, 1], [2, 3, 4], [], [5, 6, 7]]
    assert rows(buffer) == [
        (0, 2, 6.0, 0.0, True),
        (1, 2, 10.0, 0.0, True),
        (100, 103, 62.0, 0.125, False),
        (101, 103, 120.0, 0.25, False),
        (102, 103, 200.0, 0.5, False),
        (50, 53, 217.0, 0.125, False),
        (150, 152, 18.0, 0.0, True),
        (151, 152, 30.0, 0.0, True),
    ]
    assert writer.n_pending.tolist() == [2, 0]


def test_environments_end_at_different_times():
    check_two_environments(kr.NStepWriter)


def check_reset(writer_class):
    """Environment 0 crashes after two steps; 1 does not notice."""
    buffer, writer = make(3, n_envs=2, writer=writer_class)
    writer.add(**step([0, 100], [1.0, 2.0], [NOT, NOT]))
    writer.add(**step([1, 101], [10.0, 20.0], [NOT, NOT]))
    writer.reset(env=0)
    assert writer.n_pending.tolist() == [0, 2]
    writer.add(**step([50, 102], [7.0, 200.0], [NOT, NOT]))
    writer.add(**step([51, 103], [70.0, 2000.0], [TERMINATED, NOT]))
    assert rows(buffer) == [
        (100, 103, 62.0, 0.125, False),
        (50, 52, 42.0, 0.0, True),
        (51, 52, 70.0, 0.0, True),
        (101, 104, 620.0, 0.125, False),
    ]
    writer.reset()
    assert writer.n_pending.tolist() == [0, 0]


def test_a_reset_drops_what_is_pending():
    check_reset(kr.NStepWriter)


def test_the_tables_reject_planted_faults():
    def rejects(check, *args):
        with pytest.raises(AssertionError):
            check(*args)

    for n_step in range(2, 11):
        rejects(check_four_steps, NeverEnds, n_step, TRUNCATED)
        rejects(check_four_steps, DropsShortWindows, n_step, TERMINATED)
    for n_step in range(1, 11):
        rejects(check_four_steps, NeverEnds, n_step, TERMINATED)
        rejects(check_four_steps, TakesTruncationForTermination, n_step, TRUNCATED)
        rejects(check_four_steps, TakesTerminationForTruncation, n_step, TERMINATED)
    for fault in (
        NeverEnds,
        TakesTruncationForTermination,
        TakesTerminationForTruncation,
        DropsShortWindows,
    ):
        rejects(check_two_environments, fault)
    rejects(check_reset, ForgetsResets)


def test_which_step_a_field_comes_from():
    image = {"camera": kr.Field((2, 2), "uint8"), "inner": {"speed": kr.Field((), "float32")}}
    number, flag, flags = kr.Field((), "float32"), kr.Field((), "bool"), kr.Field((3,), "bool")
    fields = {
        "observation": image,
        "action": {"left": kr.Field((), "int8"), "right": kr.Field((2,), "float32")},
        "reward": number,
        "next_observation": image,
        "discount": number,
        "terminated": flag,
        "truncated": flag,
        "log_prob": number,
        "legal": flags,
        "next_legal": flags,
    }
    buffer, writer = make(2, n_envs=2, fields=fields)

    def see(t):
        return {"camera": np.full((2, 2, 2), t, np.uint8), "inner": {"speed": [t, t + 0.5]}}

    for t in range(3):
        index = writer.add(
            observation=see(t),
            action={"left": [t, -t], "right": np.full((2, 2), t)},
            reward=[1, 2],
            next_observation=see(t + 10),
            terminated=[False, False],
            truncated=[False, t == 2],
            log_prob=[-t, t],
            legal=np.full((2, 3), t == 1),
            next_legal=np.full((2, 3), t == 2),
        )
    assert index.tolist() == [2, 3, 4]
    assert len(buffer) == 5
    view = {name: buffer.field_view(name) for name in fields}
    assert view["observation"]["camera"][:5, 1, 1].tolist() == [0, 0, 1, 1, 2]
    assert view["observation"]["inner"]["speed"][:5].tolist() == [0, 0.5, 1, 1.5, 2.5]
    assert view["next_observation"]["camera"][:5, 0, 1].tolist() == [11, 11, 12, 12, 12]
    assert view["next_observation"]["inner"]["speed"][:5].tolist() == [11, 11.5, 12, 12.5, 12.5]
    assert view["action"]["left"][:5].tolist() == [0, 0, 1, -1, -2]
    assert view["action"]["right"][:5, 1].tolist() == [0, 0, 1, 1, 2]
    assert view["reward"][:5].tolist() == [1.5, 3, 1.5, 3, 2]
    assert view["discount"][:5].tolist() == [0.25, 0.25, 0.25, 0.25, 0.5]
    assert view["truncated"][:5].tolist() == [False, False, False, True, True]
    assert not view["terminated"][:5].any()
    assert view["log_prob"][:5].tolist() == [0, 0, -1, 1, 2]
    assert view["legal"][:5, 0].tolist() == [False, False, True, True, False]
    assert view["next_legal"][:5, 0].tolist() == [False, False, True, True, True]


def test_only_some_environments_step():
    buffer, writer = make(2, n_envs=4)
    assert writer.add(**step([20, 0], [2.0, 1.0], [NOT, NOT]), env=[2, 0]).size == 0
    assert writer.n_pending.tolist() == [1, 0, 1, 0]
    assert writer.add(**step(1, 10.0), env=0).tolist() == [0]
    assert writer.add(**step([], np.empty(0), np.empty((0, 2), bool)), env=[]).tolist() == []
    index = writer.add(
        **step([30, 21, 2], [3.0, 20.0, 100.0], [TERMINATED, TERMINATED, NOT]),
        env=np.array([3, 2, 0], np.uint8),
    )
    assert index.tolist() == [1, 2, 3, 4]
    assert rows(buffer) == [
        (0, 2, 6.0, 0.25, False),
        (30, 31, 3.0, 0.0, True),
        (20, 22, 12.0, 0.0, True),
        (21, 22, 20.0, 0.0, True),
        (1, 3, 60.0, 0.25, False),
    ]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.99, 0.997, 1.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_returns_are_as_exact_as_their_field(gamma, dtype, rng):
    fields = {**FIELDS, "reward": kr.Field((), dtype), "discount": kr.Field((), dtype)}
    log = [
        {"reward": reward, "terminated": False, "truncated": False}
        for reward in rng.normal(size=300)
    ]
    buffer, writer = make(10, gamma, fields=fields)
    for t, one in enumerate(log):
        writer.add(**step(t, one["reward"]))
    windows = reference_n_step(log, 10, gamma)
    assert len(windows) == len(buffer) == 291
    expected = np.array([float(reward) for _, reward, _ in windows])
    tolerance = 1e-15 * 10 + np.spacing(np.abs(expected).astype(dtype)).astype(np.float64) / 2
    assert np.all(
        np.abs(buffer.field_view("reward")[:291].astype(np.float64) - expected) <= tolerance
    )
    discount = np.array(float(windows[0][2])).astype(dtype)
    np.testing.assert_array_almost_equal_nulp(
        buffer.field_view("discount")[:291], np.full(291, discount), 1
    )


def test_rewards_are_summed_in_double_precision():
    fields = {**FIELDS, "reward": kr.Field((), "float32")}
    buffer, writer = make(3, 1.0, fields=fields)
    for reward in (2.0**24, 1.0, -(2.0**24)):
        writer.add(**step(0, reward))
    assert buffer.field_view("reward")[0] == 1.0


def test_the_arrays_handed_over_are_not_kept():
    buffer, writer = make(2, n_envs=1)
    arrays = step(np.array([1]), np.array([8.0]), [NOT])
    writer.add(**arrays)
    for array in arrays.values():
        array[...] = True
    writer.add(**step([2], [4.0], [TERMINATED]))
    assert rows(buffer) == [(1, 3, 10.0, 0.0, True), (2, 3, 4.0, 0.0, True)]


def test_the_buffer_may_be_uniform_small_and_full():
    buffer = kr.ReplayBuffer(3, FIELDS, seed=0)
    writer = kr.NStepWriter(buffer, n_envs=2, n_step=3, gamma=0.5)
    for t in range(3):
        index = writer.add(**step([t, 10 + t], [1.0, 1.0], [TRUNCATED if t == 2 else NOT] * 2))
    assert index.tolist() == [0, 1, 2, 0, 1, 2]
    assert [row[:2] for row in rows(buffer)] == [(10, 13), (11, 13), (12, 13)]
    buffer.check_invariants()


def test_priorities_come_from_a_function_of_the_rows():
    seen = []

    def priority(written):
        seen.append(written)
        return np.abs(written["reward"]) + 0.5

    buffer, writer = make(2, priority=priority)
    writer.add(**step(0, 4.0))
    assert not seen
    writer.add(**step(1, -8.0, TERMINATED))
    assert set(seen[0]) == set(FIELDS) and seen[0]["observation"].tolist() == [0, 1]
    assert buffer.tree.get([0, 1]) == pytest.approx(np.array([0.5, 8.5]) ** 0.6)
    assert make(2)[0].max_priority == 1.0


def test_a_step_that_was_refused_has_not_been_taken():
    """A step refused by priorities, buffer or sum goes through again, as if nothing had been."""
    answers = [np.array([0.0]), np.array([1.0, 2.0]), "x", np.array([1.5])]
    buffer, writer = make(
        2, fields={**FIELDS, "reward": kr.Field((), "float32")}, priority=lambda _: answers.pop(0)
    )
    # before any window is complete
    with pytest.raises(kr.errors.FieldError, match=r"reward is beyond 3\.4"):
        writer.add(**step(0, 1e39))
    writer.add(**step(0, 1.0))
    for _ in range(3):
        with pytest.raises((ValueError, TypeError)):
            writer.add(**step(1, 10.0))
        assert (len(buffer), writer.n_pending.tolist()) == (0, [1])
    assert writer.add(**step(1, 10.0)).tolist() == [0]
    with pytest.raises(kr.errors.FieldError, match="reward"):
        writer.add(**step(2, 1e39))
    answers += [np.array([1.0])] * 2
    writer.add(**step(2, 3e38))
    with pytest.raises(kr.errors.FieldError, match=r"n-step sum of reward is beyond 3\.4"):
        writer.add(**step(3, 3e38))
    writer.add(**step(3, 0.0))
    assert [row[:3] for row in rows(buffer)] == [
        (0, 2, 6.0),
        (1, 3, pytest.approx(1.5e38)),
        (2, 4, pytest.approx(3e38)),
    ]


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"),
    [
        ("float16", 65504.0, 65520.0),
        ("float32", 2.0**128 - 2.0**104, 2.0**128 - 2.0**103),
        ("longdouble", 1.7e308, None),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_reward_is_refused_from_where_its_field_would_make_it_infinite(
    dtype, largest, beyond, sign
):
    buffer, writer = make(2, 1.0, fields={**FIELDS, "reward": kr.Field((), dtype)})
    writer.add(**step(0, sign * largest, TERMINATED))
    if beyond is not None:
        writer.add(**step(1, sign * np.nextafter(beyond, 0), TERMINATED))
        with pytest.raises(kr.errors.FieldError, match=f"^reward is beyond .* largest {dtype}"):
            writer.add(**step(2, sign * beyond, TERMINATED))
        writer.add(**step(2, sign * beyond / 2))
        with pytest.raises(kr.errors.FieldError, match=f"^the n-step sum .* largest {dtype}"):
            writer.add(**step(3, sign * beyond / 2))
    assert set(buffer.field_view("reward")[: len(buffer)].tolist()) == {sign * largest}


def test_columns_may_lie_anywhere():
    """The third of each number, of arrays that are not contiguous."""
    expected, found = [], []
    for apart in (1, 3):
        buffer, writer = make(2, n_envs=4)
        for t in range(5):
            ends = np.array([[t == 3, t == 4], [False, t == 2], [t == 1, False], NOT])
            given = step(np.arange(4) + 10 * t, np.arange(4.0) - t, ends)
            for name, column in given.items():
                given[name] = np.repeat(column, apart)[::apart]
            writer.add(**given)
        (expected if apart == 1 else found).extend(rows(buffer))
    assert found == expected and len(found) > 10


def test_a_state_of_no_writer_is_noticed():
    buffer, writer = make(2, n_envs=2)
    writer.load_state_dict({**writer.state_dict(), "n_steps": np.array([0, -2])})
    for _ in range(2):
        with pytest.raises(ValueError, match="has taken -2 steps"):
            writer.add(**step([0, 10], [1.0, 2.0], [TERMINATED] * 2))
        assert len(buffer) == 0
    writer.reset()
    assert len(writer.add(**step([0, 10], [1.0, 2.0], [TERMINATED] * 2))) == 2


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_float64_is_refused_when_it_arises(sign):
    large = sign * 1.7e308
    buffer = kr.ReplayBuffer(10, FIELDS)
    writer = kr.NStepWriter(buffer, n_envs=2, n_step=3, gamma=1.0)
    writer.add(**both(0, large, 1.0))
    for _ in range(2):
        with pytest.raises(kr.errors.FieldError, match=r"with reward -?1\.7e\+308 and gamma 1\.0"):
            writer.add(**both(1, large, 1.0))
        assert (len(buffer), writer.n_pending.tolist()) == (0, [1, 1])
    writer.add(**both(1, -large, 1.0))
    writer.add(**both(2, large, 1.0))
    assert buffer.field_view("reward")[:2].tolist() == [large, 3.0]


def test_sums_of_windows_that_have_ended_overflow_unnoticed():
    buffer = kr.ReplayBuffer(10, FIELDS)
    writer = kr.NStepWriter(buffer, n_envs=1, n_step=3, gamma=1.0)
    for t in range(4):
        writer.add(**step(t, 1.7e308, TERMINATED))
    assert buffer.field_view("reward")[:4].tolist() == [1.7e308] * 4


def test_infinite_rewards_are_the_users_own():
    buffer = kr.ReplayBuffer(10, FIELDS)
    writer = kr.NStepWriter(buffer, n_envs=1, n_step=2, gamma=0.5)
    for t, reward in enumerate([np.inf, 1.0, np.nan, 1.0, -np.inf]):
        writer.add(**step(t, reward))
    stored = buffer.field_view("reward")[:4]
    np.testing.assert_array_equal(stored, [np.inf, np.nan, np.nan, -np.inf])


def both(t, *rewards):
    """One step of two environments."""
    numbers = {"observation": [t, t], "action": [0, 0], "next_observation": [t + 1, t + 1]}
    return {**numbers, "reward": rewards, "terminated": [False] * 2, "truncated": [False] * 2}


def test_writers_of_several_threads_feed_one_buffer(run_threaded):
    n_threads, n_steps = 3, 300
    buffer = kr.PrioritizedReplayBuffer(n_threads * n_steps, FIELDS, seed=0)

    def act(number):
        writer = kr.NStepWriter(buffer, n_envs=1, n_step=3, gamma=0.5)
        for t in range(n_steps):
            writer.add(**step(10_000 * number + t, 1.0, TRUNCATED if t % 10 == 9 else NOT))

    run_threaded([lambda number=number: act(number) for number in range(n_threads)])
    expected = []
    for first in (10_000 * number + t for number in range(n_threads) for t in range(n_steps)):
        k = min(3, 10 - first % 10)
        expected.append((first, first + k, 2 - 0.5 ** (k - 1), 0.5**k, False))
    assert sorted(rows(buffer)) == expected
    buffer.check_invariants()


def test_examples_in_docstrings():
    texts = dict(documented("kary_replay.writers.n_step"))
    assert (
        sum(run_examples(text, name, public_names(), name) for name, text in texts.items() if text)
        >= 10
    )
