"""The tree: its arity, its layout in memory, and the order of its descent.

After the claims of Zhang, Kuppannagari & Prasanna (2021), arXiv:2110.01101: section IV-B (arity and
layout).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from bench.ablation.build import load
from bench.harness.grid import ARITIES
from bench.harness.timing import Contender
from bench.rivals.ours import DEFAULT_ARITY, OurTree
from bench.rivals.rows import ALPHA, td_errors

BATCH = 256
BATCHES_PER_CALL = 50
ORDERS = {"one at a time": 0, "by level": 1, "by level, prefetch": 2}
PREFETCH = "by level, prefetch"


@pytest.fixture(scope="module")
def kernels() -> Any:
    return load()


@pytest.fixture(scope="module")
def masses(slots: int) -> Iterator[np.ndarray]:
    yield np.float64(td_errors(slots)) ** ALPHA
    gc.collect()


@pytest.mark.parametrize("operation", ["sample", "update"])
def test_arity(compare, slots, operation):
    """The public SumTree, Python call included, arity 2 … 64."""
    trees = {arity: OurTree(slots, f"arity {arity}", arity=arity) for arity in ARITIES}
    contenders = {arity: getattr(tree, operation)(BATCH) for arity, tree in trees.items()}
    ours = contenders.pop(DEFAULT_ARITY)
    parameters = {"slots": slots, "batch": BATCH}
    compare.times(
        f"ablation: arity, SumTree {operation}", parameters, ours, list(contenders.values())
    )


def _searches(tree: Any, name: str, order: int, seed: int = 7) -> Contender:
    """Stratified draws: only the descent is timed, the prefixes are made before."""
    rng, shape = np.random.default_rng(seed), (BATCHES_PER_CALL, BATCH)
    leaf = np.empty(shape, np.int64)

    def inputs(n: int) -> list[tuple[Any, ...]]:
        step = tree.total / BATCH
        return [((np.arange(BATCH) + rng.random(shape)) * step,) for _ in range(n)]

    return Contender(name, partial(_descend, tree, leaf, order), inputs, BATCHES_PER_CALL)


def _descend(tree: Any, leaf: np.ndarray, order: int, prefix: np.ndarray) -> None:
    tree.descend(prefix, leaf, order)


def _updates(tree: Any, name: str, slots: int, seed: int = 8) -> Contender:
    rng, shape = np.random.default_rng(seed), (BATCHES_PER_CALL, BATCH)

    def inputs(n: int) -> list[tuple[Any, ...]]:
        return [(rng.integers(0, slots, shape), rng.random(shape)) for _ in range(n)]

    return Contender(name, tree.update, inputs, BATCHES_PER_CALL)


Maker = Callable[[Any, str], Contender]


def _layouts(
    compare: Any, kernels: Any, masses: np.ndarray, arity: int, what: str, make: Maker
) -> None:
    ours, naive = (
        make(kernels.Tree(masses, arity, aligned), name)
        for name, aligned in (("aligned and padded", True), ("naive", False))
    )
    parameters = {"slots": len(masses), "batch": BATCH, "arity": arity}
    compare.times(f"ablation: layout, {what}", parameters, ours, [naive])


@pytest.mark.parametrize("arity", ARITIES)
def test_layout_search(compare, kernels, masses, arity):
    """Native, level by level with prefetch: groups on their own cache lines, or unaligned."""
    _layouts(
        compare,
        kernels,
        masses,
        arity,
        "search",
        lambda tree, name: _searches(tree, name, ORDERS[PREFETCH]),
    )


@pytest.mark.parametrize("arity", ARITIES)
def test_layout_update(compare, kernels, masses, arity):
    """Native batch update by recomputation, in both layouts."""
    _layouts(
        compare,
        kernels,
        masses,
        arity,
        "update",
        lambda tree, name: _updates(tree, name, len(masses)),
    )


@pytest.mark.parametrize("arity", ARITIES)
def test_order(compare, kernels, masses, arity):
    """Native and aligned: search after search, level after level, and that with prefetch."""
    tree = kernels.Tree(masses, arity, True)
    contenders = {name: _searches(tree, name, order) for name, order in ORDERS.items()}
    ours = contenders.pop(PREFETCH)
    parameters = {"slots": len(masses), "batch": BATCH, "arity": arity}
    compare.times("ablation: order of descent", parameters, ours, list(contenders.values()))
