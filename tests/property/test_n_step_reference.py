"""NStepWriter against the reference: any environments, ends and resets, any number of steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from n_step_writers import (
    BOTH,
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

import kary_replay as kr

EVENTS = {"step": NOT, "terminated": TERMINATED, "truncated": TRUNCATED, "both": BOTH}
EVENT = st.sampled_from(["step"] * 6 + ["skip", "reset", "terminated", "truncated", "both"])


def check_against_reference(writer_class, n_step, gamma, events, backwards):
    """Events are lists, one per round, of what happens to each environment."""
    n_envs = len(events[0])
    buffer, writer = make(n_step, gamma, n_envs, writer=writer_class)
    logs, indices, number = [[] for _ in range(n_envs)], [], 0
    for turn, happens in enumerate(events):
        order = [env for env in range(n_envs) if happens[env] in EVENTS]
        order = order[::-1] if backwards else order
        for place, env in enumerate(order):
            number += 1
            terminated, truncated = EVENTS[happens[env]]
            log = {
                "number": number,
                "reward": number % 7 - 3.0,
                "terminated": terminated,
                "truncated": truncated,
            }
            logs[env].append({**log, "order": (turn, place)})
        last = [logs[env][-1] for env in order]
        numbers, rewards = [np.array([one[name] for one in last]) for name in ("number", "reward")]
        ends = np.array([EVENTS[happens[env]] for env in order], bool).reshape(-1, 2)
        indices.append(writer.add(**step(numbers.astype(np.int64), rewards, ends), env=order))
        for env in range(n_envs):
            if happens[env] == "reset":
                writer.reset([env])
                logs[env].append(None)
    windows = [window for log in logs for window in reference_n_step(log, n_step, gamma)]
    windows.sort(key=lambda window: (window[0][-1]["order"], window[0][0]["number"]))
    expected = [
        (
            steps[0]["number"],
            steps[-1]["number"] + 1,
            float(reward),
            float(discount),
            steps[-1]["terminated"],
        )
        for steps, reward, discount in windows
    ]
    assert np.concatenate(indices).tolist() == list(range(len(expected)))
    assert rows(buffer) == expected
    buffer.check_invariants()


ROUNDS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(EVENT, min_size=n, max_size=n), min_size=1, max_size=30)
)


@given(
    n_step=st.integers(1, 10),
    gamma=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    events=ROUNDS,
    backwards=st.booleans(),
)
def test_any_streams_against_the_reference(n_step, gamma, events, backwards):
    check_against_reference(kr.NStepWriter, n_step, gamma, events, backwards)


@pytest.mark.parametrize(
    "fault",
    [
        NeverEnds,
        TakesTruncationForTermination,
        TakesTerminationForTruncation,
        DropsShortWindows,
        ForgetsResets,
    ],
)
def test_the_reference_rejects_planted_faults(fault):
    events = [
        ["step", "step"],
        ["step", "terminated"],
        ["reset", "step"],
        ["step", "truncated"],
        ["step", "step"],
        ["both", "step"],
    ]
    check_against_reference(kr.NStepWriter, 3, 0.5, events, False)
    with pytest.raises(AssertionError):
        check_against_reference(fault, 3, 0.5, events, False)
