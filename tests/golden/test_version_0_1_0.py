"""Checkpoints and pickles of format 1 are still read; 0.1.0 wrote masses before its release.

Each holds eight rows, three updates drawn from them, and two rows more; "reset" three rows after a
reset. The numbers below are what that version had, and what it drew next.
"""

import pickle
from pathlib import Path

import numpy as np
import pytest

import kary_replay as kr

HERE = Path(__file__).parent / "version_0_1_0"
NEXT = {
    "uniform": [6, 5, 4, 8],
    "proportional": [0, 5, 7, 8],
    "flat": [0, 3, 6, 7],
    "rank": [0, 4, 6, 7],
    "reset": [0, 0, 1, 2],
}
PRIORITIES = [
    1.0,
    1 + 1 / 7,
    0.500001,
    1 + 3 / 7,
    4.000001,
    1 + 5 / 7,
    9.000001,
    2.0,
    9.000001,
    9.000001,
]
MASSES = {
    "proportional": np.array(PRIORITIES) ** 0.6,
    "flat": np.ones(10),
    "reset": [1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
    "rank": [
        0.2871745887492588,
        0.3111294892118257,
        0.2871745887492588,
        0.3807307877431757,
        0.43527528164806206,
        1.0,
        0.6597539553864471,
        0.6597539553864471,
        0.5172818579717866,
        0.43527528164806206,
    ],
}


def load(name, by):
    if by == "pickle":
        return pickle.loads((HERE / f"{name}.pickle").read_bytes())
    return (kr.ReplayBuffer if name == "uniform" else kr.PrioritizedReplayBuffer).load(HERE / name)


@pytest.mark.parametrize("by", ["checkpoint", "pickle"])
@pytest.mark.parametrize("name", NEXT)
def test_it_goes_on_where_it_was(name, by):
    buffer = load(name, by)
    buffer.check_invariants()
    assert len(buffer) == (3 if name == "reset" else 10)
    if name != "uniform":
        np.testing.assert_allclose(buffer.tree.get(np.arange(10)), MASSES[name], rtol=1e-15)
    assert buffer.sample(4).index.tolist() == NEXT[name]
    number = buffer.field_view("number")
    if name == "reset":
        assert number[:3].tolist() == [7, 8, 9]
    else:
        assert number.tolist() == [*range(8), 100, 101]
    buffer.add(number=5)
    buffer.check_invariants()


@pytest.mark.parametrize("by", ["checkpoint", "pickle"])
def test_priorities_are_found_behind_the_masses(by):
    buffer = load("proportional", by)
    buffer.alpha = 1.0
    np.testing.assert_allclose(buffer.tree.get(np.arange(10)), PRIORITIES, rtol=1e-14)
    buffer = load("flat", by)  # where they were not known
    buffer.alpha = 1.0
    assert buffer.tree.get(np.arange(10)).tolist() == [buffer.max_priority] * 10
    buffer = load("rank", by)  # where they were kept
    order = np.argsort(PRIORITIES)
    buffer.rank()
    assert len(set(buffer.tree.get(np.arange(10)).tolist())) == 10
    assert (np.diff(buffer.tree.get(order[:3])) > 0).all()
