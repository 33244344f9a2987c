"""The buffer by itself: what goes in, what comes out, what comes back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as RllibBuffer
from rllib_episodes import check_row, episode, observation

from kary_replay.adapters.rllib import DrawnRows, PrioritizedEpisodeReplayBuffer, checkpoint
from kary_replay.errors import CheckpointError, EmptyBufferError, FieldError


def buffer(capacity: int = 1_000, **options) -> PrioritizedEpisodeReplayBuffer:
    return PrioritizedEpisodeReplayBuffer(capacity, **{"seed": 0, **options})


def times(rows) -> list[tuple[int, int]]:
    return [tuple(map(int, row.get_observations(0))) for row in rows]


def masses(one) -> dict[tuple[int, int], float]:
    """The mass of every step that is there."""
    steps = one._steps
    slots = np.arange(len(steps.native))
    seen = steps.native.field_view("observation")[slots].astype(int)
    found = zip(map(tuple, seen.tolist()), steps.native.tree.get(slots), strict=True)
    return {where: mass for where, mass in found if mass}


# ------------------------------------------------------------------------------------------- add


def test_it_is_one_of_rllibs_and_knows_its_counts():
    one = buffer()
    assert isinstance(one, RllibBuffer) and len(one) == 0
    one.add([episode(0, 0, 5), episode(1, 0, 3, terminated=True)])
    assert (len(one), one.get_num_timesteps(), one.get_num_episodes()) == (8, 8, 2)
    assert (one.get_added_timesteps(), one.get_num_episodes_evicted()) == (8, 0)
    one.sample(4)
    assert one.get_sampled_timesteps() == 4
    assert "8 steps of 2 episodes" in repr(one)


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_chunks_make_the_same_as_whole_episodes(numpy, length):
    whole, pieces = buffer(), buffer()
    whole.add([episode(0, 0, 14, truncated=True), episode(1, 0, 7)])
    for first in range(0, 14, length):
        last = min(first + length, 14)
        pieces.add(episode(0, first, last, truncated=last == 14, numpy=numpy))
    for first in range(0, 7, length):
        pieces.add([episode(1, first, min(first + length, 7), numpy=numpy)])
    assert len(whole) == len(pieces) == 21
    assert len(whole._steps.native) == len(pieces._steps.native) == 23  # and two newest ones
    for one in (whole, pieces):
        rows = one.sample(210, n_step=4, gamma=0.9)
        assert set(times(rows)) == {(0, t) for t in range(14)} | {(1, t) for t in range(7)}
        for row in rows:
            check_row(row, {0: 14, 1: 7}, {0: (False, True)}, 0.9, 4)


def test_chunks_with_lookback_are_stored_once():
    one = buffer()
    going = SingleAgentEpisode("episode 0", len_lookback_buffer=0)
    going.add_env_reset(observation(0, 0))
    for time in range(6):
        going.add_env_step(observation(0, time + 1), time, 100.0 * 0 + time)
        if time % 2:
            done, going = going, going.cut(len_lookback_buffer=1)
            one.add(done.to_numpy())
    assert len(one) == 6 and len(one._steps.native) == 7
    for row in one.sample(60, n_step=2):
        check_row(row, {0: 6}, {}, 0.99, 2)


def test_two_chunks_of_an_episode_may_come_at_once():
    one = buffer()
    one.add(
        [episode(0, 0, 2), episode(1, 0, 1), episode(0, 2, 3), episode(0, 3, 5, terminated=True)]
    )
    assert len(one) == 6 and one.get_num_episodes() == 2
    for row in one.sample(60, n_step=3):
        check_row(row, {0: 5, 1: 1}, {0: (True, False)}, 0.99, 3)


def test_a_chunk_that_does_not_go_on_where_the_last_one_ended_begins_anew():
    one = buffer()
    one.add(episode(0, 0, 2))
    one.add(episode(0, 4, 6))  # 2 and 3 were lost with an EnvRunner
    for row in one.sample(80, n_step=3):
        time = row.t_started
        assert row.get_extra_model_outputs("n_step", -1) == min(3, (2 if time < 2 else 6) - time)
    one.add(episode(0, 6, 7))
    assert {time for _, time in times(one.sample(100))} == {0, 1, 4, 5, 6}


def test_an_episode_that_begins_again_under_a_former_name_is_another_one():
    one = buffer()
    one.add(episode(0, 0, 2, terminated=True))
    one.add(episode(0, 2, 3))
    assert one.get_num_episodes() == 2
    assert {row.is_terminated for row in one.sample(50) if row.t_started == 1} == {True}


def test_steps_leave_in_the_order_in_which_they_came():
    one = buffer(capacity=10)
    for number in range(5):
        one.add(episode(number, 0, 3, terminated=True))
    # 10 rows: of the third episode the last 2, and two whole ones
    assert (len(one), one.get_num_episodes(), one.get_num_episodes_evicted()) == (7, 3, 2)
    seen = set(times(one.sample(200)))
    assert seen == {(2, 2)} | {(n, t) for n in (3, 4) for t in range(3)}
    assert one.get_added_timesteps() == 15


def test_an_episode_longer_than_the_buffer_keeps_its_end():
    one = buffer(capacity=8)
    one.add([episode(0, 0, 3), episode(1, 0, 100, terminated=True)])
    assert len(one) == 7 and set(times(one.sample(100))) == {(1, t) for t in range(93, 100)}
    for row in one.sample(100, n_step=3):
        check_row(row, {1: 100}, {1: (True, False)}, 0.99, 3)


def test_a_running_episode_whose_rows_have_left_begins_anew():
    one = buffer(capacity=8)
    one.add(episode(0, 0, 2))
    one.add(episode(1, 0, 7, terminated=True))
    one.add(episode(0, 2, 4))
    assert set(times(one.sample(100))) == {(0, 2), (0, 3)} | {(1, t) for t in range(3, 7)}
    for row in one.sample(100, n_step=3):
        check_row(row, {0: 4, 1: 7}, {1: (True, False)}, 0.99, 3)


@pytest.mark.parametrize("others", range(3, 14))
def test_a_last_step_that_pushes_out_its_own_beginning_is_kept(others):
    one = buffer(capacity=10)
    one.add(episode(0, 0, 2))
    one.add(episode(1, 0, others))
    one.add(episode(0, 2, 3, terminated=True))
    rows = [row for row in one.sample(300) if tuple(map(int, row.get_observations(0))) == (0, 2)]
    assert rows and all(row.is_terminated for row in rows)
    assert len(one) == len(masses(one))


def test_many_environments_in_a_small_buffer_lose_no_newest_steps():
    one = buffer(capacity=24)
    for time in range(50):
        one.add([episode(number, time, time + 1) for number in range(8)])
        assert {(number, time) for number in range(8)} <= set(masses(one))
        assert len(one) == len(masses(one)) <= 16


def test_long_use_keeps_no_more_than_the_ring():
    one = buffer(capacity=50)
    for number in range(500):
        one.add(episode(number, 0, 2))  # none of them ends
    assert len(one._steps.tails) == len(one._steps.open) == 17
    one._steps.native.check_invariants()


def test_nested_observations_and_actions_come_back_as_they_were():
    def nested(first, last):
        return SingleAgentEpisode(
            "nested",
            observations=[
                {"image": np.full((2, 2), t, np.uint8), "rest": (np.float32(t), {"x": t})}
                for t in range(first, last + 1)
            ],
            actions=[(t, np.full(3, t, np.float32)) for t in range(first, last)],
            rewards=[float(t) for t in range(first, last)],
            t_started=first,
            len_lookback_buffer=0,
        )

    one = buffer()
    one.add(nested(0, 3).to_numpy())
    one.add(nested(3, 4))
    for row in one.sample(20):
        first, second = row.get_observations(0), row.get_observations(-1)
        assert first["image"].dtype == np.uint8 and (first["image"] == row.t_started).all()
        assert first["rest"][0] == first["rest"][1]["x"] == row.t_started
        assert (second["image"] == row.t_started + 1).all()
        assert row.get_actions(-1)[0] == row.t_started
        assert (row.get_actions(-1)[1] == row.t_started).all()
    other = episode(0, 0, 2)
    with pytest.raises(FieldError, match="another structure"):
        one.add(other)


def test_keys_of_observations_may_be_any():
    def made(t):
        return {"a": {"b": np.float32([1, t])}, "a.b": np.float32([2, t]), "0": t, "1": -t}

    one = buffer()
    one.add(
        SingleAgentEpisode(
            observations=[made(t) for t in range(4)],
            actions=[0, 1, 2],
            rewards=[1.0, 1.0, 1.0],
            len_lookback_buffer=0,
        )
    )
    for row in one.sample(12):
        found, t = row.get_observations(0), row.t_started
        assert found["a"]["b"].tolist() == [1, t] and found["a.b"].tolist() == [2, t]
        assert (found["0"], found["1"]) == (t, -t)


def test_outputs_of_the_module_are_kept_where_that_is_asked_for():
    def made(first, last):
        n = last - first
        return episode(
            0, first, last, extra_model_outputs={"logp": [0.5 * first] * n, "x": [1] * n}
        )

    one = buffer(extra_model_outputs=["logp"])
    one.add(made(0, 1))
    one.add(made(1, 2))
    with_it, without = one.sample(8, include_extra_model_outputs=True), one.sample(8)
    assert {float(row.get_extra_model_outputs("logp", -1)) for row in with_it} == {0.0, 0.5}
    assert "logp" not in without[0].extra_model_outputs
    with pytest.raises(FieldError, match="has no 'logp'"):
        one.add(episode(1, 0, 2))
    for name in ("reward", "weights", "new_obs", "a.b"):
        with pytest.raises(FieldError, match=rf"must have no dot and be none of .*{name}"):
            buffer(extra_model_outputs=[name]).add(
                episode(0, 0, 1, extra_model_outputs={name: [1]})
            )


# ----------------------------------------------------------------------------------- add, refused


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda: MultiAgentEpisode(), TypeError, "MultiAgentEpisode"),
        (lambda: {"obs": [1]}, TypeError, "old API stack"),
        (lambda: _without("actions"), FieldError, "only 0 rows of action, not 2"),
        (lambda: _without("rewards"), FieldError, "rewards of shape"),
        (lambda: _other_shape(), FieldError, r"must be float32 \[2\].*got float32 \[3\]"),
        (lambda: _other_dtype(), FieldError, "must be int64"),
        (lambda: _whole_numbers(2**24 + 1), FieldError, "must be float32"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(wrong, error, says):
    one = buffer()
    one.add(episode(0, 0, 3))
    before = pickle.dumps(one.get_state())
    with pytest.raises(error, match=says):
        one.add([episode(0, 3, 4), wrong()])
    assert pickle.dumps(one.get_state()) == before
    one.add(episode(0, 3, 4))
    assert len(one) == 4


def _without(what):
    made = episode(1, 0, 2)
    getattr(made, what).data = getattr(made, what).data[:0]
    return made


def _other_shape():
    return SingleAgentEpisode(
        observations=[np.zeros(3, np.float32)] * 2,
        actions=[1],
        rewards=[1.0],
        len_lookback_buffer=0,
    )


def _whole_numbers(value):
    return SingleAgentEpisode(
        observations=[np.array([value, 0])] * 2, actions=[1], rewards=[1.0], len_lookback_buffer=0
    )


def _other_dtype():
    return SingleAgentEpisode(
        observations=[observation(0, 0)] * 2, actions=[1.5], rewards=[1.0], len_lookback_buffer=0
    )


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf, "high", np.array([1.0, 2.0, 3.0])])
def test_a_weight_out_of_range_is_refused(weight):
    one = buffer()
    one.add(episode(0, 0, 3))
    before = pickle.dumps(one.get_state())
    with pytest.raises((ValueError, TypeError), match="weight must be"):
        one.add(episode(0, 3, 6), weight)
    assert pickle.dumps(one.get_state()) == before


def test_steps_of_one_episode_that_differ_are_refused():
    ragged = SingleAgentEpisode(
        observations=[np.zeros(3), np.zeros(2)], actions=[1], rewards=[1.0], len_lookback_buffer=0
    )
    with pytest.raises(FieldError, match="steps of one episode differ"):
        buffer().add(ragged)


def test_episodes_without_a_step_change_nothing():
    one = buffer()
    one.add([])
    begun = SingleAgentEpisode("episode 0", len_lookback_buffer=0)
    begun.add_env_reset(observation(0, 0))
    one.add(begun)
    assert len(one) == 0
    with pytest.raises(EmptyBufferError, match="empty buffer"):
        one.sample(1)


# ---------------------------------------------------------------------------------------- sample


@pytest.mark.parametrize("n_step", [None, 1, 2, 5, 50])
def test_every_step_is_drawn_with_the_return_that_its_episode_has(n_step):
    one = buffer()
    one.add([episode(0, 0, 6, terminated=True), episode(1, 0, 1, truncated=True), episode(2, 0, 4)])
    rows = one.sample(220, n_step=n_step, gamma=0.8)
    assert set(times(rows)) == {
        *((0, t) for t in range(6)),
        (1, 0),
        *((2, t) for t in range(4)),
    }
    for row in rows:
        ended = {0: (True, False), 1: (False, True)}
        check_row(row, {0: 6, 1: 1, 2: 4}, ended, 0.8, n_step or 1)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_range_of_n_has_both_its_ends(kind):
    one = buffer()
    one.add(episode(0, 0, 500))
    rows = one.sample(2_000, n_step=kind((2, 5)))
    far = [row.get_extra_model_outputs("n_step", -1) for row in rows if row.t_started < 490]
    share = np.bincount(far, minlength=6)[2:] / len(far)
    assert len(share) == 4 and np.abs(share - 0.25).max() < 0.05


def test_draws_follow_the_priorities_and_weights_correct_for_them():
    alpha, beta, n = 0.7, 0.5, 40
    one = buffer(alpha=alpha, beta=beta, priority_epsilon=1e-3)
    one.add(episode(0, 0, n, terminated=True))
    errors = np.random.default_rng(1).exponential(size=n)
    seen = {}
    while len(seen) < n:  # give each step its error
        rows = one.sample(n)
        one.update_priorities(np.array([errors[row.t_started] for row in rows]))
        seen |= {row.t_started: None for row in rows}
    mass = (errors + 1e-3) ** alpha
    share = mass / mass.sum()
    counts = np.zeros(n)
    for _ in range(100):
        rows = one.sample(200)
        drawn = np.array([row.t_started for row in rows])
        weights = np.array([row.get_extra_model_outputs("weights", -1) for row in rows])
        expected = (n * share[drawn]) ** -beta
        np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)
        counts += np.bincount(drawn, minlength=n)
        one.update_priorities(errors[drawn])
    expected = 20_000 * share
    statistic = ((counts - expected) ** 2 / expected).sum()  # stratified, so below a chi-square
    assert statistic < 75.0  # 99.9 % of a chi-square of 39
    assert ((counts - 20_000 / n) ** 2 / (20_000 / n)).sum() > 1_000  # uniform draws are not it


def test_a_step_completed_by_a_later_chunk_has_the_largest_priority():
    one = buffer(alpha=0.5)
    one.add(episode(0, 0, 2))
    one.sample(4)
    one.update_priorities(np.full(4, 8.0))
    one.add(episode(0, 2, 4))
    one.add(episode(0, 4, 5), weight=3.0)
    found = masses(one)
    largest = one._steps.native.max_priority
    assert largest == pytest.approx(8.0, rel=1e-6)
    assert found[0, 2] == found[0, 3] == pytest.approx(largest**0.5)
    assert found[0, 4] == pytest.approx(3.0**0.5)
    assert (0, 5) not in found


def test_the_newest_observation_is_never_drawn():
    one = buffer(alpha=0.0)
    for time in range(30):
        one.add(episode(0, time, time + 1))
        assert max(time for _, time in times(one.sample(50))) <= time
        assert len(masses(one)) == len(one) == time + 1


def test_whole_batches_are_the_same_rows_as_episodes():
    made = [buffer(whole_batches=whole, beta=0.4) for whole in (False, True)]
    for one in made:
        one.add([episode(0, 0, 20, terminated=True), episode(1, 0, 9)])
    rows, (drawn,) = (one.sample(16, n_step=(1, 3)) for one in made)
    assert isinstance(drawn, DrawnRows) and len(drawn) == drawn.env_steps() == 16
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(drawn.columns["obs"][i], row.get_observations(0))
        np.testing.assert_array_equal(drawn.columns["new_obs"][i], row.get_observations(-1))
        assert drawn.columns["rewards"][i] == row.get_rewards(-1)
        assert drawn.columns["weights"][i] == row.get_extra_model_outputs("weights", -1)
    assert rows[0].to_numpy().is_numpy and made[0].sample(1, to_numpy=True)[0].is_numpy


def test_the_same_seed_draws_the_same():
    def drawn():
        one = buffer()
        one.add(episode(0, 0, 100))
        return [(row.t_started, len(row)) for row in one.sample(50, n_step=(1, 4))]

    assert drawn() == drawn()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_items": 3, "batch_size_B": 3}, "one of num_items and batch_size_B"),
        ({"num_items": -1}, "num_items must be at least 1"),
        ({"num_items": 0}, "num_items must be at least 1"),
        ({"num_items": 2.5}, "num_items must be an integer"),
        ({"n_step": 0}, "n_step must be at least 1"),
        ({"beta": "high"}, "beta must be a number"),
        ({"gamma": None}, "gamma must be a number"),
        ({"batch_length_T": -3}, "batch_length_T must be at least 0"),
        ({"n_step": 0.5}, "n_step must be an integer"),
        ({"n_step": (2, 1)}, "must not begin above its end"),
        ({"n_step": (1, 2, 3)}, "an integer or a pair"),
        ({"n_step": -2}, "n_step must be at least 1"),
        ({"beta": -0.1}, "beta must be from 0 to 1"),
        ({"beta": np.nan}, "beta must be from 0 to 1"),
        ({"gamma": 1.5}, "gamma must be from 0 to 1"),
        ({"include_infos": True}, "infos are dicts"),
        ({"batch_length_T": 20, "lookback": 1}, "draws steps, not sequences"),
        ({"min_batch_length_T": 5}, "draws steps, not sequences"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments, says):
    one = buffer()
    one.add(episode(0, 0, 3))
    with pytest.raises((ValueError, TypeError), match=says):
        one.sample(**arguments)
    assert one.get_sampled_timesteps() == 0


def test_it_asserts_as_rllib_does():
    one = buffer()
    one.add(episode(0, 0, 3))
    with pytest.raises(AssertionError):
        one.sample(beta=-1.0)
    with pytest.raises(AssertionError):
        one.update_priorities(np.ones(3))


# ------------------------------------------------------------------------------ update_priorities


def test_errors_go_to_the_rows_drawn_last_and_to_no_others():
    one = buffer(alpha=1.0, priority_epsilon=1e-9)
    one.add(episode(0, 0, 50))
    rows = one.sample(10)
    errors = {row.t_started: 2.0 + row.t_started for row in rows}
    one.update_priorities(np.array([errors[row.t_started] for row in rows]), DEFAULT_MODULE_ID)
    for (_, time), mass in masses(one).items():
        assert mass == pytest.approx(errors.get(time, 1.0))


def test_priorities_of_other_rows_are_refused():
    one = buffer()
    one.add(episode(0, 0, 5))
    with pytest.raises(ValueError, match="0 rows drawn last, got 5"):
        one.update_priorities(np.ones(5))
    one.sample(5)
    with pytest.raises(ValueError, match="5 rows drawn last, got 4"):
        one.update_priorities(np.ones(4))
    before = masses(one)
    with pytest.raises(ValueError, match="nan"):
        one.update_priorities(np.array([1.0, np.nan, 1, 1, 1]))
    assert masses(one) == before
    one.update_priorities(np.full(5, 7.0))  # those rows can be updated still
    with pytest.raises(ValueError, match="0 rows drawn last"):
        one.update_priorities(np.ones(5))


def test_a_row_overwritten_since_keeps_its_own_priority():
    one = buffer(capacity=6, alpha=1.0)
    one.add(episode(0, 0, 5, terminated=True))
    one.sample(5)
    one.add(episode(1, 0, 5, terminated=True))
    one.update_priorities(np.full(5, 100.0))
    assert set(masses(one).values()) == {1.0}


@pytest.mark.parametrize("call", ["get_num_timesteps", "get_num_episodes", "get_added_timesteps"])
def test_other_modules_are_unknown(call):
    one = buffer()
    assert getattr(one, call)(DEFAULT_MODULE_ID) == 0
    with pytest.raises(ValueError, match="'other'"):
        getattr(one, call)("other")
    with pytest.raises(ValueError, match="'other'"):
        one.update_priorities(np.ones(1), "other")


# ---------------------------------------------------------------------------- constructor, metrics


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"capacity": 1}, "capacity must be at least 2"),
        ({"capacity": 10.5}, "capacity must be an integer"),
        ({"alpha": 2.0}, "alpha"),
        ({"beta": -1.0}, "beta"),
        ({"priority_epsilon": 0.0}, "priority_epsilon"),
        ({"uniform_share": 1.5}, "uniform_share"),
        ({"batch_size_B": 0}, "batch_size_B must be at least 1"),
        ({"batch_length_T": 64}, "draws steps, not sequences"),
        ({"extra_model_outputs": "logp"}, "a sequence of names"),
        ({"extra_model_outputs": [1]}, "a sequence of names"),
        ({"whole_batches": "no"}, "whole_batches must be True or False"),
        ({"metrics_num_episodes_for_smoothing": 0}, "smoothing must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_when_it_is_made(arguments, says):
    with pytest.raises((ValueError, TypeError), match=says):
        PrioritizedEpisodeReplayBuffer(**arguments)


def test_metrics_can_be_added_up():
    one, above = buffer(), MetricsLogger(root=True)
    for number in range(3):
        one.add(episode(number, 0, 10, terminated=True))
        one.sample(8, n_step=2)
        above.aggregate([one.get_metrics()], key="replay_buffer")
    found = above.reduce()["replay_buffer"]
    assert found["num_env_steps_added_lifetime"] == 30
    assert found["num_env_steps_sampled_lifetime"] == 24
    assert found["num_env_steps_stored"] == 20  # the mean of 10, 20 and 30
    assert 1.5 < found["actual_n_step"] <= 2


# ----------------------------------------------------------------------------------------- state


def _goes_on_alike(one, other):
    for each in (one, other):
        each.add([episode(0, 7, 9, terminated=True), episode(5, 0, 3)])
    a, b = one.sample(64, n_step=(1, 3)), other.sample(64, n_step=(1, 3))
    assert times(a) == times(b)
    assert [row.get_rewards(-1) for row in a] == [row.get_rewards(-1) for row in b]
    for row in b:
        check_row(
            row,
            {0: 9, 1: 5, 5: 3},
            {0: (True, False), 1: (True, False)},
            0.99,
            row.get_extra_model_outputs("n_step", -1),
        )
    assert masses(one) == masses(other) and repr(one) == repr(other)
    assert one.get_added_timesteps() == other.get_added_timesteps()
    assert one.get_sampled_timesteps() == other.get_sampled_timesteps()


@pytest.fixture
def used():
    one = buffer(capacity=20, beta=0.4)
    one.add([episode(0, 0, 7), episode(1, 0, 5, terminated=True)])
    one.sample(8)
    one.update_priorities(np.arange(8.0))
    return one


def test_a_state_goes_on_with_the_same_draws(used):
    other = buffer(capacity=20, beta=0.4)
    state = used.get_state()
    used.sample(8)  # does not change what was returned
    other.set_state(state)
    used.set_state(state)
    _goes_on_alike(used, other)


def test_a_folder_goes_on_with_the_same_draws(used, tmp_path):
    other = buffer(capacity=20, beta=0.4)
    for _ in range(2):  # the second save takes the place of the first
        assert used.save_to_path(tmp_path / "saved") == str(tmp_path / "saved")
    other.restore_from_path(tmp_path / "saved")
    _goes_on_alike(used, other)
    for name in ("rows_of_mine", "rows_1"):
        (tmp_path / "saved" / name).mkdir()
    (tmp_path / "saved" / "rows.txt").touch()
    used.save_to_path(tmp_path / "saved")
    assert len(list((tmp_path / "saved").iterdir())) == 5  # only what it wrote itself has gone
    empty = buffer()
    empty.save_to_path(tmp_path / "saved")
    other.restore_from_path(tmp_path / "saved")
    assert len(other) == 0 and len(list((tmp_path / "saved").iterdir())) == 4


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_the_one_before_and_nothing_else(
    error, used, tmp_path, monkeypatch
):
    folder = tmp_path / "saved"
    used.save_to_path(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    def fails(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", fails)
        for _ in range(3):
            with pytest.raises(type(error)):
                used.save_to_path(folder)
    assert before.keys() == set(folder.rglob("*"))
    (folder / "rows_0123456789abcdef").mkdir()  # of a process that was killed
    used.save_to_path(folder)
    assert len(list(folder.iterdir())) == 2
    other = buffer(capacity=20, beta=0.4)
    other.restore_from_path(folder)
    _goes_on_alike(used, other)


def test_a_restored_buffer_says_what_is_otherwise_than_it_was_made(used, tmp_path, caplog):
    used.save_to_path(tmp_path)
    buffer(capacity=20, beta=0.1).restore_from_path(tmp_path)
    assert not caplog.text
    options = {"uniform_share": 0.3, "priority_epsilon": 0.01, "extra_model_outputs": ["x"]}
    other = buffer(capacity=30, alpha=0.9, **options)
    other.restore_from_path(tmp_path)
    for name in ("capacity", "alpha", "uniform_share", "priority_epsilon", "extra_model_outputs"):
        assert f"has the {name} that was saved" in caplog.text


def test_steps_that_were_not_reported_before_a_save_are_reported_after_it(tmp_path):
    one, two = buffer(capacity=50), buffer(capacity=50)
    for each in (one, two):
        each.add([episode(0, 0, 7)])
        each.get_metrics()
        each.add([episode(1, 0, 5, terminated=True)])
    one.save_to_path(tmp_path)
    other = buffer(capacity=50)
    other.restore_from_path(tmp_path)
    assert other._n_steps_added - other._reported[0] == 5
    other.set_state({name: value for name, value in one.get_state().items() if name != "reported"})
    assert other._n_steps_added == other._reported[0] == 12  # of a state that did not have it


def test_a_pickle_goes_on_with_the_same_draws(used):
    _goes_on_alike(used, pickle.loads(pickle.dumps(used)))


def test_another_file_system_goes_on_with_the_same_draws(used, tmp_path):
    from pyarrow import fs

    there = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    other = buffer(capacity=20, beta=0.4)
    used.save_to_path("saved", filesystem=there)
    other.restore_from_path("saved", filesystem=there)
    _goes_on_alike(used, other)


def test_states_of_others_are_refused(used, tmp_path):
    theirs = RllibBuffer(100)
    theirs.add(episode(0, 0, 5))
    before = masses(used)
    with pytest.raises(CheckpointError, match="not saved by kary-replay"):
        used.set_state(theirs.get_state())
    later = {**used.get_state(), "format": 99, "version": "9.0"}
    with pytest.raises(CheckpointError, match=r"kary-replay 9\.0 in format 99"):
        used.set_state(later)
    for damaged in ({"format": 1}, {**used.get_state(), "steps": b"broken"}, None):
        with pytest.raises(CheckpointError):
            used.set_state(damaged)
    with pytest.raises(CheckpointError, match="damaged"):
        used.set_state({k: v for k, v in used.get_state().items() if k != "spaces"})
    used.save_to_path(tmp_path)
    content = (tmp_path / "state.pkl").read_bytes()
    for wrong in (b"\x80\x04broken", content[:-1], content[:40] + b"x" + content[41:], b""):
        (tmp_path / "state.pkl").write_bytes(wrong)
        with pytest.raises(CheckpointError, match="damaged"):
            used.restore_from_path(tmp_path)
    (tmp_path / "state.pkl").write_bytes(content)
    (rows,) = tmp_path.glob("rows_*")
    rows.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="there is no folder rows_"):
        used.restore_from_path(tmp_path)
    with pytest.raises(FileNotFoundError):
        used.restore_from_path(tmp_path / "nothing")
    assert masses(used) == before


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("cut_off", ["hashlib.sha256", "os.replace"])
def test_a_save_that_is_cut_off_leaves_the_one_before(used, tmp_path, monkeypatch, adds, cut_off):
    used.save_to_path(tmp_path)
    expected = masses(used)
    if adds:
        used.add(episode(9, 0, 4))
    used.sample(8)
    used.update_priorities(np.full(8, 9.0))
    save = used._steps.native.save

    def save_and_cut_off(folder):  # after the rows, before the file that names them
        save(folder)
        monkeypatch.setattr(cut_off, _stop)

    monkeypatch.setattr(used._steps.native, "save", save_and_cut_off)
    with pytest.raises(KeyboardInterrupt):
        used.save_to_path(tmp_path)
    monkeypatch.undo()
    other = buffer(capacity=20)
    other.restore_from_path(tmp_path)
    assert masses(other) == expected


def test_what_was_saved_counts_and_that_is_said(tmp_path, caplog):
    small = buffer(capacity=20, alpha=0.5, extra_model_outputs=["x"])
    small.add(episode(0, 0, 30, extra_model_outputs={"x": [1.0] * 30}))
    small.save_to_path(tmp_path)
    large = buffer(capacity=500, alpha=0.9)
    large.restore_from_path(tmp_path)
    assert large.capacity == 20 and large.extra_model_outputs == ("x",)
    assert "the capacity that was saved, 20, and not 500" in caplog.text
    assert "the alpha that was saved, 0.5, and not 0.9" in caplog.text
    large.add(episode(0, 30, 32, extra_model_outputs={"x": [2.0, 2.0]}))
    assert len(large) == 19


def _stop(*_):
    raise KeyboardInterrupt
