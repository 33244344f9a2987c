"""Actors are spread over nodes by their room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kary_replay.runner.allocation.nodes import next_node, spread


@pytest.mark.parametrize(
    ("n_actors", "rooms", "expected"),
    [
        (4, [2, 2], [2, 2]),
        (6, [4, 8], [2, 4]),
        (3, [0, 1], [0, 3]),
        (3, [0, 0], [3, 0]),
        (0, [1, 1], [0, 0]),
        (1, [1, 4, 2], [0, 1, 0]),
    ],
)
def test_spread(n_actors, rooms, expected):
    assert spread(n_actors, rooms) == expected


@given(st.integers(0, 60), st.lists(st.integers(0, 16), min_size=1, max_size=6))
def test_no_node_is_filled_more_than_one_actor_beyond_another(n_actors, rooms):
    counts = spread(n_actors, rooms)
    assert sum(counts) == n_actors
    if any(rooms):
        there = [(n, room) for n, room in zip(counts, rooms, strict=True) if room]
        assert all(n == 0 for n, room in zip(counts, rooms, strict=True) if not room)
        for n, room in there:
            for other, its_room in there:
                assert (n - 1) / room < (other + 1) / its_room or n == 0
    assert next_node(counts, rooms) in range(len(rooms))
