"""How actors are spread over the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["next_node", "spread"]


def next_node(counts: Sequence[int], rooms: Sequence[float]) -> int:
    """Return the node that one more actor goes to: the one that is then filled least.

    Parameters
    ----------
    counts : sequence of int
        Actors on each node.
    rooms : sequence of float
        How many there is room for on each. One without room gets actors only if none has room.
    """
    has_room = [node for node, room in enumerate(rooms) if room > 0]
    if not has_room:
        return 0
    return min(has_room, key=lambda node: (counts[node] + 1) / rooms[node])


def spread(n_actors: int, rooms: Sequence[float]) -> list[int]:
    """Return how many of the actors go to each node, as `next_node` says one after the other."""
    counts = [0] * len(rooms)
    for _ in range(n_actors):
        counts[next_node(counts, rooms)] += 1
    return counts
