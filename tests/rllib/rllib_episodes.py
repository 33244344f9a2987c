"""Episodes whose every number says where it comes from, and what a return of theirs must be."""

from __future__ import annotations

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


def observation(episode: int, time: int) -> np.ndarray:
    return np.array([episode, time], np.float32)


def reward(episode: int, time: int) -> float:
    return float(episode * 100 + time)


def episode(
    number: int,
    first: int,
    last: int,
    *,
    terminated: bool = False,
    truncated: bool = False,
    numpy: bool = True,
    **more,
) -> SingleAgentEpisode:
    """The steps from `first` to `last` (excluded) of an episode."""
    made = SingleAgentEpisode(
        f"episode {number}",
        observations=[observation(number, time) for time in range(first, last + 1)],
        actions=[number * 1_000 + time for time in range(first, last)],
        rewards=[reward(number, time) for time in range(first, last)],
        terminated=terminated,
        truncated=truncated,
        t_started=first,
        len_lookback_buffer=0,
        **more,
    )
    return made.to_numpy() if numpy else made


def check_row(row: SingleAgentEpisode, last_times, ended, gamma: float, n_step: int) -> None:
    """Is a drawn row what its episode says? `last_times` has the newest observation of each."""
    number, time = map(int, row.get_observations(0))
    assert row.t_started == time
    n = min(n_step, last_times[number] - time)
    assert row.get_extra_model_outputs("n_step", -1) == n
    assert row.get_actions(-1) == number * 1_000 + time
    np.testing.assert_array_equal(row.get_observations(-1), observation(number, time + n))
    total = sum(gamma**i * reward(number, time + i) for i in range(n))
    np.testing.assert_allclose(row.get_rewards(-1), total, rtol=1e-6)
    at_the_end = time + n == last_times[number]
    assert (row.is_terminated, row.is_truncated) == (
        ended.get(number, (False, False)) if at_the_end else (False, False)
    )
