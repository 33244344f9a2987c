"""The bare trees: draw a batch of leaves, set a batch of masses."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.harness import grid
from bench.harness.timing import Bar
from bench.rivals.ours import OurTree
from bench.rivals.tianshou_buffer import TREE, TianshouTree

BATCH = grid.MIDDLE[1]
SAMPLE_BARS = (Bar((TREE,), 4.0),)
UPDATE_BARS = (Bar((TREE,), 6.0),)


@pytest.fixture(scope="module")
def trees(slots: int) -> Iterator[tuple[OurTree, TianshouTree]]:
    yield OurTree(slots), TianshouTree(slots)
    gc.collect()


def test_sample_cold(compare, trees, slots):
    """One call at a time, with other work's memory passing through the caches in between."""
    ours, tianshou = trees
    parameters = {"slots": slots, "batch": BATCH}
    compare.times(
        "tree sample, cold", parameters, ours.sample(BATCH), [tianshou.sample(BATCH)], cold=True
    )


def test_update_cold(compare, trees, slots):
    ours, tianshou = trees
    parameters = {"slots": slots, "batch": BATCH}
    compare.times(
        "tree update, cold", parameters, ours.update(BATCH), [tianshou.update(BATCH)], cold=True
    )


def test_sample(compare, trees, slots, batch):
    ours, tianshou = trees
    bars = SAMPLE_BARS if (slots, batch) == grid.MIDDLE else ()
    compare.times(
        "tree sample",
        {"slots": slots, "batch": batch},
        ours.sample(batch),
        [tianshou.sample(batch)],
        bars,
    )


def test_update(compare, trees, slots, batch):
    ours, tianshou = trees
    bars = UPDATE_BARS if (slots, batch) == grid.MIDDLE else ()
    compare.times(
        "tree update",
        {"slots": slots, "batch": batch},
        ours.update(batch),
        [tianshou.update(batch)],
        bars,
    )
